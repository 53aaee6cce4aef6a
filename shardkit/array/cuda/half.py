"""Casts to half floats and back, for messages of half the size."""

import numpy

from ..backend import xp_of
from ..registry import NUMBERS, on_cuda
from .arrays import THREADS, new, pack, plain, spread
from .launch import STORED, launch

FILE = "half.cu"


@on_cuda(dtypes=NUMBERS)
def to_half(x, scale=1.0, out=None):
    out = new(x, dtype=numpy.dtype("float16")) if out is None else out
    launch(
        x,
        FILE,
        "to_half",
        spread(x.size, THREADS * pack(x)),
        (THREADS,),
        plain(x),
        float(scale),
        out,
        x.size,
        HALF=STORED[out.dtype.name],
    )
    return out


@on_cuda(dtypes=("float16", "bfloat16"))
def from_half(x, dtype, out=None):
    out = new(x, dtype=numpy.dtype(dtype)) if out is None else out
    launch(
        x,
        FILE,
        "from_half",
        spread(x.size, THREADS * pack(out)),
        (THREADS,),
        plain(x),
        out,
        x.size,
        dtype=out.dtype,
        HALF=STORED[x.dtype.name],
    )
    return out


@on_cuda()
def largest_magnitude(x):
    largest = xp_of(x).zeros(1, numpy.float64 if x.dtype.name == "float64" else numpy.float32)
    launch(
        x,
        "flat.cu",
        "largest_magnitude",
        spread(x.size, 4 * THREADS * pack(x)),
        (THREADS,),
        plain(x),
        largest,
        x.size,
    )
    return float(largest[0])
