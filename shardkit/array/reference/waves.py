"""Sines and cosines, and their gradients."""

import functools

from ..backend import xp_of
from .numbers import pointwise

_pointwise = functools.partial(pointwise, has_cuda_twin=False)


@_pointwise()
def sin(x):
    """Return the sine of x [...], in radians."""
    return xp_of(x).sin(x)


@_pointwise(2)
def sin_backward(gradient, x):
    """Return gradient cos(x), all [...]."""
    return gradient * xp_of(x).cos(x)


@_pointwise()
def cos(x):
    """Return the cosine of x [...], in radians."""
    return xp_of(x).cos(x)


@_pointwise(2)
def cos_backward(gradient, x):
    """Return -gradient sin(x), all [...]."""
    return -gradient * xp_of(x).sin(x)
