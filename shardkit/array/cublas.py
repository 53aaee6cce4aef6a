"""Matrix products that cupy.matmul does not make: half floats with float32 sums, and TF32.

    C = A B, all in rows    is    C^T = B^T A^T, all in columns, as cuBLAS reads the same memory

CuPy 13 and 14 choose TF32 once per process (the variable CUPY_TF32), compute batches of float16 in
float32, and have no batches of bfloat16. cublasGemmEx, which they bind as cupy.cuda.cublas, takes
the types of operands and result and the arithmetic with each call, so nothing is left behind in the
handle that other products would see.
Source: cuBLAS documentation, cublasGemmEx and cublasGemmStridedBatchedEx, table of types.
"""

from math import prod

import numpy

from .backend import xp_of

# of library_types.h and cublas_api.h
DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
ALGORITHM_DEFAULT = -1
KEEP, TRANSPOSE = 0, 1

# cuBLAS reads them on the host
_ONE = numpy.ones(1, numpy.float32)
_ZERO = numpy.zeros(1, numpy.float32)


def matmul(a, b, out=None, *, is_tf32: bool = False):
    """Return a [..., m, k] times b [..., k, n]: [..., m, n], with sums in float32.

    Leading dimensions broadcast.

    a, b      CuPy arrays of one dtype: float16, bfloat16, or float32
    out       of that dtype or float32; None: a new array of that dtype
    is_tf32   float32 operands are rounded to TF32
    """
    xp = xp_of(a, b)
    leading = numpy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*leading, a.shape[-2], b.shape[-1])
    c = out
    if out is None or not out.flags.c_contiguous:
        c = xp.empty(shape, a.dtype if out is None else out.dtype)
    if c.size and not a.shape[-1]:
        c.fill(0)
    elif c.size:
        _multiply(xp, a, b, c, leading, COMPUTE_32F_FAST_TF32 if is_tf32 else COMPUTE_32F)
    if out is not None and c is not out:
        out[...] = c
    return c if out is None else out


def _multiply(xp, a, b, c, leading, compute_type):
    (a, a_form, a_row, a_step), (b, b_form, b_row, b_step) = [
        _as_it_lies(xp, x, leading) for x in (a, b)
    ]
    rows, columns = c.shape[-2:]
    sizes = (columns, rows, a.shape[-1])
    handle = xp.cuda.device.get_cublas_handle()
    for_a, for_b, for_c = [(x.data.ptr, DATA_TYPES[x.dtype.name]) for x in (a, b, c)]
    common = (handle, b_form, a_form, *sizes, _ONE.ctypes.data)
    zero = _ZERO.ctypes.data
    last = (compute_type, ALGORITHM_DEFAULT)
    if prod(leading) == 1:
        xp.cuda.cublas.gemmEx(*common, *for_b, b_row, *for_a, a_row, zero, *for_c, columns, *last)
        return
    operands = (*for_b, b_row, b_step, *for_a, a_row, a_step)
    result = (*for_c, columns, rows * columns)
    xp.cuda.cublas.gemmStridedBatchedEx(*common, *operands, zero, *result, prod(leading), *last)


def _as_it_lies(xp, x, leading):
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
    if any(stride != inner * size for (_, stride), (size, inner) in zip(dims, dims[1:])):
        return None
    return dims[-1][1] // x.dtype.itemsize if dims else 0
