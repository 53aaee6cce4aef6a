"""Initializers: a value depends on (seed, name, element index) and on nothing else."""

import copy
from itertools import combinations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardkit as sk
from shardkit import ConfigurationError, nn
from shardkit.testing.nn import CHUNK, Fill, Normal, Uniform

INITIALIZERS = [Normal(0.02), Uniform(0.5), Fill(1.5)]
ids = [repr(i) for i in INITIALIZERS]


@pytest.mark.parametrize("init", INITIALIZERS, ids=ids)
@given(
    cuts=st.lists(st.integers(0, 100), max_size=5), dtype=st.sampled_from(["float32", "float64"])
)
def test_spans_put_together_are_the_whole_bit_for_bit(init, cuts, dtype):
    edges = [0, *sorted(cuts), 100]
    parts = [init.span(3, "a.weight", start, stop, dtype) for start, stop in zip(edges, edges[1:])]
    assert numpy.array_equal(numpy.concatenate(parts), init.span(3, "a.weight", 0, 100, dtype))


@pytest.mark.parametrize("init", INITIALIZERS, ids=ids)
def test_a_span_over_a_chunk_boundary_is_the_slice_of_the_whole(init):
    whole = init.span(0, "a", 0, CHUNK + 9)
    assert numpy.array_equal(init.span(0, "a", CHUNK - 5, CHUNK + 7), whole[CHUNK - 5 : CHUNK + 7])


@pytest.mark.parametrize("init", [Normal(0.02), Uniform(0.5)], ids=["Normal", "Uniform"])
def test_another_seed_or_another_name_gives_other_values(init):
    spans = [init.span(seed, name, 0, 8) for seed, name in [(0, "a"), (1, "a"), (0, "b")]]
    assert all(not numpy.isin(spans[i], spans[j]).any() for i, j in [(0, 1), (0, 2), (1, 2)])


@pytest.mark.parametrize("init", INITIALIZERS, ids=ids)
def test_float32_values_are_the_float64_values_rounded(init):
    assert numpy.array_equal(
        init.span(0, "a", 0, 50, "float32"), init.span(0, "a", 0, 50, "float64").astype("float32")
    )


def test_normal_has_the_standard_deviation_asked_for():
    values = Normal(0.02).span(0, "a", 0, 100_000, "float64")
    assert abs(values.mean()) < 0.02 * 4 / 100_000**0.5  # four standard errors
    assert values.std() == pytest.approx(0.02, rel=0.01)


def test_uniform_fills_its_bounds_and_stays_inside():
    values = Uniform(0.5).span(0, "a", 0, 10_000, "float64")
    assert -0.5 <= values.min() < -0.49 and 0.49 < values.max() < 0.5


def test_initializers_are_equal_by_value():
    assert Normal(0.02) == Normal(0.02) != Normal(0.03) and Fill(0.0) != Fill(1.0)


@pytest.mark.parametrize("make", [Normal, Uniform])
@pytest.mark.parametrize("width", [-1.0, float("nan")])
def test_a_negative_width_is_refused(make, width):
    with pytest.raises(ConfigurationError, match="wanted .* >= 0"):
        make(width)


def twins():
    """Return a model whose parts come several times, each as it was made before."""
    one = nn.Linear(64, 64)
    gpt = sk.models.GPT(64, 64, 64, 1, 2, seed=0)
    return nn.ModuleList(
        [
            *(copy.deepcopy(one) for _ in range(3)),
            *(sk.models.MLP([64, 64, 64], seed=0) for _ in range(2)),
            nn.ModuleList([gpt, copy.deepcopy(gpt), sk.models.GPT(64, 64, 64, 1, 2, seed=0)]),
            sk.nn.LSTM(64, 64, 2, bidirectional=True),
            nn.ModuleList([one, one]),
        ]
    )


@pytest.mark.parametrize("shift", [0, 1, 2, 4])
def test_no_two_parameters_of_a_model_begin_alike(shift):
    """Parts that were made with one seed, or copied, are other parts of the whole model."""
    model = twins().finish(0)
    length = 2048
    drawn = {
        name: parameter.array.reshape(-1)[: length + shift].astype("float64")
        for name, parameter in model.named_parameters().items()
        if parameter.size >= length + shift and parameter.array.std()
    }
    assert len(drawn) > 40
    for one, other in combinations(drawn, 2):
        first, second = drawn[one][:length], drawn[other][shift:]
        assert abs(numpy.corrcoef(first, second)[0, 1]) < 5 / length**0.5, (one, other)


def test_a_module_that_comes_twice_is_one_and_begins_once():
    model = twins().finish(0)
    names = [name for name in model.named_parameters() if name.startswith("7.")]
    assert names == ["7.0.weight", "7.0.bias"]
