"""The two products of cuBLAS that are asked for by address, column by column, as its documentation
defines them.

Types and arithmetic go by number; TF32 reads 10 bits behind the point of float32 operands, and sums
are float32.
"""

import ctypes

import numpy

from .._machine import machine

_TYPES = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16"}
_TF32, _TF32_MASK = 77, numpy.uint32(0xFFFFE000)


def gemmEx(
    handle,
    transa,
    transb,
    m,
    n,
    k,
    alpha,
    A,
    Atype,
    lda,
    B,
    Btype,
    ldb,
    beta,
    C,
    Ctype,
    ldc,
    computeType,
    algo,
):
    gemmStridedBatchedEx(
        handle,
        transa,
        transb,
        m,
        n,
        k,
        alpha,
        A,
        Atype,
        lda,
        0,
        B,
        Btype,
        ldb,
        0,
        beta,
        C,
        Ctype,
        ldc,
        0,
        1,
        computeType,
        algo,
    )


def gemmStridedBatchedEx(
    handle,
    transa,
    transb,
    m,
    n,
    k,
    alpha,
    A,
    Atype,
    lda,
    strideA,
    B,
    Btype,
    ldb,
    strideB,
    beta,
    C,
    Ctype,
    ldc,
    strideC,
    batchCount,
    computeType,
    algo,
):
    if handle != get_cublas_handle() or _number(alpha) != 1 or _number(beta) != 0:
        raise ValueError("wanted the handle of this device, alpha = 1 and beta = 0, in host memory")
    stream = machine.begin()

    def multiply(blocks):
        for index in range(batchCount):
            a = _matrix(A, Atype, index * strideA, (k, m) if transa else (m, k), lda)
            b = _matrix(B, Btype, index * strideB, (n, k) if transb else (k, n), ldb)
            a, b = [
                _read(x.T if is_turned else x, computeType)
                for x, is_turned in ((a, transa), (b, transb))
            ]
            with numpy.errstate(all="ignore"):
                _matrix(C, Ctype, index * strideC, (m, n), ldc)[...] = a @ b

    blocks = list(map(machine.find, (A, B, C)))
    machine.perform(lambda: multiply(blocks))
    blocks[2].mark_written(stream)


def getVersion(handle):
    return 120900


def get_cublas_handle():
    return 77


def _number(address):
    return ctypes.c_float.from_address(address).value


def _matrix(address, kind, start, shape, leading):
    """The matrix that lies there column by column, a view."""
    dtype = numpy.dtype(_TYPES[kind])
    if leading < max(shape[0], 1):
        raise ValueError(f"leading dimension {leading} for {shape[0]} rows")
    size = (shape[1] - 1) * leading + shape[0]
    machine.find(address + start * dtype.itemsize, size * dtype.itemsize)
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(
        address + start * dtype.itemsize
    )
    flat = numpy.frombuffer(memory, dtype, size)
    return numpy.lib.stride_tricks.as_strided(
        flat, shape, (dtype.itemsize, leading * dtype.itemsize)
    )


def _read(x, compute):
    x = x.astype("float32")
    return (x.view("uint32") & _TF32_MASK).view("float32") if compute == _TF32 else x
