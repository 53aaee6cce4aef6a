"""What a virtual dataset of an HDF5 file says of its sources, read as bytes.

    layout message --> global heap, number -->  0 | entries | file, dataset, their selection,
                                                our selection | ... | checksum

The library fills up with zeros what a source lacks, and a damaged mapping ends the process. So the
mapping is read here, and the sources are opened as any other file (hdf5_table.py).
Source: HDF5 File Format Specification 3.0, IV.A.2.i and VII.
"""

from dataclasses import dataclass
from math import prod

from ..annotations import Shape
from ..files.reading import MOST_DIMS
from .hdf5_headers import number_at

_HYPERSLAB, _ALL = 2, 3  # selections
_WORD = 0xFFFFFFFF
_MOST_ENTRIES = 1 << 20

Box = tuple[tuple[int, int], ...]  # [start, stop) of each dim


class OtherMapping(ValueError):
    """A mapping of another kind than rows that lie each in one source."""


@dataclass(frozen=True)
class Source:
    """A part of a virtual dataset.

    file, dataset  as the file names them; "." is the file itself
    theirs         the box of the source; None: all of it
    ours           the box of the virtual dataset
    """

    file: str
    dataset: str
    theirs: Box | None
    ours: Box


def shape_of(message: bytes) -> Shape:
    """Return the shape that a dataspace message means. Errors: ValueError."""
    version, rank = message[0], message[1]
    at = {1: 8, 2: 4}.get(version)
    if at is None or not 0 < rank <= MOST_DIMS or len(message) < at + 8 * rank:
        raise ValueError(f"a dataspace of version {version} has {rank} dims")
    return tuple(number_at(message, at + 8 * dim, 8) for dim in range(rank))


def sources_of(block: bytes, shape: Shape) -> list[Source]:
    """Return the parts of a virtual dataset of this shape, from its block of a global heap.

    Errors: ValueError on what is damaged; OtherMapping on what is not mapped box by box.
    """
    if not block:
        raise OtherMapping("it has no sources")
    if len(block) < 13 or block[0] != 0:
        raise ValueError("its mapping is of a version that is not read")
    if lookup3(block[:-4]) != number_at(block, len(block) - 4, 4):
        raise ValueError("the checksum of its mapping is wrong")
    entries = number_at(block, 1, 8)
    if entries > min(_MOST_ENTRIES, len(block)):
        raise ValueError(f"its mapping has {entries:,} entries")
    reader = _Reader(block[9:-4])
    found = [_entry(reader, shape) for _ in range(entries)]
    if reader.at != len(reader.content):
        raise ValueError("its mapping is longer than its entries")
    return found


def _entry(reader: "_Reader", shape) -> Source:
    file, dataset = reader.text(), reader.text()
    theirs, ours = reader.selection(), reader.selection()
    if "%" in file + dataset:
        raise OtherMapping(f"the names of its sources are made from numbers: {file}, {dataset}")
    return Source(file, dataset, theirs, ours or tuple((0, size) for size in shape))


class _Reader:
    """Reads the entries of a mapping one after the other. Errors of all: ValueError."""

    def __init__(self, content: bytes):
        self.content, self.at = content, 0

    def text(self) -> str:
        """Return a text that ends with a NUL byte."""
        stop = self.content.find(b"\0", self.at)
        if stop < 0:
            raise ValueError("a name in its mapping has no end")
        found = self.content[self.at : stop].decode("utf-8")
        self.at = stop + 1
        return found

    def number(self, width: int) -> int:
        """Return the next number of so many bytes."""
        if self.at + width > len(self.content):
            raise ValueError("its mapping is cut short")
        self.at += width
        return number_at(self.content, self.at - width, width)

    def selection(self) -> Box | None:
        """Return the box that is selected; None: all."""
        kind, version = self.number(4), self.number(4)
        if kind == _ALL:
            self.number(8)
            return None
        if kind != _HYPERSLAB or version not in (1, 2, 3):
            raise ValueError(f"its mapping has a selection of kind {kind}, version {version}")
        return self._block() if version == 1 else self._regular(version)

    def _block(self) -> Box:
        """Return the only block of a list of blocks; version 1 has no others."""
        self.number(8)
        rank, count = self._rank(), self.number(4)
        if count != 1:
            raise OtherMapping("its sources are interleaved")
        starts = [self.number(4) for _ in range(rank)]
        return tuple((start, self.number(4) + 1) for start in starts)

    def _regular(self, version: int) -> Box:
        is_regular = self.number(1) & 1
        width = 8 if version == 2 else self.number(1)
        if version == 2:
            self.number(4)
        rank = self._rank()
        if not is_regular or width not in (2, 4, 8):
            raise OtherMapping("its sources are interleaved")
        return tuple(self._extent(width) for _ in range(rank))

    def _rank(self) -> int:
        rank = self.number(4)
        if not 0 < rank <= MOST_DIMS:
            raise ValueError(f"its mapping has a selection of {rank} dims")
        return rank

    def _extent(self, width: int) -> tuple[int, int]:
        start, stride, count, block = (self.number(width) for _ in range(4))
        if max(count, block) == (1 << 8 * width) - 1:
            raise OtherMapping("its sources have no end")
        if count != 1 and stride != block:
            raise OtherMapping("its sources are interleaved")
        return start, start + count * block


# ---- boxes of rows -------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowSource:
    """Rows [start, stop) of a virtual dataset: those of a source from `first` on.

    is_one_row  the whole source is a single row
    """

    source: Source
    start: int
    stop: int
    first: int
    is_one_row: bool


def rows_of(sources: list[Source], shape: Shape) -> list[RowSource]:
    """Return the sources as whole rows, in their order, which are all rows of the shape.

    Errors: OtherMapping if a row is in no source, or in two, or is cut.
    """
    found = sorted((_rows(each, shape) for each in sources), key=lambda each: each.start)
    at = 0
    for each in found:
        if each.start > at:
            raise OtherMapping(f"its rows {at:,} to {each.start - 1:,} are in no source")
        if each.start < at:
            raise OtherMapping(f"its row {each.start:,} is in two sources")
        at = each.stop
    if at != shape[0]:
        raise OtherMapping(f"its rows {at:,} to {shape[0] - 1:,} are in no source")
    return found


def _rows(source: Source, shape) -> RowSource:
    row, ours, theirs = shape[1:], source.ours, source.theirs
    is_whole = len(ours) == len(shape) and ours[1:] == tuple((0, size) for size in row)
    start, stop = ours[0]
    if not is_whole or not start < stop <= shape[0]:
        raise OtherMapping("its rows are cut, or beyond its shape")
    if theirs is None:
        return RowSource(source, start, stop, 0, False)
    size = prod(end - begin for begin, end in theirs)
    if size != (stop - start) * prod(row):
        raise ValueError(f"a source has {size:,} values for {stop - start:,} rows")
    if theirs[1:] == ours[1:]:
        return RowSource(source, start, stop, theirs[0][0], False)
    if stop - start == 1 and theirs == tuple((0, size) for size in row):
        return RowSource(source, start, stop, 0, True)
    raise OtherMapping("its sources are parts of rows")


# ---- checksum ------------------------------------------------------------------------------------


def lookup3(content: bytes) -> int:
    """Return Jenkins' hash of 32 bits that HDF5 has for its metadata.

    Source: lookup3.c, hashlittle(), public domain.
    """
    a = b = c = 0xDEADBEEF + len(content) & _WORD
    whole = max(-(-len(content) // 12) - 1, 0) * 12
    for at in range(0, whole, 12):
        a, b, c = _mixed(*_added(a, b, c, content[at : at + 12]))
    return _ended(*_added(a, b, c, content[whole:])) if content else c


def _added(a: int, b: int, c: int, content: bytes) -> tuple[int, int, int]:
    first, second, third = (number_at(content, at, 4) for at in (0, 4, 8))
    return a + first & _WORD, b + second & _WORD, c + third & _WORD


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    for amount in (4, 6, 8, 16, 19, 4):
        a = (a - c & _WORD) ^ _turned(c, amount)
        c = c + b & _WORD
        a, b, c = b, c, a
    return a, b, c


def _ended(a: int, b: int, c: int) -> int:
    for amount in (14, 11, 25, 16, 4, 14, 24):
        c = (c ^ b) - _turned(b, amount) & _WORD
        a, b, c = b, c, a
    return b


def _turned(word: int, amount: int) -> int:
    return (word << amount | word >> 32 - amount) & _WORD
