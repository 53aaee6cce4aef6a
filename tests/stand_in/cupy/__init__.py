"""A stand-in for CuPy on machines without a GPU: strict, and it keeps a book.

    from stand_in import gpu            put it where `import cupy` finds it, for the tests that want
                                        it: see stand_in/__init__.py

What it offers has the names and parameters of CuPy 13 and 14 (tests/pure/test_stand_in.py compares
them where CuPy is installed). Memory of the pretended GPU is NumPy's, but arrays of NumPy and of
the GPU never meet by accident: NumPy is not let in, and an array of NumPy among operands is a
TypeError. Every copy between host and GPU is counted, with its place in the code.
"""

import numpy

from . import cuda
from ._array import ndarray
from ._functions import (
    FUNCTIONS,
    array,
    asarray,
    ascontiguousarray,
    asnumpy,
    get_array_module,
    may_share_memory,
    ogrid,
    shares_memory,
)
from ._machine import machine as _machine
from ._raw import RawKernel, RawModule

__version__ = "14.0.0"
(
    bool_,
    dtype,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
) = (
    numpy.bool_,
    numpy.dtype,
    numpy.float16,
    numpy.float32,
    numpy.float64,
    numpy.int8,
    numpy.int16,
    numpy.int32,
    numpy.int64,
    numpy.uint8,
    numpy.uint16,
    numpy.uint32,
    numpy.uint64,
)
inf, nan, newaxis, pi = numpy.inf, numpy.nan, None, numpy.pi
globals().update(FUNCTIONS)


def get_default_memory_pool():
    return cuda.memory.pool


def get_default_pinned_memory_pool():
    return cuda.pinned_memory.pool


__all__ = [
    "RawKernel",
    "RawModule",
    "array",
    "asarray",
    "ascontiguousarray",
    "asnumpy",
    "cuda",
    "get_array_module",
    "get_default_memory_pool",
    "get_default_pinned_memory_pool",
    "may_share_memory",
    "ndarray",
    "ogrid",
    "shares_memory",
    *FUNCTIONS,
]
