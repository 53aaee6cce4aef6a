"""Placements: how one tensor lies over one mesh axis, and over several axes at once.

Replicate()                      every rank of the axis has all of it
Shard(dim=0, num_parts=4, part=1)   this rank has the second of four runs of rows; the first parts
                                    get one row more

compose([Shard(1, 2, 0), Shard(0, 4, 3)], (10, 6))     # tensor axis cuts columns, then data axis
                                                       cuts rows: [8:10, 0:3]
"""

from dataclasses import dataclass
from typing import Protocol

from ..errors import LayoutError
from .box import Box


class Placement(Protocol):
    """One rank's view of a tensor over one mesh axis."""

    def local_box(self, global_shape: tuple[int, ...]) -> Box:
        """Return the part of a tensor of this shape that the rank has."""


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank has the whole tensor."""

    def local_box(self, global_shape: tuple[int, ...]) -> Box:
        return Box.whole(global_shape)


@dataclass(frozen=True, slots=True)
class Shard:
    """The tensor is cut along `dim` into `num_parts` runs that differ by at most one; this is run
    `part`.
    """

    dim: int
    num_parts: int
    part: int

    def __post_init__(self):
        if not 0 <= self.part < self.num_parts:
            raise LayoutError(
                f"part {self.part} of {self.num_parts} does not exist; parts count from 0"
            )

    def local_box(self, global_shape: tuple[int, ...]) -> Box:
        if not 0 <= self.dim < len(global_shape):
            raise LayoutError(
                f"dim {self.dim} cannot be sharded: the tensor has shape {tuple(global_shape)}"
            )
        start, stop = even_span(global_shape[self.dim], self.num_parts, self.part)
        offset = [0] * len(global_shape)
        shape = list(global_shape)
        offset[self.dim] = start
        shape[self.dim] = stop - start
        return Box(tuple(offset), tuple(shape))


def even_span(length: int, num_parts: int, part: int) -> tuple[int, int]:
    """Return the run [start, stop) of `length` that is this part's.

    The first length % num_parts parts get one more.
    """
    each, rest = divmod(length, num_parts)
    start = part * each + min(part, rest)
    return start, start + each + (part < rest)


def compose(placements, global_shape: tuple[int, ...]) -> Box:
    """Return the box that remains after each placement in turn, in global coordinates."""
    box = Box.whole(global_shape)
    for placement in placements:
        inner = placement.local_box(box.shape)
        box = Box(tuple(a + b for a, b in zip(box.offset, inner.offset)), inner.shape)
    return box
