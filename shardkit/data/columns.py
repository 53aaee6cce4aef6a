"""Columns of numbers: what a file has under a name, and which of them are meant.

"price"       the field of this name
"price:tax"   the fields from price through tax, in the order of the file
"x[3]"        column 3 of the field x, whose rows are vectors
"x[2:10]"     its columns 2 to 9
"[2:10]"      the same of a file's only field
"""

import re
from dataclasses import dataclass
from math import prod

import numpy

from ..arguments import nearest
from ..errors import ConfigurationError

_SLICE = re.compile(r"(?P<name>.*)\[(?P<start>\d*)(?P<colon>:?)(?P<stop>\d*)\]", re.S)
_SHOWN = 8  # names in a message


@dataclass(frozen=True)
class Field:
    """What a file has under a name: a value, or an array, for each row.

    rows   how many
    shape  of one row's value; () for a number
    dtype  None if it is no column of numbers, texts or times
    is_index  its name says that it numbers the rows, and is no value of them
    """

    name: str
    rows: int
    shape: tuple[int, ...]
    dtype: numpy.dtype | None
    is_index: bool = False

    @property
    def is_text(self) -> bool:
        """True if its values are texts."""
        return self.dtype is not None and self.dtype.kind == "O"


@dataclass(frozen=True)
class Columns:
    """Columns [start, stop) of a field; of a field that is not 1-D per row, all of it."""

    field: Field
    start: int
    stop: int

    @classmethod
    def whole(cls, field: Field) -> "Columns":
        """Return all columns of a field."""
        return cls(field, 0, prod(field.shape))

    @property
    def is_whole(self) -> bool:
        """True if no column of the field is left out."""
        return self.stop - self.start == prod(self.field.shape)

    @property
    def spec(self) -> str:
        """Return the word that means these columns."""
        if self.is_whole:
            return self.field.name
        return f"{self.field.name}[{self.start}:{self.stop}]"

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.stop - self.start

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each column."""
        if self.field.shape == ():
            return (self.field.name,)
        indices = numpy.ndindex(self.field.shape)
        every = [f"{self.field.name}[{','.join(map(str, index))}]" for index in indices]
        return tuple(every[self.start : self.stop])

    def name_of(self, column: int) -> str:
        """Return the name of one of the columns."""
        return _name_of(self.field, numpy.unravel_index(self.start + column, self.field.shape))

    def overlaps(self, other: "Columns") -> bool:
        """Return True if a column is in both."""
        is_apart = self.stop <= other.start or other.stop <= self.start
        return self.field.name == other.field.name and not is_apart


@dataclass(frozen=True)
class RowBand:
    """A part of each row of a field: [start, stop) along a dim of its rows, and along the next ones
    that have spans too.
    """

    field: Field
    dim: int
    spans: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part of a row."""
        shape = list(self.field.shape)
        for dim, (start, stop) in enumerate(self.spans, self.dim):
            shape[dim] = stop - start
        return tuple(shape)

    @property
    def index(self) -> tuple[slice, ...]:
        """Where the part is in a row."""
        own = [slice(*span) for span in self.spans]
        return (*[slice(None)] * self.dim, *own)

    def name_of(self, column: int) -> str:
        """Return the name of one of the columns."""
        index = list(numpy.unravel_index(column, self.shape))
        for dim, (start, _) in enumerate(self.spans, self.dim):
            index[dim] += start
        return _name_of(self.field, index)


def _name_of(field: Field, index) -> str:
    return f"{field.name}[{','.join(map(str, index))}]" if field.shape else field.name


def chosen(fields: dict[str, Field], specs, where: str, setting: str) -> tuple[Columns, ...]:
    """Return the columns that these words mean.

    where    the file, for messages
    setting  that holds the words
    Errors: ConfigurationError on a column that is not there, with the nearest name, or is no
    number.
    """
    parts = [part for spec in specs for part in _meant(fields, spec, where, setting)]
    for part in parts:
        if part.field.dtype is None:
            raise ConfigurationError(
                f"{setting}: {part.field.name} of {where} holds records or lists, or texts of an "
                "array; wanted numbers, or texts and times in columns of a CSV or Parquet file"
            )
    return tuple(parts)


def _meant(fields, spec, where, setting) -> list[Columns]:
    if spec in fields:
        return [Columns.whole(fields[spec])]
    found = _SLICE.fullmatch(spec)
    if found:
        return [_sliced(fields, found, spec, where, setting)]
    first, colon, last = spec.partition(":")
    if colon and first in fields and last in fields:
        names = list(fields)
        between = names[names.index(first) : names.index(last) + 1]
        if between:
            return [Columns.whole(fields[name]) for name in between]
    raise ConfigurationError(f"{setting} = {spec!r}: {_missing(fields, spec, where)}")


def _sliced(fields, found, spec, where, setting) -> Columns:
    name = found["name"]
    if not name and len(fields) == 1:
        name = next(iter(fields))
    if name not in fields:
        raise ConfigurationError(f"{setting} = {spec!r}: {_missing(fields, name, where)}")
    field = fields[name]
    if len(field.shape) != 1:
        raise ConfigurationError(
            f"{setting} = {spec!r}: a row of {name} in {where} has shape {field.shape}; wanted a "
            f"vector to take columns of, or {name} whole"
        )
    width = field.shape[0]
    start = int(found["start"] or 0)
    stop = int(found["stop"] or width) if found["colon"] else start + 1
    if not 0 <= start < stop <= width or not (found["start"] or found["colon"]):
        raise ConfigurationError(
            f"{setting} = {spec!r}: {name} of {where} has the columns 0 to {width - 1}"
        )
    return Columns(field, start, stop)


def _missing(fields, name: str, where: str) -> str:
    near = nearest(name, fields)
    if near:
        return f"{where} has no {name}; did you mean {near}?"
    listed = ", ".join(list(fields)[:_SHOWN]) + (", ..." if len(fields) > _SHOWN else "")
    return f"{where} has no {name}; it has {listed or 'nothing that can be read'}"
