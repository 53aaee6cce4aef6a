"""MKL beside NumPy's own BLAS, for products on the CPU where the user asks for it.

    a [..., m, k] times b [..., k, n] -> out [..., m, n]
    two matrices     cblas_?gemm, which reads each as it lies, by rows or by columns: nothing is
                     copied
    stacks of them   one call of cblas_?gemm_batch, with the addresses of all
    two of bfloat16  cblas_gemm_bf16bf16f32: exact products, added up in float32, on the matrix
                     units of a CPU that has some

NumPy's wheels multiply by OpenBLAS. On Intel's CPUs MKL is faster, most of all with small matrices
(benchmarks/results). It is told to give the same bits in every run and at every address (its
"conditional numerical reproducibility"): that it can on Intel's CPUs alone, so it is refused
elsewhere.
"""

import ctypes
import functools
import re
import sys
import threading
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy
from threadpoolctl import threadpool_info

from ..errors import ConfigurationError
from .dtypes import FLOAT32

# numbers of the C interface to BLAS
_BY_ROWS = 101
_AS_IT_IS, _TRANSPOSED = 111, 112
_INTEL_THREADS, _SEQUENTIAL = 0, 1  # MKL_THREADING_...
_AVX2, _STRICT = 10, 0x10000  # MKL_CBWR_...
_loading = threading.Lock()
_REALS = {FLOAT32: ("s", ctypes.c_float), numpy.dtype(numpy.float64): ("d", ctypes.c_double)}


class Library:
    """Products by a shared library that has the C interface to BLAS.

    name      for people
    library   a ctypes.CDLL, or whatever has cblas_sgemm, cblas_sgemm_batch and those of double
              precision
    integer   the type of its sizes
    halves    True: it has cblas_gemm_bf16bf16f32 too, and the CPU arithmetic for it
    """

    def __init__(self, name: str, library, integer=ctypes.c_int, halves: bool = False):
        self.name = name
        self._integer = integer
        self._functions = {}
        enum, pointer = ctypes.c_int, ctypes.c_void_p
        for dtype, (letter, real) in _REALS.items():
            one = getattr(library, f"cblas_{letter}gemm")
            many = getattr(library, f"cblas_{letter}gemm_batch")
            one.restype = None
            sizes = [*[enum] * 3, *[integer] * 3]
            one.argtypes = [*sizes, real, *[pointer, integer] * 2, real, pointer, integer]
            many.restype = None
            many.argtypes = [enum, *[pointer] * 13, integer, pointer]
            self._functions[dtype] = one, many
        self._of_halves = library.cblas_gemm_bf16bf16f32 if halves else None
        if halves:
            self._of_halves.restype = None
            self._of_halves.argtypes = self._functions[FLOAT32][0].argtypes

    def multiply(self, a, b, out) -> None:
        """Compute out = a b; numpy.matmul does what BLAS cannot read or write, and other dtypes."""
        layout = None
        if out.dtype in self._functions and a.dtype == b.dtype == out.dtype:
            layout = self._layout(a, b, out)
        if layout is None or numpy.may_share_memory(a, out) or numpy.may_share_memory(b, out):
            numpy.matmul(a, b, out=out)
            return
        one, many = self._functions[out.dtype]
        if layout.offsets is None:
            _multiply_two(one, layout, a, b, out)
        else:
            places = layout.offsets + [[_address(x)] for x in (a, b, out)]
            at_a, at_b, at = [_address(places) + row * places.strides[0] for row in range(3)]
            *forms, step_a, step_b, zero_times, step, count = layout.constants
            many(_BY_ROWS, *forms, at_a, step_a, at_b, step_b, zero_times, at, step, 1, count)

    def multiply_halves(self, a, b, out) -> bool:
        """Compute out = a b for two bfloat16 matrices and a float32 one, or return False."""
        is_bfloat16 = a.dtype.name == "bfloat16" and a.dtype == b.dtype
        if self._of_halves is None or not is_bfloat16 or out.ndim != 2:
            return False
        layout = self._layout(a, b, out)
        if layout is not None:
            _multiply_two(self._of_halves, layout, a, b, out)
        return layout is not None

    def _layout(self, a, b, out):
        return layout_of(
            *[(x.shape, x.strides, x.itemsize) for x in (a, b, out)], out.dtype, self._integer
        )


def _address(array) -> int:
    """Return the address of the first element."""
    return array.__array_interface__["data"][0]


def _multiply_two(function, layout, a, b, out):
    step_a, step_b, step = layout.steps
    operands = _address(a), step_a, _address(b), step_b
    function(_BY_ROWS, *layout.orders, *layout.sizes, 1.0, *operands, 0.0, _address(out), step)


@dataclass(frozen=True, eq=False)
class Layout:
    """How a product is described to BLAS.

    orders      how the matrices of a and b lie
    sizes       m, n, k
    steps       elements from one row, or column, to the next, of a, b and the result
    offsets     [3, matrices] int64, bytes from the beginning of a, b and the result to their
                matrices; None: there is one each
    constants   addresses of orders, sizes, 1, steps of a and b, 0, step of the result, number of
                matrices
    """

    orders: tuple[int, int]
    sizes: tuple[int, int, int]
    steps: tuple[int, int, int]
    offsets: numpy.ndarray | None = None
    constants: tuple[int, ...] = ()
    _held: tuple = ()  # what the addresses are of


@functools.lru_cache(maxsize=4096)
def layout_of(a, b, out, dtype, integer) -> Layout | None:
    """Return how BLAS reads such operands, or None if it cannot read or write one of them.

    Operands are given by (shape, strides, bytes of an element), the result by its dtype too.
    """
    shape = out[0]
    inner = a[0][-1]
    leading = numpy.broadcast_shapes(a[0][:-2], b[0][:-2])
    if shape != (*leading, a[0][-2], b[0][-1]) or b[0][-2] != inner:
        return None  # for numpy.matmul to complain of
    found = [_order(*form) for form in (a, b, out)]
    if None in found or found[2][0] != _AS_IT_IS or 0 in shape or min(*shape[-2:], inner) < 2:
        return None
    (order_a, step_a), (order_b, step_b), (_, step) = found
    orders = (order_a, order_b)
    sizes = (*shape[-2:], inner)
    steps = (step_a, step_b, step)
    if len(shape) == 2:
        return Layout(orders, sizes, steps)
    strides = numpy.array([_leading_strides(*form[:2], len(leading)) for form in (a, b, out)])
    offsets = strides @ numpy.indices(leading).reshape(len(leading), -1)
    real = _REALS[dtype][1]
    held = (
        *map(ctypes.c_int, orders),
        *map(integer, sizes),
        real(1),
        integer(step_a),
        integer(step_b),
        real(0),
        integer(step),
        integer(offsets.shape[1]),
    )
    return Layout(orders, sizes, steps, offsets, tuple(map(ctypes.addressof, held)), held)


def _order(shape, strides, itemsize):
    """Return (how BLAS reads these matrices, elements between rows or columns), or None."""
    (rows, columns), (by_row, by_column) = shape[-2:], strides[-2:]
    for order, step, length, element in (
        (_AS_IT_IS, by_row, columns, by_column),
        (_TRANSPOSED, by_column, rows, by_row),
    ):
        if element == itemsize and step >= length * itemsize and step % itemsize == 0:
            return order, step // itemsize
    return None


def _leading_strides(shape, strides, num_leading) -> tuple[int, ...]:
    """Return the bytes between matrices along each leading dim of the result; 0 to broadcast."""
    own = [0 if length == 1 else stride for length, stride in zip(shape[:-2], strides)]
    return (*[0] * (num_leading - len(own)), *own)


# ---- MKL -----------------------------------------------------------------------------------------


def mkl() -> Library:
    """Return MKL, with as many threads as NumPy's BLAS has at the first call.

    From then on threadpoolctl counts both.

    Errors: ConfigurationError if it is not installed, or cannot keep bits the same on this CPU.
    """
    with _loading:  # ranks may be threads
        return _load_mkl()


LIBRARIES = {"numpy": lambda: None, "mkl": mkl}  # None: NumPy multiplies with its own BLAS


def library_named(name: str) -> Library | None:
    """Return the library of this name in LIBRARIES. Errors: ConfigurationError, see mkl()."""
    return LIBRARIES[name]()


@functools.cache
def _load_mkl():
    path = _path_of_mkl()
    if path is None:
        raise ConfigurationError(
            'blas = "mkl", but no libmkl_rt was found on this node; wanted the package mkl beside '
            'shardkit: pip install "shardkit[mkl]", or blas = "numpy"'
        )
    threads = max(
        (found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"),
        default=1,
    )
    library = ctypes.CDLL(str(path))
    library.MKL_Set_Threading_Layer(_SEQUENTIAL if threads == 1 else _INTEL_THREADS)
    branch = library.MKL_CBWR_Get_Auto_Branch()
    if branch < _AVX2 or library.MKL_CBWR_Set(branch | _STRICT) != 0:
        raise ConfigurationError(
            'blas = "mkl", but MKL does not promise the same bits in every run on this CPU; wanted '
            'one of Intel with AVX2, or blas = "numpy"'
        )
    library.MKL_Set_Num_Threads(threads)
    version = ctypes.create_string_buffer(200)
    library.MKL_Get_Version_String(version, len(version))
    return Library(
        version.value.decode(errors="replace").strip(), library, halves=_multiplies_halves()
    )


def _multiplies_halves() -> bool:
    """Return True if the CPU multiplies bfloat16, in matrix units (AMX) or in vectors.

    Elsewhere MKL emulates it in several steps.
    """
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"\b(amx_bf16|avx512_bf16)\b", flags) is not None


def _path_of_mkl() -> Path | None:
    """Return the library of the package mkl, or of this environment, that loads the rest of MKL."""
    try:
        files = metadata.files("mkl") or ()
    except metadata.PackageNotFoundError:
        files = ()
    found = [
        Path(file.locate()).resolve() for file in files if file.name.startswith("libmkl_rt.so")
    ]
    return next(iter([*found, *sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))]), None)
