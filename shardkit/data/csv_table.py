"""Text files of numbers as tables: CSV, with commas, semicolons or tabs.

    file --once, on one rank--> byte where each row begins --read--> only the lines that are wanted

The first line has the names of the columns; a file without one has columns "0", "1", ... The index
is 8 bytes for each row. While it is made every number is parsed, so that a wrong cell is refused
with its line and column before anything is trained.
"""

import csv
import io
import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy

from ..errors import ConfigurationError
from .columns import Field
from .table import Table

_DELIMITERS = ",;\t"
_BLOCK_BYTES = 1 << 24
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CSVTable(Table):
    """The lines of a CSV file.

    index   a file with `begins`, which index_of makes; None: it is made now, in memory
    """

    def __init__(self, path: Path, index: Path | None = None):
        self._style = _Style(path)
        if index is not None and index.exists():
            self.begins: numpy.ndarray = numpy.memmap(index, numpy.int64, "r")
        else:
            self.begins = index_of(path)
        if len(self.begins) == 0 or self.begins[-1] > path.stat().st_size:
            raise ConfigurationError(f"the index {index} is not that of {path}; make it again")
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        number = numpy.dtype("float64")
        rows = len(self.begins) - 1
        self._column_of = {name: column for column, name in enumerate(self._style.names)}
        super().__init__(path, {name: Field(name, rows, (), number) for name in self._style.names})

    def _values(self, numbers, parts):
        if not len(numbers):
            return [numpy.empty(0) for _ in parts]
        begins, ends = self.begins[numbers].tolist(), self.begins[numbers + 1].tolist()
        text = b"\n".join(self._map[b:e].rstrip(b"\r\n") for b, e in zip(begins, ends))
        columns = [self._column_of[part.field.name] for part in parts]
        values = self._style.parsed(text, columns)
        self._map.madvise(mmap.MADV_DONTNEED)
        if values is None:
            self._refuse(numbers, columns)
        return list(values.T)

    def _refuse(self, numbers, columns):
        for number in numbers.tolist():
            line = self._map[self.begins[number] : self.begins[number + 1]]
            self._style.check(line, self._style.line_of(number), columns)
        raise ConfigurationError(f"{self.path} holds lines that are no rows of numbers")

    def row_text(self, number):
        return f"line {self._style.line_of(number)}"


class _Style:
    """How a CSV file is written: its delimiter, its names, and the byte where its rows begin."""

    def __init__(self, path: Path):
        self.path = path
        with open(path, "rb") as file:
            head = file.readline()
        self.mark = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
        text = _decoded(head[self.mark :], path)
        if not text.strip():
            raise ConfigurationError(f"{path} has no first line; wanted the names of its columns")
        self.delimiter = max(_DELIMITERS, key=text.count)
        cells = [cell.strip() for cell in self.cells(text)]
        self.has_names = not all(map(_is_number, cells))
        self.names = cells if self.has_names else [str(column) for column in range(len(cells))]
        if len(set(self.names)) < len(self.names):
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise ConfigurationError(f"{path} has two columns named {twice[0]!r}; rename one")
        self.first_row = len(head) if self.has_names else self.mark

    def cells(self, line: str) -> list[str]:
        """Return the cells of a line."""
        return next(csv.reader([line], delimiter=self.delimiter), [])

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
            if not _is_number(cells[column]):
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
    with open(path, "rb") as file:
        file.seek(style.first_row)
        at, rest = style.first_row, b""
        while block := file.read(_BLOCK_BYTES):
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
    with open(style.path, "rb") as file:
        text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        while len(begins) > 1 and not text[begins[-2] : begins[-1]].strip():
            begins = begins[:-1]
        short = numpy.flatnonzero(numpy.diff(begins) <= 2)
        for number in short.tolist():
            if not text[begins[number] : begins[number + 1]].strip():
                raise ConfigurationError(
                    f"{style.path}, line {style.line_of(number)} is empty; delete it"
                )
        text.close()
    return begins


def _decoded(line: bytes, path: Path) -> str:
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is no text in UTF-8; wanted lines of numbers") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell
