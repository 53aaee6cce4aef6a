"""Reads: the intersection of a stored box and a wanted one, as parts small enough to read at once.

stored box, by rows            wanted: columns 2 and 3       one part: rows 0 and 1 through the window
in the file  a b c d           . . c d                       |a b c d e f g h|  ->  c d g h
             e f g h           . . g h
"""

from dataclasses import dataclass
from math import prod

import numpy

from ...array.backend import is_device_array
from ...errors import CheckpointError
from ...layout.box import Box
from .files import Reader, bytes_of, checksum
from .stored import SEGMENT_BYTES, SegmentTable, StoredBox, cut

GAP_BYTES = 1 << 16  # unwanted bytes between wanted ones that are rather read than jumped over


def reads_of(
    stored_boxes: list[StoredBox], wanted: Box, array, segments: SegmentTable, verified=None
):
    """Tasks for files.read_all that together fill `array`, 1-D, with the elements of the box
    `wanted`.

    verified  [len(segments)] uint8, set to 1 where a segment was read whole and its checksum held;
              None: no checksums
    """
    for stored in stored_boxes:
        common = stored.box.intersection(wanted)
        if common is None:
            continue
        if is_run(common, stored.box) and is_run(common, wanted):
            first, target = first_element(common, stored.box), first_element(common, wanted)
            start, size = first * stored.item_bytes, stored.item_bytes
            for low, high in cut(start, start + common.size * size):
                whole = (
                    verified is not None
                    and low % SEGMENT_BYTES == 0
                    and (high - low == SEGMENT_BYTES or high == stored.box_bytes)
                )
                part = slice(target + (low - start) // size, target + (high - start) // size)
                number = segments.number(stored, low) if whole else None
                yield RunRead(stored, low, high, array, part, number, verified)
        else:
            for part in parts_of(
                common,
                stored.box,
                SEGMENT_BYTES // stored.item_bytes,
                GAP_BYTES // stored.item_bytes,
            ):
                yield PartRead(stored, part, wanted, array)


def first_element(box: Box, outer: Box) -> int:
    """The place of the first element of `box` among those of the box around it, in C order."""
    place = 0
    for offset, outer_offset, size in zip(box.offset, outer.offset, outer.shape):
        place = place * size + offset - outer_offset
    return place


def is_run(box: Box, outer: Box) -> bool:
    """True if the elements of `box` follow each other in C order in the box around it."""
    return _extent(box.shape, _strides(outer.shape)) == box.size


def parts_of(box: Box, outer: Box, most: int, gap: int):
    """Cut a box into parts, each of which spans at most `most` elements of the box around it.

    gap   in elements; where the box leaves out more than this between two rows, the rows are parts
          of their own
    """
    strides = _strides(outer.shape)
    dim = next((d for d, size in enumerate(box.shape) if size > 1), None)
    if dim is None:
        yield box
        return
    row = _extent((1,) * (dim + 1) + box.shape[dim + 1 :], strides)
    together = 1 if strides[dim] - row > gap else max(1, most // strides[dim])
    for start in range(box.offset[dim], box.stop[dim], together):
        size = min(together, box.stop[dim] - start)
        part = Box(
            box.offset[:dim] + (start,) + box.offset[dim + 1 :],
            box.shape[:dim] + (size,) + box.shape[dim + 1 :],
        )
        if size > 1:
            yield part
        else:
            yield from parts_of(part, outer, most, gap)


def _strides(shape) -> list[int]:
    """Elements from one index to the next, per dim, in C order."""
    return [prod(shape[dim + 1 :]) for dim in range(len(shape))]


def _extent(shape, strides) -> int:
    """Elements from the first to the last of a box of this shape, both counted."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


def _host_bytes(reader: Reader, array, part: slice, num_bytes: int) -> memoryview:
    """Where to read that part of the array to: its own memory, or a window if it is on a GPU."""
    return (
        memoryview(reader.copies.window(num_bytes))
        if is_device_array(array)
        else bytes_of(array[part])
    )


def _compare(reader: Reader, stored: StoredBox, low: int, high: int, view: memoryview) -> None:
    wanted = stored.checksums[low // SEGMENT_BYTES]
    found = checksum(view)
    if found != wanted:
        raise CheckpointError(
            f"{reader.folder / stored.file} is damaged: bytes {low} to {high} of {stored.dataset} have "
            f"checksum {found}, but the manifest says {wanted}"
        )


@dataclass(frozen=True, slots=True)
class Check:
    """Read one segment, bytes [low, high) of a stored box, and compare its checksum."""

    stored: StoredBox
    low: int
    high: int

    def __call__(self, reader: Reader) -> None:
        view = reader.window[: self.high - self.low]
        reader.read(self.stored.file, self.stored.at + self.low, view)
        _compare(reader, self.stored, self.low, self.high, view)


@dataclass(frozen=True, slots=True)
class RunRead:
    """Read bytes [low, high) of a stored box, within one segment, to array[part].

    number   of the segment, if this is the whole of it and its checksum is to be compared; it is
             then marked in `verified`
    """

    stored: StoredBox
    low: int
    high: int
    array: object
    part: slice
    number: int | None
    verified: object

    def __call__(self, reader: Reader) -> None:
        view = _host_bytes(reader, self.array, self.part, self.high - self.low)
        reader.read(self.stored.file, self.stored.at + self.low, view)
        if self.number is not None:
            _compare(reader, self.stored, self.low, self.high, view)
            self.verified[self.number] = 1
        if is_device_array(self.array):
            reader.copies.deliver(numpy.frombuffer(view, self.stored.dtype), self.array[self.part])


@dataclass(frozen=True, slots=True)
class PartRead:
    """Read the box `part`, which does not stand in one piece, through the window."""

    stored: StoredBox
    part: Box
    wanted: Box
    array: object

    def __call__(self, reader: Reader) -> None:
        stored, strides = self.stored, _strides(self.stored.box.shape)
        size = stored.item_bytes
        on_device = is_device_array(self.array)
        num_bytes = _extent(self.part.shape, strides) * size
        view = (
            memoryview(reader.copies.window(num_bytes)) if on_device else reader.window[:num_bytes]
        )
        reader.read(stored.file, stored.at + first_element(self.part, stored.box) * size, view)
        values = numpy.ndarray(
            self.part.shape, stored.dtype, view, strides=[stride * size for stride in strides]
        )
        target = self.array.reshape(self.wanted.shape)[self.part.relative_to(self.wanted).slices()]
        if on_device:
            reader.copies.deliver(values, target)
        else:
            target[...] = values
