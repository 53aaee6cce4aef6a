"""Files of rows that are read a group at a time: row groups of Parquet, batches of Arrow, folders.

    file --RowGroups--> group 0 | group 1 | ...   each whole, for the columns that are wanted
    folder/year=2025/a.parquet, ...   all their groups, one behind the other, with a column `year`

A group has the same rows whoever reads it, so that what is found in groups and merged in their
order has the same bits on any number of ranks.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from io import BytesIO
from itertools import accumulate
from math import isfinite
from pathlib import Path
from urllib.parse import unquote

import numpy

from ...checkpoint.format.files import checksum
from ...errors import ConfigurationError, InputError
from ...files.folders import files_below
from ...files.paths import suffix_of
from ...files.reading import library, size_of
from ..arrow import (
    NUMBER,
    TEXT,
    Text,
    arrow,
    checked_rows,
    column_of,
    dtypes_of,
    flat_column,
    open_parquet,
)
from .csv_head import is_number

_MOST_FILES = 1 << 16  # of a folder
_NOTHING = "__HIVE_DEFAULT_PARTITION__"  # as the value in the name of a folder


class RowGroups(ABC):
    """The rows of a source, in groups.

    types  {name: dtype of a column, see arrow.py; None if it is none}
    sizes  the rows of each group
    files  that hold them
    """

    types: dict[str, numpy.dtype | None]
    sizes: list[int]
    files: tuple[Path, ...]
    content = ""  # a hash of rows that are in no file
    empty: frozenset[str] = frozenset()  # columns of which nothing tells what they are
    is_in_memory = False  # rows of any group are at hand, so no neighbors are worth being kept

    @abstractmethod
    def read(self, group: int, names) -> dict:
        """Return {name: column} of a group. Errors: ConfigurationError, OSError."""

    def place(self, row: int) -> str:
        """Return where a row stands, for messages."""
        return f"row {row}"


class ArrowGroups(RowGroups):
    """Row groups of a Parquet file, or batches of a file of Arrow (.arrow, .feather)."""

    def __init__(self, path: Path):
        self._path, self.files = path, (path,)
        if suffix_of(path) in (".arrow", ".feather"):
            self._open_batches()
        else:
            self._open_row_groups()
        with library(path):
            self.types = dtypes_of(self._schema)
        is_null = arrow(path).pa.types.is_null  # what pandas writes of nothing
        self.empty = frozenset(field.name for field in self._schema if is_null(field.type))

    def _open_row_groups(self):
        file = open_parquet(self._path)
        self._schema, about = file.schema_arrow, file.metadata
        self.sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
        self._table = lambda group, names: file.read_row_group(
            group, [self._whole_name(name) for name in names], use_threads=False
        )

    def _whole_name(self, name: str) -> str:
        """Return a column without the place in its lists; `t [C]` may be a name."""
        is_place = name.endswith("]") and name not in self._schema.names
        return name.rpartition("[")[0] if is_place else name

    def _open_batches(self):
        parts = arrow(self._path)
        size_of(self._path)
        with library(self._path):
            file = parts.ipc.open_file(parts.pa.memory_map(str(self._path)))
            batches = [file.get_batch(number) for number in range(file.num_record_batches)]
            for batch in batches:
                batch.validate(full=True)
        self._schema, self.sizes = file.schema, [batch.num_rows for batch in batches]
        self._table = lambda group, names: parts.pa.Table.from_batches([batches[group]])

    def read(self, group, names):
        with library(self._path):
            table = self._table(group, list(names))
            found = {name: flat_column(table, name) for name in names}
            for name, column in found.items():
                checked_rows(column, self.sizes[group], self._path, name).validate(full=True)
            return {name: column_of(found[name], self.types[name]) for name in names}


class FrameGroups(RowGroups):
    """A frame in memory: a pyarrow.Table, or what pandas, polars and xarray have.

    files   that it was read from
    """

    is_in_memory = True

    def __init__(self, frame, files=()):
        parts, self.files = arrow("a frame"), files
        self._table = as_arrow(frame, parts.pa)
        self.sizes = [self._table.num_rows]
        self.types = dtypes_of(self._table.schema)

    @cached_property
    def content(self):
        parts, written = arrow("a frame"), BytesIO()
        with parts.ipc.new_stream(written, self._table.schema) as stream:
            stream.write_table(self._table.combine_chunks())
        return checksum(written.getbuffer())

    def read(self, group, names):
        return {name: column_of(flat_column(self._table, name), self.types[name]) for name in names}


def is_frame(value) -> bool:
    """Return True for what as_arrow takes, but for {name: column}."""
    return hasattr(value, "schema") or hasattr(value, "iloc") or hasattr(value, "to_dataframe")


def as_arrow(frame, pa):
    """Return a frame as a pyarrow.Table. Errors: ConfigurationError."""
    try:
        table = _arrow_of(frame, pa)
        if not isinstance(table, pa.Table):
            raise TypeError("it has no columns")
        return table
    except (AttributeError, TypeError, ValueError, pa.ArrowException) as error:
        raise ConfigurationError(
            f"a frame of type {type(frame).__name__} is no table: {str(error)[:200]}; wanted one "
            "of pandas, polars, xarray or pyarrow, or {name: column}"
        ) from None


def _arrow_of(frame, pa):
    if isinstance(frame, pa.Table):
        return frame
    if hasattr(frame, "to_arrow"):  # of polars
        return frame.to_arrow()
    if hasattr(frame, "to_dataframe"):  # of xarray
        frame = frame.to_dataframe().reset_index()
    if hasattr(frame, "iloc"):  # of pandas
        return pa.Table.from_pandas(frame, preserve_index=False)
    return pa.table(frame)


class JoinedGroups(RowGroups):
    """The groups of several files of one kind, one behind the other.

    keys   of each file: {name: value} that its folders say (`year=2025`); None: nothing
    """

    def __init__(self, path: Path, parts: list[RowGroups], keys: list[dict[str, str | None]]):
        self._parts, self._keys = parts, keys
        self.files = tuple(file for part in parts for file in part.files)
        self.sizes = [size for part in parts for size in part.sizes]
        self._begins = [0, *accumulate(len(part.sizes) for part in parts)]
        self._rows = [0, *accumulate(sum(part.sizes) for part in parts)]
        self.types = _joined_types(path, parts)
        self.empty = frozenset.intersection(*[part.empty for part in parts])
        _check_keys(path, keys, self.types)
        for name in keys[0]:
            values = [value for each in keys if (value := each[name]) is not None]
            are_finite = all(map(is_number, values)) and all(map(isfinite, map(float, values)))
            self.types[name] = NUMBER if are_finite else TEXT

    def read(self, group, names):
        part = int(numpy.searchsorted(self._begins, group, side="right")) - 1
        keys, rows = self._keys[part], self.sizes[group]
        inside = [name for name in names if name not in keys]
        found = self._parts[part].read(group - self._begins[part], inside)
        for name in names:
            if name in keys:
                found[name] = _constant(keys[name], self.types[name], rows)
            elif self.types[name] == TEXT and name in self._parts[part].empty:
                found[name] = _constant(None, TEXT, rows)
        return found

    def place(self, row):
        part = int(numpy.searchsorted(self._rows, row, side="right")) - 1
        (file,) = self._parts[part].files
        place = self._parts[part].place(row - self._rows[part])
        return f"{file.name}, {place}"


def _check_keys(path: Path, keys, columns) -> None:
    """Raise ConfigurationError unless all folders say as much, and no file has it too."""
    for each in keys:
        if each.keys() != keys[0].keys():
            raise ConfigurationError(
                f"{path}: the folders of its files say {list(keys[0])}, but also {list(each)}; "
                "wanted the same name=value above all files"
            )
    for name in keys[0].keys() & columns.keys():
        raise ConfigurationError(f"{path}: {name!r} is a folder and a column; rename one")


def _constant(value: str | None, dtype, rows: int):
    if dtype == NUMBER:
        return numpy.full(rows, numpy.nan if value is None else float(value))
    if value is None:
        return Text(numpy.full(rows, -1), ())
    return Text(numpy.zeros(rows, numpy.int64), (value,))


def _joined_types(path: Path, parts: list[RowGroups]) -> dict:
    """Return the columns of all parts; of one that is empty in some what it is in the others.

    Errors: ConfigurationError where they have other columns.
    """
    first = parts[0]
    types = dict(first.types)
    telling = dict.fromkeys(types, first)
    for part in parts[1:]:
        for name in sorted(part.types.keys() ^ types.keys()):
            pair = (first, part) if name in types else (part, first)
            holder, other = map(_name_of, pair)
            raise ConfigurationError(
                f"{path}: {holder} has a column {name!r}, and {other} has none; wanted the same "
                "columns in all files"
            )
        for name, dtype in part.types.items():
            if name in telling[name].empty:
                types[name], telling[name] = dtype, part
            elif name not in part.empty and str(dtype) != str(types[name]):
                raise ConfigurationError(
                    f"{path}: column {name!r} is {_kind_of(dtype)} in {_name_of(part)}, and "
                    f"{_kind_of(types[name])} in {_name_of(telling[name])}; wanted the same in all "
                    "files, or its name in data.categories"
                )
    return types


def _name_of(part: RowGroups) -> str:
    return part.files[0].name


def _kind_of(dtype) -> str:
    """Return in words what a column of this dtype holds."""
    kinds = {str(NUMBER): "numbers", str(TEXT): "texts"}
    return "nested values" if dtype is None else kinds.get(str(dtype), "times")


def rows_below(path: Path, suffixes) -> list[Path]:
    """Return the files of a folder that end so, in the order of their names.

    What begins with a dot or an underscore is passed over, as other programs do.
    Errors: InputError if there are none, or too many; as files.folders.files_below.
    """
    found = [
        file
        for file in sorted(files_below(path, hidden="._"))
        if file.name[0] not in "._" and file.name.lower().endswith(tuple(suffixes))
    ]
    if not 0 < len(found) <= _MOST_FILES:
        raise InputError(
            f"{path} has {len(found):,} files that end in {', '.join(suffixes)}; wanted 1 to "
            f"{_MOST_FILES:,}",
            path,
        )
    return found


def keys_of(file: Path, folder: Path) -> dict[str, str | None]:
    """Return what the folders of a file say of it: year=2025/month=3 -> {year: 2025, month: 3}."""
    parts = file.relative_to(folder).parts[:-1]
    pairs = [part.partition("=") for part in parts]
    return {
        name: None if value == _NOTHING else unquote(value)  # it is written as in an address
        for name, is_key, value in pairs
        if is_key
    }
