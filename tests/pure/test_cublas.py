"""Matrix products on a GPU: what cuBLAS is asked for, by the stand-in's, which reads addresses."""

import numpy
import pytest
from half_floats import HALF_A_LAST_BIT
from stand_in import pretended_gpu

from shardkit import ConfigurationError, DeviceError, ShardingConfiguration, run_ranks
from shardkit.testing.array import dtype_named, products

DTYPES = ("float16", "bfloat16", "float32", "float64")
LAST_BITS = {**HALF_A_LAST_BIT, "float32": 1e-6, "float64": 1e-14}


@pytest.fixture
def cupy():
    with pretended_gpu():
        import cupy

        yield cupy


def numbers(shape, dtype="float32", seed=0):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(dtype_named(dtype))


FORMS = {  # shapes [..., m, k] and [..., k, n]
    "plain": (lambda x: x((5, 7)), lambda x: x((7, 3))),
    "weight": (lambda x: x((5, 7)), lambda x: x((3, 7)).T),
    "gradient of weight": (lambda x: x((7, 5)).T, lambda x: x((7, 3))),
    "both turned": (lambda x: x((7, 5)).T, lambda x: x((3, 7)).T),
    "one row": (lambda x: x((1, 7)), lambda x: x((7, 3))),
    "one column": (lambda x: x((5, 7)), lambda x: x((7, 1))),
    "inner of one": (lambda x: x((5, 1)), lambda x: x((1, 3))),
    "part of a matrix": (lambda x: x((5, 20))[:, 4:11], lambda x: x((7, 3))),
    "every other column": (lambda x: x((5, 14))[:, ::2], lambda x: x((7, 3))),
    "batch": (lambda x: x((4, 5, 7)), lambda x: x((4, 7, 3))),
    "one for all": (lambda x: x((4, 5, 7)), lambda x: x((7, 3))),
    "heads": (lambda x: x((2, 5, 4, 7)).swapaxes(1, 2), lambda x: x((2, 4, 7, 3))),
    "turned heads": (lambda x: x((2, 4, 5, 7)), lambda x: x((2, 4, 3, 7)).swapaxes(2, 3)),
    "groups": (lambda x: x((2, 2, 3, 5, 7)), lambda x: x((2, 2, 1, 7, 3))),
    "empty": (lambda x: x((0, 7)), lambda x: x((7, 3))),
    "nothing to add": (lambda x: x((5, 0)), lambda x: x((0, 3))),
}
UNEVEN = ("every other column", "heads", "groups")  # copied; the rest is read as it lies


def on_gpu(cupy, host):
    """Return the array on the GPU with the strides that it has on the host."""
    whole = host if host.base is None else host.base
    offset = host.ctypes.data - whole.ctypes.data
    memory = cupy.asarray(whole)
    return cupy.ndarray(host.shape, host.dtype, memory.data + offset, host.strides)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("out", [None, "same", "float32"])
def test_products_are_right_however_their_operands_lie(cupy, name, dtype, out):
    a, b = [
        form(lambda shape: numbers(shape, dtype, seed)) for seed, form in enumerate(FORMS[name])
    ]
    right = a.astype("float64") @ b.astype("float64")
    out = dtype if out == "same" or dtype == "float64" and out else out
    into = None if out is None else cupy.full(right.shape, numpy.nan, dtype_named(out))
    machine = cupy._machine
    machine.forget()
    result = products.matmul(on_gpu(cupy, a), on_gpu(cupy, b), into)
    assert into is None or result is into
    assert result.dtype == (out or dtype)
    tolerance = 1.01 * max(LAST_BITS[result.dtype.name], LAST_BITS["float64"])
    numpy.testing.assert_allclose(result.get().astype("float64"), right, rtol=tolerance, atol=1e-5)
    assert machine.launches["gemm"] == (right.size > 0 and a.shape[-1] > 0)
    assert "matmul" not in machine.launches
    assert machine.launches["copy"] == (name in UNEVEN)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_is_added_by_cublas(cupy, dtype):
    a, b = numbers((5, 7), dtype), numbers((7, 3), dtype, 1)
    out = numbers((5, 3), "float64" if dtype == "float64" else "float32", 2)
    there = cupy.asarray(out)
    operands = cupy.asarray(a), cupy.asarray(b)
    cupy._machine.forget()
    products.add_product(*operands, there)
    assert dict(cupy._machine.launches) == {"gemm": 1}
    right = out + a.astype("float64") @ b.astype("float64")
    numpy.testing.assert_allclose(there.get(), right, rtol=1e-5, atol=1e-5)


def test_a_weight_for_all_samples_is_one_product_of_all_rows(cupy):
    x, weight = cupy.asarray(numbers((4, 5, 7))), cupy.asarray(numbers((7, 3), seed=1))
    seen = []
    library = cupy.cuda.cublas
    plain = library.cublasGemmEx
    library.cublasGemmEx = lambda *args: seen.append(args[3:6]) or plain(*args)
    try:
        products.matmul(x, weight)
    finally:
        library.cublasGemmEx = plain
    assert seen == [(3, 20, 7)]


@pytest.mark.parametrize("is_added", [False, True])
def test_a_result_that_is_not_contiguous_is_written_too(cupy, is_added):
    a, b = numbers((5, 7), "float16"), numbers((7, 3), "float16", 1)
    whole = cupy.ones((5, 6), "float32")
    function = products.add_product if is_added else products.matmul
    function(cupy.asarray(a), cupy.asarray(b), whole[:, ::2])
    right = a.astype("float32") @ b.astype("float32") + is_added
    numpy.testing.assert_allclose(whole.get()[:, ::2], right, rtol=1e-5)
    assert (whole.get()[:, 1::2] == 1).all()


@pytest.mark.parametrize("num_rows", [1, 5])
@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_result_with_gaps_is_written_where_it_lies(cupy, is_turned, is_added, num_rows):
    """Gaps between rows, and between matrices."""
    a, b = numbers((3, num_rows, 7)), numbers((7, 4), seed=1)
    there = cupy.asarray(a), cupy.asarray(b)
    if is_turned:
        there = cupy.asarray(a.swapaxes(1, 2)).swapaxes(1, 2), there[1]
    whole = cupy.ones((3, num_rows + 2, 6), "float32")
    cupy._machine.forget()
    function = products.add_product if is_added else products.matmul
    function(*there, whole[:, :num_rows, 1:5])
    assert dict(cupy._machine.launches) == {"gemm": 1}
    right = numpy.ones(whole.shape, "float32")
    right[:, :num_rows, 1:5] = a @ b + is_added
    numpy.testing.assert_allclose(whole.get(), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("asked", ["0", "1"])
def test_tf32_is_used_where_it_is_asked_for_and_not_where_cupy_uses_it(cupy, monkeypatch, asked):
    monkeypatch.setenv("CUPY_TF32", asked)
    a, b = numbers((5, 7)), numbers((7, 3), seed=1)
    there = cupy.asarray(a), cupy.asarray(b)
    by_cupy = cupy.matmul(*there).get()
    plain = products.matmul(*there).get()
    with products.precision("tf32"):
        fast = products.matmul(*there).get()
        wide = products.matmul(*[cupy.asarray(x.astype("float64")) for x in (a, b)]).get()
    again = products.matmul(*there).get()
    numpy.testing.assert_allclose(plain, a.astype("float64") @ b, rtol=1e-5, atol=1e-6)
    assert (plain == again).all() and (plain != fast).any() and abs(plain - fast).max() < 7 * 2**-8
    assert (wide == a.astype("float64") @ b.astype("float64")).all()
    assert by_cupy.tobytes() == plain.tobytes()  # the stand-in's CuPy computes by NumPy


def test_sums_of_half_floats_are_not_made_in_half_floats(cupy):
    """A part of the sum that is rounded to 11 bits loses its last one."""
    a = numpy.ones((1, 4096), "float16")
    b = numpy.ones((4096, 1), "float16")
    b[0], b[2048:] = 2, -0.5
    there = cupy.asarray(a), cupy.asarray(b)
    cupy.matmul(*there)
    assert products.matmul(*there).item() == 2049 - 1024


def test_integers_and_mixed_types_are_multiplied_by_cupy(cupy):
    a, b = cupy.asarray(numpy.arange(6).reshape(2, 3)), cupy.asarray(numpy.ones((3, 2), "float32"))
    assert products.matmul(a, b).get().tolist() == [[3, 3], [12, 12]]
    out = cupy.ones((2, 2), "float64")
    products.add_product(a, b, out)
    assert out.get().tolist() == [[4, 4], [13, 13]]


def test_each_stream_has_a_workspace_that_it_keeps(cupy):
    a = cupy.asarray(numbers((4, 4)))
    state = cupy.cuda.cublas._state()
    products.matmul(a, a)
    first = state.workspace
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        products.matmul(a, a)
    second = state.workspace
    products.matmul(a, a)
    stream.synchronize()
    assert state.workspace == first and second != first and first[1] == 32 << 20


def test_an_operation_that_cublas_refuses_is_an_error_with_its_status(cupy, monkeypatch):
    monkeypatch.setattr(cupy.cuda.cublas, "_is_supported", lambda kinds, compute: False)
    with pytest.raises(DeviceError, match="status 15"):
        products.matmul(cupy.ones((2, 2)), cupy.ones((2, 2)))


def test_tf32_of_one_rank_is_not_that_of_another():
    """Ranks may be threads."""

    def on_rank(backend):
        with products.precision("tf32" if backend.rank else "highest"):
            backend.barrier()
            return products._precision.get()

    assert run_ranks(2, on_rank) == ["highest", "tf32"]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"matmul_precision": "tf32"}, 'device = "cuda"'),
        ({"matmul_precision": "tf32", "device": "cpu"}, "TF32 is arithmetic of GPUs"),
        ({"matmul_precision": "fast", "device": "cuda"}, "highest or tf32"),
        ({"compute_dtype": "half"}, "bfloat16"),
        ({"initial_loss_scale": 1000.0}, "power of two"),
        ({"initial_loss_scale": 0}, "power of two"),
        ({"loss_scale_interval": 0}, "an integer, at least 1"),
    ],
)
def test_what_cannot_be_computed_is_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        ShardingConfiguration(object(), **settings)


def test_tf32_is_taken_on_a_gpu():
    assert (
        ShardingConfiguration(object(), device="cuda", matmul_precision="tf32").matmul_precision
        == "tf32"
    )
