"""Add values at an index, elements that are named several times in one order.

CuPy's add.at adds floats by atomics, in the order in which threads happen to run. Here the values
are sorted by place and each place adds its own, one after the other, so that a step has the same
bits each time. On a CPU that is so for places that get many float32 values, whose sum would lose
digits: the kernel adds them in float64.
"""

from math import prod

import numpy

from . import kernels
from .backend import xp_of
from .dtypes import FLOAT32, is_floating
from .fresh import BLOCK


def add_at(whole, index, values) -> None:
    """Compute whole[index] += values, where an element that is named several times gets all of
    them.

    index   as NumPy takes it: integers, slices, masks, arrays and tuples of these
    values  of the shape of whole[index], in the dtype of whole
    On a GPU, and where more than BLOCK may come together, the values of one place are added first,
    in their order, and then their sum.
    """
    xp = xp_of(whole)
    is_plain = not is_floating(whole.dtype)  # the order of integers does not matter
    if xp is numpy and not is_plain:
        is_plain = whole.dtype != FLOAT32 or values.size <= BLOCK or _most(index) <= BLOCK
    if is_plain:
        xp.add.at(whole, index, values)
        return
    depth = _depth(index, whole.ndim)
    width = prod(whole.shape[depth:])
    num_rows = prod(whole.shape[:depth])
    places = xp.arange(num_rows).reshape(whole.shape[:depth])[index].reshape(-1)
    if places.size and width:
        rows = xp.ascontiguousarray(values).reshape(places.size, width)
        whole += kernels.embedding_backward(rows, places, num_rows).reshape(whole.shape)


def _most(index) -> int:
    """Return a bound of how often an element is named: how often the arrays of integers name one
    number. Masks and slices name each element once.
    """
    parts = index if isinstance(index, tuple) else (index,)
    arrays = [part for part in map(numpy.asarray, parts) if part.dtype.kind in "iu" and part.ndim]
    if not arrays or any(array.size == 0 for array in arrays):
        return 1
    named = [array.reshape(-1) for array in numpy.broadcast_arrays(*arrays)]
    return min(int(numpy.bincount(numbers - numbers.min()).max()) for numbers in named)


def _depth(index, ndim: int) -> int:
    """Return how many leading dims the index is about; the others are taken whole."""
    parts = index if isinstance(index, tuple) else (index,)
    if all(getattr(part, "dtype", numpy.dtype(bool)).kind in "iu" for part in parts):
        return len(parts)
    return ndim
