"""How the operands of a product lie in memory, in the words of BLAS."""

import functools
from typing import NamedTuple

import numpy

AS_IT_IS, TRANSPOSED = 111, 112  # numbers of the C interface to BLAS


class Layout(NamedTuple):
    """A product that BLAS can read and write.

    orders     how the matrices of a and b lie: AS_IT_IS, by rows, or TRANSPOSED, by columns
    sizes      m, n, k
    steps      elements from one row, or column, to the next, of a, b and the result
    leading    dims of the result before its matrices
    """

    orders: tuple[int, int]
    sizes: tuple[int, int, int]
    steps: tuple[int, int, int]
    leading: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def layout_of(a, b, out) -> Layout | None:
    """Return how BLAS reads such operands, or None if it cannot read or write one of them.

    Each is given by (shape, strides, bytes of an element). Products with a row or a column alone
    are none of matrices, and left to NumPy.
    """
    shape = out[0]
    inner = a[0][-1]
    leading = numpy.broadcast_shapes(a[0][:-2], b[0][:-2])
    fitting = (*leading, a[0][-2], b[0][-1])
    if shape != fitting or b[0][-2] != inner:
        return None  # for numpy.matmul to complain of
    found = [_order(*form) for form in (a, b, out)]
    if None in found or found[2][0] != AS_IT_IS:
        return None
    if 0 in shape or min(*shape[-2:], inner) < 2:
        return None
    (order_a, step_a), (order_b, step_b), (_, step) = found
    return Layout((order_a, order_b), (*shape[-2:], inner), (step_a, step_b, step), leading)


def form_of(array) -> tuple:
    """Return (shape, strides, bytes of an element)."""
    return array.shape, array.strides, array.itemsize


def address_of(array) -> int:
    """Return the address of the first element."""
    return array.__array_interface__["data"][0]


def leading_strides(shape, strides, num_leading) -> tuple[int, ...]:
    """Return the bytes between matrices along each leading dim of the result; 0 to broadcast."""
    own = [0 if length == 1 else stride for length, stride in zip(shape[:-2], strides)]
    return (*[0] * (num_leading - len(own)), *own)


def _order(shape, strides, itemsize):
    """Return (how BLAS reads these matrices, elements between rows or columns), or None."""
    (rows, columns), (by_row, by_column) = shape[-2:], strides[-2:]
    for order, step, length, element in (
        (AS_IT_IS, by_row, columns, by_column),
        (TRANSPOSED, by_column, rows, by_row),
    ):
        if element == itemsize and step >= length * itemsize and step % itemsize == 0:
            return order, step // itemsize
    return None
