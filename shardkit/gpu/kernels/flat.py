"""Sums over flat buffers in a fixed order: the reference's tree, bit by bit, in one read."""

import numpy

from ...array.registry import NUMBERS, on_cuda
from .arrays import THREADS, alike, by_packs, new, new_like, plain, spread
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
    missing = [None] * (MAX_BUFFERS - len(buffers))
    by_packs(out, FILE, "tree_sum", *buffers, *missing, len(buffers), out)
    return out


@on_cuda()
def block_squares(x, block=256):
    sums = new(x, (-(-x.size // block),), numpy.dtype("float64"))
    warps = THREADS // 32
    grid = spread(sums.size, warps)
    launch(x, FILE, "block_squares", grid, (32, warps), plain(x), sums, x.size, block)
    return sums
