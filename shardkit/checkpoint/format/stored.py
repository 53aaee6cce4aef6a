"""Stored boxes: where the parts of tensors are in the files of a checkpoint, and their checksums.

    rank-00000.h5   | HDF5's own | box of tensor a          | box of tensor b | HDF5's own |
                    0            at                         at + box_bytes
                                 |segment|segment|segment|.|                     one checksum each

Segments are SEGMENT_BYTES long, counted from the beginning of their box; the last one of a box is
shorter. Each is verified by itself, so that a rank can trust a part of a large box without reading
all of it.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from ...annotations import Shape
from ...errors import CheckpointError
from ...layout.box import Box

SEGMENT_BYTES = 1 << 20

# the dtypes that a checkpoint may hold; integers and booleans are of buffers alone
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "int64": 8, "int32": 4, "bool": 1}


@dataclass(frozen=True, slots=True)
class StoredBox:
    """One box of one tensor in one file.

    tensor      path, such as "model/blocks.0.mlp.up.weight"
    dataset     path in the file
    at          byte of the file where the box begins, in C order and without gaps
    checksums   XXH3 of each segment, 16 hexadecimal digits; () until the values are written
    """

    tensor: str
    file: str
    dataset: str
    box: Box
    global_shape: Shape
    dtype: str
    at: int
    checksums: tuple[str, ...] = ()

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    @property
    def box_bytes(self) -> int:
        """Bytes of the whole box."""
        return self.box.size * self.item_bytes


@dataclass(frozen=True)
class TablePlace:
    """Where the table of boxes is in a file (tables.py); it counts as a box."""

    at: int
    box_bytes: int


def table_places(record: dict) -> list[TablePlace]:
    """Return the place of the table of a file, as its record in the manifest has it; [] if none."""
    return [TablePlace(*record["table"][:2])] if "table" in record else []


def num_segments(num_bytes: int) -> int:
    """Return the number of segments of a box of this many bytes."""
    return -(-num_bytes // SEGMENT_BYTES)


def cut(start: int, stop: int) -> list[tuple[int, int]]:
    """Cut bytes [start, stop) of a box where segments begin."""
    marks = [start, *range((start // SEGMENT_BYTES + 1) * SEGMENT_BYTES, stop, SEGMENT_BYTES), stop]
    return list(zip(marks, marks[1:])) if stop > start else []


def ranges_outside(boxes, num_bytes: int) -> list[tuple[int, int]]:
    """Return the bytes [start, stop) of a file of this size that belong to none of its boxes.

    boxes   with `at` and `box_bytes`
    """
    boxes = sorted(boxes, key=lambda box: box.at)
    starts = [0, *(box.at + box.box_bytes for box in boxes)]
    return list(zip(starts, [*(box.at for box in boxes), num_bytes]))


def check_places(files: dict[str, int], boxes: list[StoredBox]) -> None:
    """Check that the boxes of each file lie in it one after the other, each with its checksums.

    files   {name: bytes}
    Errors: CheckpointError.
    """
    stop_of = dict.fromkeys(files, 0)
    for stored in sorted(boxes, key=lambda box: (box.file, box.at)):
        stop = stored.at + stored.box_bytes
        if stored.at < stop_of[stored.file] or stop > files[stored.file]:
            raise CheckpointError(
                f"{stored.dataset} at byte {stored.at} of {stored.file} overlaps another, or the "
                "file's end"
            )
        if len(stored.checksums) != num_segments(stored.box_bytes):
            raise CheckpointError(
                f"{stored.dataset} has {len(stored.checksums)} checksums for {stored.box_bytes} "
                "bytes"
            )
        stop_of[stored.file] = stop


class StoredBoxes(Protocol):
    """All boxes of a checkpoint; its segments are numbered in the order of its files."""

    def number(self, box: StoredBox, start: int) -> int:
        """Return the number of the segment that holds byte `start` of the box."""


class SegmentTable:
    """The StoredBoxes of a list."""

    def __init__(self, boxes: list[StoredBox]):
        self.boxes = sorted(boxes, key=lambda box: (box.file, box.at))
        counts = [num_segments(box.box_bytes) for box in self.boxes]
        self._first = [0, *accumulate(counts)]
        self._number = {(box.file, box.at): first for box, first in zip(self.boxes, self._first)}
        self._of_tensor: dict[str, list[StoredBox]] = {}
        for box in self.boxes:
            self._of_tensor.setdefault(box.tensor, []).append(box)

    def __len__(self):
        return self._first[-1]

    def of(self, tensor: str, wanted: Box) -> list[StoredBox]:
        """Return boxes of a tensor that together hold what is wanted of it."""
        return self._of_tensor[tensor]

    def boxes_of(self, file: str) -> list[StoredBox]:
        """Return the boxes in one file, from its beginning to its end."""
        first = bisect_left(self.boxes, file, key=lambda box: box.file)
        return self.boxes[first : bisect_right(self.boxes, file, key=lambda box: box.file)]

    def number(self, box: StoredBox, start: int) -> int:
        """Return the number of the segment that holds byte `start` of the box."""
        return self._number[box.file, box.at] + start // SEGMENT_BYTES

    def __getitem__(self, number: int) -> tuple[StoredBox, int, int]:
        """Return the box of a segment, and which of its bytes [start, stop) the segment is."""
        index = bisect_right(self._first, number) - 1
        box = self.boxes[index]
        start = (number - self._first[index]) * SEGMENT_BYTES
        return box, start, min(start + SEGMENT_BYTES, box.box_bytes)
