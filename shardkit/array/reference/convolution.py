"""Convolution in any number of dimensions, and its two gradients: one product for each tap.

    x [N, C, *grid], weight [O, C/groups, *taps]  ->  y [N, O, *counts]

With s = the sum of y g over all elements, a convolution is the gradient of s by g; the other two
kernels are its gradients by x and by the weight. Each is linear in what it is given, so the
derivatives of all three are these three again. window.py says where the taps lie.
"""

from itertools import product
from math import prod

from .. import products
from ..backend import xp_of
from ..registry import kernel
from .chunks import empty_like


@kernel(rounded=(True,), has_cuda_twin=False)
def convolve(x, weight, bias, window, out=None):
    """Return y [N, O, *counts]: y[o, p] = bias[o] + sum of weight[o, c, t] x[c, position of p, t].

    x, weight   [N, C, *grid], [O, C/groups, *taps]
    bias        [O] or None
    """
    taps = weight.shape[2:]
    counts = window.counts(x.shape[2:], taps)
    shape = (x.shape[0], weight.shape[0], *counts)
    grouped = _by_group(weight, window)
    y = xp_of(x).zeros(_in_groups(shape, window), x.dtype)
    padded = _padded(x, window)
    for tap in product(*map(range, taps)):
        part = _columns(padded[_reads(window, counts, tap)], window)
        y += products.matmul(grouped[(..., *tap)], part)
    y = y.reshape(shape)
    return _finished(y if bias is None else y + _across(bias, y.ndim), out)


@kernel(rounded=(True,), has_cuda_twin=False)
def convolve_input(gradient, weight, bias, window, sizes, out=None):
    """Return the gradient of x [N, C, *sizes] for that of y; a transposed convolution.

    gradient, weight   [N, O, *counts], [O, C/groups, *taps]
    bias               [C] that is added to each channel, or None
    """
    taps, counts = weight.shape[2:], gradient.shape[2:]
    grouped = _by_group(weight, window)
    rows = _columns(gradient, window)
    channels = weight.shape[1] * window.groups
    shape = (gradient.shape[0], channels, *_around(window, sizes))
    padded = xp_of(gradient).zeros(shape, gradient.dtype)
    for tap in product(*map(range, taps)):
        here = _reads(window, counts, tap)
        part = products.matmul(grouped[(..., *tap)].swapaxes(1, 2), rows)
        padded[here] += part.reshape(padded[here].shape)
    x = padded[_inside(window, sizes)]
    return _finished(x if bias is None else x + _across(bias, x.ndim), out)


@kernel(rounded=(False,), has_cuda_twin=False)
def convolve_weight(gradient, x, window, taps, out=None):
    """Return the gradient of the weight [O, C/groups, *taps] for that of y.

    gradient, x   [N, O, *counts], [N, C, *grid]
    """
    groups = window.groups
    num_out, channels = gradient.shape[1], x.shape[1] // groups
    weight = xp_of(x).zeros((groups, num_out // groups, channels, *taps), x.dtype)
    rows = _columns(gradient, window)
    padded = _padded(x, window)
    for tap in product(*map(range, taps)):
        part = _columns(padded[_reads(window, gradient.shape[2:], tap)], window)
        weight[(..., *tap)] = products.matmul(rows, part.swapaxes(2, 3)).sum(axis=0)
    return _finished(weight.reshape(num_out, channels, *taps), out)


def _by_group(weight, window):
    """Return the weight as [groups, O/groups, C/groups, *taps]."""
    groups = window.groups
    return weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])


def _in_groups(shape, window):
    """Return the shape [N, groups, channels/groups, positions] of one [N, channels, *grid]."""
    return shape[0], window.groups, shape[1] // window.groups, prod(shape[2:])


def _columns(x, window):
    return x.reshape(_in_groups(x.shape, window))


def _padded(x, window):
    """Return x [N, C, *grid] with zeros around the grid."""
    sizes = x.shape[2:]
    padded = xp_of(x).zeros((*x.shape[:2], *_around(window, sizes)), x.dtype)
    padded[_inside(window, sizes)] = x
    return padded


def _around(window, sizes):
    """Return the sizes of a grid with its zeros; what a window leaves out is in it too."""
    return [a + size + max(b, 0) for size, a, b in zip(sizes, window.before, window.after)]


def _inside(window, sizes):
    """Return the index of the grid within the padded one."""
    return (..., *[slice(start, start + size) for start, size in zip(window.before, sizes)])


def _reads(window, counts, tap):
    """Return the index of what this tap of all windows reads of the padded grid."""
    starts = [t * dilation for t, dilation in zip(tap, window.dilation)]
    return (
        ...,
        *[
            slice(start, start + (count - 1) * stride + 1, stride)
            for start, count, stride in zip(starts, counts, window.stride)
        ],
    )


def _across(bias, ndim):
    """Return a bias [C] in a form that is added to [N, C, *grid]."""
    return bias.reshape(-1, *[1] * (ndim - 2))


def _finished(result, out):
    """Return the result in `out` if that is given, else C-contiguous."""
    out = empty_like(result, out)
    out[...] = result
    return out
