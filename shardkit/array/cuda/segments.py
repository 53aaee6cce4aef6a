"""Maxima of rows by segment: a block of threads goes through the rows of one segment."""

import numpy

from ..backend import xp_of
from ..graphs import before_graph, reserved
from ..registry import on_cuda
from .arrays import new, pack, plain
from .launch import MAX_BLOCKS, launch


@on_cuda()
def segment_max(x, ids, num_segments):
    width = x.shape[1]
    assert num_segments <= MAX_BLOCKS
    out = new(x, (num_segments, width))
    order = reserved(ids.shape, numpy.int64, xp_of(ids))
    before_graph(_sort, ids, order)  # a graph cannot sort
    ids = plain(ids.astype(numpy.int64, copy=False))
    launch(
        x,
        "embedding.cu",
        "segment_max",
        (num_segments if width else 0,),
        (min(256, max(32, -(-width // pack(x) // 32) * 32)),),
        plain(x),
        ids[order],
        order,
        out,
        ids.size,
        width,
    )
    return out


def _sort(ids, order):
    """Fill `order` with the places of the ids, equal ones side by side."""
    order[...] = xp_of(ids).argsort(ids, kind="stable")
