"""Read the intersection of stored and wanted boxes, in parts that fit a window, on a few threads.

    stored box, by rows     wanted: columns 2 and 3     one part: rows 0 and 1 through the window
    in the file  a b c d    . . c d                     |a b c d e f g h|  ->  c d g h
                 e f g h    . . g h

reads_of() plans tasks; read_all() calls each with a Reader. A task reads a run of bytes that is
contiguous in the file and in memory (RunRead), or a part that is not (PartRead), or only compares
the checksum of a segment (Check).
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy

from ...array.backend import is_device_array
from ...array.copies import Copies
from ...errors import CheckpointError
from ...layout.box import Box
from .files import as_text, bytes_of, checksum, crc32, damage_of, open_regular, read_fully
from .stored import SEGMENT_BYTES, StoredBox, StoredBoxes, cut

READERS = 3  # threads of one rank: while one waits for the disk, others compute checksums
READER_BYTES = 8 << 20  # each thread reads at least so many
OPEN_FILES = 8  # of each reader
GAP_BYTES = 1 << 16  # a gap of unwanted bytes up to this size is read, a larger one is skipped


# ---- readers -------------------------------------------------------------------------------------


class Reader:
    """Reads ranges of the files in one folder. For one thread.

    copies   how values go to a GPU
    """

    def __init__(self, folder: Path, copies: Copies | None = None):
        self.folder = folder
        self.copies = copies or Copies()
        self._window: memoryview | None = None
        self._open: dict[str, int] = {}

    @property
    def window(self) -> memoryview:
        """A buffer of SEGMENT_BYTES, for what cannot be read to where it belongs."""
        if self._window is None:
            self._window = memoryview(numpy.empty(SEGMENT_BYTES, numpy.uint8))
        return self._window

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._close_all()

    def _close_all(self):
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def read(self, file: str, at: int, view: memoryview) -> None:
        """Fill the view from byte `at` of the file.

        Errors: CheckpointError if it cannot be read or is too short, PermissionError.
        """
        path = self.folder / file
        if file not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._close_all()
            self._open[file] = open_regular(path)
        with damage_of(path):
            num_read = read_fully(self._open[file], view, at)
        if num_read < len(view):
            raise CheckpointError(
                f"{path} ends at byte {at + num_read}, but the manifest says that byte "
                f"{at + len(view) - 1} is in use"
            )

    def crc32(self, file: str, ranges) -> str:
        """Return the CRC-32 of these byte ranges of the file, one after the other, as text."""
        total = 0
        for start, stop in ranges:
            for low in range(start, stop, SEGMENT_BYTES):
                view = self.window[: min(SEGMENT_BYTES, stop - low)]
                self.read(file, low, view)
                total = crc32(view, total)
        return as_text(total)


def read_all(
    folder: Path, tasks, num_bytes: int, num_readers: int = READERS, copies: Copies | None = None
) -> None:
    """Call each task with a Reader, on a few threads if there is much to read, and wait for all.

    tasks      functions of a Reader; an iterator, from which the threads take one at a time
    num_bytes  the sum of what they read, roughly
    copies     how values go to a GPU; it serves one thread, so num_readers must be 1
    Errors: that of the first task that fails; the remaining tasks are not started.
    """
    tasks = iter(tasks)
    lock = threading.Lock()
    failed = threading.Event()

    def take():
        with lock:
            return None if failed.is_set() else next(tasks, None)

    def work():
        with Reader(folder, copies) as reader:
            try:
                while (task := take()) is not None:
                    task(reader)
            except BaseException:
                failed.set()
                raise

    num_readers = min(num_readers, 1 + num_bytes // READER_BYTES)
    if num_readers == 1:
        return work()
    with ThreadPoolExecutor(num_readers) as pool:
        for future in [pool.submit(work) for _ in range(num_readers)]:
            future.result()


# ---- tasks ---------------------------------------------------------------------------------------


def reads_of(
    stored_boxes: list[StoredBox], wanted: Box, array, segments: StoredBoxes, verified=None
):
    """Yield tasks that together fill `array`, 1-D, with the elements of the box `wanted`.

    verified  [len(segments)] uint8, set to 1 where a segment was read whole and its checksum held;
              None: no checksums
    """
    for stored in stored_boxes:
        common = stored.box.intersection(wanted)
        if common is None:
            continue
        if is_run(common, stored.box) and is_run(common, wanted):
            yield from _runs(stored, common, wanted, array, segments, verified)
        else:
            most = SEGMENT_BYTES // stored.item_bytes
            gap = GAP_BYTES // stored.item_bytes
            for part in parts_of(common, stored.box, most, gap):
                yield PartRead(stored, part, wanted, array)


def _runs(stored: StoredBox, common: Box, wanted: Box, array, segments: StoredBoxes, verified):
    """Yield a RunRead for each segment that a run of bytes touches."""
    size = stored.item_bytes
    start = first_element(common, stored.box) * size
    target = first_element(common, wanted)
    for low, high in cut(start, start + common.size * size):
        is_whole = low % SEGMENT_BYTES == 0 and (
            high - low == SEGMENT_BYTES or high == stored.box_bytes
        )
        number = segments.number(stored, low) if is_whole and verified is not None else None
        part = slice(target + (low - start) // size, target + (high - start) // size)
        yield RunRead(stored, low, high, array, part, number, verified)


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

    number   of the segment, if these are all of its bytes and its checksum is to be compared; then
             it is marked in `verified`; else None
    """

    stored: StoredBox
    low: int
    high: int
    array: object
    part: slice
    number: int | None
    verified: object

    def __call__(self, reader: Reader) -> None:
        target = self.array[self.part]
        on_device = is_device_array(target)
        num_bytes = self.high - self.low
        view = memoryview(reader.copies.window(num_bytes)) if on_device else bytes_of(target)
        reader.read(self.stored.file, self.stored.at + self.low, view)
        if self.number is not None:
            _compare(reader, self.stored, self.low, self.high, view)
            self.verified[self.number] = 1
        if on_device:
            reader.copies.deliver(numpy.frombuffer(view, self.stored.dtype), target)


@dataclass(frozen=True, slots=True)
class PartRead:
    """Read the box `part`, which is not contiguous in the file or in memory, through the window."""

    stored: StoredBox
    part: Box
    wanted: Box
    array: object

    def __call__(self, reader: Reader) -> None:
        stored = self.stored
        size = stored.item_bytes
        strides = strides_of(stored.box.shape)
        on_device = is_device_array(self.array)
        num_bytes = extent_of(self.part.shape, strides) * size
        window = memoryview(reader.copies.window(num_bytes)) if on_device else reader.window
        view = window[:num_bytes]
        reader.read(stored.file, stored.at + first_element(self.part, stored.box) * size, view)
        values = numpy.ndarray(
            self.part.shape, stored.dtype, view, strides=[stride * size for stride in strides]
        )
        target = self.array.reshape(self.wanted.shape)[self.part.relative_to(self.wanted).slices()]
        if on_device:
            reader.copies.deliver(values, target)
        else:
            target[...] = values


def _compare(reader: Reader, stored: StoredBox, low: int, high: int, view: memoryview) -> None:
    """Raise CheckpointError unless these bytes have the checksum of their segment."""
    wanted = stored.checksums[low // SEGMENT_BYTES]
    found = checksum(view)
    if found != wanted:
        raise CheckpointError(
            f"{reader.folder / stored.file} is damaged: bytes {low} to {high} of {stored.dataset} "
            f"have checksum {found}, but the manifest says {wanted}"
        )


# ---- boxes in boxes ------------------------------------------------------------------------------


def first_element(box: Box, outer: Box) -> int:
    """Return the index of the first element of `box` in the box around it, in C order."""
    index = 0
    for offset, outer_offset, size in zip(box.offset, outer.offset, outer.shape):
        index = index * size + offset - outer_offset
    return index


def is_run(box: Box, outer: Box) -> bool:
    """Return True if `box` is contiguous in the box around it, in C order."""
    return extent_of(box.shape, strides_of(outer.shape)) == box.size


def parts_of(box: Box, outer: Box, most: int, gap: int):
    """Cut a box into parts, each of which spans at most `most` elements of the box around it.

    gap   in elements; where the box leaves out more than this between two rows, the rows are parts
          of their own
    """
    strides = strides_of(outer.shape)
    dim = next((d for d, size in enumerate(box.shape) if size > 1), None)
    if dim is None:
        yield box
        return
    row = extent_of((1,) * (dim + 1) + box.shape[dim + 1 :], strides)
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


def strides_of(shape) -> list[int]:
    """Return the elements from one index to the next, per dim, in C order."""
    return [prod(shape[dim + 1 :]) for dim in range(len(shape))]


def extent_of(shape, strides) -> int:
    """Return the elements from the first to the last of a box of this shape, both counted."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
