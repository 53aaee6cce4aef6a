"""HDF5 files as tables: each dataset of numbers is a field, under its path in the file.

    contiguous, or chunks that are not compressed   read in place through a memory map (mapped.py)
    compressed, chunked over columns ...            windows through the library, one read per chunk
    records (a compound type)                       a field path.name for each number in a record
    virtual                                         rows of the sources, all there (virtual_rows.py)

The library keeps the chunks that it has uncompressed for as long as an order may come back to them.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy

from ..errors import InputError
from ..files.reading import is_plain, library
from . import hdf5
from .columns import Field, RowBand
from .hdf5_claims import check_claims
from .hdf5_headers import VirtualMessages
from .hdf5_meaning import Meaning, meaning_of
from .hdf5_virtual import OtherMapping, rows_of, shape_of, sources_of
from .mapped import FileMap, MappedRows
from .table import NumberTable
from .virtual_rows import VirtualRows, shape_read

_CACHED_CHUNKS = 8
_MOST_CACHE_BYTES = 1 << 28
_WINDOW_BYTES = 1 << 20  # of one read of a dataset without chunks
_MOST_CHUNK_ROWS_BYTES = 1 << 28  # of one read of whole rows, where a chunk has parts of them


class HDF5Table(NumberTable):
    """The datasets of an HDF5 file.

    is_source   of a virtual dataset: its own virtual ones are not read
    """

    reads_bands = True

    def __init__(self, path: Path, *, is_source: bool = False):
        self._file = hdf5.open_to_read(path, _cache_bytes(path))
        self._map = FileMap(path)
        self._datasets = {}
        self._virtual: dict[str, VirtualMessages] = {}
        self._readers: dict[str, Any] = {}
        self._meanings: dict[str, Meaning] = {}
        self._refused: dict[str, InputError] = {}
        fields = {}
        with library(path):
            for name, dataset in hdf5.datasets(self._file).items():
                if isinstance(dataset, VirtualMessages):
                    fields[name] = _virtual_field(name, dataset, is_source)
                    self._virtual[name] = dataset
                    continue
                for field, member in _fields(name, dataset):
                    fields[field.name] = field if member else self._meant(field, dataset)
                    self._datasets[field.name] = dataset, member
        super().__init__(path, fields)

    def _values(self, numbers, parts):
        found = []
        for part in parts:
            stored = self._reader(part.field).read_shaped(numbers, part)
            meaning = self._meanings.get(part.field.name)
            found.append(stored if meaning is None else meaning.of(stored))
        return found

    def _meant(self, field: Field, dataset) -> Field:
        """Return the field with the dtype of the numbers that the dataset means."""
        try:
            meaning = meaning_of(dataset, self._map.path, field.name)
        except InputError as fault:  # which is nobody's business before the field is asked for
            self._refused[field.name] = fault
            return field
        if meaning is None:
            return field
        self._meanings[field.name] = meaning
        return replace(field, dtype=meaning.dtype)

    def run_length(self, parts):
        """Return the rows of the longest chunk. Here a field is first asked for, and checked."""
        for part in parts:
            self._reader(part.field)
        return max((self._run(part.field.name) for part in parts), default=1)

    def _run(self, name: str) -> int:
        if name in self._virtual:
            return self._readers[name].run_length
        chunks = self._datasets[name][0].chunks
        return chunks[0] if chunks else 1

    def files(self):
        """Return the file, and those of the sources of virtual datasets that were asked for."""
        readers = [self._readers[name] for name in self._virtual if name in self._readers]
        found = (path for reader in readers for path in reader.files)
        return tuple(dict.fromkeys((self.path, *found)))

    def _virtual_rows(self, field: Field) -> VirtualRows:
        """Return what reads a virtual dataset. Errors: InputError."""
        shape = (field.rows, *field.shape)
        with library(self.path, field.name):
            try:
                parts = rows_of(sources_of(self._virtual[field.name].mapping, shape), shape)
            except OtherMapping as found:
                raise InputError(
                    f"{field.name} of {self.path} is virtual, and {found}; wanted rows that lie "
                    "each in one source: h5repack -l CONTI copies them into a file that has them",
                    self.path,
                    field.name,
                ) from None
        made = VirtualRows(self.path, field, parts, partial(HDF5Table, is_source=True))
        for path in made.files:
            self._contents.check(path)
        return made

    def _reader(self, field: Field):
        """Return what reads a field, made when it is first asked for."""
        if field.name not in self._readers and field.name in self._virtual:
            self._readers[field.name] = self._virtual_rows(field)
        if field.name not in self._readers:
            if field.name in self._refused:
                raise self._refused[field.name]
            dataset, member = self._datasets[field.name]
            check_claims(dataset, self.path, field.name)
            with library(self.path, field.name):
                placed = None if member else hdf5.places_of(dataset)
                if placed is None:
                    reader: Any = WindowRows(dataset, field, member, self.path)
                else:
                    stored = dataset.dtype
                    reader = MappedRows(
                        self._map, dataset.shape, stored, *placed, dataset.fillvalue
                    )
            self._readers[field.name] = reader
        return self._readers[field.name]


class WindowRows:
    """A dataset that the HDF5 library must read: windows of neighbors, in the order of the file."""

    def __init__(self, dataset, field: Field, member: str | None, path: Path):
        self._dataset, self._member = dataset, member
        self._path, self._name, self._shape = path, field.name, field.shape
        self._dtype = dataset.dtype[member] if member else dataset.dtype
        row_bytes = max(dataset.dtype.itemsize * prod(field.shape), 1)
        most = _MOST_CHUNK_ROWS_BYTES if dataset.chunks else _WINDOW_BYTES
        self._run = max(min(dataset.chunks[0] if dataset.chunks else most, most // row_bytes), 1)

    def read_shaped(self, numbers, part) -> numpy.ndarray:
        """Return these rows of a part: see NumberTable.read. One read for each chunk."""
        shape = shape_read(self._shape, part)
        values = numpy.empty((len(numbers), *shape), self._dtype.newbyteorder("="))
        order = numpy.argsort(numbers, kind="stable")
        ordered = numbers[order]
        runs = ordered // self._run
        begins = numpy.flatnonzero(numpy.diff(runs, prepend=-1))
        for begin, end in zip(begins, [*begins[1:], len(ordered)]):
            first, last = ordered[begin], ordered[end - 1]
            window = self._window(int(first), int(last) + 1, part)
            values[order[begin:end]] = window[ordered[begin:end] - first]
        return values

    def _window(self, first: int, stop: int, part):
        with library(self._path, self._name):
            if isinstance(part, RowBand):
                source = self._dataset.fields(self._member) if self._member else self._dataset
                return source[(slice(first, stop), *part.index)]
            if self._member:
                return self._dataset.fields(self._member)[first:stop]
            if part.is_whole:
                return self._dataset[first:stop]
            return self._dataset[first:stop, part.start : part.stop]


def _virtual_field(name: str, dataset: VirtualMessages, is_source: bool) -> Field:
    """Return the field that a virtual dataset is; without a dtype if it cannot be read."""
    with suppress(ValueError):
        rows, *shape = shape_of(dataset.space)
        dtype = None if is_source or 0 in shape else hdf5.dtype_of(dataset.kind)
        return Field(name, rows, tuple(shape), dtype)
    return Field(name, 0, (), None)


def _fields(name: str, dataset) -> list[tuple[Field, str | None]]:
    """Return (field, name in a record or None) for all that a dataset has."""
    rows, shape, dtype = dataset.shape[0], dataset.shape[1:], dataset.dtype
    if dtype.names is None:
        is_number = is_plain(dtype) and 0 not in shape
        return [(Field(name, rows, shape, dtype if is_number else None), None)]
    if dtype.hasobject or 0 in shape:
        return [(Field(name, rows, shape, None), None)]
    numbers = [member for member in dtype.names if is_plain(dtype[member])]
    fields = [Field(f"{name}.{member}", rows, shape, dtype[member]) for member in numbers]
    return [*zip(fields, numbers)]


def _cache_bytes(path: Path) -> int:
    """Return the bytes of a few chunks of the file's datasets."""
    with hdf5.open_to_read(path) as file, library(path):
        chunks = [
            prod(dataset.chunks) * dataset.dtype.itemsize
            for dataset in hdf5.datasets(file).values()
            if not isinstance(dataset, VirtualMessages) and dataset.chunks
        ]
    return min(max([1 << 17, *chunks]) * _CACHED_CHUNKS, _MOST_CACHE_BYTES)
