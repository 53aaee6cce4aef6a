"""Libraries beside NumPy's own BLAS, for products on the CPU where the user asks for one.

    "numpy"    numpy.matmul: OpenBLAS in NumPy's wheels       float32, float64
    "mkl"      MKL, on Intel's CPUs                           float32, float64, bfloat16
    "onednn"   oneDNN, on any CPU of x86-64                   float32, bfloat16

What a library does not multiply, NumPy does. bfloat16 only where the CPU has the arithmetic.
Adding one: a file with a function that loads it as a Library, and its line in LIBRARIES.
"""

import threading

from .library import Library
from .mkl import load_mkl
from .onednn import load_onednn

# None: NumPy multiplies with its own BLAS
LIBRARIES = {"numpy": lambda: None, "mkl": load_mkl, "onednn": load_onednn}
_loading = threading.Lock()  # ranks may be threads


def library_named(name: str) -> Library | None:
    """Return the library of this name in LIBRARIES; the first call in a process loads it.

    Errors: ConfigurationError if it is not installed, or does not keep bits the same on this CPU.
    """
    with _loading:
        return LIBRARIES[name]()
