"""How a CSV file is written, found in its head: delimiter, decimal sign, names, thousands."""

import csv
import re
from io import StringIO
from pathlib import Path

import numpy

from ...errors import ConfigurationError, InputError
from ...files.reading import first_twin
from ..arrow import Text
from .csv_head import has_names, is_number
from .rows import DELIMITERS, row_ends

NO_UTF8 = "is no text in UTF-8; write it so (iconv -f latin1 -t utf8)"
_MARK = b"\xef\xbb\xbf"
_TOLD = re.compile(r"sep=([^\w\s\"]|\t)\r?\n", re.ASCII)  # a line for Excel, before the names
_WIDE_MARKS = b"\xff\xfe", b"\xfe\xff"  # of UTF-16
_MARKS = {".": ",_' \u00a0\u202f", ",": "._' \u00a0\u202f"}  # of thousands, by decimal sign
_GROUPS = {
    sign: rf"[+-]?[1-9]\d{{0,2}}(?:[{marks}]\d{{3}})+(?:\{sign}\d*)?"
    for sign, marks in _MARKS.items()
}
_NUMBERS = {  # with a mark of thousands or a decimal sign
    sign: re.compile(rf"{groups}|[+-]?\d*\{sign}\d+(?:[eE][+-]?\d+)?", re.ASCII)
    for sign, groups in _GROUPS.items()
}


class Dialect:
    """How a CSV file is written: delimiter, decimal sign, names, the byte where rows begin."""

    def __init__(self, path: Path, head: bytes, decimal: str | None):
        self._path = path
        if head.startswith(_WIDE_MARKS):
            raise ConfigurationError(f"{path} is no text in UTF-8; write it so")
        mark = len(_MARK) if head.startswith(_MARK) else 0
        text = self._decoded(head[mark:])
        told = _TOLD.match(text)
        if told is not None:
            mark += told.end()
            text = text[told.end() :]
        if "\r" in text and "\n" not in text:
            raise ConfigurationError(f"{path}: its lines end in \\r alone; wanted \\n or \\r\\n")
        first = text[: _end_of_first(text, told[1] if told else DELIMITERS)]
        if first.endswith("\r") and text.startswith("\r\n", len(first)):
            raise ConfigurationError(
                f"{path}: its lines end in \\r\\r\\n, each with an empty one behind it; write them "
                "with \\n (in Python, open(..., newline=''))"
            )
        if not first.strip():
            raise ConfigurationError(f"{path} has no first line; wanted the names of its columns")
        self.delimiter = told[1] if told else self._delimiter(first, text)
        rows = self._cells(text)
        cells = [cell.strip() for cell in rows[0]]
        first_row, *others = map(self._as_numbers, [cells, *rows[1:]])
        is_named = has_names(first_row, others, path)
        self.names = cells if is_named else [str(column) for column in range(len(cells))]
        twice = first_twin(self.names)
        if twice is not None:
            raise ConfigurationError(f"{path} has two columns named {twice!r:.100}; rename one")
        self.first_row = mark + len(first.encode()) if is_named else mark
        sign = decimal or self._decimal(rows[1:])
        self.decimal, self._is_told = sign or ".", sign is not None
        self._marks = _MARKS[self.decimal]

    def _delimiter(self, first: str, text: str) -> str:
        """Return what cuts all rows into as many cells, two or more; else what the first has."""
        widths = {DELIMITERS[0]: 1}
        for self.delimiter in filter(first.__contains__, DELIMITERS):
            found = {len(row) for row in self._cells(text)}
            widths[self.delimiter] = found.pop() if len(found) == 1 else 1
        best = max(widths, key=lambda delimiter: widths[delimiter])
        return best if widths[best] > 1 else max(DELIMITERS, key=first.count)

    def _as_numbers(self, cells: list[str]) -> list[str]:
        """Return cells with points for commas, where these are not the delimiter."""
        if self.delimiter == ",":
            return cells
        return [re.sub(r"(?<=\d),(?=\d)", ".", cell) for cell in cells]

    def _decoded(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise ConfigurationError(f"{self._path} {NO_UTF8}") from None

    def _cells(self, text: str) -> list[list[str]]:
        try:
            lines = StringIO(text, newline="")
            return [row for row in csv.reader(lines, delimiter=self.delimiter) if row]
        except csv.Error as fault:
            raise InputError(f"{self._path} holds a line that is none of CSV: {fault}") from None

    def _decimal(self, rows) -> str | None:
        """Return the decimal sign of these rows; None if no number has one, or marks of thousands.

        1,5 and 1.234,5 are numbers with a comma only, 1.5 and 1,234.5 with a point only; 1,234 and
        1.234 are numbers with either.
        Errors: ConfigurationError if it may be either, but for points alone.
        """
        cells = dict.fromkeys(cell.strip() for row in rows for cell in row)
        with_point, with_comma = (
            [cell for cell in cells if _NUMBERS[sign].fullmatch(cell)] for sign in ".,"
        )
        if self.delimiter == ",":  # so that a decimal comma stands in quotes
            with_comma = [cell for cell in with_comma if "," in cell]
        if not with_point and not with_comma:
            return None
        only_point, only_comma = ({*with_point} - {*with_comma}, {*with_comma} - {*with_point})
        if not only_comma and (only_point or not any("," in cell for cell in with_comma)):
            return "."
        if only_comma and not only_point:
            return ","
        raise ConfigurationError(
            f"{self._path}: {next(cell for cell in with_comma if ',' in cell)!r} may be a number "
            "with a decimal comma or one above a thousand; give data.decimal = ',' or '.'"
        )

    def sign_of(self, values) -> str | None:
        """Return the decimal sign with which all of these texts are numbers, our own first if the
        first rows have it.

        None if there is none, or if pyarrow reads them all.
        """
        others = [value.strip() for value in values if not self._is_plain(value)]
        signs = (self.decimal, *_NUMBERS) if self._is_told else reversed(_NUMBERS)
        for sign in signs if others else ():
            if all(map(_NUMBERS[sign].fullmatch, others)):
                return sign
        return None

    def _is_plain(self, value: str) -> bool:
        """Return True for a number as pyarrow reads it."""
        is_marked = self.decimal == "," and "." in value
        return not is_marked and is_number(value.replace(self.decimal, "."))

    def ungrouped(self, column: Text) -> numpy.ndarray:
        """Return the numbers that these texts are, [n] float64."""
        table = str.maketrans(dict.fromkeys(self._marks, "") | {self.decimal: "."})
        values = [float(value.translate(table)) for value in column.values]
        return column.through(values, numpy.nan)


def _end_of_first(text: str, delimiter: str) -> int:
    """Return the place behind the first line, whose quotes may have line ends in them."""
    content = text.encode()
    ends = row_ends(content, delimiter)
    return len(content[: ends[0]].decode()) if len(ends) else len(text)
