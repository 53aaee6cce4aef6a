"""Maxima of windows of x [N, C, *grid], and where their gradients go.

A tap of a window has one number: of the taps of all dimensions in C order. The first of equal
elements is the maximum, and the last NaN if there is one.
"""

from itertools import product
from math import prod

from .. import fresh
from ..backend import xp_of
from ..lines import along, read, tap_counts
from ..registry import kernel


@kernel(rounded=(True, False), has_cuda_twin=False)
def pool_maxima(x, windows):
    """Return the largest elements y [N, C, *counts] and the taps that read them, int32.

    windows   lines.Windows of each dimension of the grid; every window reads something
    """
    xp = xp_of(x)
    best = chosen = None
    for number, taps in enumerate(product(*map(range, tap_counts(windows)))):
        part = read_tap(x, windows, taps)
        if best is None:
            best, chosen = fresh.copy(part), fresh.zeros(part.shape, "int32", xp)
            continue
        is_better = (part > best) | (part != part)
        xp.copyto(best, part, where=is_better)
        xp.copyto(chosen, chosen.dtype.type(number), where=is_better)
    return best, chosen


@kernel(rounded=(True,), has_cuda_twin=False)
def pool_maxima_backward(gradient, chosen, windows):
    """Return the gradient of x: that of each window, where it was chosen.

    An element adds those of its windows in C order.
    """
    xp = xp_of(gradient)
    counts = tap_counts(windows)
    back = [line.back for line in windows]
    shape = (*gradient.shape[:2], *[line.size for line in windows])
    total = fresh.zeros(shape, gradient.dtype, xp)
    zero = gradient.dtype.type(0)
    for rows in product(*map(range, tap_counts(back))):
        is_chosen = read_tap(chosen, back, rows)
        for dim, (line, row) in enumerate(zip(back, rows)):
            taps = line.tap[row]
            number = taps * prod(counts[dim + 1 :])
            is_reader = along(xp.asarray(taps >= 0), dim + 2, gradient.ndim)
            is_chosen = is_chosen - along(xp.asarray(number), dim + 2, gradient.ndim)
            is_chosen = xp.where(is_reader, is_chosen, -(2**31))
        total += xp.where(is_chosen == 0, read_tap(gradient, back, rows), zero)
    return total


def read_tap(x, windows, taps):
    """Return what a tap of every window reads of x [N, C, *grid]: a view if that is even."""
    for dim, (line, tap) in enumerate(zip(windows, taps), 2):
        x = read(x, dim, line.index[tap])
    return x
