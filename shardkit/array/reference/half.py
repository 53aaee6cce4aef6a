"""Casts to half floats and back, for messages of half the size."""

import numpy

from ..backend import xp_of
from ..registry import kernel
from .chunks import spans


@kernel()
def to_half(x, scale=1.0, out=None):
    """Return x [n] times scale as [n] float16, rounded to nearest; infinity beyond 65504.

    On CPUs also as bfloat16, if `out` is.
    """
    out = xp_of(x).empty(x.shape, numpy.float16) if out is None else out
    with numpy.errstate(over="ignore"):
        for span in spans(x):
            out[span] = x[span] * scale
    return out


@kernel(kinds="eE")
def from_half(x, dtype, out=None):
    """Return x [n] float16, on CPUs also bfloat16, as [n] of dtype, exactly."""
    out = xp_of(x).empty(x.shape, dtype) if out is None else out
    out[...] = x
    return out


@kernel()
def largest_magnitude(x):
    """Return the largest |x| of x [n], as a Python number; 0 of none, NaN if there is one."""
    return max(
        [float(abs(x[span]).max()) for span in spans(x)],
        default=0.0,
        key=lambda value: (value != value, value),
    )
