"""Maxima of rows by segment, in one pass over the rows."""

import numpy

from ..arena import empty
from ..registry import on_cpu
from .arrays import plain
from .compiled import compiled
from .scalar import larger


@on_cpu
def segment_max(x, ids, num_segments):
    out = empty((num_segments, x.shape[1]), x.dtype)
    out.fill(-numpy.inf)
    _segment_max(plain(x), plain(ids.astype(numpy.int64, copy=False)), out)
    return out


@compiled
def _segment_max(x, ids, out):
    for i in range(ids.size):
        for j in range(x.shape[1]):
            top = out[ids[i], j]
            out[ids[i], j] = larger(top, x[i, j])
