"""Maxima of windows in one pass over a grid, and gradients sent to where they were read.

A grid has three dimensions here; a missing one has a window of one element.
"""

from math import prod

import numpy

from .. import fresh
from ..arena import empty
from ..lines import tap_counts
from ..registry import on_cpu
from .arrays import plain
from .compiled import compiled

POINT = numpy.zeros((1, 1), numpy.uint32)


@on_cpu
def pool_maxima(x, windows):
    shape = (*x.shape[:2], *[line.index.shape[1] for line in windows])
    best, chosen = empty(shape, x.dtype), empty(shape, numpy.int32)
    _maxima(_planes(plain(x)), *_tables(windows), _planes(best), _planes(chosen))
    return best, chosen


@on_cpu
def pool_maxima_backward(gradient, chosen, windows):
    shape = (*gradient.shape[:2], *[line.size for line in windows])
    out = fresh.zeros(shape, gradient.dtype)
    given = _planes(plain(gradient)), _planes(plain(chosen))
    _send_back(*given, *_tables(windows), _planes(out))
    return out


def _planes(x):
    """Return x [N, C, *grid] as [N C, D, H, W]."""
    missing = [1] * (5 - x.ndim)
    return x.reshape(prod(x.shape[:2]), *missing, *x.shape[2:])


def _tables(windows):
    """Return what the taps read along D, H and W [taps, count], and the three numbers of each tap
    [3, taps].

    Unsigned: Numba need not ask whether an index counts from the end.
    """
    index = [plain(line.index.astype(numpy.uint32)) for line in windows]
    taps = numpy.indices((*[1] * (3 - len(windows)), *tap_counts(windows)))
    return (*[POINT] * (3 - len(windows)), *index, taps.reshape(3, -1).astype(numpy.uint32))


@compiled
def _maxima(x, along_d, along_h, along_w, taps, best, chosen):
    for p in range(best.shape[0]):
        for d in range(best.shape[1]):
            for h in range(best.shape[2]):
                y = best[p, d, h]
                number = chosen[p, d, h]
                for t in range(taps.shape[1]):
                    place_d = along_d[taps[0, t], d]
                    place_h = along_h[taps[1, t], h]
                    row = x[p, place_d, place_h]
                    places = along_w[taps[2, t]]
                    if t == 0:
                        for w in range(y.size):
                            y[w] = row[places[w]]
                            number[w] = 0
                    else:
                        for w in range(y.size):
                            value = row[places[w]]
                            is_better = (value > y[w]) | (value != value)
                            y[w] = value if is_better else y[w]
                            number[w] = t if is_better else number[w]


@compiled
def _send_back(gradient, chosen, along_d, along_h, along_w, taps, out):
    for p in range(gradient.shape[0]):
        for d in range(gradient.shape[1]):
            for h in range(gradient.shape[2]):
                for w in range(gradient.shape[3]):
                    t = chosen[p, d, h, w]
                    place_d = along_d[taps[0, t], d]
                    place_h = along_h[taps[1, t], h]
                    place_w = along_w[taps[2, t], w]
                    out[p, place_d, place_h, place_w] += gradient[p, d, h, w]
