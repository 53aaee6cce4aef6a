"""Matrix products of half floats and in TF32 on a GPU: what cuBLAS is asked for, by a cuBLAS that
reads addresses.
"""

import numpy
import pytest
from fake_cublas import FakeArray, with_fake_cupy
from half_floats import EVERY_HALF, HALF_A_LAST_BIT

from shardkit import ShardingConfiguration, run_ranks
from shardkit.array import products
from shardkit.array.dtypes import dtype_named
from shardkit.errors import ConfigurationError

COMPUTE_32F, TF32 = 68, 77


@pytest.fixture
def cupy(monkeypatch):
    return with_fake_cupy(monkeypatch)


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


@EVERY_HALF
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("out", [None, "half", "float32"])
def test_products_of_half_floats_are_right_however_they_lie(cupy, name, half, out):
    a, b = [form(lambda shape: numbers(shape, half, seed)) for seed, form in enumerate(FORMS[name])]
    right = a.astype("float64") @ b.astype("float64")
    into = (
        None
        if out is None
        else FakeArray(
            numpy.full(right.shape, numpy.nan, dtype_named(half if out == "half" else out))
        )
    )
    result = products.matmul(FakeArray(a), FakeArray(b), into)
    assert into is None or result is into
    assert result.dtype == (out if out == "float32" else half)
    tolerance = 1e-6 if out == "float32" else 1.01 * HALF_A_LAST_BIT[half]
    numpy.testing.assert_allclose(result.get().astype("float64"), right, rtol=tolerance, atol=1e-5)
    assert all(call.compute == COMPUTE_32F for call in cupy.calls) and len(cupy.calls) == (
        right.size > 0 and a.shape[-1] > 0
    )


def test_a_result_that_is_not_contiguous_is_written_too(cupy):
    a, b, whole = (
        numbers((5, 7), "float16"),
        numbers((7, 3), "float16", 1),
        numpy.zeros((5, 6), "float32"),
    )
    products.matmul(FakeArray(a), FakeArray(b), FakeArray(whole[:, ::2]))
    numpy.testing.assert_allclose(
        whole[:, ::2], a.astype("float32") @ b.astype("float32"), rtol=1e-6
    )
    assert not whole[:, 1::2].any()


def test_float32_is_cupys_own_product_unless_tf32_is_asked_for(cupy):
    a, b = numbers((5, 7)), numbers((7, 3), seed=1)
    plain = products.matmul(FakeArray(a), FakeArray(b)).get()
    with products.precision("tf32"):
        fast = products.matmul(FakeArray(a), FakeArray(b)).get()
        products.matmul(
            FakeArray(numbers((5, 7), "float64")), FakeArray(numbers((7, 3), "float64"))
        )
    again = products.matmul(FakeArray(a), FakeArray(b)).get()
    assert [call.name for call in cupy.calls] == [
        "cupy.matmul",
        "gemmEx",
        "cupy.matmul",
        "cupy.matmul",
    ]
    assert cupy.calls[1].compute == TF32
    assert (plain == again).all() and (plain != fast).any() and abs(plain - fast).max() < 7 * 2**-8


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
