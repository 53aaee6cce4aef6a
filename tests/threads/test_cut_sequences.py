"""Layers of sequences that ranks share, in whole models, against models of one rank; float64.

Tolerance: 1e-12 of the largest value, for sums in another order.
"""

import numpy
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.nn import Tensor, ops
from shardkit.testing.nn import SelfAttention, TokenEmbedding, exchange
from shardkit.testing.parallel import (
    CutMultiheadAttention,
    CutSelfAttention,
    CutSpectralConv,
    CutTokenEmbedding,
    even_spans,
    paired_spans,
    positions_of,
)

EVERY_SIZE = pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5])
TWINS = {
    SelfAttention: CutSelfAttention,
    TokenEmbedding: CutTokenEmbedding,
    nn.MultiheadAttention: CutMultiheadAttention,
    nn.SpectralConv: CutSpectralConv,
}
CUTS = {"even": even_spans, "paired": paired_spans}
IDS = numpy.random.default_rng(0).integers(0, 11, (2, 13))
MODELS = {
    "gpt2": {"style": "gpt2"},
    "llama": {"style": "llama", "kv_heads": 2, "rotary_scaling": (8.0, 1.0, 4.0, 32)},
    "one key head": {"style": "llama", "kv_heads": 1, "qk_norm": "head"},
    "a window": {"style": "llama", "window": 5, "full_layers": (1,)},
}


class Axis:
    """Ranks that share samples of one length."""

    def __init__(self, group, table, dim=1):
        self.group, self.dim, self._table = group, dim, table

    def table(self, x, path):
        assert x.shape[self.dim] == len(positions_of(self._table[self.group.rank])), path
        return self._table


def cut(model, axis):
    """Put the layers for parts of sequences in place of those for whole ones."""
    replaced = {}
    for path, module in model.named_modules().items():
        if type(module) in TWINS:
            replaced[id(module)] = TWINS[type(module)](axis, module)
            replaced[id(module)].path_in_model = path
    assert replaced
    exchange(model, replaced)


def assert_near(got, wanted):
    assert got.shape == wanted.shape
    assert abs(got - wanted).max(initial=0) <= 1e-12 * (1 + abs(wanted).max(initial=0))


def assert_cut_model_is_whole_one(build, x, place, num_ranks, table, dim=1):
    """x: the whole input; place: own positions -> an index of x and of the output."""
    model = build()
    y = model(x)
    gradient = numpy.random.default_rng(1).standard_normal(y.shape)
    y.backward(gradient)

    def run(group):
        axis = Axis(group, table, dim)
        own = place(positions_of(table[group.rank]))
        part = build()
        cut(part, axis)
        z = part(x[own])
        assert_near(z.array, y.array[own])
        z.backward(gradient[own])
        for found, right in zip(part.parameters(), model.parameters(), strict=True):
            assert found.name == right.name
            assert_near(sum(group.all_gather_object(found.grad)), right.grad)

    sk.run_ranks(num_ranks, run)


@EVERY_SIZE
@pytest.mark.parametrize("cut_name", CUTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_gpt_is_that_of_whole_sequences(name, cut_name, num_ranks):
    def build():
        return sk.models.GPT(11, 16, 8, 2, 4, dtype="float64", **MODELS[name])

    table = CUTS[cut_name](13, num_ranks)
    assert_cut_model_is_whole_one(build, IDS, lambda own: (slice(None), own), num_ranks, table)


class Reader(nn.Module):
    """Attention of a sequence to itself, causal and to all, and to every token of another."""

    def __init__(self, batch_first):
        form = {"batch_first": batch_first, "dtype": "float64"}
        self.own = nn.MultiheadAttention(6, 3, **form)
        self.causal = nn.MultiheadAttention(6, 2, **form)
        self.cross = nn.MultiheadAttention(6, 2, kdim=6, vdim=6, **form)
        self.near = nn.MultiheadAttention(6, 1, window=3, **form)
        self.encoder = nn.TransformerEncoderLayer(6, 2, 8, 0.0, window=4, **form)

    def forward(self, x):
        x = x if isinstance(x, Tensor) else Tensor(x)
        x = x + self.own(x, x, x, need_weights=False)[0]
        x = x + self.causal(x, x, x, need_weights=False, is_causal=True)[0]
        other = x * 2
        x = x + self.cross(x, other, other, need_weights=False)[0]
        x = x + self.near(x, x, x, need_weights=False)[0]
        return self.encoder(x, is_causal=True)


@EVERY_SIZE
def test_multihead_attention_is_that_of_whole_sequences(num_ranks):
    def build():
        return Reader(True).finish(0)

    x = numpy.random.default_rng(0).standard_normal((2, 9, 6))
    table = even_spans(9, num_ranks)
    assert_cut_model_is_whole_one(build, x, lambda own: (slice(None), own), num_ranks, table)


@EVERY_SIZE
@pytest.mark.parametrize("dim", [2, 3])
def test_spectral_layers_are_those_of_whole_grids(dim, num_ranks):
    def build():
        layers = [nn.SpectralConv(2, 3, (2, 3), dtype="float64"), nn.GELU()]
        layers.append(nn.SpectralConv(3, 2, (1, 2), dtype="float64"))
        return nn.Sequential(*layers).finish(0)

    x = Tensor(numpy.random.default_rng(0).standard_normal((2, 2, 7, 9)))
    table = even_spans(x.shape[dim], num_ranks)
    before = (slice(None),) * dim
    assert_cut_model_is_whole_one(build, x, lambda own: (*before, own), num_ranks, table, dim)


def test_a_grid_without_room_for_the_modes_is_refused():
    def run(group):
        layer = nn.SpectralConv(1, 1, (3, 1), dtype="float64")
        axis = Axis(group, even_spans(4, 2), 2)
        with pytest.raises(sk.ShapeError, match=r"4, 4.*twice the modes"):
            CutSpectralConv(axis, layer)(numpy.ones((1, 1, 2, 4)))

    sk.run_ranks(2, run)


@pytest.mark.parametrize(
    "form", [{}, {"need_weights": False, "attn_mask": numpy.zeros((4, 4), bool)}]
)
def test_weights_and_masks_are_refused(form):
    def run(group):
        layer = nn.MultiheadAttention(4, 2, batch_first=True, dtype="float64")
        x = Tensor(numpy.ones((1, 2, 4)))
        with pytest.raises(sk.ShardingError, match="need_weights=False"):
            CutMultiheadAttention(Axis(group, even_spans(4, 2)), layer)(x, x, x, **form)

    sk.run_ranks(2, run)


def test_a_window_of_two_sequences_is_refused_as_it_is_of_whole_ones():
    layer = nn.MultiheadAttention(4, 2, batch_first=True, window=2, dtype="float64")
    x, other = [Tensor(numpy.ones((1, length, 4))) for length in (8, 6)]
    with pytest.raises(sk.ShapeError, match="8 queries to 6 keys with window 2; wanted as many"):
        layer(x, other, other)

    def run(group):
        class Cut(Axis):
            def table(self, x, path):
                return even_spans(2 * x.shape[1], 2)

        with pytest.raises(sk.ShapeError, match="8 queries to 6 keys with window 2"):
            CutMultiheadAttention(Cut(group, None), layer)(
                x[:, :4], other[:, :3], other[:, :3], need_weights=False
            )

    sk.run_ranks(2, run)


def test_texts_are_not_continued_on_parts():
    def run(group):
        model = sk.models.GPT(11, 16, 8, 1, 4, dtype="float64")
        cut(model, Axis(group, even_spans(4, 2)))
        with pytest.raises(sk.ShardingError, match="cannot continue texts"):
            model.generate([1, 2], 3)

    sk.run_ranks(2, run)


@pytest.mark.parametrize("runs", [(), ((0, 4),), ((3, 5), (9, 12)), ((7, 8), (0, 2))])
def test_rotary_positions_may_be_runs(runs):
    positions = positions_of(runs)
    x = numpy.random.default_rng(0).standard_normal((2, 3, len(positions), 4))
    got, wanted = [ops.rotary(Tensor(x), each).array for each in (runs, positions)]
    numpy.testing.assert_array_equal(got, wanted)
