"""Rows that lie as plain bytes in a file, read in place through a memory map.

    address of row number r  =  places[r // rows_per_place] + r % rows_per_place * row_bytes

One place is a plain array (.npy, a contiguous HDF5 dataset); several are the chunks of an HDF5
dataset that is not compressed. There is no sorting and no library lock:

    one place         rows are taken from the map
    several places    whole runs are read into a buffer, rows taken from there (kept_runs.py)
    where that fails  rows are gathered from the map by address
    bands of rows     each is read at its place, and nothing is mapped

Pages of a map count as memory of the process once they are touched, so they are given back when 32
MiB have come together; they stay in the cache of the system.
"""

import mmap
import os
import weakref
from functools import cached_property
from math import prod
from pathlib import Path

import numpy

from ..errors import InputError
from ..files.reading import library, open_regular
from .columns import RowBand
from .kept_runs import KeptRuns

_MOST_MAPPED_BYTES = 1 << 25  # of files in memory, before pages are given back
MISSING = -1  # the place of a chunk that was never written


class FileMap:
    """A file mapped into memory, read only; shared by the fields that lie in it."""

    def __init__(self, path: Path):
        self._file = open_regular(path)
        weakref.finalize(self, os.close, self._file)
        self.path, self.size = path, os.fstat(self._file).st_size
        self._mapped_bytes = _mapped_bytes()  # of all files, after the last release

    @cached_property
    def _map(self) -> mmap.mmap:
        """The map, made when it is first read: a rank may have less memory than the file."""
        with library(self.path):
            return mmap.mmap(self._file, self.size, access=mmap.ACCESS_READ)

    def gather(self, addresses, row_bytes: int) -> numpy.ndarray:
        """Return the bytes at these addresses: [n, row_bytes] uint8."""
        self._check_size()
        window = numpy.ndarray(
            (self.size - row_bytes + 1,), f"V{row_bytes}", self._map, strides=(1,)
        )
        found = window[addresses]
        self._give_back()
        return found.view(numpy.uint8).reshape(len(addresses), row_bytes)

    def take(self, numbers, start: int, num_rows: int, row_bytes: int) -> numpy.ndarray:
        """Return these of the rows that lie one after the other from byte `start` on."""
        self._check_size()
        rows = numpy.ndarray((num_rows, row_bytes), numpy.uint8, self._map, start)
        found = rows.take(numbers, axis=0)
        self._give_back()
        return found

    def read_into(self, buffer, start: int) -> None:
        """Fill a buffer with the bytes from `start` on. Errors: OSError, also if there are less."""
        content = memoryview(buffer).cast("B")
        while content:
            count = os.preadv(self._file, [content], start)
            if not count:
                raise OSError(f"{self.path} has become shorter while it was read")
            content, start = content[count:], start + count

    def _check_size(self) -> None:
        """Raise OSError if the file was cut: who touches lost pages of a map is killed."""
        if os.fstat(self._file).st_size < self.size:
            raise OSError(f"{self.path} has become shorter while it was read")

    def _give_back(self) -> None:
        if _mapped_bytes() - self._mapped_bytes > _MOST_MAPPED_BYTES:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._mapped_bytes = _mapped_bytes()


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
    Errors: InputError if the file ends before its rows.
    """

    def __init__(self, file: FileMap, shape, dtype, places, rows_per_place: int, fill=0):
        self._file = file
        self._row_shape = tuple(shape[1:])
        self._dtype = numpy.dtype(dtype)
        self._places = numpy.asarray(places, numpy.int64)
        self._rows_per_place = max(rows_per_place, 1)
        self._row_bytes = self._dtype.itemsize * prod(self._row_shape)
        self._fill = numpy.array(fill, self._dtype)
        self._num_rows = shape[0]
        last_rows = shape[0] - (len(self._places) - 1) * self._rows_per_place
        sizes = numpy.full(len(self._places), self._rows_per_place * self._row_bytes)
        sizes[-1:] = last_rows * self._row_bytes
        is_there = self._places != MISSING
        is_outside = (self._places < 0) | (self._places > file.size - sizes)
        if (is_outside & is_there).any():
            raise InputError(
                f"{file.path} ends before its {shape[0]} rows: it has {file.size} bytes; make the "
                "file again",
                file.path,
            )
        self._kept = None
        if KeptRuns.fits(len(self._places), self._rows_per_place * self._row_bytes):
            self._kept = KeptRuns(
                self._read_run, len(self._places), self._rows_per_place, self._row_bytes
            )

    def read(self, numbers, start: int, stop: int) -> numpy.ndarray:
        """Return the elements [start, stop) of each of these rows: [n, stop - start]."""
        begin, end = start * self._dtype.itemsize, stop * self._dtype.itemsize
        found = self._whole_rows(numbers) if 2 * (end - begin) >= self._row_bytes else None
        if found is None:
            found = self._gathered(numbers, begin, end)
        elif end - begin < self._row_bytes:
            found = numpy.ascontiguousarray(found[:, begin:end])
        values = found.view(self._dtype) if begin < end else numpy.empty((len(numbers), 0))
        return values.astype(self._dtype.newbyteorder("="), copy=False)

    def _whole_rows(self, numbers):
        """Return these rows as bytes; None if they must be gathered by address."""
        if len(self._places) == 1 and self._places[0] != MISSING:
            return self._file.take(numbers, self._places[0], self._num_rows, self._row_bytes)
        return self._kept and self._kept.take(numbers)

    def _read_run(self, run: int, rows) -> None:
        """Fill rows [rows_per_place, row_bytes] uint8 with a run; what is behind the last stays."""
        if self._places[run] == MISSING:
            rows.view(self._dtype)[...] = self._fill
        else:
            there = rows[: self._num_rows - run * self._rows_per_place]
            self._file.read_into(there, self._places[run])

    def _gathered(self, numbers, begin: int, end: int):
        """Return the bytes [begin, end) of these rows."""
        places = self._places[numbers // self._rows_per_place]
        within = numbers % self._rows_per_place * self._row_bytes + begin
        is_there = places != MISSING
        addresses = numpy.where(is_there, places + within, 0)
        found = self._file.gather(addresses, end - begin)
        if not is_there.all():
            found.view(self._dtype)[~is_there] = self._fill
        return found

    def _bands(self, numbers, band: RowBand) -> numpy.ndarray:
        """Return the band of each of these rows, and read no more: [n, *shape of the band]."""
        found = numpy.empty((len(numbers), *band.shape), self._dtype)
        *before, last = band.index
        dim = len(before)
        inner = self._dtype.itemsize * prod(self._row_shape[dim + 1 :])
        outer, length = self._row_shape[:dim], self._row_shape[dim]
        lines = numpy.arange(prod(outer)).reshape(outer)[tuple(before)]
        begins = lines.reshape(-1) * length + last.start
        begins = (begins * inner).tolist()  # of each run, in the bytes of a row
        run_bytes = (last.stop - last.start) * inner
        runs = found.view(numpy.uint8).reshape(len(numbers), len(begins), run_bytes)
        for number, row, runs_of_row in zip(numbers.tolist(), found, runs):
            run, within = divmod(number, self._rows_per_place)
            place = int(self._places[run])
            if place == MISSING:
                row[...] = self._fill
                continue
            at = place + within * self._row_bytes
            for begin, bytes_of_run in zip(begins, runs_of_row):
                self._file.read_into(bytes_of_run, at + begin)
        return found.astype(self._dtype.newbyteorder("="), copy=False)

    def read_shaped(self, numbers, part) -> numpy.ndarray:
        """Return these rows of a part of this array: see NumberTable.read."""
        if isinstance(part, RowBand):
            return self._bands(numbers, part)
        values = self.read(numbers, part.start, part.stop)
        return values.reshape(len(numbers), *self._row_shape) if part.is_whole else values
