"""Fourier transforms along any dims, by SciPy for NumPy arrays and by CuPy for its own.

SciPy transforms several rows at once in vectors, along every dim alike, and float32 in float32.
NumPy goes row by row, 3 to 5 times as long, and in float64 where its factor is a Python number.
"""

import functools

import numpy

from .backend import xp_of


def transform(name: str, array, sizes, dims, norm: str):
    """Return rfftn, irfftn, fftn or ifftn of an array, in its precision: a new array."""
    xp = xp_of(array)
    library = _library() if xp is numpy else xp.fft
    return getattr(library, name)(array, sizes, dims, norm=norm)


@functools.cache
def _library():
    """Import SciPy's transforms, which nothing else here needs."""
    from scipy import fft

    return fft
