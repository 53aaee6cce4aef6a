"""cuBLAS as ctypes sees it: the functions in C that matrix products use, column by column, as its
documentation defines them.

Types and arithmetic go by number; TF32 reads 10 bits behind the point of float32 operands, and sums
are float32. Each thread has a handle for each device, with a state: a stream, a workspace, which
setting the stream takes away, and a math mode, which CuPy's own products leave as they like it.
"""

import ctypes
import itertools
import os

import numpy

from .._machine import machine

_TYPES = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16"}
_COMPUTE_32F, _COMPUTE_64F, _FAST_TF32 = 68, 70, 77
_TF32_MATH, _FULL_SUMS = 3, 16
_TF32_MASK = numpy.uint32(0xFFFFE000)
_SUCCESS, _INVALID_VALUE, _NOT_SUPPORTED = 0, 7, 15
_LEAST_WORKSPACE = 32 << 20  # what the documentation wants for its newest GPUs
_HANDLES = itertools.count(0x7700)


class _State:
    """Of one handle."""

    def __init__(self, handle):
        self.handle, self.stream, self.workspace, self.math_mode = handle, 0, None, 0


def _states() -> dict:
    """{device: state} of this thread."""
    if not hasattr(machine.here, "cublas"):
        machine.here.cublas = {}
    return machine.here.cublas


def get_cublas_handle():
    """Of this thread and the current device."""
    return _state().handle


def _state() -> _State:
    if machine.device not in _states():
        _states()[machine.device] = _State(next(_HANDLES))
    return _states()[machine.device]


def multiplied_by_cupy(stream):
    """CuPy multiplies with the handle. Errors: NotImplementedError if the stream is captured."""
    if stream.capture is not None:
        raise NotImplementedError(
            "calling cuBLAS API during stream capture is currently unsupported"
        )
    state = _state()
    state.stream, state.workspace = stream.address, None
    state.math_mode = _TF32_MATH if os.environ.get("CUPY_TF32") == "1" else 0


def cublasSetStream_v2(handle, stream):
    state = _of(handle)
    state.stream, state.workspace = stream or 0, None
    return _SUCCESS


def cublasSetWorkspace_v2(handle, workspace, num_bytes):
    if workspace % 256 or machine.find(workspace, num_bytes) is None:
        return _INVALID_VALUE
    _of(handle).workspace = workspace, num_bytes
    return _SUCCESS


def cublasSetMathMode(handle, mode):
    _of(handle).math_mode = mode
    return _SUCCESS


def cublasGemmEx(handle, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc, *last):
    left, right, result = (a, at, lda, 0), (b, bt, ldb, 0), (c, ct, ldc, 0)
    return cublasGemmStridedBatchedEx(
        *(handle, ta, tb, m, n, k, alpha, *left, *right, beta, *result, 1, *last)
    )


def cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, *rest):
    """rest: (address, type, leading dimension, elements between matrices) of A and B, beta, those
    of C, matrices, arithmetic, algorithm.
    """
    left, right, beta, result, (count, compute, _) = (
        rest[:4],
        rest[4:8],
        rest[8],
        rest[9:13],
        rest[13:],
    )
    kinds = left[1], right[1], result[1]
    if not _is_supported(kinds, compute):
        return _NOT_SUPPORTED
    state, stream = _of(handle), machine.begin()
    _check_state(state, stream)
    one, beta = [_number(address, compute) for address in (alpha, beta)]
    if one != 1 or beta not in (0, 1):
        raise ValueError(f"alpha {one} and beta {beta}; wanted 1, and 0 or 1")
    is_tf32 = compute == _FAST_TF32 or kinds[0] == 0 and state.math_mode & _TF32_MATH == _TF32_MATH
    is_summed_in_halves = kinds[2] in (2, 14) and not state.math_mode & _FULL_SUMS

    def multiply(blocks):
        for index in range(count):
            a = _matrix(left, index, (k, m) if ta else (m, k))
            b = _matrix(right, index, (n, k) if tb else (k, n))
            a, b = _read(a.T if ta else a, is_tf32), _read(b.T if tb else b, is_tf32)
            c = _matrix(result, index, (m, n))
            with numpy.errstate(all="ignore"):
                product = _sum_of_parts(a, b, c.dtype) if is_summed_in_halves else a @ b
                c[...] = product + c if beta else product

    blocks = [machine.find(operand[0]) for operand in (left, right, result)]
    machine.launched("gemm")
    machine.perform(lambda: multiply(blocks))
    for block in (blocks[2], machine.find(state.workspace[0])):
        block.mark_written(stream)
    return _SUCCESS


def _of(handle) -> _State:
    state = _state()
    if handle != state.handle:
        machine.mistake("a cuBLAS handle of another thread or device")
    return state


def _check_state(state, stream):
    _check_workspace(state.handle, stream, state.workspace, state.stream)


def _check_workspace(handle, stream, given, address):
    """given: (address, bytes) or None; address: of the stream that the product was given.

    One product can be several kernels that meet in its workspace, and those that two threads launch
    may alternate: a block belongs to the handle that came first.
    """
    if address != stream.address:
        machine.mistake("a product on a stream that is not the current one")
    if given is None or given[1] < _LEAST_WORKSPACE:
        machine.mistake(
            "a product in the workspace that cuBLAS has for all streams, whose bits depend on what "
            "others do"
        )
    workspace = machine.find(*given)
    machine.check_seen(stream, workspace, "a product in a workspace of another stream")
    block = workspace.block
    block.handle = handle if block.handle is None else block.handle
    if block.handle != handle:
        machine.mistake("a product in a workspace that products of another thread use too")


def _is_supported(kinds, compute) -> bool:
    """The table of types of the documentation, as far as it is used."""
    a, b, c = kinds
    if compute == _COMPUTE_64F:
        return a == b == c == 1
    if compute == _FAST_TF32:
        return a == b == c == 0
    return compute == _COMPUTE_32F and a == b and a in (0, 2, 14) and c in (a, 0)


def _number(address, compute):
    kind = ctypes.c_double if compute == _COMPUTE_64F else ctypes.c_float
    return kind.from_address(address).value


def _matrix(operand, index, shape):
    """The matrix that lies there column by column, a view."""
    address, kind, leading, step = operand
    dtype = numpy.dtype(_TYPES[kind])
    if leading < max(shape[0], 1):
        raise ValueError(f"leading dimension {leading} for {shape[0]} rows")
    address += index * step * dtype.itemsize
    size = (shape[1] - 1) * leading + shape[0]
    machine.find(address, size * dtype.itemsize)
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(address)
    flat = numpy.frombuffer(memory, dtype, size)
    return numpy.lib.stride_tricks.as_strided(
        flat, shape, (dtype.itemsize, leading * dtype.itemsize)
    )


def _read(x, is_tf32):
    x = x if x.dtype == "float64" else x.astype("float32")
    return (x.view("uint32") & _TF32_MASK).view("float32") if is_tf32 else x


def _sum_of_parts(a, b, dtype):
    """Two parts of the sums, each rounded to half floats: what an algorithm may do that is not
    told otherwise.
    """
    middle = a.shape[1] // 2
    parts = [a[:, part] @ b[part] for part in (slice(0, middle), slice(middle, None))]
    return sum(part.astype(dtype).astype("float32") for part in parts)


def getVersion(handle):
    """What CuPy's own module has: a sign that the library was found."""
    _of(handle)
    return 130000


def __getattr__(name):
    """Symbols of cuBLASLt, which cuBLAS is linked with."""
    from . import cublaslt

    if name.startswith("cublasLt"):
        return getattr(cublaslt, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
