"""Sums and maxima of windows along one dimension, which pooling and interpolation are made of."""

from itertools import product
from math import prod

import numpy

from ...array import fresh, kernels
from ...array.backend import xp_of
from ...array.halves import rounded, widened
from ...array.lines import along, read, tap_counts
from ...array.reference.pooling import read_tap
from ..autograd import Tensor, record_linear

PIECE_ELEMENTS = 1 << 17


def window_sums(x: Tensor, dim: int, windows) -> Tensor:
    """Return the weighted sum of what each window reads of x [N, C, *grid] along a dim of the grid.

    windows  array.lines.Windows over x.shape[dim] elements
    """
    dtype = x.dtype

    def sums(array, dim, windows):
        return rounded(_sums(widened(array), dim, windows), dtype)

    y = sums(x.array, dim, windows)
    return record_linear(y, x, sums, window_sums, dim, windows.back, gives_new=True)


def window_maxima(x: Tensor, windows) -> Tensor:
    """Return the largest of what each window reads of x [N, C, *grid]; the first of equal ones
    takes the gradient. Every window reads something.

    windows  array.lines.Windows of each dimension of the grid
    """
    y, chosen = kernels.pool_maxima(x.array, windows)
    return _recorded(x, y, chosen, windows)


def _recorded(x, y, chosen, windows):
    """Return y, which reads x where `chosen` says."""
    place = kernels.pool_maxima_backward
    return record_linear(y, x, place, _placed, chosen, windows, gives_new=True)


def _placed(gradient, chosen, windows):
    """Return the gradient of x as a Tensor, recorded: its own gradient is what was chosen."""

    def picked_again(second, chosen, windows):
        return _recorded(second, _picked(second.array, chosen, windows), chosen, windows)

    placed = kernels.pool_maxima_backward(gradient.array, chosen, windows)
    return record_linear(placed, gradient, _picked, picked_again, chosen, windows, gives_new=True)


def _picked(x, chosen, windows):
    """Return what was chosen of x."""
    y = fresh.zeros(chosen.shape, x.dtype, xp_of(x))
    for number, taps in enumerate(product(*map(range, tap_counts(windows)))):
        xp_of(x).copyto(y, read_tap(x, windows, taps), where=chosen == number)
    return y


def _sums(x, dim, windows):
    """Return the weighted sums of an array's windows; a table that goes back may have none.

    On a CPU some planes of the grid at a time: what lies between two steps stays in cache.
    """
    xp = xp_of(x)
    shape = [*x.shape]
    shape[dim] = windows.index.shape[1]
    total = fresh.zeros(tuple(shape), x.dtype, xp)
    all_planes = x.shape[0] * x.shape[1]
    planes, sums = [a.reshape(all_planes, *a.shape[2:]) for a in (x, total)]
    num_planes = len(planes)
    if xp is numpy:
        num_planes = PIECE_ELEMENTS // max(1, *[prod(a.shape[1:]) for a in (planes, sums)])
    num_planes = max(1, num_planes)
    for start in range(0, len(planes), num_planes):
        piece = slice(start, start + num_planes)
        _add_sums(planes[piece], dim - 1, windows, sums[piece])
    return total


def _add_sums(x, dim, windows, total):
    """Add the sums of windows; those of many taps by blocks, which keeps their digits."""
    xp = xp_of(x)
    taps = list(zip(windows.index, windows.weight))
    for start in range(0, len(taps), fresh.BLOCK):
        block = total if len(taps) <= fresh.BLOCK else fresh.zeros(total.shape, total.dtype, xp)
        for row, weight in taps[start : start + fresh.BLOCK]:
            part = read(x, dim, row)
            if weight.size and (weight == weight[0]).all():
                block += part if weight[0] == 1 else part * x.dtype.type(weight[0])
            else:
                block += part * along(xp.asarray(weight.astype(x.dtype)), dim, x.ndim)
        if block is not total:
            total += block
