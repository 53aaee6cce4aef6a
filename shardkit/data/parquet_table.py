"""Parquet files as tables; they need the library pyarrow.

A row group is what can be read at once: it is uncompressed whole, for the columns that are wanted.
The last few groups are kept, as long as an order of samples may come back to them.
"""

import re
from collections import OrderedDict
from pathlib import Path

import numpy

from ..errors import ConfigurationError, InputError
from ..files.reading import is_plain, library
from .columns import Field
from .parquet_file import open_parquet
from .table import Table

_KEPT_GROUPS = 8
_INDEX = re.compile(r"__index_level_\d+__", re.ASCII)  # of pandas


class ParquetTable(Table):
    """The columns of a Parquet file."""

    def __init__(self, path: Path):
        self._file = open_parquet(path)
        about = self._file.metadata
        sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
        self._begins = numpy.concatenate([[0], numpy.cumsum(sizes, dtype=numpy.int64)])
        self._kept: OrderedDict = OrderedDict()
        with library(path):
            fields = {
                column.name: Field(
                    column.name,
                    about.num_rows,
                    (),
                    _dtype(column.type),
                    is_index=_INDEX.fullmatch(column.name) is not None,
                )
                for column in self._file.schema_arrow
            }
        super().__init__(path, fields)

    def run_length(self, parts):
        return max(int(numpy.diff(self._begins).max(initial=1)), 1)

    def _values(self, numbers, parts):
        names = tuple(part.field.name for part in parts)
        values = [numpy.empty(len(numbers), part.field.dtype) for part in parts]
        groups = numpy.searchsorted(self._begins, numbers, side="right") - 1
        for group in numpy.unique(groups).tolist():
            here = numpy.flatnonzero(groups == group)
            columns = self._group(group, names)
            for target, name in zip(values, names):
                target[here] = columns[name][numbers[here] - self._begins[group]]
        return values

    def _group(self, group: int, names) -> dict[str, numpy.ndarray]:
        """Return {name: values} of a row group."""
        key = group, names
        if key not in self._kept:
            with library(self.path):
                columns = self._file.read_row_group(group, list(dict.fromkeys(names)), False)
                self._kept[key] = {
                    name: self._numbers(columns.column(name), name, group) for name in names
                }
            while len(self._kept) > _KEPT_GROUPS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _numbers(self, column, name: str, group: int) -> numpy.ndarray:
        if column.null_count:
            row = int(self._begins[group]) + numpy.flatnonzero(column.is_null().to_numpy())[0]
            raise ConfigurationError(
                f"{self.path}, {self.row_text(row)}, column {name}: nothing; wanted a number"
            )
        rows = int(self._begins[group + 1] - self._begins[group])
        if len(column) != rows:
            raise InputError(
                f"{self.path}: column {name} has {len(column)} of the {rows} rows of group {group}",
                self.path,
                name,
            )
        return column.to_numpy()


def _dtype(kind) -> numpy.dtype | None:
    """Return the dtype of a column of numbers; None for others."""
    try:
        dtype = numpy.dtype(kind.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        return None
    return dtype if is_plain(dtype) else None
