"""Casts to half floats and back, for messages of half the size."""

import numpy

from ...array.backend import xp_of
from ...array.registry import NUMBERS, on_cuda
from .arrays import by_packs, new, plain
from .launch import STORED

FILE = "half.cu"


@on_cuda(dtypes=NUMBERS)
def to_half(x, scale=1.0, out=None):
    out = new(x, dtype=numpy.dtype("float16")) if out is None else out
    half = STORED[out.dtype.name]
    by_packs(x, FILE, "to_half", plain(x), float(scale), out, HALF=half)
    return out


@on_cuda(dtypes=("float16", "bfloat16"))
def from_half(x, dtype, out=None):
    out = new(x, dtype=numpy.dtype(dtype)) if out is None else out
    half = STORED[x.dtype.name]
    by_packs(x, FILE, "from_half", plain(x), out, loaded=out, dtype=out.dtype, HALF=half)
    return out


@on_cuda()
def largest_magnitude(x):
    largest = xp_of(x).zeros(1, numpy.float64 if x.dtype.name == "float64" else numpy.float32)
    by_packs(x, "flat.cu", "largest_magnitude", plain(x), largest, loads=4)
    return float(largest[0])
