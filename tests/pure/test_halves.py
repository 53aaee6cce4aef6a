"""Half floats: casts, kernels, products and operations against float64, to a few roundings of the
dtype.
"""

import sys

import numpy
import pytest
from half_floats import EVERY_HALF, HALF_A_LAST_BIT, relative_distance
from kernel_table import ATTENTION

from shardkit import ConfigurationError, ShapeError, nn
from shardkit.nn import Tensor, ops
from shardkit.testing.array import (
    HAS_PAIRS,
    KERNELS,
    Arena,
    ConvolutionWindow,
    Device,
    dtype_named,
    halves,
    is_floating,
    is_half,
    kernels,
    pooling,
    products,
    rounded,
    wide,
    widened,
)

ROUNDED = {name: entry.rounded for name, entry in KERNELS.items() if entry.rounded}


def numbers(shape, half, seed=0):
    """Standard normal numbers that the half float has exactly."""
    return numpy.random.default_rng(seed).standard_normal(shape).astype(dtype_named(half))


def exact(x):
    return numpy.asarray(x, "float64") if is_floating(x.dtype) else x


# ---- casts ---------------------------------------------------------------------------------------


@EVERY_HALF
def test_a_cast_there_and_back_is_within_half_a_last_bit(half):
    x = numpy.random.default_rng(1).standard_normal((5, 77)).astype("float32")
    back = widened(rounded(x, dtype_named(half)))
    assert (
        back.dtype == "float32"
        and (abs(back - x) <= HALF_A_LAST_BIT[half] * abs(x)).all()
        and (back != x).any()
    )
    numpy.testing.assert_array_equal(widened(rounded(back, dtype_named(half))), back)


@EVERY_HALF
@pytest.mark.parametrize(
    "view",
    [lambda x: x.T, lambda x: x[::2], lambda x: x[:0]],
    ids=["transposed", "strided", "empty"],
)
def test_casts_of_views_are_those_of_their_elements(half, view):
    x = numbers((6, 8), half)
    numpy.testing.assert_array_equal(widened(view(x)), view(x.astype("float32")))
    numpy.testing.assert_array_equal(rounded(view(x.astype("float32")), x.dtype), view(x))


def test_what_is_too_large_for_float16_is_infinite_and_no_warning():
    with numpy.errstate(all="raise"):
        assert rounded(
            numpy.float32([[1e6, -1e6, 65504]]).T, numpy.dtype("float16")
        ).ravel().tolist() == [numpy.inf, -numpy.inf, 65504]


def test_bfloat16_is_cast_as_its_package_casts_it():
    """All of them to float32; to them random bits, NaN and infinity among them, and numbers in the
    middle between two.
    """
    bfloat16 = dtype_named("bfloat16")
    every = numpy.arange(1 << 16, dtype="uint16").view(bfloat16)
    numpy.testing.assert_array_equal(
        widened(every).view("uint32"), numpy.arange(1 << 16, dtype="uint32") << 16
    )
    middles = (numpy.arange(1 << 16, dtype="uint32") << 16) | 0x8000
    for bits in (
        numpy.random.default_rng(0).integers(0, 1 << 32, 1 << 18, "uint32"),
        middles,
        middles + 1,
        middles - 1,
    ):
        with numpy.errstate(all="ignore"):
            right = bits.view("float32").astype(bfloat16)
        numpy.testing.assert_array_equal(
            rounded(bits.view("float32"), bfloat16).view("uint16"), right.view("uint16")
        )


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_casts_keep_the_order_of_dims_in_memory(half):
    """So that no copy is needed by what reads them, as with float32."""
    x = numbers((2, 5, 3, 4), half).swapaxes(1, 2)
    wide_x = widened(x)
    assert wide_x.strides == tuple(2 * stride for stride in x.strides)
    assert rounded(wide_x, x.dtype).strides == x.strides
    numpy.testing.assert_array_equal(
        rounded(wide_x, x.dtype).astype("float32"), x.astype("float32")
    )


def test_what_is_no_half_float_is_left_alone():
    x = numpy.ones(3, "float64")
    assert widened(x) is x and rounded(x, x.dtype) is x and wide(x.dtype) == "float64"
    assert not is_half(numpy.dtype("int16")) and not is_floating(numpy.dtype("V2"))


def test_bfloat16_without_ml_dtypes_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ConfigurationError, match="needs the package ml_dtypes"):
        dtype_named("bfloat16")


def test_bfloat16_on_a_gpu_needs_cupy_14():
    pytest.importorskip("ml_dtypes")
    cupy = type("cupy", (), {"__version__": "13.6.0"})
    with pytest.raises(ConfigurationError, match="CuPy 14 or newer, but this is 13.6.0"):
        dtype_named("bfloat16", cupy)


# ---- kernels -------------------------------------------------------------------------------------


def arguments(half):
    """{kernel: arguments}, small ones, whose numbers the half float has exactly."""
    x, g, d = numbers((6, 8), half), numbers((6, 8), half, 1), numbers(8, half, 2)
    q, k, v, y = [numbers((2, 4, 5, 6), half, seed) for seed in range(4)]
    per_row, per_query = numpy.float32([1, 2, 0.5, 1, 2, 1]), numpy.full((2, 4, 5), 3, "float32")
    ids = numpy.array([3, 0, 3, 3, 5, 0])
    angles = [
        function(numpy.linspace(0, 9, 15, dtype="float32")).reshape(5, 3)
        for function in (numpy.cos, numpy.sin)
    ]
    probabilities = abs(x)
    gates = abs(g) / 4
    window = ConvolutionWindow((2, 1), (1, 1), (1, 0), (0, 1), 2)  # x [2, 4, 5, 6] -> [2, 6, 3, 6]
    lines = (numbers((2, 4, 5), half), numbers((2, 4, 5), half, 1))
    moments = numpy.full((2, 2, 2), 0.5, "float32")
    pools = [pooling(size, 3, 2, 1, 1, (size - 1) // 2 + 1, True, False) for size in q.shape[2:]]
    largest, chosen = KERNELS["pool_maxima"].reference(exact(q), pools)
    taps, after = numbers((6, 2, 2, 2), half, 5), numbers((2, 6, 3, 6), half, 6)
    of_lstm = [numbers(shape, half) for shape in ((8, 3), (8, 2), (3, 4, 3), (3, 4, 8))]
    states = [numbers((steps, 4, 2), half, steps) for steps in (4, 5)]
    return {
        "abs_backward": (g, x),
        "add_row": (x, d),
        "angle_backward": (g, x, d + x, 1),
        "arctan_backward": (g, x),
        "attend_to_kept": (v[:, :, 0], q[:, :2], q[:, 2:], ids[:2] % 2, ids[:2] % 2 + 1, 2, 0.3),
        "batch_norm": (lines[0], d[:4], d[4:], 1e-5),
        "batch_norm_backward": (*lines, d[:4], moments[0].ravel(), moments[1].ravel(), 1e-5),
        "bias_gelu": (x, d),
        "bias_gelu_backward": (g, x, d),
        "causal_attention": (q, k[:, :2], v[:, :2], 0.3, 0),
        "causal_attention_backward": (y, q, k[:, :2], v[:, :2], y, per_query, 0.3, 0),
        "clamp_backward": (g, x, -0.5, 1.5),
        "convolve": (q, taps, d[:6], window),
        "convolve_input": (after, taps, d[:4], window, (5, 6)),
        "convolve_weight": (after, q, window, (2, 2)),
        "cos": (x,),
        "cos_backward": (g, x),
        "cross_entropy": (x, ids),
        "cross_entropy_backward": (numpy.float32(2), x, ids, per_row),
        "cross_entropy_with_gradient": (x, ids),
        "cube": (x,),
        "cube_backward": (g, x),
        "divisor_backward": (g, x, abs(d) + x * x),
        "dropout": (x, 7, 3, 0.25),
        "elu": (x, 0.75),
        "elu_backward": (g, x, 0.75),
        "embedding_backward": (x, ids, 7),
        "erf": (x,),
        "erf_backward": (g, x),
        "erf_gelu": (x,),
        "erf_gelu_backward": (g, x),
        "expm1_backward": (g, x),
        "extreme_backward": (g, x, g, 1),
        "gelu": (x,),
        "gelu_backward": (g, x),
        "group_gradient": (*lines, d[:4], *moments, *moments, 1e-5),
        "group_gradient_sums": (*lines, d[:4], *moments, 1e-5),
        "group_moments": (lines[0], 2),
        "group_norm": (lines[0], d[:4], d[4:], 2, 1e-5),
        "group_norm_backward": (*lines, d[:4], *moments, 1e-5),
        "gru_step": (g[:, :6], x[:, 2:], x[:, :2]),
        "gru_step_backward": (g[:, :2], gates, x[:, :2]),
        "hardtanh_backward": (g, x, -0.5, 1.5),
        "layer_norm": (x, d, d, 1e-5),
        "layer_norm_backward": (g, x, d, per_row, per_row),
        "leaky_relu": (x, 0.25),
        "leaky_relu_backward": (g, x, 0.25),
        "log1p_backward": (g, x * x),
        "lstm": (of_lstm[2], *states[0][:2], *of_lstm[:2], d),
        "lstm_backward": (
            *(states[0], of_lstm[2], *of_lstm[:2], abs(of_lstm[3]) / 4, *states),
            *(True, True),
        ),
        "mish": (x,),
        "mish_backward": (g, x),
        "multiply_modes": (numbers((3, 2, 2, 5), half), numbers((2, 4, 5, 2), half, 1)),
        "multiply_modes_input": (numbers((3, 4, 2, 5), half), numbers((2, 4, 5, 2), half, 1)),
        "multiply_modes_weight": (numbers((3, 4, 2, 5), half), numbers((3, 2, 2, 5), half, 1)),
        "pool_maxima": (q, pools),
        "pool_maxima_backward": (largest.astype(q.dtype), chosen, pools),
        "reciprocal_backward": (g, d + x * x),
        "relu_backward": (g, x),
        "rms_norm": (x, d, 1e-5),
        "rms_norm_backward": (g, x, d, per_row),
        "rotary": (q, *angles),
        "rsqrt": (abs(d) + x * x,),
        "rsqrt_backward": (g, abs(d) + x * x),
        "scale_groups": (lines[0], d[:4], d[4:], *moments, 1e-5),
        "segment_max": (x, numpy.arange(len(x)) % 4, 4),
        "sigmoid": (x,),
        "sigmoid_backward": (g, x),
        "relu": (x,),
        "sign": (x,),
        "silu": (x,),
        "silu_backward": (g, x),
        "sin": (x,),
        "sin_backward": (g, x),
        "softmax": (x,),
        "softmax_backward": (g, probabilities),
        "softplus": (x, 1.0, 20.0),
        "softplus_backward": (g, x, 1.0, 20.0),
        "sqrt_backward": (g, abs(d) + x * x),
        "square_backward": (g, x),
        "sum_of_rows": (x,),
        "sum_of_two": (g, x),
        "swiglu": (g, x),
        "swiglu_backward": (g, x, d + x),
        "tan_backward": (g, x),
        "three_halves": (x * x,),
        "three_halves_backward": (g, x * x),
        "tanh": (x,),
        "tanh_backward": (g, x),
        "where_else": (x, exact(g) > 0, -1.5, True),
        "where_of": (x, g, exact(g) > 0),
    }


# Where the CPU multiplies pairs of bfloat16, products take rounded weights: two roundings.
ROUNDS_WEIGHTS = ("causal_attention", "causal_attention_backward") if HAS_PAIRS else ()


@pytest.mark.thorough(but=30)
@EVERY_HALF
@pytest.mark.parametrize("name", sorted(ROUNDED))
def test_a_kernel_of_half_floats_rounds_its_results_once(name, half):
    given = arguments(half)[name]
    results, wanted = (
        getattr(kernels, name)(*given),
        KERNELS[name].reference(*map(exact_argument, given)),
    )
    results, wanted = [
        found if isinstance(found, tuple) else (found,) for found in (results, wanted)
    ]
    for result, right, is_rounded in zip(results, wanted, ROUNDED[name], strict=True):
        kept = "int32" if right.dtype.kind == "i" else "float32"
        assert result.dtype == (half if is_rounded else kept)
        tolerance = (HALF_A_LAST_BIT[half] if is_rounded else 0) + 20 * 2.0**-24
        rounds_weights = is_rounded and name in ROUNDS_WEIGHTS and half == "bfloat16"
        more = abs(right).max() / 128 if rounds_weights else 0
        numpy.testing.assert_allclose(
            exact(result), right, rtol=tolerance, atol=20 * 2.0**-24 + more
        )


def exact_argument(value):
    return exact(value) if isinstance(value, numpy.ndarray) else value


def test_every_kernel_that_sees_activations_has_a_rule_for_half_floats():
    never_of_halves = {  # on flat buffers, or in float32 whatever the model computes in
        "adam",
        "block_squares",
        "dropout_mask",
        "from_half",
        "largest_magnitude",
        "lion",
        "merge_attention",
        "momentum",
        "product_by_row",
        "rotary_tables",
        "rows_kept",
        "rows_to_spectra",
        "sgd",
        "shuffled",
        "spectra_to_rows",
        "to_half",
        "transform_columns",
        "tree_sum",
    }
    assert {name for name, entry in KERNELS.items() if entry.half is None} == never_of_halves


@EVERY_HALF
@pytest.mark.parametrize(
    "name, norm, num_parameters",
    [("add_layer_norm", "layer_norm", 2), ("add_rms_norm", "rms_norm", 1)],
)
def test_a_norm_after_an_addition_reads_the_sum_as_it_is_stored(name, norm, num_parameters, half):
    x, branch = (
        numbers((6, 8), half),
        rounded(widened(numbers((6, 8), half, 1)) / 3, dtype_named(half)),
    )
    parameters = [numbers(8, half, seed) for seed in range(num_parameters)]
    exact_sum, y = exact(x) + exact(branch), numpy.empty_like(x)
    total, *found = getattr(kernels, name)(x, branch, *parameters, 1e-5, out=(x, y))
    assert total is x and found[0] is y and (exact(total) != exact_sum).any()
    for result, right in zip(found, getattr(kernels, norm)(total, *parameters, 1e-5), strict=True):
        numpy.testing.assert_array_equal(result, right)


@EVERY_HALF
def test_kernels_write_into_buffers_that_they_are_given(half):
    x, table = numbers((6, 8), half), numpy.full((7, 8), numpy.nan, "float32")
    assert (
        kernels.embedding_backward(x, numpy.array([3, 0, 3, 3, 5, 0]), 7, out=table) is table
        and numpy.isfinite(table).all()
    )
    y = numpy.empty_like(x)
    assert kernels.gelu(x, out=y) is y
    numpy.testing.assert_array_equal(y, kernels.gelu(x))


# ---- products ------------------------------------------------------------------------------------


@EVERY_HALF
@pytest.mark.parametrize("in_arena", [False, True])
def test_a_product_of_half_floats_is_added_up_in_float32(half, in_arena):
    a, b = numbers((2, 33, 65), half), numbers((65, 300), half, 1)
    right = exact(a) @ exact(b)
    with Arena(Device("cpu"), purpose="test").in_use() if in_arena else numpy.errstate():
        y, into = products.matmul(a, b), numpy.empty((2, 33, 300), "float32")
        assert products.matmul(a, b, out=into) is into
    assert y.dtype == half
    numpy.testing.assert_allclose(into, right, rtol=1e-5, atol=1e-4)
    numpy.testing.assert_allclose(exact(y), right, rtol=1.01 * HALF_A_LAST_BIT[half], atol=1e-4)


@EVERY_HALF
def test_sums_of_half_floats_do_not_stop_growing(half):
    """4096 ones: added one by one, bfloat16 ends at 256 and float16 at 2048."""
    ones = numpy.ones((4096, 3), dtype_named(half))
    assert halves.total(ones, (0,)).tolist() == [4096] * 3
    assert ops.sum(Tensor(ones)).array == 12288 and ops.mean(Tensor(ones)).array == 1
    huge = halves.total(ones * 64, (0,), dtype=numpy.dtype("float32"))
    assert huge.dtype == "float32" and huge[0] == 4096 * 64


# ---- operations ----------------------------------------------------------------------------------

OPERATIONS = {
    "add": lambda x, y: x + y,
    "add a number": lambda x, y: x + 0.3,
    "subtract": lambda x, y: x - y,
    "divide": lambda x, y: x / (y * y + 1),
    "scale": lambda x, y: 0.7 * x,
    "negative": lambda x, y: -x,
    "square": lambda x, y: x**2.0,
    "exp": lambda x, y: ops.exp(x),
    "sqrt": lambda x, y: ops.sqrt(x * x + 1.0),
    "log": lambda x, y: ops.log(x * x + 1.0),
    "relu": lambda x, y: ops.relu(x),
    "tanh": lambda x, y: ops.tanh(x),
    "sigmoid": lambda x, y: ops.sigmoid(x),
    "gelu": lambda x, y: ops.gelu(x),
    "softmax": lambda x, y: ops.softmax(x),
    "log_softmax": lambda x, y: ops.log_softmax(x),
    "maximum": lambda x, y: ops.maximum(x, 0.1),
    "where": lambda x, y: ops.where(numpy.arange(8) % 2 == 0, x, 0.0),
    "mean": lambda x, y: ops.mean(x, 1),
    "variance": lambda x, y: ops.variance(x, 1),
    "max": lambda x, y: ops.max(x, 1),
    "product": lambda x, y: x @ y.transpose(0, 1),
    "rows": lambda x, y: x[numpy.array([0, 0, 3])],
    "slice": lambda x, y: x[1:3] * y[0],
    "parts": lambda x, y: ops.concatenate([y, x], 1),
    "permute": lambda x, y: ops.permute(x, (1, 0)),
    "cast": lambda x, y: ops.cast(ops.cast(x, "float32") * 2.0, x.dtype),
    "swiglu": lambda x, y: ops.swiglu(x, y),
    "loss": lambda x, y: ops.mse(x, y.detach(), reduction="sum"),
}


@EVERY_HALF
@pytest.mark.parametrize("in_arena", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_and_their_gradients_are_those_of_float64_to_a_few_roundings(
    name, half, in_arena
):
    arrays = numbers((6, 8), half), numbers((6, 8), half, 1)

    def run(arrays):
        x, y = [Tensor(array, requires_grad=True) for array in arrays]
        out = OPERATIONS[name](x, y)
        out.backward(numpy.ones(out.shape, out.dtype))
        return out, x.grad

    with Arena(Device("cpu"), purpose="test").in_use() if in_arena else numpy.errstate():
        (out, gradient), (right, right_gradient) = (
            run(arrays),
            run([exact(array) for array in arrays]),
        )
    assert gradient.dtype == half and out.dtype == ("float32" if name == "loss" else half)
    tolerance = 6 * HALF_A_LAST_BIT[half]
    numpy.testing.assert_allclose(exact(out.array), right.array, rtol=tolerance, atol=tolerance)
    numpy.testing.assert_allclose(
        exact(gradient), right_gradient, rtol=tolerance, atol=2 * tolerance
    )


@EVERY_HALF
def test_gradients_of_lent_half_floats_are_float32(half):
    layer = nn.Linear(8, 5).finish(0)
    weights = [
        rounded(parameter.array.copy(), dtype_named(half)) for parameter in layer.parameters()
    ]
    for parameter, array in zip(layer.parameters(), weights):
        parameter.bind(array)
        assert parameter.dtype == half and parameter.gradient_dtype == "float32"
    x = numbers((40, 8), half)
    out = layer(Tensor(x))
    gradient = numbers((40, 5), half, 1)
    out.backward(gradient)
    assert out.dtype == half and all(
        parameter.grad.dtype == "float32" for parameter in layer.parameters()
    )
    assert relative_distance(layer.weight.grad, exact(gradient).T @ exact(x)) < 1e-6
    assert relative_distance(layer.bias.grad, exact(gradient).sum(0)) < 1e-6
    layer.weight.release()
    assert layer.weight.dtype == "float32"


def test_only_half_floats_may_be_lent_in_the_place_of_float32():
    weight = nn.Linear(2, 2).finish(0).weight
    with pytest.raises(ShapeError, match="float64"):
        weight.bind(numpy.zeros((2, 2)))


@pytest.mark.parametrize("shape", ATTENTION, ids=str)
@pytest.mark.parametrize("lies", ["by head", "by position", "every other"])
def test_attention_reads_and_writes_bfloat16_wherever_it_lies(shape, lies):
    batch, heads, key_heads, num_queries, num_keys, dim, first = shape

    def made(num_heads, length, seed):
        x = numbers((batch, num_heads, length, dim), "bfloat16", seed)
        if lies == "by position":
            return numpy.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
        return numpy.repeat(x, 2, axis=3)[..., ::2] if lies == "every other" else x

    q, g = [made(heads, num_queries, seed) for seed in (0, 1)]
    k, v = [made(key_heads, num_keys, seed) for seed in (2, 3)]
    right = KERNELS["causal_attention"].reference
    y, log_sums = kernels.causal_attention(q, k, v, 0.4, first)
    wanted = right(*map(exact, (q, k, v)), 0.4, first)
    assert y.dtype == q.dtype and log_sums.dtype == "float32"

    def check(found, right, least):
        more = abs(right).max(initial=0) / 128 if HAS_PAIRS else 0
        numpy.testing.assert_allclose(exact(found), right, rtol=2.0**-8, atol=least + more)

    check(y, wanted[0], 1e-5)
    numpy.testing.assert_allclose(log_sums, wanted[1], rtol=1e-5, atol=1e-5)
    given = g, q, k, v, y, log_sums
    found = kernels.causal_attention_backward(*given, 0.4, first)
    right = KERNELS["causal_attention_backward"].reference
    for mine, theirs in zip(found, right(*map(exact, given), 0.4, first)):
        assert mine.dtype == q.dtype
        check(mine, theirs, 1e-4)
