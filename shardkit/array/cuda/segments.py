"""Maxima of rows by segment: a block of threads goes through the rows of one segment."""

from ..registry import on_cuda
from .arrays import new, pack, plain
from .launch import launch
from .sorting import sorted_by_row


@on_cuda()
def segment_max(x, ids, num_segments):
    width = x.shape[1]
    out = new(x, (num_segments, width))
    order, starts = sorted_by_row(ids, num_segments)
    launch(
        x,
        "embedding.cu",
        "segment_max",
        (num_segments if width else 0,),
        (min(256, max(32, -(-width // pack(x) // 32) * 32)),),
        plain(x),
        order,
        starts,
        out,
        width,
    )
    return out
