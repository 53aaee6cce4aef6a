"""Sums over flat buffers in a fixed order, so that their bits are fixed too."""

import numpy

from ..backend import xp_of
from ..registry import kernel
from .chunks import spans


@kernel(deciding=lambda args: args[0][0])
def tree_sum(buffers, out=None):
    """Return the sum of equal 1-D arrays as a fixed tree, in `out` or a new array.

    `out` may be one of the buffers.

    a   b   c   d   e          neighbors first, level by level,
    a + b   c + d   e          an odd one is carried up
    (a+b) + (c+d)   e
    ((a+b)+(c+d)) + e
    """
    out = xp_of(*buffers).empty_like(buffers[0]) if out is None else out
    for span in spans(out):
        level = [buffer[span] for buffer in buffers]
        while len(level) > 1:
            pairs = [left + right for left, right in zip(level[::2], level[1::2])]
            level = pairs + level[2 * len(pairs) :]
        out[span] = level[0]
    return out


@kernel()
def block_squares(x, block=256):
    """Return the sum of squares of each block of x [n]: [ceil(n / block)] float64.

    What is missing in the last block is zero. float64, since the square of a large gradient does
    not fit into float32. A span that starts at a multiple of `block` gives the same bits as the
    same blocks of the whole.
    """
    xp = xp_of(x)
    sums = xp.zeros(-(-x.size // block), numpy.float64)
    whole = x[: x.size // block * block].reshape(-1, block)  # [full blocks, block]
    for rows in spans(whole, block):
        squares = whole[rows].astype(numpy.float64)
        squares *= squares
        sums[rows] = squares.sum(axis=1)
    if x.size % block:
        rest = xp.zeros(block, numpy.float64)
        rest[: x.size % block] = x[whole.size :]
        sums[-1] = (rest * rest).reshape(1, block).sum(axis=1)[0]
    return sums
