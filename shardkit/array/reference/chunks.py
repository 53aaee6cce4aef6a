"""Work in pieces that stay in cache.

A formula written plainly makes one temporary per operation. Of so few elements these never leave
the cache, which is faster than in-place tricks on whole arrays, and their size does not grow with
the model. On a GPU every operation is a kernel launch, so there the piece is the whole array.
"""

import numpy

from ..arena import empty
from ..backend import xp_of

CHUNK_ELEMENTS = 1 << 16
TEMPORARY_ELEMENTS = 1 << 15  # larger ones, of 256 KB, the C library asks the system for each time


def spans(array, row_size: int = 1):
    """Yield slices of the first dimension, each of about CHUNK_ELEMENTS / row_size rows."""
    num_rows = array.shape[0]
    step = max(1, CHUNK_ELEMENTS // max(row_size, 1)) if xp_of(array) is numpy else max(num_rows, 1)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def elementwise(rule, *inputs, out=None):
    """Return rule(*inputs), for inputs of one shape, in the dtype of the first."""
    if out is None and xp_of(inputs[0]) is not numpy:
        return rule(*inputs).astype(inputs[0].dtype, copy=False)
    out = empty_like(inputs[0], out)
    flat = [array.reshape(-1) for array in inputs]
    result = out.reshape(-1)
    step = TEMPORARY_ELEMENTS if xp_of(out) is numpy else max(result.size, 1)
    for start in range(0, result.size, step):
        span = slice(start, start + step)
        result[span] = rule(*[array[span] for array in flat])
    return out


def empty_like(x, out=None):
    """Return out if it is given, else a new array of the shape and dtype of x, C-contiguous."""
    return empty(x.shape, x.dtype, xp_of(x)) if out is None else out
