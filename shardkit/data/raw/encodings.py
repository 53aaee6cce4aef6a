"""How the columns of a table become columns of x and y; fitted by a survey, kept by the run.

    price    12.5       Numbers      (value - center) / scale, of logarithms or of ranks if skewed;
                                     of x, those far out are bent
             nothing    0, the mean, and 1 in the column `price is missing`
    city     Rome       Categories   1 in the column `city = Rome`, or a number to look up
             Tibur      those that are rare or were never seen share one
    sold     2026-03-01 Times        years, place in the year, week and day
    grade    B          Classes      the number of the class

All of it is plain NumPy on what arrow.py makes of a column, and a value of JSON.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, ClassVar

import numpy

from ...errors import ConfigurationError, InputError
from ...files.reading import wanted, wanted_count
from ..arrow import Text
from ..scaling import LARGEST_NUMBER
from .csv_head import is_number

_MOST_ONE_HOT = 16
_MOST_EXACT = 2.0**53  # up to which all whole numbers are exact
_PLAIN = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{1,15})?", re.ASCII)
_DAY, _YEAR = 86400.0, 31556952.0  # seconds
_TURNS = (("year", _YEAR, 2), ("day", _DAY, 2))  # period, harmonics
_WEEKDAYS = ("Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed")  # as the days since 1970 go on
_MOST_Z = 3.0  # deviations to which ranks reach
_FARTHEST = 10.0  # deviations to which logarithms reach down


def as_text(column) -> Text:
    """Return a column as texts; whole numbers have no point."""
    if isinstance(column, Text):
        return column
    values, codes = numpy.unique(column, return_inverse=True)
    is_none = numpy.isnan(values)
    texts = map(_shortest, values[~is_none].tolist())
    return Text(numpy.where(is_none[codes], -1, codes), tuple(texts))


def _shortest(number: float) -> str:
    """Return the number as text: 7, 0.1."""
    is_whole = abs(number) < _MOST_EXACT and number == int(number)
    return str(int(number)) if is_whole else repr(number)


def as_names(column, name: str, where) -> Text:
    """Return a column of categories as texts.

    Errors: ConfigurationError on numbers so large that two of them may have become one.
    """
    if not isinstance(column, Text):
        wrong = numpy.flatnonzero(numpy.abs(column) >= _MOST_EXACT)
        if wrong.size:
            raise ConfigurationError(
                f"{where(wrong[0])}, column {name}: {column[wrong[0]]:.0f}; wanted names that are "
                "texts, or numbers below 2^53, which are told from each other"
            )
    return as_text(column)


def as_classes(column, name: str, where) -> Text:
    """Return a target of classes as texts. Errors: ConfigurationError on fractions."""
    if not isinstance(column, Text):
        wrong = numpy.flatnonzero(~numpy.isnan(column) & (column != numpy.floor(column)))
        if wrong.size:
            raise ConfigurationError(
                f"{where(wrong[0])}, column {name}: {column[wrong[0]]}; wanted a class, a whole "
                "number or a text; of other numbers data.kind is 'regression'"
            )
    return as_names(column, name, where)


def as_numbers(column, name: str, where) -> numpy.ndarray:
    """Return a column of numbers or times: [n] float64.

    where   function of a row in the column that says where it stands
    Errors: ConfigurationError on texts that are no numbers, and on numbers beyond all scaling.
    """
    if isinstance(column, Text):
        column = _parsed(column, name, where)
    wrong = numpy.flatnonzero(numpy.abs(column) > LARGEST_NUMBER)
    if wrong.size:
        raise ConfigurationError(
            f"{where(wrong[0])}, column {name}: {column[wrong[0]]}; wanted a finite number, "
            f"at most {LARGEST_NUMBER:.0e}"
        )
    return column


def _parsed(column: Text, name: str, where) -> numpy.ndarray:
    for code, value in enumerate(column.values):
        if not is_number(value):
            row = int(numpy.flatnonzero(column.codes == code)[0])
            raise ConfigurationError(
                f"{where(row)}, column {name}: {value!r:.100}; wanted a number"
            )
    return column.through(map(float, column.values), numpy.nan)


@dataclass(frozen=True)
class Numbers:
    """A column of numbers: (f(value) - center) / scale, where f is the value itself or skews less.

    knots     values of equal ranks, from the lowest to the highest: f is the normal deviate of the
              rank; () otherwise
    log_from  f is log(value + log_from); None otherwise
    limits    of predictions, scaled: the lowest and the highest value in training; () of features
    bound     of x: in its last deviation it is bent, so that no model extends what common values
              showed to rare ones far out; None: no bound
    has_flag  some were missing in training: a second column says so
    """

    kind: ClassVar[str] = "numbers"
    embedding: ClassVar[tuple[int, int] | None] = None
    name: str
    center: float = 0.0
    scale: float = 1.0
    knots: tuple[float, ...] = ()
    log_from: float | None = None
    has_flag: bool = False
    limits: tuple[float, ...] = ()
    bound: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns of x."""
        return (self.name, f"{self.name} is missing") if self.has_flag else (self.name,)

    @property
    def is_whole(self) -> bool:
        """True if knots and limits that are there have two ends, and a bound is 1 or more."""
        has_ends = len(self.knots) != 1 and len(self.limits) in (0, 2)
        return has_ends and (self.bound is None or self.bound >= 1)

    @cached_property
    def _ranks(self) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return knots, each once, and the mean deviate of those that were equal."""
        deviate = NormalDist().inv_cdf
        least = NormalDist().cdf(-_MOST_Z)
        ranks = numpy.linspace(0, 1, len(self.knots)).clip(least, 1 - least)
        places = [*map(deviate, ranks.tolist())]
        knots, where = numpy.unique(self.knots, return_inverse=True)
        return knots, numpy.bincount(where, places) / numpy.bincount(where)

    def apply(self, column, where) -> numpy.ndarray:
        """Return its columns of x, [n, len(names)]. Errors: ConfigurationError."""
        values = as_numbers(column, self.name, where)
        scaled = self.scaled(values)
        if self.bound is not None:
            scaled = _bent(scaled, self.bound)
        columns = [numpy.nan_to_num(scaled), numpy.isnan(values)]
        return numpy.stack(columns[: len(self.names)], 1)

    def predicted(self, scaled) -> numpy.ndarray:
        """Return predictions in the units of the file, inside of what was in training."""
        lowest, highest = self.limits or (-numpy.inf, numpy.inf)
        return self.invert(numpy.clip(scaled, lowest, highest))

    def known(self, column, where) -> numpy.ndarray:
        """Return a target as y has it, [n]. Errors: ConfigurationError if one is missing."""
        return self.scaled(known(column, self.name, where))

    def scaled(self, values) -> numpy.ndarray:
        """Return numbers as a model has them."""
        if self.knots:
            values = numpy.interp(values, *self._ranks)
        elif self.log_from is not None:
            least = numpy.exp(self.center - _FARTHEST * self.scale)  # of what has no logarithm
            values = numpy.log(numpy.maximum(values + self.log_from, least))
        return (values - self.center) / self.scale

    def invert(self, scaled) -> numpy.ndarray:
        """Return them in the units of the file again."""
        values = numpy.asarray(scaled, numpy.float64) * self.scale + self.center
        if self.knots:
            return numpy.interp(values, *self._ranks[::-1])
        return values if self.log_from is None else numpy.exp(values) - self.log_from

    def __str__(self):
        how = f"mean {self.center:.6g}, deviation {self.scale:.6g}"
        if self.knots:
            how = f"by ranks, from {self.knots[0]:.6g} to {self.knots[-1]:.6g}"
        elif self.log_from is not None:
            how = f"by logarithms{f' of {self.log_from:g} more' if self.log_from else ''}"
        bound = "" if self.bound is None else f"; none beyond {self.bound:g} deviations"
        return f"{how}{bound}{'; gaps are flagged' if self.has_flag else ''}"


def _bent(values, bound: float) -> numpy.ndarray:
    """Return the values, of which those farther out than bound - 1 end before the bound.

    Source: the smooth clipping of RealMLP (arXiv 2407.04491), which bends all values.
    """
    near = numpy.clip(values, 1 - bound, bound - 1)
    beyond = values - near
    return near + numpy.copysign(numpy.expm1(-numpy.abs(beyond)), beyond)


def time_parts(seconds) -> tuple[list[str], numpy.ndarray]:
    """Return the names of all parts of a time, and the parts of these: [n, parts] float64."""
    names, columns = ["years"], [seconds / _YEAR]
    for name, period, harmonics in _TURNS:
        for times in range(1, harmonics + 1):
            angle = 2 * numpy.pi * times * (seconds % period) / period
            names += [f"{name} sin {times}", f"{name} cos {times}"]
            columns += [numpy.sin(angle), numpy.cos(angle)]
    days = numpy.floor(seconds / _DAY) % 7
    names += _WEEKDAYS
    gaps = days * 0  # NaN where there is no time
    columns += [(days == day) + gaps for day in range(7)]
    return names, numpy.stack(columns, 1)


TIME_PARTS = len(time_parts(numpy.zeros(1))[0])


@dataclass(frozen=True)
class Times:
    """A column of times: those of its parts that differ between the training rows, scaled.

    parts, centers, scales   of each that is there
    """

    kind: ClassVar[str] = "times"
    embedding: ClassVar[tuple[int, int] | None] = None
    name: str
    parts: tuple[str, ...]
    centers: tuple[float, ...]
    scales: tuple[float, ...]
    has_flag: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns of x."""
        parts = tuple(f"{self.name} {part}" for part in self.parts)
        return (*parts, f"{self.name} is missing") if self.has_flag else parts

    def apply(self, column, where) -> numpy.ndarray:
        """Return its columns of x, [n, len(names)]. Errors: ConfigurationError."""
        seconds = as_numbers(column, self.name, where)
        names, parts = time_parts(seconds)
        found = parts[:, [names.index(part) for part in self.parts]]
        scaled = numpy.nan_to_num((found - self.centers) / self.scales)
        flags = [numpy.isnan(seconds)[:, None]] if self.has_flag else []
        return numpy.concatenate([scaled, *flags], 1)

    def __str__(self):
        return f"time as {', '.join(self.parts)}{'; gaps are flagged' if self.has_flag else ''}"


@dataclass(frozen=True)
class Categories:
    """A column of texts, of which some are categories and all others one more.

    values  the categories; what is missing is the last of them if it was in training
    """

    kind: ClassVar[str] = "categories"
    name: str
    values: tuple[str, ...]
    has_flag: bool = False

    @property
    def _labels(self) -> tuple[str, ...]:
        flag = ("is missing",) if self.has_flag else ()
        return (*(f"= {value}" for value in self.values), *flag, "is another")

    @property
    def embedding(self) -> tuple[int, int] | None:
        """Rows and width of what its numbers look up; None: each category has a column."""
        rows = len(self._labels)
        return None if rows <= _MOST_ONE_HOT else (rows, min(round(1.6 * rows**0.56), 64))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns of x."""
        if self.embedding:
            return (self.name,)
        return tuple(f"{self.name} {label}" for label in self._labels)

    def numbers(self, column) -> numpy.ndarray:
        """Return the number of each row's category, [n] int64; the last is that of all others."""
        other = len(self._labels) - 1
        missing = len(self.values) if self.has_flag else other
        return _places(as_text(column), self.values, other, missing)

    def apply(self, column, where) -> numpy.ndarray:
        """Return its columns of x, [n, len(names)]."""
        numbers = self.numbers(column)
        if self.embedding:
            return numbers[:, None].astype(numpy.float64)
        return numpy.eye(len(self._labels))[numbers]

    def __str__(self):
        how = "a column each" if self.embedding is None else f"{self.embedding[1]} learned numbers"
        shown = ", ".join(self.values[:6]) + (", ..." if len(self.values) > 6 else "")
        gaps = ", gaps" if self.has_flag else ""
        return f"{len(self.values)} categories ({shown}){gaps} and all others, {how}"


@dataclass(frozen=True)
class Classes:
    """The classes of a target: their names, in the order of their numbers."""

    kind: ClassVar[str] = "classes"
    name: str
    values: tuple[str, ...]

    def known(self, column, where) -> numpy.ndarray:
        """Return class numbers, [n] int64. Errors: ConfigurationError on what is none."""
        text = as_text(column)
        numbers = _places(text, self.values, -1, -1)
        wrong = numpy.flatnonzero(numbers < 0)
        if wrong.size:
            code = text.codes[wrong[0]]
            got = "nothing" if code < 0 else f"{text.values[code]!r:.100}"
            raise ConfigurationError(
                f"{where(wrong[0])}, column {self.name}: {got}; wanted one of the "
                f"{len(self.values)} classes of the training rows, {', '.join(self.values)[:200]}"
            )
        return numbers

    def __str__(self):
        return f"{len(self.values)} classes: {', '.join(self.values)[:300]}"


def _places(text: Text, values: tuple[str, ...], other: int, missing: int) -> numpy.ndarray:
    """Return the place of each row's text among these values, or what other texts have."""
    places = {value: place for place, value in enumerate(values)}
    of_numbers = {_plain(value): place for value, place in places.items()}

    def place_of(value):
        found = places.get(value)
        return of_numbers.get(_plain(value), other) if found is None else found

    return text.through(map(place_of, text.values), missing)


def _plain(text: str) -> str:
    """Return a number without its zeros behind the point: 7.0 is 7; 007 stays."""
    return _shortest(float(text)) if _PLAIN.fullmatch(text) else text


_ALL: tuple[Any, ...] = (Numbers, Times, Categories, Classes)
_KINDS = {each.kind: each for each in _ALL}
_OPTIONAL = ("log_from", "bound")


def to_json(encoding) -> dict[str, Any]:
    """Return an encoding as JSON can hold it."""
    return {"kind": encoding.kind, **asdict(encoding)}


def from_json(values: dict, path) -> Any:
    """Return what to_json() described. Errors: InputError if it is something else."""
    values = dict(wanted(values, dict, path, "columns"))
    kind = _KINDS.get(wanted(values.pop("kind", None), str, path, "kind"))
    if kind is None:
        raise InputError(f"{path}: a column of an unknown kind", path, "columns")
    of_name = wanted(values.get("name"), str, path, "name")
    texts, numbers = ("parts", "values"), ("knots", "limits", "centers", "scales")
    for name, value in values.items():
        field = f"{of_name}.{name}"
        if name in texts or name in numbers:
            for each in wanted(value, list, path, field):
                wanted(each, str if name in texts else float, path, field)
            values[name] = tuple(value)
        elif name != "name" and not (name in _OPTIONAL and value is None):
            wanted(value, bool if name == "has_flag" else float, path, field)
    made = kind(**values)
    _check(made, path)
    return made


def _check(made, path) -> None:
    """Raise InputError if an encoding cannot be applied."""
    if isinstance(made, Times):
        known = time_parts(numpy.zeros(1))[0]
        wanted_count(len(made.parts), path, "parts", TIME_PARTS)
        is_whole = len(made.parts) == len(made.centers) == len(made.scales)
        if not is_whole or not set(made.parts) <= set(known):
            raise InputError(f"{path}: {made.name} has unknown parts of time", path, made.name)
    if isinstance(made, Numbers) and not made.is_whole:
        raise InputError(
            f"{path}: {made.name} has one knot or limit, or a bound below 1", path, made.name
        )


@dataclass(frozen=True)
class ColumnEncoder:
    """All columns of a table: those of x, and those of y.

    features  Numbers, Times and Categories; those to look up are last in x
    targets   Numbers and Classes
    """

    features: tuple[Any, ...]
    targets: tuple[Any, ...]

    @cached_property
    def _ordered(self) -> tuple[Any, ...]:
        """Return the features as they lie in x."""
        return tuple(sorted(self.features, key=lambda each: each.embedding is not None))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of x."""
        return tuple(name for each in self._ordered for name in each.names)

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that were texts: they are so in any file, also where all are booleans."""
        both = (*self.features, *self.targets)
        return tuple(each.name for each in both if _is_of_texts(each))

    @property
    def embeddings(self) -> tuple[tuple[int, int], ...]:
        """Rows and width of what the last columns of x look up."""
        return tuple(each.embedding for each in self._ordered if each.embedding)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes of the only target; () where it is a number, or one of many."""
        first = self.targets[0] if len(self.targets) == 1 else None
        return first.values if isinstance(first, Classes) else ()

    def x(self, columns: dict, where) -> numpy.ndarray:
        """Return x [n, len(names)] float32 of these columns.

        Errors: ConfigurationError, also on a number that would be infinite.
        """
        parts = [each.apply(columns[each.name], where) for each in self._ordered]
        return _narrowed(numpy.concatenate(parts, 1), self.names, where)

    def y(self, columns: dict, where) -> numpy.ndarray:
        """Return y: class numbers [n] int64, or [n, targets] float32, with classes as numbers.

        Errors: ConfigurationError on targets that are missing.
        """
        if self.class_names:
            return self.targets[0].known(columns[self.targets[0].name], where)
        parts = [each.known(columns[each.name], where) for each in self.targets]
        return _narrowed(numpy.stack(parts, 1), [each.name for each in self.targets], where)

    def invert(self, scaled) -> numpy.ndarray:
        """Return numbers [n, targets] in the units of the file, float64."""
        columns = numpy.asarray(scaled, numpy.float64).T
        return numpy.stack([*map(Numbers.invert, self.targets, columns)], 1)

    def predicted(self, scaled) -> numpy.ndarray:
        """Return predictions [n, targets] likewise, inside of what was in training."""
        return numpy.stack([*map(Numbers.predicted, self.targets, numpy.asarray(scaled).T)], 1)


def _narrowed(values, names, where) -> numpy.ndarray:
    """Return scaled values [n, columns] as float32. Errors: ConfigurationError on one too far."""
    with numpy.errstate(over="ignore"):
        found = values.astype(numpy.float32)
    wrong = numpy.argwhere(~numpy.isfinite(found))
    if wrong.size:
        row, column = wrong[0].tolist()
        raise ConfigurationError(
            f"{where(row)}, column {names[column]}: a number so far from those in training that "
            "float32 cannot hold it, scaled; is it a mark for nothing (data.missing)?"
        )
    return found


def _is_of_texts(encoding) -> bool:
    is_class = isinstance(encoding, Classes)
    return isinstance(encoding, Categories) or is_class and not all(map(is_number, encoding.values))


def known(column, name: str, where) -> numpy.ndarray:
    """Return a column of numbers of which none is missing. Errors: ConfigurationError."""
    values = as_numbers(column, name, where)
    wrong = numpy.flatnonzero(numpy.isnan(values))
    if wrong.size:
        raise ConfigurationError(f"{where(wrong[0])}, column {name}: nothing; wanted a number")
    return values


def columns_of(encodings: Sequence[Any]) -> str:
    """Return encodings as lines of a table, for people."""
    width = max((len(each.name) for each in encodings), default=0)
    return "\n".join(f"  {each.name:<{width}}  {each}" for each in encodings)
