"""Rows that lie as plain bytes in a file, read in place through a memory map.

    address of row number r  =  places[r // rows_per_place] + r % rows_per_place * row_bytes

One place is a plain array (.npy, a contiguous HDF5 dataset); several are the chunks of an HDF5
dataset that is not compressed. A batch is one gather of rows by address: there is no sorting, no
library lock, and no copy but the batch.

Pages of a map count as memory of the process once they are touched, so they are given back when 32
MiB have come together; they stay in the cache of the system.
"""

import mmap
from math import prod
from pathlib import Path

import numpy

from ..errors import ConfigurationError

_MOST_MAPPED_BYTES = 1 << 25  # of files in memory, before pages are given back
MISSING = -1  # the place of a chunk that was never written


class FileMap:
    """A file mapped into memory, read only; shared by the fields that lie in it."""

    def __init__(self, path: Path):
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.path, self.size = path, len(self._map)
        self._mapped_bytes = _mapped_bytes()  # of all files, after the last release

    def rows(self, addresses, row_bytes: int) -> numpy.ndarray:
        """Return the bytes at these addresses as an array [n] of void elements of this size."""
        window = numpy.ndarray(
            (self.size - row_bytes + 1,), f"V{row_bytes}", self._map, strides=(1,)
        )
        found = window[addresses]
        if _mapped_bytes() - self._mapped_bytes > _MOST_MAPPED_BYTES:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._mapped_bytes = _mapped_bytes()
        return found

    def bytes(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of the file."""
        return self._map[start:stop]


def _mapped_bytes() -> int:
    """Return how much of mapped files this process has in memory."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read().split()[2]) * mmap.PAGESIZE


class MappedRows:
    """An array of rows in a mapped file.

    shape           of the whole array: rows first
    dtype           as in the file, with its byte order
    places          [num_places] int64: the byte where each run of rows begins, or MISSING
    rows_per_place  of every run; the last may be shorter
    fill            the value of rows that were never written
    Errors: ConfigurationError if the file ends before its rows.
    """

    def __init__(self, file: FileMap, shape, dtype, places, rows_per_place: int, fill=0):
        self._file = file
        self._row_shape = tuple(shape[1:])
        self._dtype = numpy.dtype(dtype)
        self._places = numpy.asarray(places, numpy.int64)
        self._rows_per_place = max(rows_per_place, 1)
        self._row_bytes = self._dtype.itemsize * prod(self._row_shape)
        self._fill = fill
        last_rows = shape[0] - (len(self._places) - 1) * self._rows_per_place
        sizes = numpy.full(len(self._places), self._rows_per_place * self._row_bytes)
        sizes[-1:] = last_rows * self._row_bytes
        if ((self._places + sizes)[self._places != MISSING] > file.size).any():
            raise ConfigurationError(
                f"{file.path} ends before its {shape[0]} rows: it has {file.size} bytes; make the "
                "file again"
            )

    def read(self, numbers, start: int, stop: int) -> numpy.ndarray:
        """Return the elements [start, stop) of each of these rows: [n, stop - start]."""
        dtype = self._dtype
        places = self._places[numbers // self._rows_per_place]
        within = numbers % self._rows_per_place * self._row_bytes + start * dtype.itemsize
        is_there = places != MISSING
        found = self._file.rows(
            numpy.where(is_there, places + within, 0), (stop - start) * dtype.itemsize
        )
        values = found.view(dtype).reshape(len(numbers), stop - start)
        if not is_there.all():
            values[~is_there] = self._fill
        return values.astype(dtype.newbyteorder("="), copy=False)

    def read_shaped(self, numbers, part) -> numpy.ndarray:
        """Return these rows of a part of this array: see Table.read."""
        values = self.read(numbers, part.start, part.stop)
        return values.reshape(len(numbers), *self._row_shape) if part.is_whole else values
