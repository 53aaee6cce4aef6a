"""Text files of rows: CSV of any dialect, parsed by pyarrow a block of whole rows at a time.

    file --cut behind a line that ends outside of quotes--> blocks --each parsed--> types of columns

The delimiter, the decimal sign and the line of names are found in the head of the file; the types
of a column in its blocks, which are joined: whole numbers and others are numbers, numbers and texts
are texts. Numbers that are grouped (1,234,567.5 or 1.234.567,5) stand in a column of texts first.
"""

import csv
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy

from ...errors import ConfigurationError, InputError
from ...files.reading import first_twin, library, opened
from ..arrow import NUMBER, TEXT, Text, arrow, column_of, dtype_of
from ..prepare.unpacking import content_within, is_compressed
from .csv_head import has_names, is_number
from .groups import RowGroups

_DELIMITERS = ",;\t|"
_BLOCK_BYTES = 1 << 22
_HEAD_BYTES = 1 << 16  # that tell the dialect
_MOST_ROW = 1 << 24  # bytes
_MOST_UNPACKED = 1 << 32
_NEAR_BLOCKS = 64  # of which all are kept
_GROUPED = "grouped"
_MARK = b"\xef\xbb\xbf"
_WIDE_MARKS = b"\xff\xfe", b"\xfe\xff"  # of UTF-16
_WITH_COMMA = re.compile(r"[+-]?\d*,\d+", re.ASCII)
_IN_THREES = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}", re.ASCII)
_WITH_POINT = re.compile(r"[+-]?\d*\.\d+", re.ASCII)
_DATES = ("%Y/%m/%d", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S")
MISSING = (
    *("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "NULL", "null", "None"),
    *("NaT", "?", "."),
)


class CSVGroups(RowGroups):
    """The rows of a CSV file.

    texts    columns that are texts whatever they hold
    missing  what stands where nothing is, beside the usual
    decimal  "." or ","; None: what the head of the file has
    dates    the form of dates, as strptime has it, beside ISO and German ones
    """

    def __init__(self, path: Path, *, texts=(), missing=(), decimal=None, dates=None):
        self._path, self.files = path, (path,)
        self._parts = arrow(path)
        self._content = content_within(path, _MOST_UNPACKED) if is_compressed(path) else None
        self._style = _Style(path, self._head(), decimal)
        self._missing = [*MISSING, *missing]
        self._dates = [self._parts.csv.ISO8601, *((dates,) if dates else ()), *_DATES]
        texts = [name for name in texts if name in self._style.names]
        self._kinds = dict.fromkeys(texts, self._parts.pa.string())
        self._grouped: set[str] = set()
        self._blocks = list(self._cut())
        self.is_in_memory = len(self._blocks) <= _NEAR_BLOCKS
        self.sizes = []
        self._find_types()

    # ---- bytes -----------------------------------------------------------------------------------

    def _head(self) -> bytes:
        return self._bytes(0, _HEAD_BYTES)

    def _bytes(self, start: int, stop: int) -> bytes:
        if self._content is not None:
            return self._content[start:stop]
        with opened(self._path) as file:
            file.seek(start)
            return file.read(stop - start)

    def _cut(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last byte of blocks of whole rows."""
        start, rest = self._style.first_row, b""
        while True:
            more = self._bytes(start + len(rest), start + len(rest) + _BLOCK_BYTES)
            if b"\0" in more:
                raise InputError(f"{self._path} is no text: it has bytes of zeros", self._path)
            content = rest + more
            end = len(content) if len(more) < _BLOCK_BYTES else _end_of_rows(content)
            if end:
                if content[:end].strip(b"\r\n"):
                    yield start, start + end
                start, rest = start + end, b""
                if len(more) < _BLOCK_BYTES:
                    return
            elif len(content) > _MOST_ROW:
                raise InputError(
                    f"{self._path}, behind byte {start:,}: a row, or a text in quotes, is longer "
                    f"than {_MOST_ROW:,} bytes",
                    self._path,
                )
            elif not more:
                return
            else:
                rest = content

    # ---- types -----------------------------------------------------------------------------------

    def _find_types(self):
        """Find the rows of each block and the types of all columns."""
        found: dict[str, set] = {name: set() for name in self._style.names}
        for block in range(len(self._blocks)):
            table = self._parsed(block, None)
            self.sizes.append(table.num_rows)
            for name, column in zip(table.column_names, table.columns):
                found[name].add(self._kind(column))
        for name, kinds in found.items():
            joined = _joined_kind(self._parts.pa, kinds - {None})
            if joined == _GROUPED and name not in self._kinds:
                self._grouped.add(name)
            self._kinds.setdefault(name, self._parts.pa.string() if joined == _GROUPED else joined)
        self.types = {
            name: NUMBER if name in self._grouped else dtype_of(self._kinds[name])
            for name in self._style.names
        }

    def _kind(self, column):
        """Return the type of a column of a block; _GROUPED for marked numbers; None: empty."""
        if column.null_count == len(column):
            return None
        if dtype_of(column.type) == TEXT:
            values = column_of(column, TEXT).values
            return _GROUPED if self._style.are_grouped(values) else self._parts.pa.string()
        return column.type

    # ---- rows ------------------------------------------------------------------------------------

    def read(self, group, names):
        table = self._parsed(group, names)
        if table.num_rows != self.sizes[group]:
            raise InputError(f"{self._path} was changed while it was read", self._path)
        return {name: self._column(table.column(name), name) for name in names}

    def _column(self, column, name: str):
        if name in self._grouped:
            return self._style.ungrouped(column_of(column, TEXT))
        dtype = self.types[name]
        assert dtype is not None  # CSV has no others
        return column_of(column, dtype)

    def _parsed(self, block: int, names):
        """Return a block as a table of Arrow; names None: all columns, whose types are not known.

        Errors: ConfigurationError with the line of a row that has another number of cells.
        """
        pa, csv_ = self._parts.pa, self._parts.csv
        start, stop = self._blocks[block]
        content = self._bytes(start, stop)
        if block == len(self._blocks) - 1:
            content = content.rstrip(b"\r\n") + b"\n"
        if names is None:
            self._check_empty(content, start)
        wrong: list = []

        def note(row):
            wrong.append(row)
            return "skip"

        wanted = self._style.names if names is None else list(names)
        types = {name: self._kinds[name] for name in wanted if name in self._kinds}
        with library(self._path):
            table = csv_.read_csv(
                pa.py_buffer(content),
                csv_.ReadOptions(
                    use_threads=False,
                    block_size=len(content) + 1,
                    column_names=self._style.names,
                ),
                csv_.ParseOptions(
                    delimiter=self._style.delimiter,
                    newlines_in_values=True,
                    ignore_empty_lines=False,
                    invalid_row_handler=note,
                ),
                csv_.ConvertOptions(
                    column_types=types,  # of those that are known
                    include_columns=wanted,
                    null_values=self._missing,
                    strings_can_be_null=True,
                    decimal_point=self._style.decimal,
                    timestamp_parsers=self._dates,
                ),
            )
        if wrong:
            self._refuse(wrong[0], content, start)
        return table

    def _refuse(self, row, content: bytes, start: int):
        line = self._lines_before(start) + _line_in(content, row.number or 1)
        raise ConfigurationError(
            f"{self._path}, line {line}: {row.actual_columns} cells, but {row.expected_columns} "
            "columns; every line needs as many cells as the first"
        )

    def _check_empty(self, content: bytes, start: int) -> None:
        """Raise ConfigurationError if a line among those of several columns is empty."""
        if len(self._style.names) == 1:
            return
        ends = _row_ends(content)
        lengths = numpy.diff(ends, prepend=0)
        for row in numpy.flatnonzero(lengths <= 2).tolist():
            if not content[ends[row] - lengths[row] : ends[row]].strip():
                line = self._lines_before(start) + _line_in(content, row + 1)
                raise ConfigurationError(f"{self._path}, line {line} is empty; delete it")

    def _lines_before(self, byte: int) -> int:
        steps = [*range(0, byte, _BLOCK_BYTES), byte]
        return sum(self._bytes(*span).count(b"\n") for span in pairwise(steps))

    def place(self, row):
        block = int(numpy.searchsorted(numpy.cumsum(self.sizes), row, side="right"))
        start, stop = self._blocks[block]
        inside = row - sum(self.sizes[:block]) + 1
        return f"line {self._lines_before(start) + _line_in(self._bytes(start, stop), inside)}"


def _joined_kind(pa, kinds: set):
    """Return the type of a column whose blocks have these: one of Arrow, or _GROUPED."""
    types, found = pa.types, kinds - {_GROUPED}
    if all(types.is_integer(kind) or types.is_floating(kind) for kind in found):
        return _GROUPED if _GROUPED in kinds else pa.float64()
    if len(kinds) == 1:
        return found.pop()
    is_time = all(types.is_date(kind) or types.is_timestamp(kind) for kind in found)
    return pa.timestamp("us") if is_time and found == kinds else pa.string()


def _row_ends(content: bytes) -> numpy.ndarray:
    """Return the bytes behind the line ends that are outside of quotes."""
    characters = numpy.frombuffer(content, numpy.uint8)
    ends = numpy.flatnonzero(characters == ord("\n"))
    if b'"' in content:
        is_outside = numpy.cumsum(characters == ord('"'))[ends] % 2 == 0
        ends = ends[is_outside]
    return ends + 1


def _end_of_rows(content: bytes) -> int:
    """Return the byte behind the last row that ends here; 0 if none does."""
    return int(_row_ends(content)[-1:].sum())


def _line_in(content: bytes, row: int) -> int:
    """Return the number, from 1, of the line where the row of a number from 1 begins."""
    begin = int(_row_ends(content)[: max(row - 1, 0)].max(initial=0))
    return content[:begin].count(b"\n") + 1


class _Style:
    """How a CSV file is written: delimiter, decimal sign, names, the byte where rows begin."""

    def __init__(self, path: Path, head: bytes, decimal: str | None):
        self._path = path
        if head.startswith(_WIDE_MARKS):
            raise ConfigurationError(f"{path} is no text in UTF-8; write it so")
        mark = len(_MARK) if head.startswith(_MARK) else 0
        end = len(head) if len(head) < _HEAD_BYTES else _end_of_rows(head)
        text = self._decoded(head[mark : end or len(head)])
        first = text[: len(text) if not text else _end_of_first(text)]
        if not first.strip():
            raise ConfigurationError(f"{path} has no first line; wanted the names of its columns")
        self.delimiter = self._delimiter(first, text)
        rows = self._cells(text)
        cells = [cell.strip() for cell in rows[0]]
        first_row, *others = map(self._as_numbers, [cells, *rows[1:]])
        is_named = has_names(first_row, others, path)
        self.names = cells if is_named else [str(column) for column in range(len(cells))]
        twice = first_twin(self.names)
        if twice is not None:
            raise ConfigurationError(f"{path} has two columns named {twice!r:.100}; rename one")
        self.first_row = mark + len(first.encode()) if is_named else mark
        self.decimal = decimal or self._decimal(rows[1:])
        marks = ",_' " if self.decimal == "." else "._' "
        number = rf"[+-]?\d{{1,3}}(?:[{marks}\u00a0\u202f]\d{{3}})+(?:\{self.decimal}\d*)?"
        self._marks, self._number = marks + "\u00a0\u202f", re.compile(number, re.ASCII)

    def _delimiter(self, first: str, text: str) -> str:
        """Return what cuts all rows into as many cells, two or more; else what the first has."""
        widths: dict[str, int] = {}
        for self.delimiter in _DELIMITERS:
            found = {len(row) for row in self._cells(text)}
            widths[self.delimiter] = found.pop() if len(found) == 1 else 1
        best = max(widths, key=lambda delimiter: widths[delimiter])
        return best if widths[best] > 1 else max(_DELIMITERS, key=first.count)

    def _as_numbers(self, cells: list[str]) -> list[str]:
        """Return cells with points for commas, where these are not the delimiter."""
        if self.delimiter == ",":
            return cells
        return [re.sub(r"(?<=\d),(?=\d)", ".", cell) for cell in cells]

    def _decoded(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise ConfigurationError(
                f"{self._path} is no text in UTF-8; write it so (iconv -f latin1 -t utf8)"
            ) from None

    def _cells(self, text: str) -> list[list[str]]:
        try:
            lines = text.splitlines(keepends=True)
            return [row for row in csv.reader(lines, delimiter=self.delimiter) if row]
        except csv.Error as fault:
            raise InputError(f"{self._path} holds a line that is none of CSV: {fault}") from None

    def _decimal(self, rows) -> str:
        """Return the decimal sign of these rows. Errors: ConfigurationError if it may be either."""
        cells = [cell.strip() for row in rows for cell in row]
        commas = [cell for cell in cells if _WITH_COMMA.fullmatch(cell)]
        if not commas or any(map(_WITH_POINT.fullmatch, cells)):
            return "."
        if all(map(_IN_THREES.fullmatch, commas)):
            raise ConfigurationError(
                f"{self._path}: {commas[0]!r} may be a number with three decimals or one above a "
                "thousand; give data.decimal = ',' or '.'"
            )
        return ","

    def are_grouped(self, values) -> bool:
        """Return True if all of these texts are numbers, and some have marks of thousands."""
        others = [value.strip() for value in values if not self._is_plain(value)]
        return bool(others) and all(map(self._number.fullmatch, others))

    def _is_plain(self, value: str) -> bool:
        return is_number(value.replace(self.decimal, "."))

    def ungrouped(self, column: Text) -> numpy.ndarray:
        """Return the numbers that these texts are, [n] float64."""
        table = str.maketrans(dict.fromkeys(self._marks, "") | {self.decimal: "."})
        values = [float(value.translate(table)) for value in column.values]
        return column.through(values, numpy.nan)


def _end_of_first(text: str) -> int:
    """Return the place behind the first line, whose quotes may have line ends in them."""
    content = text.encode()
    ends = _row_ends(content)
    return len(content[: ends[0]].decode()) if len(ends) else len(text)
