"""Text files of numbers as tables: CSV, with commas, semicolons or tabs.

    file --once, on one rank--> byte where each row begins --read--> only the lines that are wanted

The first line has the names of the columns; a file without one has columns "0", "1", ... Which of
the two it is, csv_head.py decides, or refuses to guess. The index is 8 bytes for each row. While it
is made the cells of every line are counted; numbers are parsed when they are read, and a wrong one
is refused with its line and column.
"""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

import numpy

from ..errors import ConfigurationError, InputError
from ..files.reading import first_twin, loaded, opened, size_of
from .columns import Field
from .csv_head import has_names, is_index, is_number
from .mapped import FileMap
from .table import Table

_DELIMITERS = ",;\t"
_BLOCK_BYTES = 1 << 24
_MOST_LINE = 1 << 26  # bytes
_CHECKED = 1 << 20  # rows of an index at a time
_SAMPLE_BYTES = 1 << 16  # below the first line, that tell names from a row
_LINES = 1 << 10  # looked at together, from the end
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CSVTable(Table):
    """The lines of a CSV file.

    index   a file with `begins`, which index_of makes; None: it is made now, in memory
    """

    def __init__(self, path: Path, index: Path | None = None):
        self._style = _Style(path)
        self.begins: numpy.ndarray
        if index is not None and index.exists():
            self.begins = _stored_index(index, path)
        else:
            self.begins = index_of(path)
        self._file = FileMap(path)
        number = numpy.dtype("float64")
        rows = len(self.begins) - 1
        self._column_of = {name: column for column, name in enumerate(self._style.names)}
        super().__init__(
            path,
            {
                name: Field(name, rows, (), number, is_index=is_index(name))
                for name in self._style.names
            },
        )

    def _values(self, numbers, parts):
        if not len(numbers):
            return [numpy.empty(0) for _ in parts]
        begins, ends = self.begins[numbers].tolist(), self.begins[numbers + 1].tolist()
        lines = self._file.lines(begins, ends)
        text = b"\n".join(line.rstrip(b"\r\n") for line in lines)
        columns = [self._column_of[part.field.name] for part in parts]
        values = self._style.parsed(text, columns)
        if values is None or values.shape != (len(numbers), len(parts)):
            self._refuse(numbers, lines, columns)
        return list(values.T)

    def _refuse(self, numbers, lines, columns):
        for number, line in zip(numbers.tolist(), lines):
            self._style.check(line, self._style.line_of(number), columns)
        raise ConfigurationError(f"{self.path} holds lines that are no rows of numbers")

    def row_text(self, number):
        return f"line {self._style.line_of(number)}"


class _Style:
    """How a CSV file is written: its delimiter, its names, and the byte where its rows begin."""

    def __init__(self, path: Path):
        self.path = path
        with opened(path) as file:
            head = file.readline(_MOST_LINE)
            below = file.read(_SAMPLE_BYTES)
        if len(head) == _MOST_LINE:
            raise InputError(f"{path}, line 1: it is longer than {_MOST_LINE:,} bytes", path)
        self.mark = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
        text = _decoded(head[self.mark :], path)
        if not text.strip():
            raise ConfigurationError(f"{path} has no first line; wanted the names of its columns")
        self.delimiter = max(_DELIMITERS, key=text.count)
        cells = [cell.strip() for cell in self.cells(text)]
        self.has_names = has_names(cells, self._rows_in(below), path)
        self.names = cells if self.has_names else [str(column) for column in range(len(cells))]
        twice = first_twin(self.names)
        if twice is not None:
            raise ConfigurationError(f"{path} has two columns named {twice!r:.100}; rename one")
        self.first_row = len(head) if self.has_names else self.mark

    def _rows_in(self, below: bytes) -> list[list[str]]:
        """Return the cells of the whole lines in the text below the first."""
        whole = below if len(below) < _SAMPLE_BYTES else below.rpartition(b"\n")[0]
        lines = [_decoded(line, self.path) for line in whole.split(b"\n")]
        return [self.cells(line) for line in lines if line.strip()]

    def cells(self, line: str) -> list[str]:
        """Return the cells of a line."""
        try:
            return next(csv.reader([line], delimiter=self.delimiter), [])
        except csv.Error as fault:
            raise InputError(f"{self.path} holds a line that is none of CSV: {fault}") from None

    def line_of(self, number: int) -> int:
        """Return the number, from 1, of the line that holds a row."""
        return number + 1 + self.has_names

    def parsed(self, text: bytes, columns=None):
        """Return the numbers [rows, columns] of these lines; None if one of them is wrong."""
        try:
            return numpy.loadtxt(
                io.BytesIO(text),
                delimiter=self.delimiter,
                quotechar='"',
                comments=None,
                usecols=columns,
                ndmin=2,
                encoding="utf-8",
            )
        except (ValueError, IndexError):
            return None

    def check(self, line: bytes, number: int, columns=None) -> None:
        """Raise ConfigurationError if this line is not a row of numbers in these columns."""
        where = f"{self.path}, line {number}"
        cells = self.cells(_decoded(line, self.path))
        if len(cells) != len(self.names):
            raise ConfigurationError(
                f"{where}: {len(cells)} cells, but {len(self.names)} columns; every line needs as "
                "many cells as the first"
            )
        for column in range(len(cells)) if columns is None else columns:
            if not is_number(cells[column]):
                got = repr(cells[column]) if cells[column].strip() else "nothing"
                raise ConfigurationError(
                    f"{where}, column {self.names[column]}: {got}; wanted a number"
                )


def index_of(path: Path) -> numpy.ndarray:
    """Return the byte where each row of a CSV file begins, and the end: [rows + 1] int64.

    Every line is checked for its number of cells; numbers are parsed when they are read.
    Errors: ConfigurationError with the line of a ragged or empty row; OSError.
    """
    style = _Style(path)
    begins = [numpy.array([style.first_row], numpy.int64)]
    with opened(path) as file:
        file.seek(style.first_row)
        at, rest = style.first_row, b""
        while block := file.read(_BLOCK_BYTES):
            if len(rest) >= _MOST_LINE:
                raise InputError(f"{path} has a line of more than {_MOST_LINE:,} bytes", path)
            whole, _, rest = (rest + block).rpartition(b"\n")
            if whole:
                begins.append(_line_ends(style, whole + b"\n", at, sum(map(len, begins)) - 1))
                at += len(whole) + 1
    if rest.strip():
        begins.append(_line_ends(style, rest + b"\n", at, sum(map(len, begins)) - 1) - [1])
    return _without_empty_end(style, numpy.concatenate(begins))


def _line_ends(style: _Style, text: bytes, at: int, rows_before: int) -> numpy.ndarray:
    """Return the byte after each line of this text, which begins at byte `at` of the file."""
    characters = numpy.frombuffer(text, numpy.uint8)
    ends = numpy.flatnonzero(characters == ord("\n")) + 1
    if b'"' not in text:
        commas = numpy.cumsum(characters == ord(style.delimiter))[ends - 1]
        cells = numpy.diff(commas, prepend=0) + 1
        wrong: Iterable[int] = numpy.flatnonzero(cells != len(style.names))
    else:
        lines = text.split(b"\n")[:-1]
        counted = (len(style.cells(_decoded(line, style.path))) for line in lines)
        wrong = [number for number, cells in enumerate(counted) if cells != len(style.names)]
    for number in wrong:
        line = text[ends[number - 1] if number else 0 : ends[number]]
        if line.strip():
            style.check(line, style.line_of(rows_before + int(number)), ())
    return ends + at


def _without_empty_end(style: _Style, begins: numpy.ndarray) -> numpy.ndarray:
    """Return the index without empty lines at the end. Errors: ConfigurationError on others."""
    file = FileMap(style.path)
    begins = begins[: _last_row(file, begins) + 1]
    short = numpy.flatnonzero(numpy.diff(begins) <= 2)
    for number, line in zip(short.tolist(), file.lines(begins[short], begins[short + 1])):
        if not line.strip():
            raise ConfigurationError(
                f"{style.path}, line {style.line_of(number)} is empty; delete it"
            )
    return begins


def _last_row(file: FileMap, begins: numpy.ndarray) -> int:
    """Return the number, from 1, of the last row that is not empty; 0 if all are."""
    for stop in range(len(begins) - 1, 0, -_LINES):
        first = max(stop - _LINES, 0)
        lines = file.lines(begins[first:stop], begins[first + 1 : stop + 1])
        filled = [row for row, line in enumerate(lines, first + 1) if line.strip()]
        if filled:
            return filled[-1]
    return 0


def _stored_index(index: Path, path: Path) -> numpy.ndarray:
    """Return the index in a file. Errors: InputError unless its rows are those of `path`."""
    length = size_of(index) // 8
    begins = loaded(index, "<i8", 0, (length,), field="rows")
    parts = (begins[at : at + _CHECKED + 1] for at in range(0, length, _CHECKED))
    is_right = length > 0 and 0 <= begins[0] and begins[-1] <= size_of(path)
    is_right = is_right and all((part[1:] > part[:-1]).all() for part in parts)
    if not is_right or not _are_ends(FileMap(path), begins[1:-1]):
        raise InputError(f"the index {index} is not that of {path}; make it again", index, "rows")
    return begins


def _are_ends(file: FileMap, places: numpy.ndarray) -> bool:
    """Return True if a line ends before each of these bytes; so many are looked at."""
    some = places[:: max(len(places) // _LINES, 1)] - 1
    return bool((file.gather(some, 1) == ord("\n")).all())


def _decoded(line: bytes, path: Path) -> str:
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is no text in UTF-8; wanted lines of numbers") from None
