"""Rows of a virtual dataset: those of its sources, each a table of its own.

    all.h5: x [200, 4]     rows 0..49 of p0.h5 | 0..49 of p1.h5 | 0..49 of p2.h5 | ...
    stacked [9, 50, 4]     row 0 is all of p0.h5 | row 1 all of p1.h5 | ...

Every row lies in one source, which is there, in the folder of the file or below, an HDF5 file whose
dataset has these rows and this dtype; otherwise the dataset is refused, and the source is named.
What the library does instead, zeros for what is not there, is never done.
"""

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy

from ..errors import InputError
from .columns import Columns, Field, RowBand
from .hdf5_virtual import RowSource
from .table import NumberTable

_MOST_OPEN = 8  # sources, of three descriptors each


class VirtualRows:
    """The rows of one virtual dataset.

    path    of the file that holds it
    field   of it
    parts   its sources, in the order of rows
    opened  function (path) -> NumberTable, of a file whose virtual datasets are not read
    Errors: InputError that names the source which is not what the mapping says.
    """

    def __init__(self, path: Path, field: Field, parts: list[RowSource], opened: Callable):
        assert field.dtype is not None
        self._path, self._field, self._parts = path, field, parts
        self._dtype = field.dtype.newbyteorder("=")
        self._opened = opened
        self._starts = numpy.array([part.start for part in parts], numpy.int64)
        self._tables: OrderedDict[Path, NumberTable] = OrderedDict()
        self._places = [self._place(part) for part in parts]
        self.run_length = max(map(self._look, range(len(parts))), default=1)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the sources, each once, without the one that holds the dataset."""
        return tuple(dict.fromkeys(path for path in self._places if path != self._path))

    def read_shaped(self, numbers, part: Columns | RowBand) -> numpy.ndarray:
        """Return these rows of a part: see NumberTable.read."""
        shape = shape_read(self._field.shape, part)
        values = numpy.empty((len(numbers), *shape), self._dtype)
        which = numpy.searchsorted(self._starts, numbers, side="right") - 1
        for number in numpy.unique(which).tolist():
            here = numpy.flatnonzero(which == number)
            values[here] = self._read(number, numbers[here], part)
        return values

    def _read(self, number: int, numbers, part: Columns | RowBand):
        source = self._parts[number]
        columns = self._checked(number)
        table = self._table(number)
        if isinstance(part, RowBand):
            return self._band(source, table, columns, numbers, part)
        if source.is_one_row:
            (whole,) = table.read(numpy.arange(columns.field.rows), (columns,))
            row = whole.reshape(1, *self._field.shape)
            row = row if part.is_whole else row[:, part.start : part.stop]
            return numpy.repeat(row, len(numbers), 0)
        asked = columns if part.is_whole else Columns(columns.field, part.start, part.stop)
        return table.read(numbers - source.start + source.first, (asked,))[0]

    def _band(
        self, source: RowSource, table: NumberTable, columns: Columns, numbers, band: RowBand
    ):
        """Return the band of these rows of one source."""
        first, stop = 0, columns.field.rows
        asked: Columns | RowBand = columns
        if not source.is_one_row:
            asked = RowBand(columns.field, band.dim, band.spans)
            return table.read(numbers - source.start + source.first, (asked,))[0]
        spans = band.spans
        if band.dim == 0:  # some rows of the source
            (first, stop), spans = spans[0], spans[1:]
        if spans:
            asked = RowBand(columns.field, max(band.dim - 1, 0), spans)
        (found,) = table.read(numpy.arange(first, stop), (asked,))
        return numpy.repeat(found[None], len(numbers), 0)

    def _table(self, number: int) -> NumberTable:
        path = self._places[number]
        if path not in self._tables:
            try:
                self._tables[path] = self._opened(path)
            except OSError as fault:
                self._refuse(number, f"cannot be read: {fault.strerror or fault}")
            while len(self._tables) > _MOST_OPEN:
                self._tables.popitem(last=False)
        self._tables.move_to_end(path)
        return self._tables[path]

    def _look(self, number: int) -> int:
        """Return how many neighbors of a source lie together, once it is checked."""
        columns = self._checked(number)
        length = self._table(number).run_length((columns,))
        return 1 if self._parts[number].is_one_row else length

    # ---- what the sources must be ----------------------------------------------------------------

    def _refuse(self, number: int, what: str):
        source = self._parts[number].source
        name = self._places[number] if number < len(self._places) else source.file
        raise InputError(
            f"{self._field.name} of {self._path} is virtual, and its source {source.dataset} of "
            f"{name} {what}",
            self._path,
            self._field.name,
        )

    def _place(self, part: RowSource) -> Path:
        """Return the file of a source."""
        if part.source.file == ".":
            return self._path
        folder = Path(os.path.abspath(self._path.parent))
        place = Path(os.path.normpath(folder / part.source.file))
        if not place.is_relative_to(folder):
            raise InputError(
                f"{self._field.name} of {self._path} is virtual, and its source {place} is not in "
                "the folder of the file or below; move it there, or let h5repack -l CONTI copy the "
                "rows",
                self._path,
                self._field.name,
            )
        return place

    def _checked(self, number: int) -> Columns:
        """Return the dataset of a source as columns of its table."""
        part, table = self._parts[number], self._table(number)
        field = table.fields.get(part.source.dataset.strip("/"))
        if field is None or field.dtype is None:
            self._refuse(number, "is not there, or is no dataset of numbers")
        assert field is not None and field.dtype is not None
        if field.dtype.newbyteorder("=") != self._dtype:
            self._refuse(number, f"is of {field.dtype}; wanted {self._dtype}")
        rows, shape = part.stop - part.start, (field.rows, *field.shape)
        is_one_row = part.is_one_row or rows == 1 and part.source.theirs is None
        if is_one_row and shape == self._field.shape:
            self._parts[number] = part if part.is_one_row else _as_one_row(part)
        elif field.shape != self._field.shape:
            self._refuse(number, f"has the shape {shape}; wanted rows of {self._field.shape}")
        elif part.first + rows > field.rows or part.source.theirs is None and rows != field.rows:
            what = f"{part.first:,} to {part.first + rows - 1:,}"
            self._refuse(number, f"has {field.rows:,} rows; wanted {what}")
        return Columns.whole(field)


def shape_read(shape, part: Columns | RowBand) -> tuple[int, ...]:
    """Return the shape of what is read of a row of this shape."""
    if isinstance(part, RowBand):
        return part.shape
    return tuple(shape) if part.is_whole else (part.width,)


def _as_one_row(part: RowSource) -> RowSource:
    return RowSource(part.source, part.start, part.stop, 0, True)
