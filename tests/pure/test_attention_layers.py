"""MultiheadAttention and what is made of it against PyTorch: values, weights and all gradients."""

import numpy
import pytest
from torch_or_skip import torch

from shardkit import ConfigurationError, ShapeError, nn
from shardkit.nn import Tensor

N, S, T, E, HEADS = 2, 5, 7, 6, 3
RNG = numpy.random.default_rng(0)
SEEN_BY_NONE = RNG.random((N, T)) < 0.4
SEEN_BY_NONE[0, :5] = True
HIDDEN = RNG.random((S, T)) < 0.4
# arguments of the layer, of forward, and which inputs are one
FORMS = {
    "cross": ({}, {}, "qkv"),
    "memory": ({}, {}, "qkk"),
    "self": ({}, {}, "qqq"),
    "no bias": ({"bias": False}, {}, "qkv"),
    "self without bias": ({"bias": False}, {"need_weights": False}, "qqq"),
    "own widths": ({"kdim": 4, "vdim": 3}, {}, "qkv"),
    "own width without bias": ({"vdim": 3, "bias": False}, {"need_weights": False}, "qkv"),
    "no weights": ({}, {"need_weights": False}, "qkv"),
    "self without weights": ({}, {"need_weights": False}, "qqq"),
    "weights of heads": ({}, {"average_attn_weights": False}, "qkv"),
    "padding": ({}, {"key_padding_mask": SEEN_BY_NONE}, "qkv"),
    "padding without weights": (
        {},
        {"key_padding_mask": SEEN_BY_NONE, "need_weights": False},
        "qkv",
    ),
    "padding of numbers": ({}, {"key_padding_mask": RNG.standard_normal((N, T))}, "qkv"),
    "holes": ({}, {"attn_mask": HIDDEN}, "qkv"),
    "holes of heads": ({}, {"attn_mask": RNG.random((N * HEADS, S, T)) < 0.4}, "qkv"),
    "bias of scores": ({}, {"attn_mask": RNG.standard_normal((S, T))}, "qkv"),
    "bias of heads": ({}, {"attn_mask": RNG.standard_normal((N * HEADS, S, T))}, "qkv"),
    "holes and padding": ({}, {"attn_mask": HIDDEN, "key_padding_mask": SEEN_BY_NONE}, "qkv"),
    "bias and padding": (
        {},
        {
            "attn_mask": RNG.standard_normal((S, T)),
            "key_padding_mask": numpy.where(SEEN_BY_NONE, -numpy.inf, 0),
        },
        "qkv",
    ),
}
TOLERANCE = {"float64": 1e-10, "float32": 3e-5}


def twins(ours, theirs, dtype):
    """Both layers with the same weights, none of them 0: ours, PyTorch's."""
    for index, parameter in enumerate(ours.finish(1).parameters()):
        parameter.array = numpy.random.default_rng(index).standard_normal(parameter.shape) * 0.5
    theirs = theirs.to(getattr(torch, dtype))
    theirs.load_state_dict({name: torch.tensor(a) for name, a in ours.state_dict().items()})
    return ours, theirs


def as_torch(value, dtype):
    if not isinstance(value, numpy.ndarray):
        return value
    return torch.tensor(value if value.dtype == bool else value.astype(dtype))


def compare(ours, theirs, arrays, call, dtype):
    """call(layer, inputs, change) of both, and the gradients of inputs and parameters."""
    mine = [Tensor(array, requires_grad=True) for array in arrays]
    other = [torch.tensor(array, requires_grad=True) for array in arrays]
    found = call(ours, mine, lambda value: value)
    wanted = call(theirs, other, lambda value: as_torch(value, dtype))
    rng = numpy.random.default_rng(9)
    total = ours_total = 0
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            near(a.array, b, dtype)
            sent = rng.standard_normal(a.shape).astype(dtype)
            ours_total = ours_total + (a * sent).sum()
            total = total + (b * torch.tensor(sent)).sum()
    ours_total.backward()
    total.backward()
    for a, b in zip(mine, other):
        near(a.grad, b.grad, dtype)
    for name, parameter in theirs.named_parameters():
        near(ours.named_parameters()[name].grad, parameter.grad, dtype)


def near(found, wanted, dtype):
    wanted = wanted.detach().numpy()
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    numpy.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE[dtype])


def draw(shape, dtype, seed):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_attention_is_that_of_pytorch(form, batch_first, dtype):
    arguments, settings, which = FORMS[form]
    arguments = {**arguments, "batch_first": batch_first}
    layers = twins(
        nn.MultiheadAttention(E, HEADS, dtype=dtype, **arguments),
        torch.nn.MultiheadAttention(E, HEADS, **arguments),
        dtype,
    )
    shapes = {"q": (N, S, E)}
    shapes["k"] = (N, T, arguments.get("kdim", E))
    shapes["v"] = (N, T, arguments.get("vdim", E))
    names = sorted(set(which))
    arrays = [draw(shapes[name], dtype, ord(name)) for name in names]
    arrays = arrays if batch_first else [a.swapaxes(0, 1) for a in arrays]

    def call(layer, inputs, change):
        given = dict(zip(names, inputs))
        settings_ = {key: change(value) for key, value in settings.items()}
        return layer(*[given[name] for name in which], **settings_)

    compare(*layers, arrays, call, dtype)


SIZES = [(0, 3, 2, 4), (1, 1, 1, 1), (3, 4, 9, 8), (None, 3, 5, 6)]  # N, S, T, E


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("samples, length, keys, width", SIZES)
def test_any_sizes_are_those_of_pytorch(samples, length, keys, width, need_weights):
    layers = twins(
        nn.MultiheadAttention(width, 1, batch_first=True, dtype="float64"),
        torch.nn.MultiheadAttention(width, 1, batch_first=True),
        "float64",
    )
    leading = () if samples is None else (samples,)
    arrays = [draw((*leading, size, width), "float64", size) for size in (length, keys)]
    compare(
        *layers,
        arrays,
        lambda layer, x, change: layer(x[0], x[1], x[1], need_weights=need_weights),
        "float64",
    )


@pytest.mark.parametrize("need_weights", [True, False])
def test_causal_attention_is_attention_with_a_triangle(need_weights):
    layers = twins(
        nn.MultiheadAttention(E, HEADS, batch_first=True, dtype="float64"),
        torch.nn.MultiheadAttention(E, HEADS, batch_first=True),
        "float64",
    )
    later = numpy.triu(numpy.ones((S, S), bool), 1)

    def call(layer, inputs, change):
        mask = {} if layer is layers[0] else {"attn_mask": change(later)}
        return layer(*inputs * 3, is_causal=True, need_weights=need_weights, **mask)

    compare(*layers, [draw((N, S, E), "float64", 0)], call, "float64")


def far(length, is_causal, window):
    """What a window hides, True where query i does not see key j."""
    offset = numpy.arange(length)[:, None] - numpy.arange(length)
    return (offset < 0) | (offset >= window) if is_causal else abs(offset) >= window


@pytest.mark.parametrize("form", [{}, {"need_weights": False}, {"key_padding_mask": True}], ids=str)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_window_is_pytorchs_mask(window, is_causal, form):
    layers = twins(
        nn.MultiheadAttention(E, HEADS, batch_first=True, window=window, dtype="float64"),
        torch.nn.MultiheadAttention(E, HEADS, batch_first=True),
        "float64",
    )
    padding = numpy.zeros((N, S), bool)
    padding[1, 3] = window > 1  # a query sees at least one key

    def call(layer, inputs, change):
        settings = {**form}
        if "key_padding_mask" in form:
            settings["key_padding_mask"] = change(padding)
        if layer is layers[0]:
            return layer(*inputs * 3, is_causal=is_causal, **settings)
        return layer(*inputs * 3, attn_mask=change(far(S, is_causal, window)), **settings)

    compare(*layers, [draw((N, S, E), "float64", 0)], call, "float64")


def test_weights_are_dropped_within_a_window():
    layer = nn.MultiheadAttention(E, HEADS, 0.5, batch_first=True, window=2).finish(0)
    x = [Tensor(draw((N, S, E), "float32", 0))] * 3
    form = {"is_causal": True, "average_attn_weights": False}
    with nn.forward_context(nn.ForwardContext(training=True, seed=1, step=0, first_sample=0)):
        y, weights = layer(*x, **form)
        again, _ = layer(*x, need_weights=False, is_causal=True)
    assert (weights.array[:, :, far(S, True, 2)] == 0).all()
    kept = weights.array[:, :, ~far(S, True, 2)]
    assert (kept == 0).any() and (kept > 0).any()
    assert again.shape == y.shape and again.array.tobytes() != y.array.tobytes()  # another mask


def test_the_layers_of_encoders_and_decoders_have_a_window_on_their_own_sequence():
    x, memory = [draw((N, length, E), "float64", length) for length in (S, T)]
    for kind, given in (("Encoder", (x,)), ("Decoder", (x, memory))):
        make = getattr(nn, f"Transformer{kind}Layer")
        form = {"dim_feedforward": 7, "dropout": 0.0, "batch_first": True, "dtype": "float64"}
        layer, whole = make(E, HEADS, **form, window=2).finish(1), make(E, HEADS, **form).finish(1)
        wanted = whole(*given, far(S, False, 2)) if kind == "Encoder" else None
        if kind == "Decoder":
            wanted = whole(*given, tgt_mask=far(S, False, 2))
        numpy.testing.assert_allclose(layer(*given).array, wanted.array, rtol=0, atol=1e-12)
        assert abs(layer(*given).array - whole(*given).array).max() > 1e-3


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_query_that_sees_no_key_gets_the_bias_and_finite_gradients(need_weights):
    layer = nn.MultiheadAttention(E, HEADS, batch_first=True, dtype="float64").finish(0)
    layer.out_proj.bias.array = numpy.arange(float(E))
    x = Tensor(draw((N, S, E), "float64", 1), requires_grad=True)
    padding = numpy.zeros((N, S), bool)
    padding[1] = True
    y, weights = layer(x, x, x, padding, need_weights)
    numpy.testing.assert_array_equal(y.array[1], numpy.tile(numpy.arange(float(E)), (S, 1)))
    assert weights is None or (weights.array[1] == 0).all()
    y.sum().backward()
    assert (x.grad[1] == 0).all() and numpy.isfinite(x.grad).all()


def test_a_split_backward_gives_the_same_bits():
    for inputs in ("qqq", "qkk"):
        grads = []
        for split in (False, True):
            layer = nn.MultiheadAttention(E, HEADS, batch_first=True).finish(1)
            given = {name: Tensor(draw((N, S, E), "float32", ord(name)), True) for name in "qk"}
            total = layer(*[given[name] for name in inputs], need_weights=False)[0].sum()
            nn.backward_inputs(total).run() if split else total.backward()
            grads.append([p.grad for p in (*layer.parameters(), given["q"])])
        assert all((a == b).all() for a, b in zip(*grads))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_packed_attention_of_half_floats_is_that_of_float32_rounded(dtype):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    from shardkit.testing.nn import packed_attention

    qkv = Tensor(draw((N, S, 3 * E), "float32", 1).astype(dtype), requires_grad=True)
    wide = Tensor(qkv.array.astype("float32"), requires_grad=True)
    for x in (qkv, wide):
        packed_attention(x, HEADS, True).sum().backward()
    assert qkv.grad.dtype == dtype
    numpy.testing.assert_allclose(qkv.grad.astype("float32"), wide.grad, rtol=0, atol=0.05)


def test_weights_are_dropped_by_sample():
    layer = nn.MultiheadAttention(E, HEADS, dropout=0.5).finish(0)
    x = draw((S, 4, E), "float32", 0)
    results = []
    for first, part in ((0, x), (2, x[:, 2:])):
        context = nn.ForwardContext(training=True, seed=1, step=0, first_sample=first)
        with nn.forward_context(context):
            results.append([each.array for each in layer(*[Tensor(part)] * 3)])
    (whole, weights), (part, part_weights) = results
    assert (whole[:, 2:] == part).all() and (weights[2:] == part_weights).all()
    assert (layer(*[Tensor(x)] * 3)[0].array != whole).any()


def test_a_relative_bias_is_one_number_for_each_head_and_offset():
    bias = nn.RelativePositionBias(HEADS, (2, 3), dtype="float64").finish(0)
    assert bias.weight.shape == (15, HEADS)
    found = bias()
    for i, query in enumerate(numpy.ndindex(2, 3)):
        for j, key in enumerate(numpy.ndindex(2, 3)):
            row = (key[0] - query[0] + 1) * 5 + key[1] - query[1] + 2
            numpy.testing.assert_array_equal(found.array[:, i, j], bias.weight.array[row])
    layer = nn.MultiheadAttention(E, HEADS, batch_first=True, dtype="float64").finish(0)
    x = draw((N, 6, E), "float64", 3)

    def total(mask):
        y, _ = layer(*[Tensor(x)] * 3, need_weights=False, attn_mask=mask)
        return (y * y).sum()

    total(found).backward()
    step = draw(bias.weight.shape, "float64", 5) * 1e-6
    start, ends = bias.weight.array.copy(), []
    for sign in (1, -1):
        bias.weight.array = start + sign * step
        ends.append(total(bias()).item())
    assert abs(ends[0] - ends[1] - 2 * (bias.weight.grad * step).sum()) < 1e-10
    assert nn.RelativePositionBias(2, 4).finish(0)().shape == (2, 4, 4)


ENCODERS = {
    "norms after": {},
    "norms first": {"norm_first": True},
    "gelu": {"activation": "gelu", "batch_first": True},
}


@pytest.mark.parametrize("masks", [{}, {"src_mask": HIDDEN[:, :S]}])
@pytest.mark.parametrize("form", ENCODERS)
def test_an_encoder_layer_is_that_of_pytorch(form, masks):
    arguments = {"dim_feedforward": 7, "dropout": 0.0, **ENCODERS[form]}
    layers = twins(
        nn.TransformerEncoderLayer(E, HEADS, dtype="float64", **arguments),
        torch.nn.TransformerEncoderLayer(E, HEADS, **arguments),
        "float64",
    )

    def call(layer, x, change):
        return [layer(*x, **{key: change(value) for key, value in masks.items()})]

    shape = (2, S, E) if arguments.get("batch_first") else (S, 2, E)
    compare(*layers, [draw(shape, "float64", 0)], call, "float64")


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigurationError, match="3 heads x 2 .* 1; wanted heads that divide"):
        nn.MultiheadAttention(7, 3)
    with pytest.raises(ConfigurationError, match="activation 'tanh'; wanted one of relu, gelu"):
        nn.TransformerEncoderLayer(6, 3, activation="tanh")
    for window in (0, True, 2.0, "2"):
        with pytest.raises(ConfigurationError, match="window = .*wanted a number of tokens from 1"):
            nn.MultiheadAttention(E, HEADS, window=window)
    layer = nn.MultiheadAttention(E, HEADS).finish(0)
    x = Tensor(numpy.ones((S, N, E), "float32"))
    for call, message in (
        (lambda: layer(x, x, x[:1]), "of one length"),
        (lambda: layer(x, x, x, SEEN_BY_NONE), r"key_padding_mask \(2, 7\); wanted \(2, 5\)"),
        (lambda: layer(x, x, x, attn_mask=HIDDEN), r"attn_mask \(5, 7\); wanted \(5, 5\)"),
        (lambda: layer(x, x, x, attn_mask=HIDDEN[:, :5] * 1), "mask of int64"),
    ):
        with pytest.raises(ShapeError, match=message):
            call()
