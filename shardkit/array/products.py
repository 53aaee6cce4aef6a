"""Matrix products. All of them are made here, so that there is one place where they can be counted and timed."""
import numpy

from .arena import empty, is_arena_in_use
from .backend import xp_of


def matmul(a, b, out=None):
    """a [..., m, k] times b [..., k, n] -> [..., m, n], by the BLAS of the library that made the arrays.

    Leading dimensions broadcast. Transposed views are read as they lie, nothing is copied.
    out   where the result goes; None: a new array
    """
    xp = xp_of(a, b)
    if out is None and xp is numpy and is_arena_in_use():
        leading = a.shape[:-2] if a.shape[:-2] == b.shape[:-2] else numpy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        out = empty((*leading, a.shape[-2], b.shape[-1]), a.dtype)
    return xp.matmul(a, b, out=out)
