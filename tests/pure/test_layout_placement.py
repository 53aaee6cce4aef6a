"""Placements: parts of a tensor over one mesh axis, and over several at once."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import LayoutError
from shardkit.layout import Box, Replicate, Shard, compose, even_span, tiles_exactly


@given(st.integers(0, 50), st.integers(1, 9))
def test_even_spans_are_adjacent_and_the_first_ones_are_longer_by_one(length, num_parts):
    spans = [even_span(length, num_parts, part) for part in range(num_parts)]
    assert spans[0][0] == 0 and spans[-1][1] == length
    assert all(one[1] == two[0] for one, two in zip(spans, spans[1:]))
    sizes = [stop - start for start, stop in spans]
    assert sizes == sorted(sizes, reverse=True) and max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple), st.data())
def test_shards_over_two_axes_tile_the_tensor_even_when_they_cut_the_same_dim(shape, data):
    first, second = (data.draw(st.integers(0, len(shape) - 1)) for _ in range(2))
    num_first, num_second = (data.draw(st.integers(1, 5)) for _ in range(2))
    boxes = [
        compose([Shard(first, num_first, i), Shard(second, num_second, j)], shape)
        for i, j in product(range(num_first), range(num_second))
    ]
    tiles_exactly(shape, boxes)


def test_composition_cuts_what_the_placement_before_left():
    assert compose([Shard(0, 2, 1), Shard(0, 2, 0)], (10,)) == Box((5,), (3,))
    assert compose([Shard(1, 2, 0), Shard(0, 4, 3)], (10, 6)) == Box((8, 0), (2, 3))
    assert (
        compose([Replicate(), Shard(0, 3, 2)], (4,))
        == Shard(0, 3, 2).local_box((4,))
        == Box((3,), (1,))
    )


def test_replicas_have_everything():
    assert Replicate().local_box((2, 3)) == Box.whole((2, 3)) == compose([], (2, 3))


@pytest.mark.parametrize("num_parts, part", [(0, 0), (2, 2), (2, -1)])
def test_a_part_that_does_not_exist_is_refused(num_parts, part):
    with pytest.raises(LayoutError):
        Shard(0, num_parts, part)


@pytest.mark.parametrize("dim, shape", [(1, (3,)), (0, ()), (-1, (3,))])
def test_a_dim_that_does_not_exist_is_refused(dim, shape):
    with pytest.raises(LayoutError, match="cannot be sharded"):
        Shard(dim, 1, 0).local_box(shape)
