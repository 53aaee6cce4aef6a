"""Sums over flat buffers in a fixed order: the reference's tree, bit by bit, in one read."""

import numpy

from ..registry import NUMBERS, on_cuda
from .arrays import THREADS, alike, new, new_like, pack, plain, spread
from .launch import launch

FILE = "flat.cu"
MAX_BUFFERS = 8  # of one launch: a full tree, so that trees of trees are the tree


@on_cuda(dtypes=NUMBERS)
def tree_sum(buffers, out=None):
    out = new_like(buffers[0], out)
    while len(buffers) > MAX_BUFFERS:
        buffers = [
            tree_sum(buffers[start : start + MAX_BUFFERS])
            for start in range(0, len(buffers), MAX_BUFFERS)
        ]
    buffers = [alike(buffer, out) for buffer in buffers]
    launch(
        out,
        FILE,
        "tree_sum",
        spread(out.size, THREADS * pack(out)),
        (THREADS,),
        *buffers,
        *[None] * (MAX_BUFFERS - len(buffers)),
        len(buffers),
        out,
        out.size,
    )
    return out


@on_cuda()
def block_squares(x, block=256):
    sums = new(x, (-(-x.size // block),), numpy.dtype("float64"))
    launch(
        x,
        FILE,
        "block_squares",
        spread(sums.size, THREADS // 32),
        (32, THREADS // 32),
        plain(x),
        sums,
        x.size,
        block,
    )
    return sums
