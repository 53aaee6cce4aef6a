"""Maxima of rows by segment: a block of threads goes through the rows of one segment."""

from ...array.registry import on_cuda
from .arrays import new
from .sorting import by_segments


@on_cuda()
def segment_max(x, ids, num_segments):
    out = new(x, (num_segments, x.shape[1]))
    by_segments("segment_max", x, ids, num_segments, out)
    return out
