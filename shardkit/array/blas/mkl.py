"""MKL, for products on Intel's CPUs.

NumPy's wheels multiply by OpenBLAS. On Intel's CPUs MKL is faster, most of all with small matrices
(benchmarks/results). It is told to give the same bits in every run and at every address (its
"conditional numerical reproducibility"): that it can on Intel's CPUs alone, so it is refused
elsewhere.
"""

import ctypes
import functools

from ...errors import ConfigurationError
from .cblas import CblasLibrary
from .find import blas_threads, path_of
from .library import Library
from .processor import multiplies_bfloat16

_INTEL_THREADS, _SEQUENTIAL = 0, 1  # MKL_THREADING_...
_AVX2, _STRICT = 10, 0x10000  # MKL_CBWR_...


@functools.cache
def load_mkl() -> Library:
    """Return MKL, with as many threads as NumPy's BLAS has at the first call.

    From then on threadpoolctl counts both.

    Errors: ConfigurationError if it is not installed, or cannot keep bits the same on this CPU.
    """
    path = path_of("libmkl_rt.so", "mkl")
    if path is None:
        raise ConfigurationError(
            'blas = "mkl", but no libmkl_rt was found on this node; wanted the package mkl beside '
            'shardkit: pip install "shardkit[mkl]", or blas = "numpy"'
        )
    threads = blas_threads()
    library = ctypes.CDLL(str(path))
    library.MKL_Set_Threading_Layer(_SEQUENTIAL if threads == 1 else _INTEL_THREADS)
    branch = library.MKL_CBWR_Get_Auto_Branch()
    if branch < _AVX2 or library.MKL_CBWR_Set(branch | _STRICT) != 0:
        raise ConfigurationError(
            'blas = "mkl", but MKL does not promise the same bits in every run on this CPU; wanted '
            'one of Intel with AVX2, or blas = "numpy" or "onednn"'
        )
    library.MKL_Set_Num_Threads(threads)
    version = ctypes.create_string_buffer(200)
    library.MKL_Get_Version_String(version, len(version))
    name = version.value.decode(errors="replace").strip()
    return CblasLibrary(name, library, halves=multiplies_bfloat16())
