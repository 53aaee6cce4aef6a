"""Boxes: N-D rectangles of integers, the only form in which parts of tensors are owned, cut, saved
and loaded.

    a tensor of shape (4, 6)          Box(offset=(1, 2), shape=(2, 3)), printed "[1:3, 2:5]"
      . . . . . .
      . . # # # .                     A scalar has shape () and one element, so its only box is
      . . # # # .                     Box((), ()), printed "[]".
      . . . . . .                     A box with a zero in its shape owns nothing.

To load a checkpoint under another layout, take the `intersection` of the box that is wanted and the
box that is there, then `relative_to` on either side to find the elements: nothing else in the
package knows how shards overlap.
"""

from collections import defaultdict
from dataclasses import dataclass
from math import prod

from ..errors import LayoutError


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """The elements offset[d] <= index[d] < offset[d] + shape[d] of a tensor."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self):
        if len(self.offset) != len(self.shape) or min((0, *self.offset, *self.shape)) < 0:
            raise LayoutError(
                f"a box needs one offset >= 0 and one size >= 0 per dim, "
                f"got offset {self.offset} and shape {self.shape}"
            )

    @classmethod
    def whole(cls, shape) -> "Box":
        """Return the box that is all of a tensor of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    @property
    def stop(self) -> tuple[int, ...]:
        """The index after the last, per dim."""
        return tuple(offset + size for offset, size in zip(self.offset, self.shape))

    def intersection(self, other: "Box") -> "Box | None":
        """Return the elements in both boxes, or None if they share none."""
        assert len(self.shape) == len(other.shape), (
            f"{self} and {other} are boxes of different tensors"
        )
        start = tuple(map(max, self.offset, other.offset))
        shape = tuple(stop - low for low, stop in zip(start, map(min, self.stop, other.stop)))
        return Box(start, shape) if all(size > 0 for size in shape) else None

    def contains(self, other: "Box") -> bool:
        """Return whether every index of `other` lies in this box; an empty box has bounds too."""
        return (
            len(self.shape) == len(other.shape)
            and all(a <= b for a, b in zip(self.offset, other.offset))
            and all(a <= b for a, b in zip(other.stop, self.stop))
        )

    def relative_to(self, outer: "Box") -> "Box":
        """Return the box counted from the first corner of `outer`, which must contain it."""
        if not outer.contains(self):
            raise LayoutError(f"box {self} is not inside {outer}; intersect them first")
        return Box(tuple(a - b for a, b in zip(self.offset, outer.offset)), self.shape)

    def narrowed(self, dim: int, start: int, stop: int) -> "Box":
        """Return the box with [start, stop) in place of its extent along one dim."""
        return Box(
            self.offset[:dim] + (start,) + self.offset[dim + 1 :],
            self.shape[:dim] + (stop - start,) + self.shape[dim + 1 :],
        )

    def slices(self) -> tuple[slice, ...]:
        """Return the index of the box in an array: `array[box.slices()]`."""
        return tuple(map(slice, self.offset, self.stop))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.offset, self.stop)) + "]"


def flat_range_to_boxes(shape, start: int, stop: int) -> list[Box]:
    """Return the fewest contiguous boxes that are the C-order elements [start, stop), in order.

    shape (4, 6), elements [4, 20):         . . . . a a      the end of a row,
                                            b b b b b b      full rows,
    at most 2 * ndim - 1 boxes              b b b b b b
                                            c c . . . .      the beginning of a row

    Both ends are ranges of a tensor with one dim less, so the rule applies to them again.
    """
    size = prod(shape)
    if not 0 <= start <= stop <= size:
        raise LayoutError(
            f"[{start}, {stop}) is not a range of the {size} elements of shape {tuple(shape)}"
        )
    return _boxes_below((), tuple(shape), start, stop)


def _boxes_below(index: tuple, shape: tuple, start: int, stop: int) -> list[Box]:
    """Return the boxes of [start, stop) of the sub-tensor of `shape` at `index` of the leading
    dims.
    """
    if start == stop:
        return []
    if not shape:
        return [Box(index, (1,) * len(index))]
    below = shape[1:]
    row = prod(below)
    first = start // row  # the row that holds `start`
    last = stop // row
    if first == last:
        return _boxes_below_row(index, first, below, start - first * row, stop - first * row)
    full = -(-start // row)  # the first row that is covered from its beginning
    head = _boxes_below_row(index, first, below, start - first * row, row) if full > first else []
    tail = _boxes_below_row(index, last, below, 0, stop - last * row)
    if last <= full:
        return head + tail
    ones = (1,) * len(index)
    corner = index + (full,) + (0,) * len(below)
    rows = Box(corner, ones + (last - full,) + below)
    return [*head, rows, *tail]


def _boxes_below_row(index: tuple, row: int, below: tuple, start: int, stop: int) -> list[Box]:
    return _boxes_below(index + (row,), below, start, stop)


def tiles_exactly(shape, boxes) -> None:
    """Check that every element of a tensor of this shape lies in exactly one of the boxes.

    Empty boxes do not count.
    Errors: LayoutError naming a box that sticks out, or the first region (in C order of regions)
    that no box covers, or that two boxes cover.
    """
    whole = Box.whole(shape)
    for box in boxes:
        if not whole.contains(box):
            raise LayoutError(f"box {box} is not inside the tensor {whole}")
    if not whole.is_empty:
        _check_slab(whole, [box for box in boxes if not box.is_empty], 0)


def _check_slab(slab: Box, boxes: list[Box], dim: int) -> None:
    """Check one slab, in which all these boxes cover the dims before `dim` from end to end.

    Cut the slab along `dim` wherever a box begins or ends; within such a cut every box covers `dim`
    from end to end too, so the next dim can be checked alone. A regular grid of n boxes takes
    O(n log n).
    """
    if not boxes:
        raise LayoutError(
            f"no box covers {slab}; a shard is missing, or was written under another layout"
        )
    if dim < len(slab.shape):
        for start, stop, present in _cuts(boxes, dim, slab.shape[dim]):
            _check_slab(slab.narrowed(dim, start, stop), present, dim + 1)
    elif len(boxes) > 1:
        raise LayoutError(
            f"{slab} is covered {len(boxes)} times, by {boxes[0]} and {boxes[1]}; "
            "two owners hold it"
        )


def _cuts(boxes: list[Box], dim: int, size: int):
    """Yield (start, stop, boxes present) for all of [0, size), cut where a box begins or ends."""
    beginning = defaultdict(list)
    for box in boxes:
        beginning[box.offset[dim]].append(box)
    cuts = sorted({0, size, *beginning, *(box.stop[dim] for box in boxes)})
    present: list[Box] = []
    for start, stop in zip(cuts, cuts[1:]):
        present = [box for box in present if box.stop[dim] > start] + beginning[start]
        yield start, stop, present
