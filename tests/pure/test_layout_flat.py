"""FlatLayout: slots without gaps, equal shards, and pieces that tile every tensor exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit import LayoutError
from shardkit.testing.layout import Box, FlatLayout, Piece, tiles_exactly

tensors = st.lists(st.lists(st.integers(0, 6), max_size=3).map(tuple), max_size=6).map(
    lambda shapes: {f"tensor{i}": shape for i, shape in enumerate(shapes)}
)
layouts = st.builds(
    lambda shapes, num_shards, alignment: FlatLayout.of(shapes, num_shards, alignment=alignment),
    tensors,
    st.integers(1, 9),
    st.sampled_from([1, 2, 3, 8, 256]),
)


@given(layouts)
def test_pieces_tile_every_slot_once(layout):
    pieces = [piece for rank in range(layout.num_shards) for piece in layout.pieces(rank)]
    for slot in layout.slots:
        mine = [piece for piece in pieces if piece.name == slot.name]
        assert all(piece.global_shape == slot.shape for piece in mine)
        tiles_exactly(slot.shape, [piece.box for piece in mine])


@given(layouts)
def test_pieces_fill_a_ranks_span_from_its_start_without_gaps(layout):
    for rank in range(layout.num_shards):
        start, stop = layout.span(rank)
        at = 0
        for piece in layout.pieces(rank):
            assert piece.start == at and piece.stop - piece.start == piece.box.size
            at = piece.stop
        assert at == stop - start


@given(layouts)
def test_a_piece_lies_where_its_slot_lies(layout):
    for rank in range(layout.num_shards):
        for piece in layout.pieces(rank):
            slot, position = layout.slot(piece.name), 0
            for size, index in zip(slot.shape, piece.box.offset):
                position = position * size + index
            assert layout.span(rank)[0] + piece.start == slot.offset + position


@given(layouts)
def test_shards_are_equal_aligned_and_as_small_as_that_allows(layout):
    assert layout.shard % layout.alignment == 0 and layout.size == layout.shard * layout.num_shards
    assert layout.size >= layout.length
    assert (
        layout.shard - layout.alignment
    ) * layout.num_shards < layout.length or layout.shard == 0


@given(layouts)
def test_slots_follow_each_other_and_padding_is_only_at_the_end(layout):
    ends = [0] + [slot.stop for slot in layout.slots]
    assert [slot.offset for slot in layout.slots] == ends[:-1] and layout.length == ends[-1]
    spans = [layout.span(rank) for rank in range(layout.num_shards)]
    assert spans[0][0] == 0 and spans[-1][1] == layout.length
    assert all(one[1] == two[0] for one, two in zip(spans, spans[1:]))


def test_the_example_in_the_docstring_is_what_the_layout_says():
    layout = FlatLayout.of({"weight": (3, 4), "bias": (3,)}, 2, alignment=4)
    assert (layout.length, layout.shard, layout.size, layout.span(1)) == (15, 8, 16, (8, 15))
    assert layout.pieces(1) == [
        Piece("weight", Box((2, 0), (1, 4)), 0, 4, (3, 4)),
        Piece("bias", Box((0,), (3,)), 4, 7, (3,)),
    ]
    assert str(layout.pieces(1)[0]) == "weight[2:3, 0:4] of (3, 4) at [0, 4)"


def test_more_ranks_than_elements_leaves_the_last_ranks_with_nothing():
    layout = FlatLayout.of([("scale", ())], 4, alignment=1)
    assert [layout.span(rank) for rank in range(4)] == [(0, 1), (1, 1), (1, 1), (1, 1)]
    assert layout.pieces(0) == [Piece("scale", Box((), ()), 0, 1, ())] and layout.pieces(3) == []


def test_a_layout_of_nothing_is_empty():
    layout = FlatLayout.of({}, 3)
    assert layout.length == layout.shard == layout.size == 0 and layout.pieces(2) == []


def test_bytes_follow_the_dtype():
    layout = FlatLayout.of({"a": (300,)}, 2, dtype="float16")
    assert (layout.length, layout.shard, layout.size, layout.item_bytes) == (300, 256, 512, 2)
    assert FlatLayout.of({"a": (300,)}, 2, dtype="float64").item_bytes == 8


def test_layouts_are_equal_by_value_and_pairs_are_as_good_as_a_dictionary():
    one, two = FlatLayout.of({"a": (2,), "b": [3]}, 2), FlatLayout.of([("a", (2,)), ("b", (3,))], 2)
    assert one == two and hash(one) == hash(two)
    assert one != FlatLayout.of({"b": (3,), "a": (2,)}, 2)


@pytest.mark.parametrize(
    "shapes, settings, message",
    [
        ([("a", (1,)), ("a", (2,))], {}, "two tensors are named 'a'"),
        ({"a": (2, -1)}, {}, "'a' has shape"),
        ({"a": (2,)}, {"dtype": "int7"}, "dtype 'int7' is not one of float64"),
        ({"a": (2,)}, {"alignment": 0}, "alignment 0"),
        ({"a": (2,)}, {"num_shards": 0}, "num_shards 0"),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused_by_name(shapes, settings, message):
    with pytest.raises(LayoutError, match=message):
        FlatLayout.of(shapes, **{"num_shards": 2, **settings})


def test_unknown_slots_and_ranks_are_refused():
    layout = FlatLayout.of({"a": (2,)}, 2)
    with pytest.raises(LayoutError, match="no slot is named 'b'; the layout has a"):
        layout.slot("b")
    with pytest.raises(LayoutError, match="rank 2 owns no shard"):
        layout.span(2)
