"""Convolution and its gradients, by the quickest of four ways.

    one_tap.py    a matrix product for each sample               taps of one position
    swept.py      tiles of sums over a packed part of x          few channels, or groups of them
    columns.py    one product of what the windows read           windows with little in common
    winograd.py   a quarter to a third of the products           16 channels or more, taps of 2 to 5

Which one depends on the shapes of one sample alone, so that the bits of a sample do not depend on
the others, and ranks never differ.
"""

from ..arena import empty
from ..products import convolutions_in_use
from ..registry import on_cpu
from . import columns, one_tap, swept, winograd

WAYS = one_tap, winograd, columns, swept  # the first that is quicker than those after it
DIRECT = one_tap, columns, swept  # each sum adds all products


@on_cpu
def convolve(x, weight, bias, window, out=None):
    assert out is None or out.flags.carray
    counts = window.counts(x.shape[2:], weight.shape[2:])
    shape = (x.shape[0], weight.shape[0], *counts)
    y = empty(shape, x.dtype) if out is None else out
    if y.size:
        x, taps, grid, window = _in_three_dims(x, weight, y, window)
        _way(window, taps, grid).convolve(x, taps, bias, window, grid)
    return y


@on_cpu
def convolve_input(gradient, weight, bias, window, sizes, out=None):
    assert out is None or out.flags.carray
    shape = (gradient.shape[0], weight.shape[1] * window.groups, *sizes)
    x = empty(shape, gradient.dtype) if out is None else out
    if x.size:
        gradient, taps, grid, window = _in_three_dims(gradient, weight, x, window)
        _way(window, taps, gradient).convolve_input(gradient, taps, bias, window, grid)
    return x


@on_cpu
def convolve_weight(gradient, x, window, taps, out=None):
    shape = (gradient.shape[1], x.shape[1] // window.groups, *taps)
    weight = empty(shape, x.dtype) if out is None else out
    if gradient.size and x.size:
        gradient, weight_3, x, window = _in_three_dims(gradient, weight, x, window)
        _way(window, weight_3, gradient).convolve_weight(gradient, x, window, weight_3)
    else:
        weight.fill(0)
    return weight


def _in_three_dims(x, weight, y, window):
    """Return arrays [., ., *grid] with a grid of three dimensions, and the window."""
    missing = (1,) * (5 - x.ndim)
    grids = []
    for each in (x, weight, y):
        rows, channels, *sizes = each.shape
        grids.append(each.reshape(rows, channels, *missing, *sizes))
    return (*grids, window.in_dims(3))


def _way(window, weight, y):
    """Return the module that convolves the quickest."""
    form = window, weight.shape, y.shape[2:], y.dtype
    ways = WAYS if convolutions_in_use() == "fast" else DIRECT
    return next(way for way in ways if way.is_quicker(*form))
