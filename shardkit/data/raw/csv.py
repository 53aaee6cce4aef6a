"""Text files of rows: CSV of any dialect, parsed by pyarrow a block of whole rows at a time.

    file --cut behind a line that ends outside of quotes--> blocks --each parsed--> types of columns

The delimiter, the decimal sign and the line of names are found in the head of the file; the types
of a column in its blocks, which are joined: whole numbers and others are numbers, numbers and texts
are texts. Numbers that are grouped (1,234,567.5 or 1.234.567,5) stand in a column of texts first.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy

from ...errors import ConfigurationError, InputError
from ...files.reading import library, opened
from ..arrow import NUMBER, TEXT, TIME, arrow, column_of, dtype_of
from ..prepare.unpacking import content_within, is_compressed
from .dialect import NO_UTF8, Dialect
from .groups import RowGroups
from .rows import has_open_quote, row_ends

_BLOCK_BYTES = 1 << 22
_HEAD_BYTES = 1 << 16  # that tell the dialect
_MOST_ROW = 1 << 24  # bytes
_MOST_UNPACKED = 1 << 32
_NEAR_BLOCKS = 64  # of which all are kept
_GROUPED = "grouped"
_YEAR_100 = float(numpy.datetime64("0100-01-01", "s").astype(numpy.int64))
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
        self._dialect = Dialect(path, self._head(), decimal)
        self._missing = [*MISSING, *missing]
        self._dates = [self._parts.csv.ISO8601, *((dates,) if dates else ()), *_DATES]
        texts = [name for name in texts if name in self._dialect.names]
        self._kinds = dict.fromkeys(texts, self._parts.pa.string())
        self._grouped: set[str] = set()
        self._blocks = list(self._cut())
        self.is_in_memory = len(self._blocks) <= _NEAR_BLOCKS
        self.sizes = []
        self._find_types()

    # ---- bytes -----------------------------------------------------------------------------------

    def _head(self) -> bytes:
        """Return whole rows: that of names, and some below it."""
        size = _HEAD_BYTES
        while True:
            head = self._bytes(0, size)
            if len(head) < size:
                return head
            ends = row_ends(head)
            if len(ends) > 1 or size > _MOST_ROW:
                return head[: int(ends[-1]) if len(ends) else size]
            size *= 4

    def _bytes(self, start: int, stop: int) -> bytes:
        if self._content is not None:
            return self._content[start:stop]
        with opened(self._path) as file:
            file.seek(start)
            return file.read(stop - start)

    def _cut(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last byte of blocks of whole rows."""
        start, rest = self._dialect.first_row, b""
        while True:
            more = self._bytes(start + len(rest), start + len(rest) + _BLOCK_BYTES)
            if b"\0" in more:
                raise InputError(f"{self._path} is no text: it has bytes of zeros", self._path)
            content = rest + more
            end = len(content)
            if len(more) == _BLOCK_BYTES:
                end = int(self._ends(content)[-1:].sum())
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
        found: dict[str, set] = {name: set() for name in self._dialect.names}
        for block in range(len(self._blocks)):
            table = self._parsed(block, None)
            self.sizes.append(table.num_rows)
            for name, column in zip(table.column_names, table.columns):
                found[name].add(self._kind(name, column))
        empty = [name for name, kinds in found.items() if not kinds - {None}]
        self.empty = frozenset(empty) - {*self._kinds}
        for name, kinds in found.items():
            joined = _joined_kind(self._parts.pa, kinds - {None})
            if joined == _GROUPED and name not in self._kinds:
                self._grouped.add(name)
            self._kinds.setdefault(name, self._parts.pa.string() if joined == _GROUPED else joined)
        self.types = {
            name: NUMBER if name in self._grouped else dtype_of(self._kinds[name])
            for name in self._dialect.names
        }

    def _kind(self, name: str, column):
        """Return the type of a column of a block; _GROUPED for marked numbers; None: empty.

        Errors: ConfigurationError on numbers with the other decimal sign, and on short years.
        """
        if column.null_count == len(column):
            return None
        dtype = dtype_of(column.type)
        if dtype == TEXT:
            return self._kind_of_texts(name, column_of(column, TEXT).values)
        if dtype == TIME and numpy.nanmin(column_of(column, TIME)) < _YEAR_100:
            raise ConfigurationError(
                f"{self._path}, column {name}: dates of years below 100; give their form, "
                f"data.dates = '%d.%m.%y' say, or {name} in data.categories"
            )
        return column.type

    def _kind_of_texts(self, name: str, values):
        sign = self._dialect.sign_of(values)
        if sign == self._dialect.decimal:
            return _GROUPED
        if name not in self._kinds and sign is not None:
            raise ConfigurationError(
                f"{self._path}, column {name}: its numbers have another decimal sign than "
                f"{self._dialect.decimal!r}; give data.decimal, or {name} in data.categories"
            )
        return self._parts.pa.string()

    # ---- rows ------------------------------------------------------------------------------------

    def read(self, group, names):
        table = self._parsed(group, names)
        if table.num_rows != self.sizes[group]:
            raise InputError(f"{self._path} was changed while it was read", self._path)
        return {name: self._column(table.column(name), name) for name in names}

    def _column(self, column, name: str):
        if name in self._grouped:
            return self._dialect.ungrouped(column_of(column, TEXT))
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
            self._check_text(content, start)
            self._check_empty(content, start)
        wrong: list = []

        def note(row):
            wrong.append(row)
            return "skip"

        wanted = self._dialect.names if names is None else list(names)
        types = {name: self._kinds[name] for name in wanted if name in self._kinds}
        with library(self._path):
            table = csv_.read_csv(
                pa.py_buffer(content),
                csv_.ReadOptions(
                    use_threads=False, block_size=len(content) + 1, column_names=self._dialect.names
                ),
                csv_.ParseOptions(
                    delimiter=self._dialect.delimiter,
                    newlines_in_values=True,
                    ignore_empty_lines=False,
                    invalid_row_handler=note,
                ),
                csv_.ConvertOptions(
                    column_types=types,  # of those that are known
                    include_columns=wanted,
                    null_values=self._missing,
                    strings_can_be_null=True,
                    decimal_point=self._dialect.decimal,
                    timestamp_parsers=self._dates,
                ),
            )
        if wrong:
            self._refuse(wrong[0], content, start)
        if names is None:
            self._check_quotes(table, content, start)
        return table

    def _refuse(self, row, content: bytes, start: int):
        line = self._line(start, content, row.number or 1)
        raise ConfigurationError(
            f"{self._path}, line {line}: {row.actual_columns} cells, but {row.expected_columns} "
            "columns; every line needs as many cells as the first"
        )

    def _check_quotes(self, table, content: bytes, start: int) -> None:
        """Raise ConfigurationError if a quote is open at the end, where all is one text."""
        if table.num_rows and has_open_quote(content, self._dialect.delimiter):
            line = self._line(start, content, table.num_rows)
            raise ConfigurationError(f"{self._path}, line {line}: a quote that nothing closes")

    def _check_text(self, content: bytes, start: int) -> None:
        """Raise ConfigurationError with the line of what is no UTF-8."""
        try:
            content.decode()
        except UnicodeDecodeError as fault:
            line = self._lines_before(start) + content[: fault.start].count(b"\n") + 1
            raise ConfigurationError(f"{self._path}, line {line}, {NO_UTF8}") from None

    def _check_empty(self, content: bytes, start: int) -> None:
        """Raise ConfigurationError if a line among those of several columns is empty."""
        if len(self._dialect.names) == 1:
            return
        ends = self._ends(content)
        lengths = numpy.diff(ends, prepend=0)
        for row in numpy.flatnonzero(lengths <= 2).tolist():
            if not content[ends[row] - lengths[row] : ends[row]].strip():
                line = self._line(start, content, row + 1)
                raise ConfigurationError(f"{self._path}, line {line} is empty; delete it")

    def _ends(self, content: bytes) -> numpy.ndarray:
        """Return the bytes behind the rows of a block."""
        return row_ends(content, self._dialect.delimiter)

    def _line(self, start: int, content: bytes, row: int) -> int:
        """Return the number, from 1, of the line where a row of a block begins; rows from 1."""
        begin = int(self._ends(content)[: max(row - 1, 0)].max(initial=0))
        return self._lines_before(start) + content[:begin].count(b"\n") + 1

    def _lines_before(self, byte: int) -> int:
        steps = [*range(0, byte, _BLOCK_BYTES), byte]
        return sum(self._bytes(*span).count(b"\n") for span in pairwise(steps))

    def place(self, row):
        block = int(numpy.searchsorted(numpy.cumsum(self.sizes), row, side="right"))
        start, stop = self._blocks[block]
        inside = row - sum(self.sizes[:block]) + 1
        return f"line {self._line(start, self._bytes(start, stop), inside)}"


def _joined_kind(pa, kinds: set):
    """Return the type of a column whose blocks have these: one of Arrow, or _GROUPED."""
    types, found = pa.types, kinds - {_GROUPED}
    if all(types.is_integer(kind) or types.is_floating(kind) for kind in found):
        return _GROUPED if _GROUPED in kinds else pa.float64()
    if len(kinds) == 1:
        return found.pop()
    is_time = all(types.is_date(kind) or types.is_timestamp(kind) for kind in found)
    return pa.timestamp("us") if is_time and found == kinds else pa.string()
