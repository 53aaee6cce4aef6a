"""Matrix products on a GPU with a row added to them in the same kernel, by cuBLASLt.

    C = A B + row, all in rows    is    C^T = B^T A^T + row down each column, as cuBLASLt reads it

cuBLAS is linked with the library, and its handle serves both. Each form of product (sizes, how
operands lie and are aligned) gets a plan once for each thread: the descriptors, and the algorithm
that the library's heuristic puts first among those that add parts of sums in float32 and need no
more than the workspace of cublas.py. A form for which there is none, or a library without these
functions, is left to cublas.py and a second kernel.

Source: cuBLAS documentation, cublasLtMatmul, cublasLtMatmulDescAttributes_t,
cublasLtMatmulPreferenceAttributes_t, CUBLASLT_EPILOGUE_BIAS; numbers of cublasLt.h 12.9.
"""

import ctypes
import functools
import threading
import weakref
from math import prod
from typing import NamedTuple

from ...array.backend import xp_of
from ...array.dtypes import FLOAT32
from . import cublas

# of cublasLt.h
OPERATION_TRANSPOSE_A, OPERATION_TRANSPOSE_B, OPERATION_EPILOGUE = 3, 4, 7
OPERATION_BIAS_POINTER, OPERATION_BIAS_BATCH_STRIDE = 8, 10
LAYOUT_BATCH_COUNT, LAYOUT_BATCH_STEP = 5, 6
PREFERENCE_WORKSPACE_BYTES, PREFERENCE_REDUCTION_SCHEMES = 1, 3
PREFERENCE_ALIGNMENTS = 5, 6, 7, 8  # of A, B, C, D
EPILOGUE_BIAS = 4
REDUCTION_IN_COMPUTE_TYPE = 2
REFUSALS = 7, 8, 15  # of cublas_api.h: invalid value, architecture mismatch, not supported

MOST_ALIGNMENT_BYTES = 256
MAX_PLANS = 1024
KINDS = ("float32", "float16", "bfloat16")  # float64 has no epilogues

_INT32, _UINT32, _INT64, _UINT64 = ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_ATTRIBUTE = (_POINTER, ctypes.c_int, _POINTER, _SIZE)  # of what, which, address and bytes of value
_PROTOTYPES = {
    "cublasLtMatmulDescCreate": (_POINTER, ctypes.c_int, ctypes.c_int),
    "cublasLtMatmulDescSetAttribute": _ATTRIBUTE,
    "cublasLtMatmulDescDestroy": (_POINTER,),
    "cublasLtMatrixLayoutCreate": (_POINTER, ctypes.c_int, _UINT64, _UINT64, _INT64),
    "cublasLtMatrixLayoutSetAttribute": _ATTRIBUTE,
    "cublasLtMatrixLayoutDestroy": (_POINTER,),
    "cublasLtMatmulPreferenceCreate": (_POINTER,),
    "cublasLtMatmulPreferenceSetAttribute": _ATTRIBUTE,
    "cublasLtMatmulPreferenceDestroy": (_POINTER,),
    "cublasLtMatmulAlgoGetHeuristic": (*[_POINTER] * 7, ctypes.c_int, _POINTER, _POINTER),
    "cublasLtMatmul": (*[_POINTER] * 14, _SIZE, _POINTER),
}


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", _UINT64 * 8),
        ("workspace_bytes", _SIZE),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class _Operand(NamedTuple):
    """How a matrix lies: KEEP or TRANSPOSE, elements between rows and matrices, bytes that its
    address is a multiple of.
    """

    form: int
    row: int
    step: int
    alignment: int


class _ProductForm(NamedTuple):
    """What a plan is made for."""

    kind: int
    arithmetic: int
    sizes: tuple[int, int, int]  # m, n, k
    number: int
    a: _Operand
    b: _Operand
    c: _Operand
    row: _Operand


def matmul(a, b, row, *, is_tf32: bool = False):
    """Return a [..., m, k] times b [..., k, n] plus row [..., n]: [..., m, n]; or None where it
    takes a second kernel.

    a, b, row   CuPy arrays of one dtype, with at most one leading dimension
    is_tf32     float32 operands are rounded to TF32
    """
    xp = xp_of(a, b, row)
    leading = a.shape[:-2] if a.ndim > b.ndim else b.shape[:-2]
    if (
        a.dtype.name not in KINDS
        or not a.dtype == b.dtype == row.dtype
        or row.shape != (*leading, b.shape[-1])
        or row.strides[-1] != row.itemsize
        or len(leading) > 1
        or not prod(leading) * a.shape[-2] * row.shape[-1] * a.shape[-1]
    ):
        return None
    library = _library_of(xp)
    if library is None:
        return None
    c = xp.empty((*leading, a.shape[-2], b.shape[-1]), a.dtype)
    a, how_a = _as_it_lies(xp, a, leading)
    b, how_b = _as_it_lies(xp, b, leading)
    row_step = row.strides[0] // row.itemsize if leading else 0
    form = _ProductForm(
        cublas.DATA_TYPES[a.dtype.name],
        cublas.COMPUTE_32F_FAST_TF32 if is_tf32 and a.dtype == FLOAT32 else cublas.COMPUTE_32F,
        (*c.shape[-2:], a.shape[-1]),
        prod(leading),
        how_a,
        how_b,
        _Operand(cublas.KEEP, c.shape[-1], prod(c.shape[-2:]), _alignment(c)),
        _Operand(cublas.KEEP, 0, row_step, _alignment(row)),
    )
    device = a.data.device_id
    plan = _planned(xp, threading.get_ident(), device, form)
    if plan is None:
        return None
    _, handle, stream, workspace = cublas.at_work(xp, device)
    status = plan.run(library, handle, (a, b, c, row), workspace.data.ptr, stream)
    if status:
        cublas.refused(status, f"a product of {a.shape} and {b.shape} with a row of {a.dtype}")
    return c


def _as_it_lies(xp, x, leading):
    """Return x, a copy if the library cannot read the original, and how it lies."""
    x, form, row, step = cublas.as_it_lies(xp, x, leading)
    return x, _Operand(form, row, step, _alignment(x))


def _alignment(x) -> int:
    """Return the largest power of two that divides the address of x, as far as it matters."""
    address = x.data.ptr
    return min(address & -address, MOST_ALIGNMENT_BYTES)


@functools.cache
def _library_of(xp):
    """Return the library, with the functions that are used here; None if it has not all of them."""
    library = cublas.library_of(xp)
    try:
        for name, types in _PROTOTYPES.items():
            getattr(library, name).argtypes = types
    except AttributeError:
        return None
    return library


# ---- plans ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=MAX_PLANS)
def _planned(xp, thread, device, form: _ProductForm):
    """Return the plan of a form, one for each thread, which sets the address of the row in it; None
    if the library has no algorithm for it.
    """
    return _Plan.of(_library_of(xp), xp.cuda.device.get_cublas_handle(), form)


class _Plan:
    """Descriptors and algorithm of a form of product.

    library   which frees the descriptors when the plan is garbage
    """

    def __init__(self, library):
        self._library = library
        self._algorithm = _Found()
        self._row = _POINTER()
        self._one = ctypes.c_float(1.0)
        self._zero = ctypes.c_float(0.0)
        self.operation = self.a = self.b = self.c = 0

    @classmethod
    def of(cls, library, handle, form: _ProductForm) -> "_Plan | None":
        self = cls(library)
        rows, columns, inner = form.sizes
        self.operation = self._made("MatmulDesc", form.arithmetic, cublas.DATA_TYPES["float32"])
        self.a = self._layout(form, form.b, columns, inner)
        self.b = self._layout(form, form.a, inner, rows)
        self.c = self._layout(form, form.c, columns, rows)
        attributes = [
            (OPERATION_TRANSPOSE_A, _INT32(form.b.form)),
            (OPERATION_TRANSPOSE_B, _INT32(form.a.form)),
            (OPERATION_EPILOGUE, _UINT32(EPILOGUE_BIAS)),
            (OPERATION_BIAS_POINTER, _POINTER(form.row.alignment)),  # is its alignment read
            (OPERATION_BIAS_BATCH_STRIDE, _INT64(form.row.step)),
        ]
        for attribute, value in attributes:
            self._set("MatmulDesc", self.operation, attribute, value)
        return self if self._choose(handle, form) else None

    def _layout(self, form, operand, num_rows, num_columns):
        """Return how a matrix of num_rows x num_columns, as it is multiplied, lies by columns."""
        if operand.form == cublas.TRANSPOSE:
            num_rows, num_columns = num_columns, num_rows
        layout = self._made("MatrixLayout", form.kind, num_rows, num_columns, operand.row)
        self._set("MatrixLayout", layout, LAYOUT_BATCH_COUNT, _INT32(form.number))
        self._set("MatrixLayout", layout, LAYOUT_BATCH_STEP, _INT64(operand.step))
        return layout

    def _choose(self, handle, form) -> bool:
        """Take the first algorithm of the heuristic; return False if there is none."""
        preference = self._made("MatmulPreference")
        limits = [
            (PREFERENCE_WORKSPACE_BYTES, _UINT64(cublas.WORKSPACE_BYTES)),
            (PREFERENCE_REDUCTION_SCHEMES, _UINT32(REDUCTION_IN_COMPUTE_TYPE)),
        ]
        operands = form.b, form.a, form.c, form.c
        for attribute, operand in zip(PREFERENCE_ALIGNMENTS, operands):
            limits.append((attribute, _UINT32(operand.alignment)))
        for attribute, value in limits:
            self._set("MatmulPreference", preference, attribute, value)
        number = ctypes.c_int(0)
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            *(handle, self.operation, self.a, self.b, self.c, self.c, preference, 1),
            *(ctypes.addressof(self._algorithm), ctypes.addressof(number)),
        )
        if status and status not in REFUSALS:
            cublas.refused(status, f"to choose an algorithm for {form}")
        return status == 0 and number.value == 1 and self._algorithm.state == 0

    def run(self, library, handle, arrays, workspace, stream) -> int:
        """Launch the product a b + row into c, for arrays (a, b, c, row); return the status."""
        a, b, c, row = [x.data.ptr for x in arrays]
        self._row.value = row
        self._set("MatmulDesc", self.operation, OPERATION_BIAS_POINTER, self._row)
        return library.cublasLtMatmul(
            *(handle, self.operation, ctypes.addressof(self._one), b, self.a, a, self.b),
            *(ctypes.addressof(self._zero), c, self.c, c, self.c),
            *(ctypes.addressof(self._algorithm), workspace, cublas.WORKSPACE_BYTES, stream),
        )

    def _made(self, kind, *args) -> int:
        """Return a new descriptor of this kind, which is freed with the plan."""
        made = _POINTER()
        status = getattr(self._library, f"cublasLt{kind}Create")(ctypes.addressof(made), *args)
        if status:
            cublas.refused(status, f"a descriptor {kind} of {args}")
        destroy = getattr(self._library, f"cublasLt{kind}Destroy")
        weakref.finalize(self, destroy, made.value).atexit = False
        return made.value or 0

    def _set(self, kind, descriptor, attribute, value):
        function = getattr(self._library, f"cublasLt{kind}SetAttribute")
        status = function(descriptor, attribute, ctypes.addressof(value), ctypes.sizeof(value))
        if status:
            cublas.refused(status, f"attribute {attribute} of {kind}: {value}")
