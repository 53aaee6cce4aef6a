"""Initializers: a value depends on (seed, name, element index) and on nothing else."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import ConfigurationError
from shardkit.nn.init import CHUNK, Fill, Normal, Uniform

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
