"""The table of a file: which boxes it holds, and their checksums, as arrays in the file itself.

    rank-00017.h5   | HDF5's own | boxes ... | table |          its place stands in the manifest
    table           | counts | names | rows | numbers | checksums |

A row is a box: number of its tensor's name, of its dataset, dtype, dims, and the byte where it
begins. Numbers are, for each row, the tensor's shape, the offset of the box and its shape;
checksums those of its segments. So each rank describes what it wrote, and a reader opens the
tables of the files that it needs.
"""

import struct

import numpy

from ...annotations import Shape
from ...errors import CheckpointError
from ...files.reading import LARGEST, MOST_DIMS, understood
from ...layout.box import Box
from .stored import ITEM_BYTES, SEGMENT_BYTES, StoredBox, num_segments

_COUNTS = struct.Struct("<8sIIII")  # magic, bytes of names, rows, numbers, checksums
_MAGIC = b"skboxes\x01"
_ROW = numpy.dtype(
    [("tensor", "<u4"), ("dataset", "<u4"), ("dtype", "u1"), ("dims", "u1"), ("at", "<u8")]
)
_DTYPES = tuple(ITEM_BYTES)
_NUMBERS_PER_DIM = 3


def table_bytes(boxes: list[StoredBox]) -> int:
    """Return the size of the table of these boxes, of which the checksums need not be known."""
    names = len(_names_text(boxes))
    numbers = _NUMBERS_PER_DIM * sum(len(box.box.shape) for box in boxes)
    checksums = sum(num_segments(box.box_bytes) for box in boxes)
    rows = len(boxes) * _ROW.itemsize
    return _COUNTS.size + names + rows + 8 * (numbers + checksums)


def encoded(boxes: list[StoredBox]) -> bytes:
    """Return the table of these boxes of one file."""
    boxes = sorted(boxes, key=lambda box: box.at)
    names, text = _names(boxes), _names_text(boxes)
    rows = numpy.array([_row(box, names) for box in boxes], _ROW)
    numbers = [number for box in boxes for number in _numbers_of(box)]
    checksums = [int(each, 16) for box in boxes for each in box.checksums]
    return b"".join(
        [
            _COUNTS.pack(_MAGIC, len(text), len(rows), len(numbers), len(checksums)),
            text,
            rows.tobytes(),
            numpy.array(numbers, "<i8").tobytes(),
            numpy.array(checksums, "<u8").tobytes(),
        ]
    )


def _numbers_of(box: StoredBox) -> tuple[int, ...]:
    return (*box.global_shape, *box.box.offset, *box.box.shape)


def _names(boxes) -> dict[str, int]:
    return {name: number for number, name in enumerate(sorted({box.tensor for box in boxes}))}


def _names_text(boxes) -> bytes:
    return "\0".join(_names(boxes)).encode()


def _row(box: StoredBox, names: dict[str, int]) -> tuple:
    dataset = int(box.dataset.rpartition("/")[2])
    dtype = _DTYPES.index(box.dtype)
    return names[box.tensor], dataset, dtype, len(box.box.shape), box.at


class FileTable:
    """The boxes of one file, made one at a time from arrays.

    file, num_bytes   name and size of the file
    content           of its table
    Errors: CheckpointError if these are no boxes of the file.
    """

    def __init__(self, file: str, num_bytes: int, content: bytes):
        self.file = file
        with understood(file, "table", error=CheckpointError):
            self._read(content, num_bytes)

    def _read(self, content: bytes, num_bytes: int) -> None:
        if len(content) < _COUNTS.size:
            raise ValueError("it is cut short")
        magic, names, num_rows, num_numbers, num_checksums = _COUNTS.unpack_from(content)
        if magic != _MAGIC:
            raise ValueError("it is of another version")
        at = _COUNTS.size + names
        self.names = content[_COUNTS.size : at].decode().split("\0")
        self._rows = numpy.frombuffer(content, _ROW, num_rows, at)
        at += self._rows.nbytes
        self._numbers = numpy.frombuffer(content, "<i8", num_numbers, at)
        at += self._numbers.nbytes
        self._checksums = numpy.frombuffer(content, "<u8", num_checksums, at)
        self._first_numbers = _firsts(_NUMBERS_PER_DIM * self._rows["dims"].astype(numpy.int64))
        if self._first_numbers[-1] != num_numbers or (self._numbers < 0).any():
            raise ValueError("its numbers do not fit its rows")
        most = self._rows["dims"].max(initial=0), self._rows["at"].max(initial=0)
        if most[0] > MOST_DIMS or most[1] > LARGEST:
            raise ValueError("its rows are no boxes")
        if self._rows["tensor"].max(initial=0) >= len(self.names):
            raise ValueError("its rows are of tensors without names")
        sizes = self._box_bytes()
        starts = self._rows["at"].astype(numpy.int64)
        ends = [*starts[1:], num_bytes]
        if (starts > ends).any() or (sizes > ends - starts).any():
            raise ValueError("its boxes overlap, or lie behind the end of the file")
        self._first_segments = _firsts(-(-sizes // SEGMENT_BYTES))
        if self._first_segments[-1] != num_checksums:
            raise ValueError("its checksums do not fit its rows")

    def _box_bytes(self) -> numpy.ndarray:
        """Return the bytes of the box of each row."""
        sizes = numpy.array([*ITEM_BYTES.values()])[self._rows["dtype"]]
        for dims in numpy.unique(self._rows["dims"]).tolist():
            rows = numpy.flatnonzero(self._rows["dims"] == dims)
            first = self._first_numbers[rows] + (_NUMBERS_PER_DIM - 1) * dims
            shapes = self._numbers[first[:, None] + numpy.arange(dims)]
            if shapes.prod(1, float).max() * 8 > LARGEST:
                raise ValueError("its boxes are too large")
            sizes[rows] *= shapes.prod(1)
        return sizes

    def __len__(self):
        """Return the number of segments."""
        return self._checksums.size

    def boxes(self) -> list[StoredBox]:
        """Return all boxes, from the beginning of the file to its end."""
        return [self._box(row) for row in range(self._rows.size)]

    def boxes_of(self, tensor: str) -> list[StoredBox]:
        """Return the boxes of a tensor."""
        number = self.names.index(tensor) if tensor in self.names else -1
        rows = numpy.flatnonzero(self._rows["tensor"] == number)
        return [self._box(row) for row in rows.tolist()]

    def number(self, box: StoredBox, start: int) -> int:
        """Return the number of the segment, in this file, that holds byte `start` of the box."""
        row = int(numpy.searchsorted(self._rows["at"], box.at, side="right")) - 1
        return int(self._first_segments[row]) + start // SEGMENT_BYTES

    def segment(self, number: int) -> tuple[StoredBox, int, int]:
        """Return the box of a segment, and which of its bytes [start, stop) the segment is."""
        row = int(numpy.searchsorted(self._first_segments, number, side="right")) - 1
        start = (number - int(self._first_segments[row])) * SEGMENT_BYTES
        box = self._box(row)
        return box, start, min(start + SEGMENT_BYTES, box.box_bytes)

    def _form(self, row: int) -> tuple[Shape, Box, str]:
        """Return (shape of the tensor, box, dtype) of a row."""
        first, last = self._first_numbers[row : row + 2].tolist()
        numbers = self._numbers[first:last].reshape(_NUMBERS_PER_DIM, -1)
        whole, offset, shape = map(tuple, numbers.tolist())
        dtype = _DTYPES[self._rows["dtype"][row]]
        return whole, Box(offset, shape), dtype

    def _box(self, row: int) -> StoredBox:
        whole, box, dtype = self._form(row)
        first, last = self._first_segments[row : row + 2].tolist()
        tensor = self.names[self._rows["tensor"][row]]
        return StoredBox(
            tensor,
            self.file,
            f"{tensor}/{self._rows['dataset'][row]}",
            box,
            whole,
            dtype,
            int(self._rows["at"][row]),
            tuple(f"{each:016x}" for each in self._checksums[first:last].tolist()),
        )


def _firsts(counts) -> numpy.ndarray:
    """Return where each of several runs of so many begins, and the last one ends."""
    return numpy.concatenate([[0], numpy.cumsum(counts, dtype=numpy.int64)])
