"""Layers on parts of samples against the same layers on whole ones: values and gradients, to 1e-12
in float64, for odd lengths, in 1, 2 and 3 dimensions, on 1 to 5 ranks that are threads.
"""

import copy
import dataclasses
import sys
import types

import numpy
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.nn import ForwardContext, Tensor, forward_context
from shardkit.testing.layout import even_span
from shardkit.testing.parallel import (
    LAYERS,
    REASONS,
    DomainAxis,
    cut_layers,
    let_go,
    recurrent,
    rows_of,
)

RANKS = pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5])
TOLERANCE = 1e-12
F64 = {"dtype": "float64"}
GRIDS = {1: (13,), 2: (13, 5), 3: (11, 4, 3)}  # the first dim is cut
CHANNELS = 4
CONTEXT = ForwardContext(
    training=True, seed=5, step=3, first_sample=2, num_samples=2, parts=object()
)


def of_dims(name, dims):
    return getattr(nn, f"{name}{dims}d")


def convolution(dims, *, out=6, **how):
    return of_dims("Conv", dims)(CHANNELS, out, **{"kernel_size": 3, **F64, **how})


def transposed(dims, **how):
    return of_dims("ConvTranspose", dims)(CHANNELS, 6, **{"kernel_size": 3, **F64, **how})


# {what: (dims) -> a layer}
ON_GRIDS = {
    "plain": lambda d: convolution(d),
    "padded": lambda d: convolution(d, padding=1),
    "wide": lambda d: convolution(
        d, kernel_size=(9, *(3,) * (d - 1)), padding=(4, *(1,) * (d - 1))
    ),
    "strided": lambda d: convolution(d, stride=2, padding=1),
    "strided 3 of 2": lambda d: convolution(d, kernel_size=2, stride=2, groups=2),
    "dilated": lambda d: convolution(d, dilation=2, padding=2, groups=2, bias=False),
    "same, even": lambda d: convolution(d, kernel_size=2, padding="same"),
    "of one": lambda d: convolution(d, kernel_size=1),
    "functions": lambda d: nn.Sequential(
        convolution(d),
        *(nn.SELU(), nn.Hardswish(), nn.LogSigmoid(), nn.Softsign(), nn.CELU(0.3), nn.Softshrink()),
    ),
    "circular": lambda d: convolution(d, padding=2, padding_mode="circular"),
    "circular, wide": lambda d: convolution(
        d,
        kernel_size=(11, *(3,) * (d - 1)),
        padding=(7, *(1,) * (d - 1)),
        padding_mode="circular",
    ),
    "reflect": lambda d: convolution(d, padding=2, padding_mode="reflect"),
    "replicate": lambda d: convolution(d, padding=2, padding_mode="replicate"),
    "replicate, even, same": lambda d: convolution(
        d, kernel_size=2, padding="same", padding_mode="replicate"
    ),
    "transposed": lambda d: transposed(d),
    "transposed, doubling": lambda d: transposed(d, kernel_size=2, stride=2),
    "transposed, padded": lambda d: transposed(d, stride=2, padding=1, output_padding=1),
    "transposed, with gaps": lambda d: transposed(d, kernel_size=2, stride=4, output_padding=3),
    "transposed, dilated": lambda d: transposed(d, stride=3, padding=2, dilation=2, groups=2),
    "maxima": lambda d: of_dims("MaxPool", d)(2),
    "maxima, overlapping": lambda d: of_dims("MaxPool", d)(3, stride=2, padding=1),
    "maxima, over the end": lambda d: of_dims("MaxPool", d)(3, stride=2, ceil_mode=True),
    "maxima, dilated": lambda d: of_dims("MaxPool", d)(2, stride=1, dilation=2),
    "means": lambda d: of_dims("AvgPool", d)(2),
    "means, padded": lambda d: of_dims("AvgPool", d)(3, stride=2, padding=1),
    "means, of what is there": lambda d: of_dims("AvgPool", d)(
        3, stride=2, padding=1, ceil_mode=True, count_include_pad=False
    ),
    "means, with a divisor": lambda d: of_dims("AvgPool", d)(3, stride=1, divisor_override=5),
    "shares": lambda d: of_dims("AdaptiveAvgPool", d)((7, *(2,) * (d - 1))),
    "largest of shares": lambda d: of_dims("AdaptiveMaxPool", d)((7, *(2,) * (d - 1))),
    "mean of all": lambda d: of_dims("AdaptiveAvgPool", d)(1),
    "means of two": lambda d: of_dims("AdaptiveAvgPool", d)((2, *(None,) * (d - 1))),
    "largest of all": lambda d: of_dims("AdaptiveMaxPool", d)((1, *(None,) * (d - 1))),
    "nearest": lambda d: nn.Upsample(scale_factor=2),
    "nearest, odd": lambda d: nn.Upsample(scale_factor=1.7, mode="nearest-exact"),
    "linear": lambda d: nn.Upsample(scale_factor=2, mode=LINEAR[d]),
    "linear, aligned": lambda d: nn.Upsample(
        size=(19, *(3,) * (d - 1)), mode=LINEAR[d], align_corners=True
    ),
    "linear, smaller": lambda d: nn.Upsample(size=(6, *(3,) * (d - 1)), mode=LINEAR[d]),
    "batch norm": lambda d: of_dims("BatchNorm", d)(CHANNELS, **F64),
    "group norm": lambda d: nn.GroupNorm(2, CHANNELS, **F64),
    "plain group norm": lambda d: nn.GroupNorm(4, CHANNELS, affine=False, **F64),
    "instance norm": lambda d: of_dims("InstanceNorm", d)(CHANNELS, affine=True, **F64),
    "dropout": lambda d: nn.Dropout(0.4),
    "activation": lambda d: nn.GELU(),
    "softmax of channels": lambda d: nn.Softmax(1),
    "flatten": lambda d: nn.Flatten(),
    "flatten the rest": lambda d: nn.Flatten(3),
    "a head": lambda d: nn.Sequential(
        nn.Flatten(), nn.Linear(CHANNELS * numpy.prod(GRIDS[d]).item(), 3, **F64)
    ),
    "a tower": lambda d: nn.Sequential(
        convolution(d, padding=1, out=CHANNELS),
        nn.GroupNorm(2, CHANNELS, **F64),
        nn.Dropout(0.2),
        nn.GELU(),
        of_dims("MaxPool", d)(3, stride=1, padding=1),
        convolution(d, padding=1, padding_mode="circular"),
    ),
}


@nn.partwise
class Outputs(nn.Module):
    """The outputs of a recurrent layer."""

    def __init__(self, layer):
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


def in_turn(kind, *sizes, **how):
    return Outputs(getattr(nn, kind)(6, *sizes, batch_first=True, **how, **F64))


SILENT = ("dropout", "activation", "softmax of channels", "flatten", "flatten the rest", "a head")
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
ON_TOKENS = {
    "linear": lambda: nn.Linear(6, 5, **F64),
    "layer norm": lambda: nn.LayerNorm(6, **F64),
    "rms norm": lambda: nn.RMSNorm(6, **F64),
    "softmax": lambda: nn.Softmax(-1),
    "dropout": lambda: nn.Dropout(0.4),
    "feed-forward": lambda: nn.FeedForward(6, 12, **F64),
    "flatten": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6 * 13, 2, **F64)),
    "LSTM": lambda: in_turn("LSTM", 5),
    "GRU": lambda: in_turn("GRU", 5, bias=False),
    "RNN": lambda: in_turn("RNN", 5, 2, "relu", bidirectional=True),
    "LSTM, both directions": lambda: in_turn("LSTM", 4, 2, bidirectional=True, dropout=0.3),
    "GRU, both directions": lambda: in_turn("GRU", 4, 3, bidirectional=True, dropout=0.3),
    "LSTM model": lambda: nn.models.LSTM(6, 3, width=5, dropout=0.2, **F64),
    "LSTM of steps": lambda: nn.models.LSTM(6, 3, width=5, readout="steps", **F64),
}


def run(model, x, weights):
    """Return what the model makes of x, and the gradients of x and its parameters, of the sum of
    what it makes times the weights (of a shape -> numbers).
    """
    with forward_context(CONTEXT):
        x = Tensor(x, requires_grad=True)
        y = model(x)
        y.backward(weights(y.shape))
    gradients = {name: p.grad for name, p in model.named_parameters().items()}
    return y.array, x.grad, gradients


def drawn(shape, seed):
    return numpy.random.default_rng(seed).normal(size=shape)


def assert_close(got, wanted, called):
    scale = max(numpy.abs(wanted).max(initial=0), 1.0)
    assert got.shape == wanted.shape, called
    assert numpy.abs(got - wanted).max(initial=0) <= TOLERANCE * scale, called


def own(array, dim, rank, num_ranks):
    start, stop = even_span(array.shape[dim], num_ranks, rank)
    return array[(slice(None),) * dim + (slice(start, stop),)]


def check(make, x, dim, num_ranks):
    """Compare a layer that is cut along dim over ranks with the same that is not."""
    model = nn.Sequential(make())
    model.finish(3)
    for p in model.parameters():
        p.array = drawn(p.shape, len(p.name))
    serial = copy.deepcopy(model)
    y, for_x, gradients = run(serial, x, lambda shape: drawn(shape, 1))

    def on_rank(backend):
        mine = copy.deepcopy(model)
        axis, _, is_whole = cut_layers(mine, backend)
        weigh = drawn(y.shape, 1)
        if is_whole:
            weigh = weigh * (backend.rank == 0)
        else:
            weigh = own(weigh, dim, backend.rank, num_ranks)
        made, own_x, of_parameters = run(
            mine, own(x, dim, backend.rank, num_ranks), lambda _: weigh
        )
        buffers = {name: b.numpy() for name, b in mine.named_buffers().items()}
        assert axis.dim == dim
        return is_whole, made, own_x, of_parameters, buffers

    results = sk.run_ranks(num_ranks, on_rank)
    for rank, (is_whole, made, own_x, _, _) in enumerate(results):
        assert_close(made, y if is_whole else own(y, dim, rank, num_ranks), "the output")
        assert_close(own_x, own(for_x, dim, rank, num_ranks), "the gradient of x")
    for name, gradient in gradients.items():
        assert_close(sum(result[3][name] for result in results), gradient, name)
    for name, buffer in serial.named_buffers().items():
        for result in results:
            assert_close(result[4][name], buffer.numpy(), name)


def behind_a_convolution(what, dims):
    """Return the layer, behind one that says which dim is cut where it does not say so itself."""
    first = [convolution(dims, kernel_size=1, out=CHANNELS)] if what in SILENT else []
    return nn.Sequential(*first, ON_GRIDS[what](dims))


@RANKS
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("what", ON_GRIDS)
def test_a_layer_on_parts_of_a_grid_is_the_layer(what, dims, num_ranks):
    if what == "flatten the rest" and dims < 3:
        return  # there is none
    x = drawn((2, CHANNELS, *GRIDS[dims]), 0)
    check(lambda: behind_a_convolution(what, dims), x, 2, num_ranks)


def any_convolution(seed):
    """Return a convolution of a line, of any form, and a length that gives 5 outputs or more."""
    rng = numpy.random.default_rng(seed)
    kernel, stride, dilation = (int(rng.integers(1, most)) for most in (6, 4, 4))
    padding, groups = int(rng.integers(0, 5)), int(rng.integers(1, 3))
    mode = rng.choice(["zeros", "zeros", "circular", "reflect", "replicate"])
    reach = dilation * (kernel - 1) + 1
    length = max(reach + stride * int(rng.integers(4, 9)) - 2 * padding, 5)
    form = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
    form |= {"kernel_size": kernel, "padding_mode": str(mode), "bias": bool(rng.integers(2))}
    return lambda: convolution(1, **form), length


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.thorough(but=6)
def test_convolutions_of_any_form_are_those_of_whole_samples(seed):
    make, length = any_convolution(seed)
    check(make, drawn((2, CHANNELS, length), seed), 2, 2 + seed % 4)


def test_float32_convolutions_by_fewer_products_are_made_of_own_rows_and_halos():
    """Their sums are those of other tiles, so they agree to the rounding of float32."""
    layer = nn.Sequential(nn.Conv3d(16, 16, 3, padding=1))
    layer.finish(1)
    x, weigh = [drawn((1, 16, 9, 16, 16), seed).astype("float32") for seed in range(2)]
    wanted = run(copy.deepcopy(layer), x, lambda _: weigh)

    def on_rank(backend):
        mine = copy.deepcopy(layer)
        cut_layers(mine, backend)
        cut = [own(each, 2, backend.rank, 3) for each in (x, weigh)]
        return run(mine, cut[0], lambda _: cut[1])

    for rank, found in enumerate(results := sk.run_ranks(3, on_rank)):
        for got, whole in zip(found[:2], wanted):
            numpy.testing.assert_allclose(got, own(whole, 2, rank, 3), rtol=0, atol=2e-5)
    for name, gradient in wanted[2].items():
        total = sum(result[2][name] for result in results)
        numpy.testing.assert_allclose(total, gradient, rtol=0, atol=1e-3)


def test_lengths_that_parts_tell_are_not_asked_for_in_later_batches():
    """Parts of 13, 6 and 9 rows differ on both ranks; the first of 14 has as many as that of 13."""

    def on_rank(backend):
        axis, asked = DomainAxis(backend, 2), []
        for noted, length in [((6, 9), 9)] * 3 + [((6, 9, 14), 14)] * 2:
            axis.begin((1, 1, 13))
            for each in noted:
                axis.note(each)
            before = backend.traffic.calls.get("all_gather", 0)
            x = numpy.empty((1, 1, length))
            assert axis.length(own(x, 2, backend.rank, 2), "a layer") == length
            asked.append(backend.traffic.calls.get("all_gather", 0) - before)
        assert asked == [1, 0, 0, 1, 1]

    sk.run_ranks(2, on_rank)


@RANKS
@pytest.mark.parametrize("what", ON_TOKENS)
def test_a_layer_on_parts_of_texts_is_the_layer(what, num_ranks):
    check(ON_TOKENS[what], drawn((2, 13, 6), 0), 1, num_ranks)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("what", ["LSTM, both directions", "GRU"])
def test_samples_of_a_recurrent_layer_follow_others(what, num_ranks, monkeypatch):
    monkeypatch.setattr(recurrent, "LEAST_SAMPLES", 1)
    monkeypatch.setattr(
        sys.modules[__name__], "CONTEXT", dataclasses.replace(CONTEXT, num_samples=5)
    )
    check(ON_TOKENS[what], drawn((5, 13, 6), 0), 1, num_ranks)


# ---- the exchange of rows ------------------------------------------------------------------------

BEYOND = {
    "zeros": lambda i, n: i if 0 <= i < n else None,
    "circular": lambda i, n: i % n,
    "reflect": lambda i, n: abs(i) if i < n else 2 * (n - 1) - i,
    "replicate": lambda i, n: min(max(i, 0), n - 1),
}


@RANKS
@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("seed", range(4))
def test_rows_come_from_any_rank_and_their_gradients_go_back(beyond, num_ranks, seed):
    rng = numpy.random.default_rng(seed)
    length = int(rng.integers(num_ranks, 14)) + 1
    ends = rng.integers(-length + 1, 2 * length - 1, (num_ranks, 2))
    spans = tuple((int(min(pair)), int(max(pair))) for pair in ends)  # some want nothing
    whole = drawn((2, length, 3), seed)
    weights = [drawn((2, stop - start, 3), rank) for rank, (start, stop) in enumerate(spans)]
    source = {i: BEYOND[beyond](i, length) for i in range(-length, 2 * length)}
    wanted_gradient = numpy.zeros_like(whole)
    for (start, stop), weight in zip(spans, weights):
        for place, i in enumerate(range(start, stop)):
            if source[i] is not None:
                wanted_gradient[:, source[i]] += weight[:, place]

    def on_rank(backend):
        x = Tensor(own(whole, 1, backend.rank, num_ranks), requires_grad=True)
        y = rows_of(x, backend, 1, length, spans, beyond)
        y.backward(weights[backend.rank])
        return y.array, x.grad

    for rank, (rows, gradient) in enumerate(sk.run_ranks(num_ranks, on_rank)):
        zeros = numpy.zeros((2, 3))
        expected = [
            zeros if source[i] is None else whole[:, source[i]] for i in range(*spans[rank])
        ]
        assert_close(rows, numpy.stack(expected, 1) if expected else rows[:, :0], "rows")
        assert_close(gradient, own(wanted_gradient, 1, rank, num_ranks), "the gradient")


# ---- what is refused -----------------------------------------------------------------------------


class Secret(nn.Module):
    def __init__(self):
        self.conv = convolution(2)

    def forward(self, x):
        return self.conv(x).mean(2)


class SecretAgain(nn.models.UNet):
    def forward(self, x):
        return super().forward(x)[:, :, ::-1]


class Joining(nn.Module):
    def __init__(self):
        self.conv, self.pool = convolution(2), nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return x * self.pool(self.conv(x))


nn.partwise(Joining)
shared = convolution(2, padding=1, out=CHANNELS)


def spoilt():
    model = nn.Sequential(convolution(2), nn.GELU())
    model[1].forward = lambda x: x - x.mean(2, keepdim=True)
    return model


REFUSED = {
    "a forward put in place": (spoilt, "^1, a GELU, .* nn.partwise"),
    "an unknown forward": (lambda: nn.Sequential(Secret()), "^0, a Secret, .* nn.partwise"),
    "one of a subclass": (lambda: SecretAgain(1, 1), "the model, a SecretAgain, .* nn.partwise"),
    "a join in a branch": (lambda: nn.Sequential(Joining()), "joins the parts .* its layer pool"),
    "attention on a grid": (
        lambda: nn.Sequential(convolution(2), nn.SelfAttention(4, 2)),
        "^1, a SelfAttention, can share its x along dim 1, .* cut along dim 2",
    ),
    "spectra of features": (
        lambda: nn.Sequential(nn.SelfAttention(4, 2), nn.SpectralConv(4, 4, (2,))),
        "^1, a SpectralConv, can share its x along dim 2, .* cut along dim 1",
    ),
    "dropout of weights": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)),
        "^0.self_attn, a MultiheadAttention with dropout = 0.1 .* wanted dropout = 0",
    ),
    "samples along dim 1": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)),
        "^0, a TransformerEncoderLayer, whose samples lie along dim 1 .* batch_first=True",
    ),
    "graphs of samples": (
        lambda: nn.models.MessagePassing(2, 2),
        "^encode of .* bring their edges",
    ),
    "an LSTM over time first": (
        lambda: nn.Sequential(nn.LSTM(3, 4)),
        "^0, a LSTM, whose samples lie along dim 1 .* batch_first=True",
    ),
    "bags": (lambda: nn.Sequential(nn.EmbeddingBag(5, 4)), "a bag may have its ids"),
    "a layer alone": (lambda: convolution(2), "a Conv2d alone .* Sequential"),
    "maxima of two": (lambda: nn.Sequential(nn.AdaptiveMaxPool1d(2)), "with 2 shares .* wanted 1"),
    "two dims": (
        lambda: nn.Sequential(nn.Sequential(convolution(2)), nn.LayerNorm(3), Secret()),
        "2, a Secret",
    ),
    "parts and whole samples": (
        lambda: nn.Sequential(shared, nn.AdaptiveAvgPool2d(1), shared),
        "^2 gets parts .* two layers|parts of samples in one place",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_cut_is_refused_when_the_model_is_built(what):
    make, message = REFUSED[what]

    def on_rank(backend):
        model = make()
        model.finish()
        before = dict(model.named_modules())
        with pytest.raises(sk.ShardingError, match=message):
            cut_layers(model, backend)
        assert dict(model.named_modules()) == before

    sk.run_ranks(3, on_rank)
    assert not set(LAYERS) & set(REASONS)


def test_parts_that_would_be_empty_are_refused_with_the_arithmetic():
    def on_rank(backend):
        model = nn.Sequential(*[nn.MaxPool1d(2) for _ in range(3)])
        model.finish()
        cut_layers(model, backend)
        with pytest.raises(sk.ShardingError, match=r"2 makes 2 of 4 rows .* 3 .* 1 \+ 1 \+ 0"):
            model(Tensor(own(drawn((1, 1, 16), 0), 2, backend.rank, 3)))

    sk.run_ranks(3, on_rank)


def test_a_forward_that_shortens_parts_is_found_at_the_next_layer():
    @nn.partwise
    class Shortened(nn.Module):
        def __init__(self):
            self.first, self.second = convolution(1, out=CHANNELS), convolution(1)

        def forward(self, x):
            return self.second(self.first(x)[:, :, 1:])

    def on_rank(backend):
        model = nn.Sequential(Shortened())
        model.finish()
        cut_layers(model, backend)
        with pytest.raises(
            sk.ShardingError, match=r"0.second got parts of 3 \+ 3 \+ 2 .* of 11 or 13"
        ):
            model(Tensor(own(drawn((1, CHANNELS, 13), 0), 2, backend.rank, 3)))

    sk.run_ranks(3, on_rank)


@pytest.mark.parametrize("shortened", ["on all ranks", "on one rank"])
def test_a_part_as_long_as_that_of_another_length_is_found_on_all_ranks(shortened):
    """Of 14 rows less one, rank 0 has as many as of 11, which a layer has made; rank 1 has not."""

    @nn.partwise
    class Shortened(nn.Module):
        def __init__(self, rank):
            self.first, self.second = nn.Conv1d(1, 1, 4), nn.Conv1d(1, 1, 3, padding=1)
            self._start = int(shortened == "on all ranks" or rank == 0)

        def forward(self, x):
            self.first(x)
            return self.second(x[:, :, self._start :])

    x = drawn((2, 1, 14), 0).astype("float32")

    def on_rank(backend):
        model = sk.HybridShardedModel(
            nn.Sequential(Shortened(backend.rank)),
            sk.ShardingConfiguration(backend, loss=nn.MSELoss()),
            domain_parallel_size=2,
        )
        parts = {"on all ranks": r"6 \+ 6", "on one rank": r"6 \+ 7"}[shortened]
        for _ in range(2):
            with pytest.raises(sk.ShardingError, match=f"0.second got parts of {parts} "):
                model.train(x, x)

    sk.run_ranks(2, on_rank)


def test_states_before_and_after_a_sequence_that_is_cut_are_refused():
    @nn.partwise
    class Taking(nn.Module):
        def __init__(self, use):
            self.layer, self._use = nn.GRU(4, 3, batch_first=True), use

        def forward(self, x):
            return self._use(self.layer, x)

    uses = [
        (
            lambda layer, x: layer(x, Tensor(numpy.zeros((1, 2, 3), "float32"))),
            "was given the states",
        ),
        (lambda layer, x: x + layer(x)[1], "does not return its states"),
        (lambda layer, x: layer(x)[1][0], "does not return its states"),
        (lambda layer, x: layer(x)[1].shape, "does not return its states"),
    ]

    def on_rank(backend):
        x = Tensor(own(drawn((2, 8, 4), 0).astype("float32"), 1, backend.rank, 2))
        for use, message in uses:
            model = nn.Sequential(Taking(use))
            model.finish()
            cut_layers(model, backend)
            with pytest.raises(sk.ShardingError, match=message):
                model(x)

    sk.run_ranks(2, on_rank)


# ---- each exchange is needed ---------------------------------------------------------------------


class Deaf:
    """A group whose rank does not hear what comes in one of its exchanges."""

    def __init__(self, group, number):
        self._group, self._number, self.count = group, number, 0

    def __getattr__(self, name):
        return getattr(self._group, name)

    def _hears(self):
        self.count += 1
        return self.count - 1 != self._number

    def irecv(self, array, source, tag=0):
        handle, hears = self._group.irecv(array, source, tag), self._hears()

        def wait():
            handle.wait()
            array[...] *= hears

        return types.SimpleNamespace(wait=wait)

    def all_reduce(self, array, *how):
        before = array.copy()
        self._group.all_reduce(array, *how)
        if not self._hears():
            array[...] = before

    def _received(verb):
        def call(self, send, receive, *how, **more):
            getattr(self._group, verb)(send, receive, *how, **more)
            if receive.dtype.kind == "f" and not self._hears():
                receive[...] = 0

        return call

    all_gather, all_to_all = _received("all_gather"), _received("all_to_all")
    reduce_scatter = _received("reduce_scatter")


def every_exchange():
    return nn.Sequential(
        convolution(1, out=CHANNELS, padding=1),
        nn.GroupNorm(2, CHANNELS, **F64),
        nn.MaxPool1d(3, stride=2, padding=1),
        nn.Upsample(scale_factor=1.5, mode="linear"),
        transposed(1, stride=2),
        nn.Flatten(),
    )


def every_turn():
    layer = nn.LSTM(CHANNELS, 3, 2, batch_first=True, bidirectional=True, **F64)
    return nn.Sequential(Outputs(layer), nn.Flatten())


# what has all kinds of exchanges, the dim of x that is cut, how many messages a middle rank gets
WITH_EXCHANGES = [(every_exchange, 2, 15), (every_turn, 1, 10)]


@pytest.mark.parametrize("make, dim, least", WITH_EXCHANGES)
def test_an_exchange_that_is_left_out_is_seen(make, dim, least):
    x, num_ranks = drawn((2, CHANNELS, 13), 0).swapaxes(2, dim), 3
    model = make()
    model.finish(3)
    for p in model.parameters():
        p.array = drawn(p.shape, len(p.name))

    def found(number):
        """Return results of all ranks, of which one is deaf in exchange `number`, and how many it
        has.
        """

        def on_rank(backend):
            group = Deaf(backend, number if backend.rank == 1 else None)
            mine = copy.deepcopy(model)
            cut_layers(mine, group)
            mine_x, counts = own(x, dim, backend.rank, num_ranks), backend.rank == 0
            y, for_x, gradients = run(mine, mine_x, lambda shape: drawn(shape, 1) * counts)
            return group.count, numpy.concatenate(
                [a.ravel() for a in (y, for_x, *gradients.values())]
            )

        results = sk.run_ranks(num_ranks, on_rank)
        return results[1][0], numpy.concatenate([result[1] for result in results])

    count, wanted = found(None)
    assert count >= least
    deaf = [found(number)[1] for number in range(count)]
    unseen = [n for n, each in enumerate(deaf) if numpy.abs(each - wanted).max() < 1e-6]
    assert not unseen, f"of {count} exchanges nobody missed {unseen}"


def test_rows_that_a_layer_has_read_are_put_together_again():
    whole = drawn((2, 3, 11), 0)

    def on_rank(backend):
        x = Tensor(own(whole, 2, backend.rank, 3), requires_grad=True)
        spans = ((-1, 5), (3, 9), (7, 12))
        rows = rows_of(x, backend, 2, 11, spans, "circular")
        wanted = numpy.take(whole, numpy.arange(*spans[backend.rank]) % 11, 2)
        numpy.testing.assert_array_equal(rows.array, wanted)
        factor = Tensor(numpy.ones(wanted.shape), requires_grad=True)
        y = rows * factor  # its backward reads the rows
        let_go(rows)
        assert rows.array is not rows.array  # no longer kept
        y.backward(numpy.ones(wanted.shape))
        numpy.testing.assert_array_equal(factor.grad, wanted)

    sk.run_ranks(3, on_rank)
