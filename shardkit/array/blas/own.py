"""The OpenBLAS in NumPy's wheels, for what numpy.matmul does not ask of it: to add a product."""

import ctypes
import functools
from contextlib import suppress
from types import SimpleNamespace

from threadpoolctl import threadpool_info

from .cblas import CblasLibrary

_NAMES = ("cblas_sgemm", "cblas_sgemm_batch", "cblas_dgemm", "cblas_dgemm_batch")


@functools.cache
def numpys_own() -> CblasLibrary | None:
    """Return it, or None if NumPy multiplies with another; numpy.matmul stays what multiplies."""
    for found in threadpool_info():
        if found.get("prefix") == "libscipy_openblas" and "64_" in found["filepath"]:
            library = ctypes.CDLL(found["filepath"])
            with suppress(AttributeError):  # an older one, without batches
                functions = {name: getattr(library, f"scipy_{name}64_") for name in _NAMES}
                return CblasLibrary("NumPy's", SimpleNamespace(**functions), ctypes.c_int64)
    return None
