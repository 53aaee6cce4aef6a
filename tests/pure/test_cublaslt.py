"""Products with a row added in the same kernel: what cuBLASLt is asked for, by the stand-in's, and
what happens where it has no answer.
"""

import ctypes
import threading

import numpy
import pytest
from half_floats import HALF_A_LAST_BIT
from stand_in import pretended_gpu
from stand_in.cupy.cuda import cublaslt as library
from test_cublas import numbers, on_gpu

from shardkit import DeviceError
from shardkit.testing.array import dtype_named, products
from shardkit.testing.gpu import cublas, cublaslt

LAST_BITS = {**HALF_A_LAST_BIT, "float32": 1e-6}
FORMS = {  # shapes [..., m, k], [..., k, n] and [..., n]
    "plain": (lambda x: x((5, 7)), lambda x: x((7, 3)), lambda x: x((3,))),
    "weight": (lambda x: x((5, 7)), lambda x: x((3, 7)).T, lambda x: x((3,))),
    "turned": (lambda x: x((7, 5)).T, lambda x: x((7, 3)), lambda x: x((3,))),
    "one row": (lambda x: x((1, 7)), lambda x: x((3, 7)).T, lambda x: x((3,))),
    "one column": (lambda x: x((5, 7)), lambda x: x((1, 7)).T, lambda x: x((1,))),
    "part of a matrix": (
        lambda x: x((5, 20))[:, 4:11],
        lambda x: x((7, 3)),
        lambda x: x((9,))[2:5],
    ),
    "weights": (lambda x: x((5, 7)), lambda x: x((4, 3, 7)).swapaxes(1, 2), lambda x: x((4, 3))),
    "rows apart": (lambda x: x((4, 5, 7)), lambda x: x((7, 3)), lambda x: x((4, 8))[:, 1:4]),
    "every other column": (lambda x: x((5, 14))[:, ::2], lambda x: x((7, 3)), lambda x: x((3,))),
}


@pytest.fixture
def cupy():
    with pretended_gpu():
        import cupy

        cublaslt._planned.cache_clear()
        yield cupy


@pytest.fixture
def choices(monkeypatch):
    """The forms for which an algorithm was asked for."""
    found = []
    plain = library.cublasLtMatmulAlgoGetHeuristic

    def seen(*args):
        found.append(args)
        return plain(*args)

    monkeypatch.setattr(library, "cublasLtMatmulAlgoGetHeuristic", seen)
    return found


def operands(cupy, name, dtype):
    host = [form(lambda shape: numbers(shape, dtype, n)) for n, form in enumerate(FORMS[name])]
    a, b, row = [x.astype("float64") for x in host]
    return [on_gpu(cupy, x) for x in host], a @ b + row[..., None, :]


def plain_operands(cupy, dtype="float32"):
    return [cupy.asarray(numbers(s, dtype, n)) for n, s in enumerate([(5, 7), (7, 3), (3,)])]


@pytest.mark.parametrize("dtype", LAST_BITS)
@pytest.mark.parametrize("name", FORMS)
def test_a_row_is_added_however_operands_lie(cupy, name, dtype):
    there, right = operands(cupy, name, dtype)
    cupy._machine.forget()
    result = products.matmul_and_row(*there)
    assert result.dtype.name == dtype and result.flags.c_contiguous
    numpy.testing.assert_allclose(
        result.get().astype("float64"), right, rtol=1.01 * LAST_BITS[dtype], atol=1e-5
    )
    copies = {"copy": 1} if name == "every other column" else {}
    assert dict(cupy._machine.launches) == {"gemm": 1, **copies}


@pytest.mark.parametrize("name", FORMS)
def test_float64_takes_a_second_kernel(cupy, name):
    there, right = operands(cupy, name, "float64")
    cupy._machine.forget()
    numpy.testing.assert_allclose(products.matmul_and_row(*there).get(), right, rtol=1e-13)
    assert cupy._machine.launches["add"] == cupy._machine.launches["gemm"] == 1


def test_nothing_to_multiply_leaves_the_row(cupy):
    a, b, row = cupy.ones((5, 0), "float32"), cupy.ones((0, 3), "float32"), cupy.ones(3, "float32")
    assert (products.matmul_and_row(a, b, row).get() == 1).all()
    assert products.matmul_and_row(a[:0], b, row).shape == (0, 3)


def test_tf32_is_used_where_it_is_asked_for(cupy):
    a, b, row = plain_operands(cupy)
    plain = products.matmul_and_row(a, b, row).get()
    with products.precision("tf32"):
        fast = products.matmul_and_row(a, b, row).get()
    assert (plain != fast).any() and abs(plain - fast).max() < 7 * 2**-8


def test_an_algorithm_is_chosen_once_for_each_form_and_thread(cupy, choices):
    a, b, row = plain_operands(cupy)
    for _ in range(3):
        products.matmul_and_row(a, b, row)
    assert len(choices) == 1
    memory = cupy.asarray(numbers((40,)))
    products.matmul_and_row(a, b, memory[1:4])  # 4 bytes where 16 were before
    assert len(choices) == 2
    products.matmul_and_row(a[:4], b, row)
    assert len(choices) == 3
    thread = threading.Thread(target=lambda: products.matmul_and_row(a, b, row))
    cupy.cuda.get_current_stream().synchronize()
    thread.start()
    thread.join()
    assert len(choices) == 4


def test_descriptors_are_freed_with_their_plans(cupy):
    before = len(library.live)
    products.matmul_and_row(*plain_operands(cupy))
    assert len(library.live) == before + 5
    cublaslt._planned.cache_clear()
    assert len(library.live) == before


@pytest.mark.parametrize("refusal", ["status", "none"])
def test_a_form_without_an_algorithm_takes_a_second_kernel(cupy, monkeypatch, choices, refusal):
    if refusal == "status":
        monkeypatch.setattr(library, "_is_supported", lambda operation, layouts: False)
    else:
        monkeypatch.setattr(
            library, "cublasLtMatmulAlgoGetHeuristic", lambda *args: choices.append(1) or 0
        )
    a, b, row = plain_operands(cupy)
    for _ in range(2):
        cupy._machine.forget()
        result = products.matmul_and_row(a, b, row)
        assert dict(cupy._machine.launches) == {"gemm": 1, "add": 1}
    numpy.testing.assert_allclose(result.get(), a.get() @ b.get() + row.get(), rtol=1e-5, atol=1e-6)
    assert len(choices) == 1


def test_a_library_without_the_functions_is_done_without(cupy, monkeypatch):
    monkeypatch.setattr(library, "cublasLtMatmul", None)
    monkeypatch.delattr(library, "cublasLtMatmul")
    cublaslt._library_of.cache_clear()
    try:
        a, b, row = plain_operands(cupy)
        cupy._machine.forget()
        products.matmul_and_row(a, b, row)
        assert dict(cupy._machine.launches) == {"gemm": 1, "add": 1}
    finally:
        cublaslt._library_of.cache_clear()


@pytest.mark.parametrize("function", ["cublasLtMatmul", "cublasLtMatmulDescCreate"])
def test_an_error_of_the_library_is_told_with_its_status(cupy, monkeypatch, function):
    monkeypatch.setattr(library, function, lambda *args: 13)
    with pytest.raises(DeviceError, match="status 13"):
        products.matmul_and_row(*plain_operands(cupy))


def test_what_the_heuristic_writes_has_the_size_of_the_header():
    assert ctypes.sizeof(cublaslt._Found) == 96
    assert (cublaslt._Found.workspace_bytes.offset, cublaslt._Found.state.offset) == (64, 72)


def test_the_dtypes_are_those_of_cublas():
    assert {dtype_named(kind).name for kind in cublaslt.KINDS} < set(cublas.DATA_TYPES)
