"""A module that looks like the part of CuPy which matrix products use: arrays on the host, and a
cuBLAS that reads addresses.

    with_fake_cupy(monkeypatch)      -> the module, in the place of cupy; .calls is what cuBLAS was
                                     asked for

The two gemm functions follow the definition of the cuBLAS documentation: column by column, op(A)
op(B), leading dimensions, strides between matrices, types by number. They see addresses and never
arrays.
"""

import ctypes
import sys
from types import SimpleNamespace

import numpy

from shardkit.array.dtypes import dtype_named

TYPES = {0: "float32", 2: "float16", 14: "bfloat16"}
TF32_BITS = 10


class FakeArray:
    """An array that says it is on a GPU."""

    def __init__(self, array):
        self._array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "version": 3,
            "data": (array.ctypes.data, False),
        }
        self.data = SimpleNamespace(ptr=array.ctypes.data)

    def __getattr__(self, name):
        if name not in ("shape", "strides", "dtype", "ndim", "size", "flags", "fill"):
            raise AttributeError(f"a FakeArray has no {name}: nothing converts it silently")
        return getattr(self._array, name)

    def __setitem__(self, index, value):
        self._array[index] = value._array

    def get(self):
        return self._array.copy()


class FakeCublas:
    def __init__(self):
        self.calls = []

    def gemmEx(
        self,
        handle,
        transa,
        transb,
        m,
        n,
        k,
        alpha,
        a,
        a_type,
        lda,
        b,
        b_type,
        ldb,
        beta,
        c,
        c_type,
        ldc,
        compute,
        algo,
    ):
        self.gemmStridedBatchedEx(
            handle,
            transa,
            transb,
            m,
            n,
            k,
            alpha,
            a,
            a_type,
            lda,
            0,
            b,
            b_type,
            ldb,
            0,
            beta,
            c,
            c_type,
            ldc,
            0,
            1,
            compute,
            algo,
        )
        self.calls[-1].name = "gemmEx"

    def gemmStridedBatchedEx(
        self,
        handle,
        transa,
        transb,
        m,
        n,
        k,
        alpha,
        a,
        a_type,
        lda,
        step_a,
        b,
        b_type,
        ldb,
        step_b,
        beta,
        c,
        c_type,
        ldc,
        step_c,
        count,
        compute,
        algo,
    ):
        self.calls.append(
            SimpleNamespace(name="gemmStridedBatchedEx", compute=compute, count=count)
        )
        assert handle == 77 and _number(alpha) == 1 and _number(beta) == 0
        for index in range(count):
            left = _matrix(a, a_type, index * step_a, (k, m) if transa else (m, k), lda)
            right = _matrix(b, b_type, index * step_b, (n, k) if transb else (k, n), ldb)
            left, right = [
                _read(x.T if is_turned else x, compute)
                for x, is_turned in ((left, transa), (right, transb))
            ]
            _matrix(c, c_type, index * step_c, (m, n), ldc)[...] = left @ right


def _number(address):
    return ctypes.c_float.from_address(address).value


def _matrix(address, type_number, start, shape, leading):
    """Return a view of the matrix that lies there column by column."""
    dtype = dtype_named(TYPES[type_number])
    assert leading >= max(shape[0], 1), f"leading dimension {leading} for {shape[0]} rows"
    size = (shape[1] - 1) * leading + shape[0]
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(
        address + start * dtype.itemsize
    )
    flat = numpy.frombuffer(memory, dtype, size)
    return numpy.lib.stride_tricks.as_strided(
        flat, shape, (dtype.itemsize, leading * dtype.itemsize)
    )


def _read(x, compute):
    """Return it as float32; with TF32, 10 bits behind the point."""
    x = x.astype("float32")
    return (
        x
        if compute != 77
        else (x.view("uint32") & numpy.uint32(0xFFFFFFFF << 23 - TF32_BITS & 0xFFFFFFFF)).view(
            "float32"
        )
    )


def with_fake_cupy(monkeypatch):
    """Install the module as sys.modules["cupy"] until the test ends."""
    cublas = FakeCublas()

    def matmul(a, b, out=None):
        cublas.calls.append(SimpleNamespace(name="cupy.matmul"))
        return FakeArray(a._array @ b._array)

    module = SimpleNamespace(
        __version__="14.0.0",
        calls=cublas.calls,
        matmul=matmul,
        empty=lambda shape, dtype: FakeArray(numpy.empty(shape, dtype)),
        broadcast_to=lambda x, shape: FakeArray(numpy.broadcast_to(x._array, shape)),
        ascontiguousarray=lambda x: FakeArray(numpy.ascontiguousarray(x._array)),
        cuda=SimpleNamespace(cublas=cublas, device=SimpleNamespace(get_cublas_handle=lambda: 77)),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module
