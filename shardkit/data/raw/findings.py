"""What the groups of a table show of its columns, and the encodings that follow from it.

    group 0 --ColumnFindings--> \\
    group 1 --ColumnFindings-->  > merged in their order --fitted()--> Numbers, Times, Categories
    group 2 --ColumnFindings--> /

Moments and counts are of all training rows. What needs the values side by side (skew, ranks, one
column that equals another) is told by a sample, which is the same rows for all columns: each row is
in it or not by a number of its own, whoever reads it.
"""

from dataclasses import dataclass, replace
from itertools import compress

import numpy

from ...array.random import key_of, uniform
from ...errors import ConfigurationError
from ..arrow import TEXT, TIME, Text
from ..scaling import Moments
from .csv_head import is_number
from .encodings import (
    TIME_PARTS,
    Categories,
    Classes,
    Numbers,
    Times,
    as_numbers,
    as_text,
    time_parts,
)

SAMPLED_ROWS = 1 << 14  # about so many of all training rows
_MOST_TEXTS = 1 << 20  # of one column
_MOST_STRANGE = 3  # texts among numbers that are taken for a slip
_SKEWED = 1.5
_NUM_KNOTS = 257
_FEWEST_KNOTS = 16  # different values below which ranks say nothing
_BOUND = 3.0  # deviations within which features stay
_ALMOST_ONE = 1 - 1e-9  # of a correlation
SCALINGS = ("auto", "standard", "logarithm", "ranks")


def sampled(num_rows: int, first: int, stop: int) -> numpy.ndarray:
    """Return which rows [first, stop) of so many are in the sample: bool."""
    share = min(1.0, SAMPLED_ROWS / max(num_rows, 1))
    return uniform(key_of("sampled rows", num_rows), first, stop) < share


@dataclass(eq=False)
class ColumnFindings:
    """What rows have shown of a column.

    rows, missing  how many
    moments        of numbers, or of the parts of times
    counts         {text: rows}, of texts
    sample         values of the rows of the sample: float64, NaN where missing; or texts and None
    """

    rows: int
    missing: int
    moments: Moments
    counts: dict[str, int]
    sample: list

    @classmethod
    def of(cls, column, dtype, name: str, is_sampled, where) -> "ColumnFindings":
        """Return what the rows of a column of this dtype show. Errors: ConfigurationError."""
        if dtype == TEXT:
            return cls._of_text(as_text(column), is_sampled)
        values = as_numbers(column, name, where)
        is_there = ~numpy.isnan(values)
        parts = time_parts(values)[1] if dtype == TIME else values[:, None]
        moments = Moments(TIME_PARTS if dtype == TIME else 1)
        moments.add(parts[is_there])
        missing = len(values) - int(is_there.sum())
        return cls(len(values), missing, moments, {}, values[is_sampled].tolist())

    @classmethod
    def _of_text(cls, text: Text, is_sampled) -> "ColumnFindings":
        there = text.codes[text.codes >= 0]
        counts = numpy.bincount(there, minlength=len(text.values)).tolist()
        known = {value: count for value, count in zip(text.values, counts) if count}
        values = [*text.values, None]
        sample = [values[code] for code in text.codes[is_sampled].tolist()]
        return cls(len(text), len(text) - len(there), Moments(1), known, sample)

    def merge(self, other: "ColumnFindings") -> None:
        """Add what other rows have shown."""
        self.rows += other.rows
        self.missing += other.missing
        self.moments.merge(other.moments)
        for value, count in other.counts.items():
            self.counts[value] = self.counts.get(value, 0) + count
        self.sample = self.sample + other.sample

    def numbers(self) -> numpy.ndarray:
        """Return the values of the sample that are there."""
        values = numpy.array(self.sample, numpy.float64)
        return values[~numpy.isnan(values)]


@dataclass(frozen=True)
class Fitting:
    """How encodings are fitted.

    rare            categories of fewer training rows share one
    scaling         of features, among SCALINGS
    target_scaling  likewise
    where           the file, for messages
    """

    rare: int
    scaling: str
    target_scaling: str
    where: str

    def feature(self, name: str, dtype, found: ColumnFindings, *, may_slip: bool = False):
        """Return the encoding of a feature, or in words why there is none.

        may_slip   texts may stand among numbers: it was said that they are categories
        Errors: SlipError.
        """
        if found.missing == found.rows:
            return "it is empty"
        if dtype == TEXT:
            return self._categories(name, found, may_slip)
        if dtype == TIME:
            return _times(name, found, found.missing > 0)
        made = self._number(name, found, self.scaling, "ranks")
        return replace(made, bound=_BOUND) if self.scaling == "auto" else made

    def _categories(self, name, found, may_slip):
        self._check_texts(name, found, may_slip)
        kept = {value: count for value, count in found.counts.items() if count >= self.rare}
        values = tuple(sorted(kept, key=lambda value: (-kept[value], value)))
        has_flag = found.missing >= self.rare
        if len(found.counts) < 2 and not found.missing:
            return "it has one text"
        if not values and not has_flag:
            return f"each of its {len(found.counts):,} texts is rare"
        return Categories(name, values, has_flag)

    def _check_texts(self, name, found, may_slip):
        if len(found.counts) > _MOST_TEXTS:
            raise ConfigurationError(
                f"{self.where}: column {name} has more than {_MOST_TEXTS:,} different texts; leave "
                "it out of data.features"
            )
        strange = [text for text in found.counts if not is_number(text)]
        others = sum(found.counts[text] for text in strange)
        numbers = found.rows - found.missing - others
        if 0 < len(strange) <= _MOST_STRANGE and others < numbers and not may_slip:
            raise SlipError(name, strange[0], self.where)

    def target(self, name: str, found: ColumnFindings) -> Numbers:
        """Return the encoding of a target that is a number. Errors: ConfigurationError."""
        made = self._number(name, found, self.target_scaling, "standard")
        ends = numpy.array([found.moments.lowest[0], found.moments.highest[0]])
        return replace(made, limits=tuple(made.scaled(ends).tolist()))

    def _number(self, name, found, scaling, otherwise) -> Numbers:
        """Return the encoding of numbers; otherwise: for skewed ones whose logarithms are too."""
        values, lowest = found.numbers(), float(found.moments.lowest[0])
        log_from = 0.0 if lowest > 0 else 1.0
        if scaling == "auto":
            scaling = _least_skewed(values, log_from, otherwise) if lowest >= 0 else otherwise
            scaling = scaling if abs(skew(values)) >= _SKEWED else "standard"
        has_flag = found.missing > 0
        if scaling == "logarithm":
            if lowest < 0:
                raise ConfigurationError(
                    f"{self.where}: {lowest:g} in {name} has no logarithm; give another scaling"
                )
            logs = numpy.log(values + log_from)
            center, scale = float(logs.mean()), float(logs.std()) or 1.0
            return Numbers(name, center, scale, log_from=log_from, has_flag=has_flag)
        if scaling == "ranks" and len(numpy.unique(values)) >= _FEWEST_KNOTS:
            knots = numpy.quantile(values, numpy.linspace(0, 1, _NUM_KNOTS))
            return Numbers(name, knots=tuple(knots.tolist()), has_flag=has_flag)
        moments = found.moments.scaling()
        center, scale = float(moments.center[0]), float(moments.scale[0])
        return Numbers(name, center, scale, has_flag=has_flag)


def _least_skewed(values, log_from: float, otherwise: str) -> str:
    """Return "logarithm" where it halves the skew."""
    is_less = abs(skew(numpy.log(values + log_from))) < abs(skew(values)) / 2
    return "logarithm" if is_less else otherwise


class SlipError(ConfigurationError):
    """A column of numbers holds a text; where: what stands before the column in the message."""

    def __init__(self, name: str, text: str, where: str):
        self.name, self.text = name, text
        super().__init__(
            f"{where}, column {name}: {text!r:.100}; wanted a number as in most rows; name it in "
            f"data.missing if it stands for nothing, or {name} in data.categories"
        )


def _times(name: str, found: ColumnFindings, has_flag: bool):
    names, moments = time_parts(numpy.zeros(1))[0], found.moments
    scaling = moments.scaling()
    differ = (moments.highest > moments.lowest).tolist()
    if not any(differ):
        return "it has one time"
    columns = names, scaling.center.tolist(), scaling.scale.tolist()
    kept, centers, scales = (tuple(compress(column, differ)) for column in columns)
    return Times(name, kept, centers, scales, has_flag)


def classes(name: str, found: ColumnFindings, most: int) -> Classes:
    """Return the classes of a target: numbers in their order, texts in theirs."""
    texts = sorted(found.counts, key=_order)[: most + 1]
    return Classes(name, tuple(texts))


def _order(text: str) -> tuple[bool, float, str]:
    number = float(text) if is_number(text) else numpy.inf
    return number == numpy.inf, number, text


def skew(values) -> float:
    """Return the third moment of these numbers, standardized; 0 of a constant."""
    if len(values) < 2 or not values.std():
        return 0.0
    return float((((values - values.mean()) / values.std()) ** 3).mean())


def tells(feature: ColumnFindings, target: ColumnFindings) -> bool:
    """Return True if a feature alone says what the target is, in all rows of the sample."""
    if target.counts:
        pairs = set(zip(map(str, feature.sample), map(str, target.sample)))
        sizes = {len(pairs), *(len(set(side)) for side in zip(*pairs))}
        return len(sizes) == 1 and len(pairs) > 1
    if feature.counts or len(feature.moments.mean) > 1:
        return False
    x, y = numpy.array([feature.sample, target.sample], numpy.float64)
    both = ~numpy.isnan(x) & ~numpy.isnan(y)
    x, y = x[both], y[both]
    if len(x) < 3 or not x.std() or not y.std():
        return False
    (_, correlation), _ = numpy.corrcoef(x, y)
    return bool(abs(correlation) > _ALMOST_ONE)
