"""Matrix products on a GPU, by the functions of cuBLAS itself.

    C = A B, all in rows    is    C^T = B^T A^T, all in columns, as cuBLAS reads the same memory

CuPy's own products refuse a stream that is captured, choose TF32 once per process (the variable
CUPY_TF32), and have no batches of bfloat16. The functions here are those of the library that CuPy
has loaded, on CuPy's handle of this thread. Each call sets all that it depends on:

    stream       the current one; setting it takes the workspace away
    workspace    32 MiB for each thread and stream: a graph needs one that stays, and equal bits
                 need one that nobody else writes. One product can be several kernels that meet
                 there, and those of two threads may alternate on the stream that they share
    math mode    no sums of half floats in half floats, and TF32 by the type of arithmetic alone

Source: cuBLAS documentation, cublasGemmEx and cublasGemmStridedBatchedEx, table of types;
cublasSetStream, cublasSetWorkspace and cublasSetMathMode; "Results reproducibility".
"""

import ctypes
import functools
import threading
from math import prod

import numpy

from ...array.backend import xp_of
from ...array.capture import current_workspace
from ...array.dtypes import FLOAT32
from ...errors import DeviceError

# of library_types.h and cublas_api.h
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
ALGORITHM_DEFAULT = -1
KEEP, TRANSPOSE = 0, 1
DISALLOW_REDUCED_PRECISION_REDUCTION = 16
WORKSPACE_BYTES = 32 << 20
MAX_STREAMS = 8  # whose workspaces a thread keeps; the pool gives a block to its stream alone

# cuBLAS reads 0 and 1 on the host, in the arithmetic's own type
_NUMBERS = {dtype: numpy.array([0, 1], dtype) for dtype in ("float32", "float64")}
_FACTORS = {
    dtype: (numbers.ctypes.data, numbers.ctypes.data + numbers.itemsize)
    for dtype, numbers in _NUMBERS.items()
}
_INT, _STEP, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_OPERAND = (_POINTER, _INT, _INT)  # address, type, elements between columns
_BATCHED = (*_OPERAND, _STEP)
_START = (_POINTER, *[_INT] * 5, _POINTER)  # handle, forms, sizes, alpha
_PROTOTYPES = {
    "cublasSetStream_v2": (_POINTER, _POINTER),
    "cublasSetWorkspace_v2": (_POINTER, _POINTER, ctypes.c_size_t),
    "cublasSetMathMode": (_POINTER, _INT),
    "cublasGemmEx": (*_START, *_OPERAND, *_OPERAND, _POINTER, *_OPERAND, _INT, _INT),
    "cublasGemmStridedBatchedEx": (
        *(*_START, *_BATCHED, *_BATCHED, _POINTER, *_BATCHED),
        *(_INT, _INT, _INT),
    ),
}


def multiplies(a, b, out=None) -> bool:
    """Return True if matmul takes CuPy arrays of these types."""
    name = a.dtype.name
    return (
        b.dtype == a.dtype
        and name in DATA_TYPES
        and (out is None or out.dtype == a.dtype or a.itemsize == 2 and out.dtype == FLOAT32)
    )


def matmul(a, b, out=None, *, is_tf32: bool = False, is_added: bool = False):
    """Return a [..., m, k] times b [..., k, n]: [..., m, n], half floats with sums in float32.

    Leading dimensions broadcast.

    a, b, out  as multiplies() wants them; out None: a new array of the dtype of a and b
    is_tf32    float32 operands are rounded to TF32
    is_added   the product is added to what `out` holds
    Errors: DeviceError if cuBLAS refuses.
    """
    xp = xp_of(a, b)
    leading = a.shape[:-2]
    if leading != b.shape[:-2]:
        leading = numpy.broadcast_shapes(leading, b.shape[:-2])
    c = out
    if out is None or _written(out) is None:
        dtype = a.dtype if out is None else out.dtype
        c = xp.empty((*leading, a.shape[-2], b.shape[-1]), dtype)
        if is_added:
            c[...] = out
    if c.size and not a.shape[-1]:
        if not is_added:
            c.fill(0)
    elif c.size:
        _multiply(xp, a, b, c, leading, is_tf32, is_added)
    if out is not None and c is not out:
        out[...] = c
    return c if out is None else out


def _multiply(xp, a, b, c, leading, is_tf32, is_added):
    if leading and b.ndim == 2 and a.flags.c_contiguous and c.flags.c_contiguous:
        # one product of all rows
        a = a.reshape(-1, a.shape[-1])
        c = c.reshape(-1, c.shape[-1])
        leading = ()
    a, a_form, a_row, a_step = as_it_lies(xp, a, leading)
    b, b_form, b_row, b_step = as_it_lies(xp, b, leading)
    rows, columns = c.shape[-2:]
    c_row, c_step = _written(c)
    kind, c_kind = DATA_TYPES[a.dtype.name], DATA_TYPES[c.dtype.name]
    arithmetic, (zero, one) = _arithmetic(kind, is_tf32)
    library, handle, workspace = _ready(xp, a.data.device_id)  # which lives until the launch
    start = (handle, b_form, a_form, columns, rows, a.shape[-1], one)
    beta = one if is_added else zero
    last = (arithmetic, ALGORITHM_DEFAULT)
    count = prod(leading)
    if count == 1:
        operands = (b.data.ptr, kind, b_row, a.data.ptr, kind, a_row)
        status = library.cublasGemmEx(*start, *operands, beta, c.data.ptr, c_kind, c_row, *last)
    else:
        operands = (b.data.ptr, kind, b_row, b_step, a.data.ptr, kind, a_row, a_step)
        result = (c.data.ptr, c_kind, c_row, c_step, count)
        status = library.cublasGemmStridedBatchedEx(*start, *operands, beta, *result, *last)
    del workspace
    if status:
        refused(status, f"a product of {a.shape} and {b.shape} of {a.dtype}")


def _arithmetic(kind, is_tf32):
    """Return (compute type, addresses of 0 and 1 in it)."""
    if kind == DATA_TYPES["float64"]:
        return COMPUTE_64F, _FACTORS["float64"]
    return COMPUTE_32F_FAST_TF32 if is_tf32 else COMPUTE_32F, _FACTORS["float32"]


def refused(status, what):
    """Raise DeviceError: the library refuses this with a status."""
    raise DeviceError(f"cuBLAS refuses {what} with status {status} (cublasStatus_t)")


def as_it_lies(xp, x, leading):
    """Return (x, KEEP or TRANSPOSE, elements between rows, elements between matrices).

    x is a copy if cuBLAS cannot read the original.
    """
    x = xp.broadcast_to(x, (*leading, *x.shape[-2:]))
    step = _step(x, len(leading))
    rows = _row(x, *x.shape[-2:], *x.strides[-2:])
    if step is not None and rows is not None:
        return x, *rows, step
    x = xp.ascontiguousarray(x)
    return x, KEEP, x.shape[-1], x.shape[-2] * x.shape[-1]


def _written(c):
    """Return (elements between rows, elements between matrices) of a result; None if cuBLAS cannot
    write it where it lies.
    """
    rows = _row(c, *c.shape[-2:], *c.strides[-2:])
    step = _step(c, c.ndim - 2)
    if rows is None or rows[0] != KEEP or step is None:
        return None
    return rows[1], step


def _row(x, num_rows, num_columns, row, column):
    """Return (KEEP or TRANSPOSE, elements between rows in memory), or None if no dim is dense."""
    item = x.dtype.itemsize
    if (
        (column == item or num_columns == 1)
        and (num_rows == 1 or row >= num_columns * item)
        and row % item == 0
    ):
        return KEEP, max(row // item if num_rows > 1 else 0, num_columns)
    if (
        (row == item or num_rows == 1)
        and (num_columns == 1 or column >= num_rows * item)
        and column % item == 0
    ):
        return TRANSPOSE, max(column // item if num_columns > 1 else 0, num_rows)
    return None


def _step(x, num_leading):
    """Return the elements between matrices, or None if they are not evenly spaced."""
    dims = [(size, stride) for size, stride in zip(x.shape[:num_leading], x.strides) if size > 1]
    neighbors = zip(dims, dims[1:])
    if any(stride != inner * size for (_, stride), (size, inner) in neighbors):
        return None
    return dims[-1][1] // x.dtype.itemsize if dims else 0


# ---- the library and its state -------------------------------------------------------------------


@functools.cache
def library_of(xp):
    """Return the cuBLAS that this CuPy has loaded: an object with its C functions.

    A symbol is looked for in what CuPy's own module is linked with, so it is the same library.
    Errors: DeviceError if this CuPy is linked with none.
    """
    module = xp.cuda.cublas
    try:
        library = module if hasattr(module, "cublasGemmEx") else ctypes.CDLL(module.__file__)
        for name, types in _PROTOTYPES.items():
            getattr(library, name).argtypes = types
    except (AttributeError, OSError) as error:
        raise DeviceError(
            f"CuPy {xp.__version__} does not say which cuBLAS it has loaded ({error}); wanted "
            "CuPy 14"
        ) from None
    return library


def at_work(xp, device):
    """Return (library, handle of this thread, current stream, workspace on it)."""
    library = library_of(xp)
    handle = xp.cuda.device.get_cublas_handle()
    stream = xp.cuda.get_current_stream().ptr
    memory = current_workspace(WORKSPACE_BYTES)
    if memory is None:
        memory = _workspace(xp, device, stream)
    return library, handle, stream, memory


def _ready(xp, device):
    """Return (library, handle, workspace), with stream, workspace and math mode set."""
    library, handle, stream, memory = at_work(xp, device)
    status = (
        library.cublasSetStream_v2(handle, stream)
        or library.cublasSetWorkspace_v2(handle, memory.data.ptr, WORKSPACE_BYTES)
        or library.cublasSetMathMode(handle, DISALLOW_REDUCED_PRECISION_REDUCTION)
    )
    if status:
        refused(status, "its stream, workspace or math mode")
    return library, handle, memory


class _Kept(threading.local):
    """The workspaces of a thread, which go with it."""

    def __init__(self):
        self.workspaces = {}


_kept = _Kept()


def _workspace(xp, device, stream):
    """Return memory for the products of this thread on a stream of a device."""
    kept, key = _kept.workspaces, (xp, device, stream)
    if key not in kept:
        if len(kept) == MAX_STREAMS:
            del kept[next(iter(kept))]
        kept[key] = xp.empty(WORKSPACE_BYTES, numpy.uint8)
    return kept[key]
