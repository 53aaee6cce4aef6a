"""Attention against PyTorch's, with and without masks: values and gradients, float64 to 1e-10."""

import time

import numpy
import pytest
from torch_or_skip import torch

from shardkit import ShapeError
from shardkit.nn import Tensor, grad, ops
from shardkit.testing.array import kernels

# query, key, value
SHAPES = {
    "four": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4)),
    "three": ((3, 5, 4), (3, 7, 4), (3, 7, 4)),
    "two": ((5, 4), (7, 4), (7, 4)),
    "five": ((2, 1, 3, 5, 4), (2, 1, 3, 7, 4), (2, 1, 3, 7, 4)),
    "one": ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
    "fewer keys": ((2, 3, 9, 4), (2, 3, 4, 4), (2, 3, 4, 4)),
    "wide values": ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)),
    "no sample": ((0, 3, 5, 4), (0, 3, 7, 4), (0, 3, 7, 4)),
    "no query": ((2, 3, 0, 4), (2, 3, 7, 4), (2, 3, 7, 4)),
    "no key": ((2, 3, 5, 4), (2, 3, 0, 4), (2, 3, 0, 4)),
}
GROUPED = ((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4))
RNG = numpy.random.default_rng(3)
HOLES = RNG.random((5, 7)) < 0.6
HOLES[2] = False  # a query that sees nothing
BIAS = RNG.standard_normal((3, 5, 7))
OUT = numpy.where(HOLES, BIAS, -numpy.inf)
CASES = {
    **{name: (shapes, {}) for name, shapes in SHAPES.items()},
    "grouped": (GROUPED, {"enable_gqa": True}),
    "grouped causal": (GROUPED, {"enable_gqa": True, "is_causal": True}),
    "grouped holes": (GROUPED, {"enable_gqa": True, "attn_mask": HOLES}),
    "holes": (SHAPES["four"], {"attn_mask": HOLES}),
    "holes of keys": (SHAPES["four"], {"attn_mask": HOLES[:1]}),
    "holes of samples": (SHAPES["four"], {"attn_mask": RNG.random((2, 1, 1, 7)) < 0.5}),
    "bias": (SHAPES["four"], {"attn_mask": BIAS, "scale": 0.3}),
    "bias of one head": (SHAPES["four"], {"attn_mask": BIAS[:1]}),
    "bias with holes": (SHAPES["four"], {"attn_mask": OUT}),
    "bias of wide values": (SHAPES["wide values"], {"attn_mask": BIAS}),
    "scale": (SHAPES["four"], {"scale": 0.1}),
    **{
        f"causal {name}": (SHAPES[name], {"is_causal": True})
        for name in ("four", "two", "one", "fewer keys", "wide values", "no sample")
    },
}


def inputs(name, dtype):
    rng = numpy.random.default_rng(len(name))
    shapes, settings = CASES[name]
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    mask = settings.get("attn_mask")
    if mask is not None and mask.dtype != bool:
        arrays.append(mask.astype(dtype))
    return arrays, dict(settings)


def strided(array):
    """The same numbers in another order of memory."""
    return numpy.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)


def run(name, arrays, settings, op=ops.scaled_dot_product_attention):
    """The output, the gradient sent, and the gradients of the inputs."""
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    if len(tensors) > 3:
        settings["attn_mask"] = tensors[3]
    output = op(*tensors[:3], **settings)
    assert output.dtype == arrays[0].dtype
    sent = numpy.random.default_rng(1).standard_normal(output.shape).astype(output.dtype)
    output.backward(sent)
    return output, sent, [tensor.grad for tensor in tensors]


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_pytorch(name):
    for dtype, tolerance in (("float64", 1e-10), ("float32", 3e-5)):
        arrays, settings = inputs(name, dtype)
        output, sent, gradients = run(name, arrays, dict(settings))
        twins = [torch.tensor(array, requires_grad=True) for array in arrays]
        if len(twins) > 3:
            settings["attn_mask"] = twins[3]
        elif "attn_mask" in settings:
            settings["attn_mask"] = torch.tensor(settings["attn_mask"])
        expected = torch.nn.functional.scaled_dot_product_attention(*twins[:3], **settings)
        expected.backward(torch.tensor(sent))
        found = [output.array, *gradients]
        for mine, other in zip(found, [expected.detach(), *[twin.grad for twin in twins]]):
            numpy.testing.assert_allclose(mine, other.numpy(), rtol=0, atol=tolerance)
    elsewhere, _, others = run(name, *[[strided(a) for a in arrays], inputs(name, dtype)[1]])
    for mine, other in zip([elsewhere.array, *others], found):
        numpy.testing.assert_allclose(mine, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["grouped", "causal fewer keys", "bias with holes", "holes"])
def test_gradients_are_limits_of_difference_quotients(name):
    arrays, settings = inputs(name, "float64")
    _, sent, gradients = run(name, arrays, dict(settings))

    def value(number, change):
        moved = [a + change if i == number else a for i, a in enumerate(arrays)]
        output, *_ = run(name, moved, dict(settings))
        return float((output.array * sent).sum())

    for number, gradient in enumerate(gradients):
        step = numpy.random.default_rng(9).standard_normal(gradient.shape) * 1e-6
        slope = value(number, step) - value(number, -step)
        assert abs(slope - 2 * (gradient * step).sum()) < 1e-10


@pytest.mark.parametrize("name", ["four", "grouped holes", "bias with holes", "causal two"])
def test_weights_times_values_are_the_result(name):
    arrays, settings = inputs(name, "float64")
    weights = ops.attention_weights(*map(Tensor, arrays[:2]), **settings)
    group = arrays[0].shape[-3] // arrays[2].shape[-3] if arrays[0].ndim > 2 else 1
    value = numpy.repeat(arrays[2], group, axis=-3) if group > 1 else arrays[2]
    wanted, *_ = run(name, arrays, dict(settings))
    numpy.testing.assert_allclose(weights.array @ value, wanted.array, rtol=0, atol=1e-12)
    total = weights.array.sum(axis=-1)
    assert ((abs(total - 1) < 1e-12) | (total == 0)).all()


def test_a_mask_and_the_order_of_time_both_hold():
    (q, k, v), _ = inputs("four", "float64")
    both = HOLES & numpy.tri(5, 7, dtype=bool)
    wanted = ops.scaled_dot_product_attention(Tensor(q), Tensor(k), Tensor(v), both)
    for mask in (HOLES, numpy.where(HOLES, 0.0, -numpy.inf)):
        found = ops.scaled_dot_product_attention(
            Tensor(q), Tensor(k), Tensor(v), mask, is_causal=True
        )
        numpy.testing.assert_allclose(found.array, wanted.array, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mask", [None, HOLES, OUT], ids=["none", "holes", "numbers"])
def test_half_floats_keep_their_dtype(dtype, mask):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    arrays, _ = inputs("four", "float32")
    wanted = ops.scaled_dot_product_attention(*map(Tensor, arrays), mask).array
    halves = [Tensor(array.astype(dtype), requires_grad=True) for array in arrays]
    found = ops.scaled_dot_product_attention(*halves, mask)
    found.sum().backward()
    assert found.dtype == dtype and halves[0].grad.dtype == dtype
    numpy.testing.assert_allclose(found.array.astype("float32"), wanted, rtol=0, atol=0.05)
    assert all(numpy.isfinite(x.grad.astype("float32")).all() for x in halves)


def test_attention_with_a_mask_is_differentiated_again():
    arrays, _ = inputs("four", "float64")

    def slopes(arrays):
        tensors = [Tensor(array, requires_grad=True) for array in arrays]
        output = ops.scaled_dot_product_attention(*tensors, HOLES)
        (first,) = grad((output * output).sum(), tensors[:1], create_graph=True)
        return tensors, (first * first).sum()

    tensors, total = slopes(arrays)
    total.backward()
    step = numpy.random.default_rng(4).standard_normal(arrays[1].shape) * 1e-6
    ends = [slopes([arrays[0], arrays[1] + sign * step, arrays[2]])[1].item() for sign in (1, -1)]
    assert abs(ends[0] - ends[1] - 2 * (tensors[1].grad * step).sum()) < 1e-10


LOWEST = numpy.where(HOLES | ~HOLES.any(1, keepdims=True), 0.0, numpy.finfo("float32").min)
CONSTANT = {
    "numbers": ("four", BIAS, {}),
    "numbers and holes": ("four", OUT, {}),
    "one head": ("four", OUT[:1], {"is_causal": True}),
    "one query": ("four", OUT[:, :1], {}),
    "one key": ("four", BIAS[:, :, :1], {}),
    "a vector": ("four", BIAS[0, 0], {}),
    "samples": ("five", numpy.stack([OUT, -BIAS])[:, None], {}),
    "the lowest numbers": ("four", LOWEST, {}),
    "far numbers": ("four", BIAS - 1e4 * numpy.arange(5)[:, None], {"scale": 2.0}),
    "grouped": ("grouped", OUT[0], {"enable_gqa": True}),
    "fewer keys": ("fewer keys", RNG.standard_normal((9, 4)), {"is_causal": True}),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CONSTANT)
def test_a_mask_that_takes_no_gradient_gives_what_one_that_does_gives(name, dtype):
    shapes, mask, form = CONSTANT[name]
    arrays, _ = inputs(shapes, dtype)
    found = []
    for taking, within in ((False, dtype), (True, "float64")):
        tensors = [Tensor(array.astype(within), requires_grad=True) for array in arrays]
        given = Tensor(mask.astype(dtype).astype(within), requires_grad=taking)
        y = ops.scaled_dot_product_attention(*tensors, given, **form)
        slopes = grad((y * y).sum(), tensors, create_graph=True)
        sum((slope * slope).sum() for slope in slopes).backward()
        z = ops.scaled_dot_product_attention(*tensors, given, **form)
        plain = grad((z * z).sum(), tensors)
        parts = [*slopes, *plain, *[tensor.grad for tensor in tensors]]
        found.append([y.array, *[getattr(part, "array", part) for part in parts]])
    for mine, wanted in zip(*found, strict=True):
        tolerance = (1e-10 if dtype == "float64" else 2e-5) * max(1, abs(wanted).max())
        numpy.testing.assert_allclose(mine, wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("is_causal, window", [(True, None), (True, 5), (False, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_that_see_nothing_give_0_beside_rows_that_see_something(is_causal, window, dtype):
    rng = numpy.random.default_rng(1)
    q, k, v = rng.standard_normal((3, 2, 2, 150, 8)).astype(dtype)
    sees = numpy.arange(150) >= 70  # the first rows of a tile see none of these keys
    given = [Tensor(x, requires_grad=True) for x in (q, k, v)]
    numpy.full(1 << 16, numpy.nan, dtype)  # what is not written is likely this
    y = ops.scaled_dot_product_attention(*given, attn_mask=sees, is_causal=is_causal, window=window)
    y.backward(numpy.ones_like(y.array))
    assert not y.array[:, :, :70].any() and not given[0].grad[:, :, :70].any()
    assert numpy.isfinite(y.array).all() and y.array[:, :, 70:].all()


@pytest.mark.parametrize("is_causal, window", [(False, None), (True, None), (True, 3)])
@pytest.mark.parametrize("takes_gradient", [False, True])
def test_keys_of_the_lowest_number_weigh_alike_where_there_is_no_other(
    is_causal, window, takes_gradient
):
    rng = numpy.random.default_rng(2)
    q, k, v = rng.standard_normal((3, 1, 1, 6, 4)).astype("float32")
    mask = numpy.zeros((6, 6), "float32")
    mask[3] = numpy.finfo("float32").min
    given = [*map(Tensor, (q, k, v)), Tensor(mask, requires_grad=takes_gradient)]
    y = ops.scaled_dot_product_attention(*given, is_causal=is_causal, window=window)
    seen = slice(0, 6) if not is_causal else slice(0 if window is None else 1, 4)
    numpy.testing.assert_allclose(y.array[0, 0, 3], v[0, 0, seen].mean(0), rtol=1e-5, atol=1e-6)


def test_a_hidden_key_may_be_no_number():
    (q, k, v), _ = inputs("four", "float32")
    sees = numpy.arange(7) < 5
    wanted = ops.scaled_dot_product_attention(*map(Tensor, (q, k, v)), sees)
    k[:, :, 5:] = [numpy.nan, numpy.inf] * 2
    assert (
        ops.scaled_dot_product_attention(*map(Tensor, (q, k, v)), sees).array == wanted.array
    ).all()


def test_a_sample_has_the_same_bits_beside_others_with_masks_of_their_own():
    rng = numpy.random.default_rng(0)
    arrays = [rng.standard_normal((3, 2, 300, 16)).astype("float32") for _ in range(3)]
    sees = numpy.arange(300) < numpy.array([70, 300, 131])[:, None, None, None]
    found = []
    for samples in (slice(0, 3), slice(2, 3)):
        tensors = [Tensor(array[samples], requires_grad=True) for array in arrays]
        y = ops.scaled_dot_product_attention(*tensors, sees[samples])
        (y * y).sum().backward()
        found.append([y.array[-1], *[tensor.grad[-1] for tensor in tensors]])
    assert all((a == b).all() for a, b in zip(*found))


def t(*shape, dtype="float64"):
    return Tensor(numpy.ones(shape, dtype))


REFUSED = {
    "dropout": ((t(2, 3), t(4, 3), t(4, 3)), {"dropout_p": 0.1}, "nn.MultiheadAttention"),
    "heads": ((t(4, 2, 3), t(2, 4, 3), t(2, 4, 3)), {}, "enable_gqa=True"),
    "group": ((t(3, 2, 3), t(2, 4, 3), t(2, 4, 3)), {"enable_gqa": True}, "a multiple"),
    "widths": ((t(2, 3), t(4, 5), t(4, 5)), {}, "wanted"),
    "lengths": ((t(2, 3), t(4, 3), t(5, 3)), {}, "wanted"),
    "samples": ((t(2, 1, 2, 3), t(1, 1, 4, 3), t(1, 1, 4, 3)), {}, "wanted"),
    "dtypes": ((t(2, 3), t(4, 3, dtype="float32"), t(4, 3)), {}, "ops.cast"),
    "mask": ((t(2, 3), t(4, 3), t(4, 3)), {"attn_mask": numpy.ones((3, 4))}, r"to \(2, 4\)"),
    "wide mask": ((t(2, 3), t(4, 3), t(4, 3)), {"attn_mask": numpy.ones((2, 2, 4))}, "broadcast"),
    "integers": ((t(2, 3), t(4, 3), t(4, 3)), {"attn_mask": numpy.ones((2, 4), int)}, "booleans"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    operands, settings, message = REFUSED[name]
    with pytest.raises(ShapeError, match=message):
        ops.scaled_dot_product_attention(*operands, **settings)


@pytest.mark.parametrize(
    "heads, key_heads, queries, keys, head_dim, window",
    [
        (2, 1, 13, 13, 16, None),
        (4, 2, 97, 101, 17, None),
        (1, 1, 801, 801, 24, None),
        (2, 2, 33, 90, 64, None),
        (2, 1, 13, 13, 16, 5),
        (1, 1, 801, 801, 24, 90),
    ],
)
def test_attention_of_bfloat16_is_that_of_float64_rounded(
    heads, key_heads, queries, keys, head_dim, window
):
    """Odd sizes end in half a word, where the CPU multiplies pairs of bfloat16.

    Tolerance: 2^-7 of the largest value, two roundings to 8 bits.
    """
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    rng = numpy.random.default_rng(1)
    shapes = [(1, heads, queries, head_dim), *[(1, key_heads, keys, head_dim)] * 2]
    arrays = [rng.standard_normal(shape).astype(bfloat16) for shape in (*shapes, shapes[0])]
    first, scale = keys - queries, -0.7 * head_dim**-0.5  # a scale may have any sign

    def gradients(q, k, v, gradient):
        y, log_sums = kernels.causal_attention(q, k, v, scale, first, window)
        given = gradient, q, k, v, y, log_sums, scale, first, window
        return y, log_sums, *kernels.causal_attention_backward(*given)

    wanted = gradients(*[x.astype("float64") for x in arrays])
    for got, right in zip(gradients(*arrays), wanted, strict=True):
        largest = abs(right).max()
        numpy.testing.assert_allclose(got.astype("float64"), right, rtol=0, atol=largest / 128)


@pytest.mark.parametrize("window", [1, 2, 5, 40, 70, 1000])
@pytest.mark.parametrize("queries, keys", [(1, 1), (3, 9), (70, 70), (33, 50)])
def test_a_window_is_a_mask_with_as_many_keys_for_each_query(queries, keys, window):
    rng, first = numpy.random.default_rng(window), keys - queries
    arrays = [rng.standard_normal(shape) for shape in [(2, 4, queries, 6), *[(2, 2, keys, 6)] * 2]]
    last = numpy.arange(first, keys)[:, None]
    numbers = numpy.arange(keys)
    mask = (numbers <= last) & (numbers > last - window)

    def gradients(attend):
        tensors = [Tensor(array, requires_grad=True) for array in arrays]
        y = attend(*tensors)
        y.backward(rng_of_gradient.standard_normal(y.shape))
        return [y.array, *[x.grad for x in tensors]]

    rng_of_gradient = numpy.random.default_rng(1)
    got = gradients(lambda q, k, v: ops.causal_attention(q, k, v, None, first, window))
    rng_of_gradient = numpy.random.default_rng(1)
    wanted = gradients(
        lambda q, k, v: ops.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    )
    for found, right in zip(got, wanted, strict=True):
        numpy.testing.assert_allclose(found, right, rtol=0, atol=1e-13 * max(1, abs(right).max()))


def near(length, is_causal, window):
    """What a window lets be seen, by its definition: True where query i sees key j."""
    offset = numpy.arange(length)[:, None] - numpy.arange(length)
    return (0 <= offset) & (offset < window) if is_causal else abs(offset) < window


SQUARE = {
    "none": None,
    "holes": RNG.random((7, 7)) < 0.6,
    "bias": RNG.standard_normal((6, 7, 7)),
    "bias with holes": numpy.where(
        RNG.random((7, 7)) < 0.5, RNG.standard_normal((7, 7)), -numpy.inf
    ),
}


@pytest.mark.parametrize("window", [1, 3, 6, 7, 12])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("mask", SQUARE)
def test_a_window_of_a_sequence_is_pytorchs_attention_with_a_mask(mask, is_causal, window):
    rng = numpy.random.default_rng(window)
    for value_width in (4, 5):
        shapes = (2, 6, 7, 4), (2, 2, 7, 4), (2, 2, 7, value_width)
        arrays = [rng.standard_normal(shape) for shape in shapes]
        form = {"is_causal": is_causal, "window": window, "enable_gqa": True, "scale": 0.3}
        given = {} if SQUARE[mask] is None else {"attn_mask": SQUARE[mask]}
        output, sent, gradients = run(mask, arrays, {**form, **given})
        sees = near(7, is_causal, window)
        if mask != "none" and SQUARE[mask].dtype != bool:
            sees = numpy.where(sees, SQUARE[mask], -numpy.inf)
        elif mask != "none":
            sees = sees & SQUARE[mask]
        twins = [torch.tensor(array, requires_grad=True) for array in arrays]
        expected = torch.nn.functional.scaled_dot_product_attention(
            *twins, torch.tensor(sees), scale=0.3, enable_gqa=True
        )
        expected.backward(torch.tensor(sent))
        weights = ops.attention_weights(*map(Tensor, arrays[:2]), **form, **given)
        value = numpy.repeat(arrays[2], 3, axis=1)
        numpy.testing.assert_allclose(weights.array @ value, output.array, rtol=0, atol=1e-12)
        found = [output.array, *gradients]
        for mine, other in zip(found, [expected.detach(), *[twin.grad for twin in twins]]):
            numpy.testing.assert_allclose(mine, other.numpy(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [100, 801])
def test_a_window_of_several_tiles_is_attention_with_a_mask(window, is_causal, dtype):
    """Tolerance of the largest value: 2^-7 of bfloat16, 2^-17 of float32."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    draw = numpy.random.default_rng(0).standard_normal
    arrays = [draw(shape).astype(dtype) for shape in [(1, 2, 1900, 8), *[(1, 1, 1900, 8)] * 2]]
    form = {"is_causal": is_causal, "window": window, "enable_gqa": True}
    output, sent, gradients = run("tiles", arrays, form)
    wide = [array.astype("float64") for array in arrays]
    mask = near(1900, is_causal, window)
    tensors = [Tensor(array, requires_grad=True) for array in wide]
    wanted = ops.scaled_dot_product_attention(*tensors, mask, enable_gqa=True)
    wanted.backward(sent.astype("float64"))
    bits = {"float64": 43, "float32": 17}.get(dtype, 7)
    for found, right in zip([output.array, *gradients], [wanted.array, *[x.grad for x in tensors]]):
        error = abs(found.astype("float64") - right).max()
        assert error <= abs(right).max() * 2.0**-bits


def test_a_window_that_hides_nothing_changes_no_bit():
    draw = numpy.random.default_rng(0).standard_normal
    arrays = [draw((1, 2, 70, 8)).astype("float32") for _ in range(3)]
    for is_causal in (True, False):
        form = {"is_causal": is_causal}
        wanted, found = [run("all", arrays, {**form, "window": w}) for w in (None, 70)]
        assert found[0].array.tobytes() == wanted[0].array.tobytes()
        for mine, other in zip(found[2], wanted[2]):
            assert mine.tobytes() == other.tobytes()


def test_a_short_window_takes_a_part_of_the_time():
    """An eighth of the scores and less: under half of the processor time, forward and backward."""
    draw = numpy.random.default_rng(0).standard_normal
    arrays = [draw((1, 1, 3072, 32)).astype("float32") for _ in range(3)]

    def seconds(window):
        start = time.process_time()
        run("time", arrays, {"is_causal": True, "window": window})
        return time.process_time() - start

    seconds(64)
    ratios = [seconds(64) / seconds(None) for _ in range(3)]
    assert min(ratios) < 0.5, ratios


@pytest.mark.parametrize("window", [0, -1, 2.5, "3", True])
def test_a_window_that_is_no_number_of_keys_is_refused(window):
    operands = t(1, 1, 2, 3), t(1, 1, 2, 3), t(1, 1, 2, 3)
    with pytest.raises(ShapeError, match="from 1 on"):
        ops.causal_attention(*operands, window=window)
    for is_causal in (True, False):
        for mask in (None, numpy.ones((2, 2), bool)):
            form = {"attn_mask": mask, "is_causal": is_causal, "window": window}
            with pytest.raises(ShapeError, match="from 1 on"):
                ops.scaled_dot_product_attention(*operands, **form)


@pytest.mark.parametrize("mask", [None, numpy.ones((2, 3), bool)], ids=["tiles", "mask"])
def test_a_window_of_queries_and_keys_of_two_sequences_is_refused(mask):
    with pytest.raises(ShapeError, match="2 queries to 3 keys with window 2; wanted as many"):
        ops.scaled_dot_product_attention(t(1, 1, 2, 3), *[t(1, 1, 3, 3)] * 2, mask, window=2)


def test_a_text_far_into_a_row_does_not_see_how_large_the_scores_before_it_are():
    random = numpy.random.default_rng(0)
    q, k, v = (random.normal(size=(1, 1, 1030, 8)).astype("float32") for _ in range(3))
    k[:, :, :1000] *= 1000
    firsts = numpy.where(numpy.arange(1030) < 1000, 0, 1000)[None]
    y, sums = kernels.causal_attention(q, k, v, 0.4, 0, firsts=firsts)
    alone = [x[:, :, 1000:] for x in (q, k, v)]
    wanted, wanted_sums = kernels.causal_attention(*alone, 0.4, 0)
    numpy.testing.assert_allclose(y[:, :, 1000:], wanted, atol=1e-5)
    numpy.testing.assert_allclose(sums[:, :, 1000:], wanted_sums, atol=1e-5)
