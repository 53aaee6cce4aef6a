"""Boxes: arithmetic, the fewest boxes of a flat range, and tilings that hold or are refused by
name.
"""

from functools import cache
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit import LayoutError
from shardkit.testing.layout import Box, even_span, flat_range_to_boxes, tiles_exactly

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def boxes_in(draw, shape):
    ends = [sorted((draw(st.integers(0, size)), draw(st.integers(0, size)))) for size in shape]
    return Box(tuple(a for a, _ in ends), tuple(b - a for a, b in ends))


@st.composite
def flat_ranges(draw):
    shape = draw(shapes)
    start, stop = sorted((draw(st.integers(0, prod(shape))), draw(st.integers(0, prod(shape)))))
    return shape, start, stop


@st.composite
def tilings(draw):
    """Draw a shape and boxes that tile it, by cutting boxes in two again and again."""
    boxes = [Box.whole(draw(shapes))]
    shape = boxes[0].shape
    for _ in range(draw(st.integers(0, 8)) if shape else 0):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, box.shape[dim]))
        low = box.shape[:dim] + (at,) + box.shape[dim + 1 :]
        high = box.shape[:dim] + (box.shape[dim] - at,) + box.shape[dim + 1 :]
        boxes += [
            Box(box.offset, low),
            Box(box.offset[:dim] + (box.offset[dim] + at,) + box.offset[dim + 1 :], high),
        ]
    return shape, draw(st.permutations(boxes))


def indices(box):
    return list(product(*map(range, box.offset, box.stop)))


def flat_indices(shape, box):
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
    return [sum(i * s for i, s in zip(index, strides)) for index in indices(box)]


@given(st.data())
def test_an_intersection_holds_exactly_the_shared_elements(data):
    shape = data.draw(shapes)
    one, two = data.draw(boxes_in(shape)), data.draw(boxes_in(shape))
    shared = set(indices(one)) & set(indices(two))
    overlap = one.intersection(two)
    assert (set(indices(overlap)) if overlap else set()) == shared
    if overlap:
        assert one.contains(overlap) and two.contains(overlap)
        assert overlap.relative_to(one).size == len(shared)


def test_a_box_prints_like_a_slice_and_counts_from_its_outer_box():
    box = Box((1, 2), (2, 3))
    assert str(box) == "[1:3, 2:5]" and box.size == 6
    assert box.slices() == (slice(1, 3), slice(2, 5))
    assert box.relative_to(Box((1, 1), (4, 4))) == Box((0, 1), (2, 3))
    with pytest.raises(LayoutError, match=r"\[1:3, 2:5\] is not inside \[2:4, 2:5\]"):
        box.relative_to(Box((2, 2), (2, 3)))


def test_a_scalar_box_has_one_element_and_a_zero_size_box_none():
    scalar = Box.whole(())
    assert scalar.size == 1 and not scalar.is_empty and scalar.intersection(scalar) == scalar
    assert Box.whole((3, 0)).is_empty and Box.whole((3, 0)).intersection(Box.whole((3, 0))) is None


@pytest.mark.parametrize("offset, shape", [((0,), (1, 1)), ((-1,), (2,)), ((0,), (-1,))])
def test_a_malformed_box_is_refused(offset, shape):
    with pytest.raises(LayoutError):
        Box(offset, shape)


@given(flat_ranges())
def test_flat_range_boxes_hold_exactly_the_range_in_flat_order(case):
    shape, start, stop = case
    found = [i for box in flat_range_to_boxes(shape, start, stop) for i in flat_indices(shape, box)]
    assert found == list(range(start, stop))


def fewest_contiguous_boxes(shape, start, stop):
    """Find by brute force the fewest runs that cut [start, stop) such that each fills its bounding
    box.
    """
    index = list(product(*map(range, shape)))

    def is_box(low, high):
        corners = [(min(along), max(along)) for along in zip(*index[low:high])]
        return prod(b - a + 1 for a, b in corners) == high - low

    @cache
    def fewest(low):
        return (
            0
            if low == stop
            else 1 + min(fewest(high) for high in range(low + 1, stop + 1) if is_box(low, high))
        )

    return fewest(start)


@pytest.mark.parametrize(
    "shape", [(), (7,), (3, 4), (1, 5), (5, 1), (2, 3, 2), (2, 1, 3), (2, 2, 1, 3)]
)
def test_flat_range_boxes_are_the_fewest_possible(shape):
    for start in range(prod(shape) + 1):
        for stop in range(start, prod(shape) + 1):
            assert len(flat_range_to_boxes(shape, start, stop)) == fewest_contiguous_boxes(
                shape, start, stop
            )


def test_a_flat_range_outside_the_tensor_is_refused():
    with pytest.raises(LayoutError, match=r"\[3, 7\) is not a range of the 6 elements"):
        flat_range_to_boxes((2, 3), 3, 7)


@given(tilings())
def test_any_exact_tiling_is_accepted_in_any_order(case):
    tiles_exactly(*case)


@given(tilings(), st.data())
def test_a_tiling_with_one_box_lost_or_repeated_is_refused(case, data):
    shape, boxes = case
    filled = [box for box in boxes if not box.is_empty]
    if not filled:
        return
    guilty = data.draw(st.sampled_from(filled))
    with pytest.raises(LayoutError, match="no box covers"):
        tiles_exactly(shape, [box for box in boxes if box != guilty])
    with pytest.raises(LayoutError, match="covered 2 times"):
        tiles_exactly(shape, [*boxes, guilty])


@given(st.data())
def test_tiles_exactly_agrees_with_counting_every_element(data):
    shape = data.draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
    boxes = data.draw(st.lists(boxes_in(shape), max_size=5))
    counts = {
        index: sum(index in indices(box) for box in boxes) for index in indices(Box.whole(shape))
    }
    if all(count == 1 for count in counts.values()):
        tiles_exactly(shape, boxes)
    else:
        with pytest.raises(LayoutError):
            tiles_exactly(shape, boxes)


def test_the_error_names_the_first_missing_region():
    with pytest.raises(LayoutError, match=r"no box covers \[0:2, 3:4\]"):
        tiles_exactly((4, 4), [Box((0, 0), (2, 3)), Box((2, 0), (2, 3))])


def test_the_error_names_the_region_covered_twice_and_both_boxes():
    with pytest.raises(
        LayoutError, match=r"\[1:2, 0:4\] is covered 2 times, by \[0:2, 0:4\] and \[1:4, 0:4\]"
    ):
        tiles_exactly((4, 4), [Box((0, 0), (2, 4)), Box((1, 0), (3, 4))])


def test_a_box_that_sticks_out_is_named():
    with pytest.raises(LayoutError, match=r"\[3:5\] is not inside"):
        tiles_exactly((4,), [Box((0,), (3,)), Box((3,), (2,))])


def test_scalars_and_zero_size_tensors_tile_as_they_should():
    tiles_exactly((), [Box((), ())])
    tiles_exactly((3, 0), [])
    tiles_exactly((3, 0), [Box((0, 0), (3, 0))])
    with pytest.raises(LayoutError):
        tiles_exactly((), [])
    with pytest.raises(LayoutError):
        tiles_exactly((), [Box((), ()), Box((), ())])


@pytest.mark.parametrize("cuts", [(4096, 1), (1, 4096), (64, 64)])
def test_four_thousand_boxes_tile_within_the_time_limit_and_one_less_does_not(cuts):
    """Comparing each box with each other would take minutes."""
    shape = (4099, 4101)
    spans = [
        [even_span(size, parts, part) for part in range(parts)] for size, parts in zip(shape, cuts)
    ]
    boxes = [Box((a, c), (b - a, d - c)) for a, b in spans[0] for c, d in spans[1]]
    tiles_exactly(shape, boxes)
    with pytest.raises(LayoutError):
        tiles_exactly(shape, boxes[:-1])
