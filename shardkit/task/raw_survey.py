"""One pass over a table of numbers, texts and times before training, which ranks share.

group 0, 1, ... of data.path             each on some rank: findings of its training rows, and
groups of data.validation_path           the classes of those that are held out
   --merged in their order, on one rank--> ColumnEncoder, what was left out, what tells the target
"""

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy

from ..data.arrow import TEXT, TIME
from ..data.raw.encodings import ColumnEncoder, as_classes, as_names, as_text
from ..data.raw.findings import ColumnFindings, Fitting, SlipError, classes, sampled, tells
from ..data.raw.samples import place_of
from ..data.samples import Selected
from ..data.scaling import Scaling
from ..data.tables import MOST_CLASSES, RawSamples
from ..errors import ConfigurationError, ShardingWarning
from .class_checks import check_named
from .described import Described
from .table_files import TableData, rows_of


@dataclass
class RawFindings:
    """What some rows have shown.

    columns  of the training rows, {name: findings}
    held     the texts of each target of classes, in the rows that are held out
    """

    columns: dict[str, ColumnFindings] = field(default_factory=dict)
    held: dict[str, set[str]] = field(default_factory=dict)

    def merge(self, other: "RawFindings") -> None:
        """Add what other rows have shown."""
        for name, found in other.columns.items():
            if self.columns.setdefault(name, found) is not found:
                self.columns[name].merge(found)
        for name, texts in other.held.items():
            self.held.setdefault(name, set()).update(texts)


class RawSurvey:
    """The groups of the rows of a run.

    training, validation  RawSamples, or a selection of them
    """

    def __init__(self, training, validation, data: TableData):
        self._data = data
        self._training, self._validation = training, validation
        self._rows: RawSamples = rows_of(training)
        others: RawSamples = rows_of(validation)
        self._others = None if others is self._rows else others

    def __len__(self):
        others = 0 if self._others is None else self._others.table.num_groups
        return self._rows.table.num_groups + others

    def look(self, number: int) -> RawFindings:
        """Return what a group shows. Errors: ConfigurationError, OSError."""
        num_groups = self._rows.table.num_groups
        if number < num_groups:
            return self._look(self._rows, number)
        assert self._others is not None
        return RawFindings(held=self._classes(self._others, number - num_groups, None))

    def _look(self, rows: RawSamples, group: int) -> RawFindings:
        table = rows.table
        first, stop = table.begins[group : group + 2].tolist()
        is_held = _is_in(self._validation, first, stop)
        kept = numpy.flatnonzero(~is_held)
        is_sampled = sampled(len(rows), first, stop)[kept]
        names = [*rows.feature_names, *rows.target_names]
        columns = table.group(group, names)
        found = {}

        def where(row) -> str:
            return place_of(table, int(kept[row]) + first)

        for name in names:
            column = self._typed(name, _rows_of(columns[name], kept), where)
            dtype = TEXT if self._is_text(name) else table.fields[name].dtype
            found[name] = ColumnFindings.of(column, dtype, name, is_sampled, where)
        return RawFindings(found, self._classes(rows, group, numpy.flatnonzero(is_held)))

    def _is_class(self, name: str) -> bool:
        is_class = self._data.has_classes or self._data.kind == "mixed" and self._is_named(name)
        return is_class and name in self._rows.target_names

    def _is_named(self, name: str) -> bool:
        return self._rows.table.fields[name].is_text or name in self._data.categories

    def _is_text(self, name: str) -> bool:
        return self._is_class(name) or name in self._data.categories

    def _typed(self, name: str, column, where):
        if self._is_class(name):
            return as_classes(column, name, where)
        return as_names(column, name, where) if self._is_text(name) else column

    def _classes(self, rows: RawSamples, group: int, kept) -> dict[str, set[str]]:
        """Return the texts of the targets that are classes; kept None: of all rows."""
        names = [*filter(self._is_class, rows.target_names)]
        found = {}
        for name, column in rows.table.group(group, names).items():
            text = as_text(column if kept is None else _rows_of(column, kept))
            there = set(text.codes.tolist())
            found[name] = {value for code, value in enumerate(text.values) if code in there}
        return found

    # ---- all of them -----------------------------------------------------------------------------

    def merged(self, findings: list[RawFindings]) -> RawFindings:
        """Return what all rows show. Errors: ConfigurationError if ranks have other columns."""
        total = RawFindings()
        for found in findings:
            total.merge(found)
        own = (*self._rows.feature_names, *self._rows.target_names)
        for name in sorted(total.columns.keys() ^ {*own}):
            raise ConfigurationError(
                f"{self._data.place}: not all ranks have a column {name}; pass the same data on all"
            )
        return total

    def described(self, findings: list[RawFindings]) -> Described:
        """Return what a pass over all rows has found. Errors: ConfigurationError.

        Warns of features that are left out, and of one that alone says what a target is.
        """
        total, data = self.merged(findings), self._data
        fitting = Fitting(data.rare, data.scaling, data.target_scaling, str(self._rows.table.path))
        made: dict[str, Any] = {}
        left_out: dict[str, str] = {}
        for name in self._rows.feature_names:
            encoding = self._feature(fitting, name, total.columns[name])
            (left_out if isinstance(encoding, str) else made)[name] = encoding
        if not made:
            raise ConfigurationError(f"{data.place} has no feature that says something: {left_out}")
        encoder = ColumnEncoder(tuple(made.values()), self._targets(fitting, total))
        self._warn(total, encoder, left_out)
        counts = total.columns[encoder.targets[0].name].counts
        return Described(
            tuple(made),
            encoder.names,
            tuple(each.name for each in encoder.targets),
            Scaling.none(0),
            Scaling.none(0),
            len(encoder.class_names),
            tuple(counts[value] for value in encoder.class_names),
            encoder=encoder,
            left_out=left_out,
        )

    def _warn(self, total: RawFindings, encoder: ColumnEncoder, left_out: dict[str, str]) -> None:
        found = total.columns
        said = []
        if left_out:
            reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
            said.append(f"columns are left out, since they say nothing ({reasons:.500})")
        said += [
            f"column {each.name} alone tells {', '.join(self._data.target)}; if it is not known "
            "before what is predicted, leave it out of data.features"
            for each in encoder.features
            if any(tells(found[each.name], found[target.name]) for target in encoder.targets)
        ]
        for words in said:
            warnings.warn(f"{self._data.place}: {words}", ShardingWarning, stacklevel=4)

    def _feature(self, fitting: Fitting, name: str, found: ColumnFindings):
        dtype = TEXT if self._is_text(name) else self._rows.table.fields[name].dtype
        if dtype == TEXT and self._rows.table.fields[name].dtype == TIME:
            raise ConfigurationError(
                f"{self._rows.table.path}: {name} of data.categories holds times; leave it out"
            )
        if not self._data.standardize and dtype != TEXT:
            fitting = Fitting(fitting.rare, "standard", fitting.target_scaling, fitting.where)
        try:
            may_slip = name in self._data.categories
            return fitting.feature(name, dtype, found, may_slip=may_slip)
        except SlipError as slip:
            raise ConfigurationError(
                str(SlipError(slip.name, slip.text, self._place(slip)))
            ) from None

    def _place(self, slip: SlipError) -> str:
        """Return where the text of a slip stands."""
        table = self._rows.table
        for first, column in zip(table.begins.tolist(), table.column(slip.name)):
            text = as_text(column)
            if slip.text in text.values:
                rows = text.codes == text.values.index(slip.text)
                return place_of(table, first + int(rows.argmax()))
        return str(table.path)

    def _targets(self, fitting: Fitting, total: RawFindings) -> tuple[Any, ...]:
        names = self._rows.target_names
        are_mixed = len(names) > 1 and any(map(self._is_class, names))
        if self._data.kind == "mixed" and not are_mixed:
            raise ConfigurationError(
                f"{self._rows.table.path}: data.kind = 'mixed' of {', '.join(names)}; wanted "
                "several targets, of which texts and those in data.categories are classes"
            )
        return tuple(
            self._target(fitting, name, total.columns[name], total.held.get(name, set()))
            for name in names
        )

    def _target(self, fitting: Fitting, name: str, found: ColumnFindings, held: set[str]):
        self._check_target(name, found)
        if self._is_class(name):
            made = classes(name, found, MOST_CLASSES)
            check_named(self._data, made, held, len(self._training))
            return made
        return fitting.target(name, found)

    def _check_target(self, name: str, found: ColumnFindings):
        where = f"{self._rows.table.path}, column {name} of data.target"
        if self._rows.table.fields[name].dtype == TIME:
            raise ConfigurationError(
                f"{where} holds times; wanted numbers or classes, such as the days since a date"
            )
        if self._data.kind == "regression" and found.counts:
            raise ConfigurationError(
                f"{where} holds texts, {len(found.counts):,} different ones; wanted numbers, or "
                "data.kind = 'multiclass' or 'binary'"
            )
        if found.missing:
            raise ConfigurationError(
                f"{where}: nothing in {found.missing:,} of {found.rows:,} training rows; wanted a "
                "value in each: leave these rows out of the file"
            )


def _rows_of(column, kept):
    """Return some rows of a column."""
    if isinstance(column, numpy.ndarray):
        return column[kept]
    return type(column)(column.codes[kept], column.values)


def _is_in(samples, first: int, stop: int) -> numpy.ndarray:
    """Return which of the rows [first, stop) are in a selection; of other samples none: bool."""
    is_in = numpy.zeros(stop - first, bool)
    if isinstance(samples, Selected):
        ranges = samples.ranges
        near = (ranges.stops > first) & (ranges.starts < stop)
        for begin, end in zip(ranges.starts[near] - first, ranges.stops[near] - first):
            is_in[max(begin, 0) : end] = True
    return is_in
