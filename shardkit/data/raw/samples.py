"""Rows of a raw table as samples: x and y as an Encoder makes them of its columns.

table --group by group--> columns --Encoder--> x, y of the group, kept --> rows that are wanted
"""

import threading
from collections import OrderedDict

import numpy

from ...array.random import key_of
from ...errors import ConfigurationError
from ..arrow import TIME, Text
from ..split import Ranges
from ..table import GroupedTable
from .encodings import ColumnEncoder, as_numbers, as_text, known

_MOST_KEPT_BYTES = 1 << 30  # of encoded groups
_FEWEST_KEPT = 5  # that an order of samples comes back to, and one of validation
EncodedGroup = tuple[numpy.ndarray, numpy.ndarray]


class EncodedRows:
    """The groups of a table, encoded.

    targets, weights   names of columns, () where they are not wanted
    Errors: ConfigurationError if the table lacks a column that the encoder was fitted on.
    """

    def __init__(self, table: GroupedTable, encoder: ColumnEncoder, targets, weights):
        self._table, self._encoder = table, encoder
        self._targets, self._weights = targets, weights
        features = [each.name for each in encoder.features]
        self._names = tuple(dict.fromkeys([*features, *targets, *weights]))
        encodings = [*encoder.features, *(encoder.targets if targets else ())]
        _check_there(table, [each.name for each in encodings])
        self._others = [each.name for each in encodings if self._is_other(each)]
        self._kept: OrderedDict[int, EncodedGroup] = OrderedDict()
        self._one_reader = threading.Lock()

    def _is_other(self, encoding) -> bool:
        """Return True for times where there were none in training, or the reverse."""
        return (self._table.fields[encoding.name].dtype == TIME) != (encoding.kind == "times")

    def _check_kinds(self, columns: dict, where) -> None:
        """Raise ConfigurationError on a value of another kind than in training."""
        for name in self._others:
            column = columns[name]
            gaps = column.codes < 0 if isinstance(column, Text) else numpy.isnan(column)
            if not gaps.all():
                is_time = self._table.fields[name].dtype == TIME
                got, expected = ("a time", "none") if is_time else ("no time", "one")
                raise ConfigurationError(
                    f"{where(gaps.argmin())}, column {name}: {got}; wanted {expected}, as in the "
                    "rows that this run was trained on"
                )

    def read(self, numbers) -> EncodedGroup:
        """Return x [n, columns] float32 and y of these rows. Threads take turns.

        Errors: ConfigurationError, OSError.
        """
        with self._one_reader:
            groups = numpy.searchsorted(self._table.begins, numbers, side="right") - 1
            parts = []
            for group in numpy.unique(groups).tolist():
                parts.append(self._of_group(group, numbers[groups == group]))
            if not parts:
                return self._encoded({name: numpy.empty(0) for name in self._names}, 0)
            places = numpy.argsort(numpy.argsort(groups, kind="stable"))
            x, y = (numpy.concatenate(side)[places] for side in zip(*parts))
            return x, y

    def _of_group(self, group: int, numbers) -> EncodedGroup:
        if group not in self._kept:
            columns = self._table.group(group, self._names)
            self._kept[group] = self._encoded(columns, int(self._table.begins[group]))
            self._forget()
        self._kept.move_to_end(group)
        inside = numbers - self._table.begins[group]
        x, y = self._kept[group]
        return x[inside], y[inside]

    def _forget(self):
        sizes = [x.nbytes + y.nbytes for x, y in self._kept.values()]
        while sum(sizes) > _MOST_KEPT_BYTES and len(sizes) > _FEWEST_KEPT:
            self._kept.popitem(last=False)
            del sizes[0]

    def _encoded(self, columns: dict, first: int) -> EncodedGroup:
        def where(row):
            return place_of(self._table, first + int(row))

        self._check_kinds(columns, where)
        x = self._encoder.x(columns, where)
        if not self._targets:
            return x, numpy.empty((len(x), 0), numpy.float32)
        y = self._encoder.y(columns, where)
        for name in self._weights:
            weights = _weights(columns[name], name, where)
            y = numpy.column_stack([y, weights]).astype(numpy.result_type(y, numpy.float32))
        return x, y


def _check_there(table: GroupedTable, names: list[str]) -> None:
    for name in names:
        if name not in table.fields:
            raise ConfigurationError(
                f"{table.path} has no column {name}, which this run was trained on; it has "
                f"{', '.join(table.fields)[:200]}"
            )


def _weights(column, name: str, where) -> numpy.ndarray:
    """Return the weights of rows. Errors: ConfigurationError on one below 0."""
    weights = known(column, name, where)
    wrong = numpy.flatnonzero(weights < 0)
    if wrong.size:
        raise ConfigurationError(
            f"{where(wrong[0])}, column {name}: {weights[wrong[0]]}; wanted a weight of 0 or more"
        )
    return weights


def place_of(table: GroupedTable, row: int) -> str:
    """Return where a row stands, for messages."""
    return f"{table.path}, {table.row_text(row)}"


def split_by(table: GroupedTable, name: str, percent: float, *, in_time: bool) -> tuple:
    """Return (training, validation), where validation has whole groups of rows, or the last.

    name     column that says the group, or the time, of a row
    in_time  the rows of the highest values are held out
    Errors: ConfigurationError if one part has no row.
    """
    is_held = _latest(table, name, percent) if in_time else _some(table.column(name), percent)
    if is_held.all() or not is_held.any():
        raise ConfigurationError(
            f"{table.path}: by column {name}, {int(is_held.sum())} of {len(is_held)} rows are held "
            "out; wanted some in both parts: give another column, or data.validation_percent"
        )
    return _ranges(~is_held), _ranges(is_held)


def _latest(table: GroupedTable, name: str, percent: float) -> numpy.ndarray:
    parts = [
        as_numbers(column, name, lambda row, first=first: place_of(table, first + int(row)))
        for first, column in zip(table.begins.tolist(), table.column(name))
    ]
    values = numpy.concatenate(parts)
    return values > numpy.nanquantile(values, 1 - percent / 100)


def _some(columns, percent: float) -> numpy.ndarray:
    """Return which rows are of groups that are held out: some of all groups, drawn by name."""
    texts = [as_text(column) for column in columns]
    names = sorted({value for text in texts for value in text.values})
    names.sort(key=lambda value: key_of("held out", value))
    held = set(names[: max(round(len(names) * percent / 100), 1)])
    return numpy.concatenate([t.through(map(held.__contains__, t.values), False) for t in texts])


def _ranges(is_in) -> Ranges:
    edges = numpy.flatnonzero(numpy.diff(is_in.astype(numpy.int8), prepend=0, append=0))
    return Ranges(edges[::2], edges[1::2])
