"""Add values at an index, elements that are named several times in one order.

CuPy's add.at adds floats by atomics, in the order in which threads happen to run. Here the values
are sorted by place and each place adds its own, one after the other, so that a step has the same
bits each time.
"""

from math import prod

import numpy

from . import kernels
from .backend import xp_of
from .dtypes import is_floating


def add_at(whole, index, values) -> None:
    """Compute whole[index] += values, where an element that is named several times gets all of
    them.

    index   as NumPy takes it: integers, slices, masks, arrays and tuples of these
    values  of the shape of whole[index], in the dtype of whole
    On a GPU the values of one place are added first, in their order, and then their sum.
    """
    xp = xp_of(whole)
    if xp is numpy or not is_floating(whole.dtype):  # the order of integers does not matter
        xp.add.at(whole, index, values)
        return
    depth = _depth(index, whole.ndim)
    width = prod(whole.shape[depth:])
    num_rows = prod(whole.shape[:depth])
    places = xp.arange(num_rows).reshape(whole.shape[:depth])[index].reshape(-1)
    if places.size and width:
        rows = xp.ascontiguousarray(values).reshape(places.size, width)
        whole += kernels.embedding_backward(rows, places, num_rows).reshape(whole.shape)


def _depth(index, ndim: int) -> int:
    """Return how many leading dims the index is about; the others are taken whole."""
    parts = index if isinstance(index, tuple) else (index,)
    if all(getattr(part, "dtype", numpy.dtype(bool)).kind in "iu" for part in parts):
        return len(parts)
    return ndim
