"""Prepare the arrays of callers for compiled loops."""

import functools
from math import prod

import numpy

from .. import fresh
from ..arena import empty
from ..dtypes import BFLOAT16, FLOAT32
from ..registry import KERNELS, on_cpu
from .tiles import VECTOR_BYTES

PIECE_ELEMENTS = 1 << 14


def plain(x):
    """Return x itself if it is C-contiguous and writable, else a copy that is."""
    return x if x.flags.carray else fresh.copy(x)


def empty_like(x, out=None):
    """Return out if it is given, else a new array of the shape and dtype of x, C-contiguous."""
    assert out is None or out.flags.carray
    return empty(x.shape, x.dtype) if out is None else out


def bits(x):
    """Return an array as loops get it: bfloat16 as uint16, see storage.py; others as they are."""
    return x.view(numpy.uint16) if x.dtype.char == BFLOAT16 else x


def computed_dtype(x):
    """Return the dtype that loops compute in for this array: float32 for bfloat16."""
    return FLOAT32 if x.dtype.char == BFLOAT16 else x.dtype


def padded(num_columns, num_vectors, dtype):
    """Return the columns up to the next multiple of so many vectors."""
    size = num_vectors * VECTOR_BYTES // dtype.itemsize
    return -(-num_columns // size) * size


def elementwise(loop, *inputs, shared=(), out=None):
    """Run loop(*inputs, *shared, out) on flat arrays, and return out or a new array."""
    is_new, out = out is None, empty_like(inputs[0], out)
    flat = [x.reshape(-1) for x in inputs]
    run(loop, flat, shared, [out.reshape(-1)], are_apart=is_new)
    return out


def enter(loop, *, has_polynomial=False):
    """Let a loop over numbers compute the kernel of its name, but float64 where it has polynomials.

    The numbers behind the arrays of the kernel are one argument of the loop, a tuple.
    """
    definition = KERNELS[loop.py_func.__name__.removeprefix("_")].reference
    num_arrays = definition.num_arrays

    @functools.wraps(definition)
    def implementation(*arguments, out=None):
        if has_polynomial and arguments[0].dtype.char == "d":
            return definition(*arguments, out=out)
        if len(arguments) == num_arrays:
            return elementwise(loop, *arguments, out=out)
        parameters = tuple(map(float, arguments[num_arrays:]))
        return elementwise(loop, *arguments[:num_arrays], shared=(parameters,), out=out)

    on_cpu(implementation)


class RowSums:
    """Sums of rows that keep their digits: those of some rows, and of all before them in float64.

    A loop gets `shared`: the vectors [D] in which it adds rows one after the other, `whole`
    [vectors, D] and `seen`; it goes from one block_end to the next, and closes each vector there.
    """

    def __init__(self, x, number: int):
        self._dtype = computed_dtype(x)
        self._parts = [fresh.zeros(x.shape[-1:], self._dtype) for _ in range(number)]
        self._whole = numpy.zeros((number, x.shape[-1]))
        self.shared = (*self._parts, self._whole, numpy.zeros(1, numpy.int64))

    def vectors(self) -> list[numpy.ndarray]:
        """Return the sums of all rows, each a vector [D]."""
        return [(w + part).astype(self._dtype) for w, part in zip(self._whole, self._parts)]


def run(loop, inputs, shared, outputs, *, are_apart=False):
    """Run loop(*inputs, *shared, *outputs), whose row i of outputs comes from row i of inputs.

    Loops get bfloat16 as its bits, see storage.py. Outputs may be inputs. LLVM's vectors are for
    arrays that do not overlap: those that do go through buffers that stay in cache, some rows at a
    time. Since the loop goes through rows in order, what it adds up in `shared` has the same bits.
    are_apart   no output overlaps an input, as it was just made
    """
    inputs = [bits(plain(x)) for x in inputs]
    shared = [bits(plain(x)) if isinstance(x, numpy.ndarray) else x for x in shared]
    outputs = [bits(out) for out in outputs]
    if are_apart or not any(numpy.may_share_memory(out, x) for out in outputs for x in inputs):
        return loop(*inputs, *shared, *outputs)
    num_rows = max(1, PIECE_ELEMENTS // max(1, prod(outputs[0].shape[1:])))
    for start in range(0, outputs[0].shape[0], num_rows):
        rows = slice(start, start + num_rows)
        pieces = [fresh.empty_like(out[rows]) for out in outputs]
        loop(*[x[rows] for x in inputs], *shared, *pieces)
        for out, piece in zip(outputs, pieces):
            out[rows] = piece
