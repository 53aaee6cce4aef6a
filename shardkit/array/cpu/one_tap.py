"""Convolution with taps of one position: a matrix product for each sample, nothing is copied."""

from .. import products
from ..arena import empty
from .arrays import plain

FEWEST = 8  # channels: products of fewer are slower than tiles


def is_quicker(window, weight, counts, dtype) -> bool:
    """Return whether this is the quickest way, for a weight of this shape and counts of y."""
    is_fit = max(*weight[2:], *window.stride, window.groups) == 1
    return is_fit and not any((*window.before, *window.after)) and min(weight[:2]) >= FEWEST


def convolve(x, weight, bias, window, y):
    """Set y [N, O, *grid] to the convolution of x with weight [O, C, 1, 1, 1]."""
    products.matmul(_matrix(weight), _columns(x), out=_columns(y))
    _add_bias(y, bias)


def convolve_input(gradient, weight, bias, window, x):
    """Set x [N, C, *grid] to its gradient for that of y."""
    products.matmul(_matrix(weight).T, _columns(gradient), out=_columns(x))
    _add_bias(x, bias)


def convolve_weight(gradient, x, window, weight):
    """Set weight [O, C, 1, 1, 1] to its gradient."""
    sums = empty(weight.shape[:2], x.dtype)
    products.matmul(_columns(gradient[0]), _columns(x[0]).T, out=sums)
    for one, other in zip(gradient[1:], x[1:]):
        products.add_product(_columns(one), _columns(other).T, sums)
    weight[...] = sums.reshape(weight.shape)


def _matrix(weight):
    return plain(weight).reshape(weight.shape[:2])


def _columns(x):
    """Return x [..., C, D, H, W] as [..., C, positions]; how it lies in memory changes no bits."""
    return plain(x).reshape(*x.shape[:-3], -1)


def _add_bias(y, bias):
    if bias is not None:
        y += bias.reshape(-1, 1, 1, 1)
