"""Matrix products. All of them are made here, so that there is one place where they can be counted
and timed.

    operands             NumPy                                  CuPy
    float32, float64     BLAS: NumPy's, or with                 cupy.matmul; with precision("tf32") cuBLAS, TF32 (cublas.py)
                         multiplied_by another (blas.py)
    float16, bfloat16    BLAS on float32, the result rounded;   cuBLAS on half floats, sums in float32 (cublas.py)
                         matrices of bfloat16 by MKL as they are

TF32 multiplies float32 numbers of which it reads 10 bits behind the point, and adds in float32: on
tensor cores several times as fast, with errors of 5e-4 per product (half a last bit of those 10).
Nobody gets it without asking.
"""

from contextlib import contextmanager
from contextvars import ContextVar

import numpy

from . import cublas
from .arena import empty, is_arena_in_use
from .backend import xp_of
from .blas import Library
from .dtypes import FLOAT32, is_half
from .halves import rounded, widened

PRECISIONS = ("highest", "tf32")

_meanwhile: ContextVar = ContextVar("shardkit_meanwhile", default=None)  # of this thread
_precision: ContextVar[str] = ContextVar(
    "shardkit_matmul_precision", default="highest"
)  # of this thread
_library: ContextVar[Library | None] = ContextVar("shardkit_blas", default=None)  # of this thread


@contextmanager
def precision(name: str):
    """Inside, products of float32 on a GPU are made in this precision, one of PRECISIONS (this
    thread only).
    """
    token = _precision.set(name)
    try:
        yield
    finally:
        _precision.reset(token)


@contextmanager
def multiplied_by(library: Library | None):
    """Inside, products of arrays of NumPy are made by this library; None: by NumPy (this thread
    only).
    """
    token = _library.set(library)
    try:
        yield
    finally:
        _library.reset(token)


@contextmanager
def doing_meanwhile(act):
    """Inside, act() is called before each product (this thread only): for what must be looked after
    while others compute.
    """
    token = _meanwhile.set(act)
    try:
        yield
    finally:
        _meanwhile.reset(token)


def matmul(a, b, out=None):
    """a [..., m, k] times b [..., k, n] -> [..., m, n], by the BLAS of the library that made the
    arrays, or that of multiplied_by.

    Leading dimensions broadcast. Transposed views are read as they lie, nothing is copied (half
    floats on the CPU are, but for matrices of bfloat16 that a library multiplies as they are).
    out   where the result goes; None: a new array. That of half floats may be float32: then nothing
          is rounded
    """
    act = _meanwhile.get()
    if act is not None:
        act()
    xp = xp_of(a, b)
    if a.dtype.itemsize == 2 and is_half(a.dtype):
        return _of_halves(a, b, out) if xp is numpy else cublas.matmul(a, b, out)
    if xp is not numpy and _precision.get() == "tf32" and a.dtype == b.dtype == FLOAT32:
        return cublas.matmul(a, b, out, is_tf32=True)
    return _plain(xp, a, b, out)


def _plain(xp, a, b, out):
    """The product as the library makes it; a new array is the arena's where one is in use."""
    library = _library.get() if xp is numpy else None
    if out is None and (library is not None or xp is numpy and is_arena_in_use()):
        leading = (
            a.shape[:-2]
            if a.shape[:-2] == b.shape[:-2]
            else numpy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        )
        out = empty((*leading, a.shape[-2], b.shape[-1]), a.dtype)
    if library is None:
        return xp.matmul(a, b, out=out)
    library.multiply(a, b, out)
    return out


def _of_halves(a, b, out):
    """The product in float32, rounded unless it goes into float32."""
    goes_there = out is not None and out.dtype == FLOAT32
    wide, library = out if goes_there else None, _library.get()
    if library is not None and a.ndim == b.ndim == 2:
        wide = empty((a.shape[0], b.shape[1]), FLOAT32) if wide is None else wide
    if wide is None or library is None or not library.multiply_halves(a, b, wide):
        wide = _plain(numpy, widened(a), widened(b), wide)
    return wide if goes_there else rounded(wide, a.dtype, out)
