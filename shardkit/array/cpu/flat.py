"""Sums over flat buffers in a fixed order: the reference's tree, bit by bit, in one read."""

import numpy

from ..arena import empty
from ..registry import on_cpu
from .arrays import empty_like, plain, run
from .compiled import compiled
from .scalar import plus

PIECE_ELEMENTS = 1 << 15  # two partial sums of this size stay in cache


@on_cpu
def tree_sum(buffers, out=None):
    out = empty_like(buffers[0], out)
    if len(buffers) in SUMS:
        run(SUMS[len(buffers)], buffers, (), (out,))
        return out
    buffers = [plain(buffer) for buffer in buffers]
    for start in range(0, out.size, PIECE_ELEMENTS):
        span = slice(start, start + PIECE_ELEMENTS)
        _sum_piece([buffer[span] for buffer in buffers], out[span])
    return out


@on_cpu
def block_squares(x, block=256):
    sums = empty(-(-x.size // block), numpy.float64)
    whole = x.size // block * block
    _block_squares(plain(x[:whole]).reshape(-1, block), sums)
    if x.size > whole:
        rest = numpy.zeros((1, block), x.dtype)
        rest[0, : x.size - whole] = x[whole:]
        _block_squares(rest, sums[-1:])
    return sums


def _sum_piece(buffers, out):
    """Sum the buffers as the largest full tree on the left, plus the rest on the right.

    `out` is written last, so it may be one of the buffers.
    """
    if len(buffers) in SUMS:
        return SUMS[len(buffers)](*buffers, out)
    half = 1 << (len(buffers) - 1).bit_length() - 1
    left, right = empty_like(out), empty_like(out)
    _sum_piece(buffers[:half], left)
    _sum_piece(buffers[half:], right)
    _sum_two(left, right, out)


@compiled
def _copy(a, out):
    for i in range(out.size):
        out[i] = a[i]


@compiled
def _sum_two(a, b, out):
    for i in range(out.size):
        out[i] = a[i] + b[i]


@compiled
def _sum_three(a, b, c, out):
    for i in range(out.size):
        out[i] = (a[i] + b[i]) + c[i]


@compiled
def _sum_four(a, b, c, d, out):
    for i in range(out.size):
        first, last = a[i] + b[i], c[i] + d[i]
        out[i] = first + last


@compiled
def _block_squares(blocks, sums):
    """Fill sums [N or more] float64 from blocks [N, block]."""
    for i in range(blocks.shape[0]):
        total = 0.0
        for j in range(blocks.shape[1]):
            value = numpy.float64(blocks[i, j])
            total = plus(total, value * value)
        sums[i] = total


SUMS = {1: _copy, 2: _sum_two, 3: _sum_three, 4: _sum_four}  # by the number of buffers
