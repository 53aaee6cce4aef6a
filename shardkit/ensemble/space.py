"""The settings that trials differ in: lists of values, and ranges.

    {"task.width": [16, 32], "optimizer.learning_rate": {"log": [1e-4, 1e-2]}}
        --grid-->  every combination of lists       --draw(seed, trial)-->  values of one trial

What a trial draws depends on the seed and its number alone, so more trials change none.
"""

import json
import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy

from ..arguments import is_integer, is_number
from ..errors import ConfigurationError
from ..plain import plain

_WANTED = (
    "a list of values, {log = [low, high]} with 0 < low < high, or {uniform = [low, high]} with "
    "low < high"
)


@dataclass(frozen=True)
class OneOf:
    """One of several values."""

    values: tuple

    def draw(self, random: numpy.random.Generator) -> Any:
        """Return one of them."""
        return self.values[int(random.integers(len(self.values)))]

    @property
    def ends(self) -> tuple:
        """Values that stand for all when they are checked."""
        return self.values


@dataclass(frozen=True)
class Range:
    """A number of a range, its logarithm uniform or itself; an integer if both ends are."""

    low: float
    high: float
    is_log: bool

    def draw(self, random: numpy.random.Generator) -> float:
        """Return one of them."""
        low, high = self.low, self.high + self.is_integer
        if self.is_log:
            value = math.exp(random.uniform(math.log(low), math.log(high)))
        else:
            value = random.uniform(low, high)
        return min(int(value), self.high) if self.is_integer else min(max(value, low), high)

    @property
    def is_integer(self) -> bool:
        """Whether all values are integers."""
        return is_integer(self.low) and is_integer(self.high)

    @property
    def ends(self) -> tuple:
        """Values that stand for all when they are checked."""
        return self.low, self.high


def span_of(name: str, given) -> OneOf | Range:
    """Return what is tried for a setting. Errors: ConfigurationError."""
    given = storable(name, given)
    if isinstance(given, list) and given:
        return OneOf(tuple(given))
    kind, ends = next(iter(given.items())) if _is_table(given) else ("", [])
    if kind in ("log", "uniform") and len(ends) == 2 and all(map(is_number, ends)):
        if ends[0] < ends[1] and (kind == "uniform" or ends[0] > 0):
            return Range(ends[0], ends[1], kind == "log")
    raise ConfigurationError(f"{name} = {given!r:.100}; wanted {_WANTED}")


def storable(name: str, value) -> Any:
    """Return a value as the file of an ensemble holds it. Errors: ConfigurationError."""
    try:
        return json.loads(json.dumps(plain(value), allow_nan=False))
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{name} = {value!r:.100}; wanted a number, a text, a boolean, None or a list of these"
        ) from None


def _is_table(given) -> bool:
    return isinstance(given, dict) and [*map(type, given.values())] == [list]


@dataclass(frozen=True)
class Space:
    """What trials have in common, and what each setting that differs may be."""

    fixed: dict[str, Any]
    spans: dict[str, OneOf | Range]

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Space":
        """Return the space of {"section.key": a value, a list or a range}.

        Errors: ConfigurationError.
        """
        kinds = list, tuple, dict
        tried = {name: each for name, each in given.items() if isinstance(each, kinds)}
        fixed = {name: storable(name, given[name]) for name in given if name not in tried}
        return cls(fixed, {name: span_of(name, each) for name, each in tried.items()})

    def grid(self) -> list[dict[str, Any]]:
        """Return every combination. Errors: ConfigurationError where a setting has a range."""
        ranges = [name for name, span in self.spans.items() if isinstance(span, Range)]
        if ranges:
            raise ConfigurationError(
                f"{ranges[0]} has a range, which has no end of values; wanted trials, how many to "
                "draw, or lists alone"
            )
        names = list(self.spans)
        found = product(*(span.ends for span in self.spans.values()))
        return [{**self.fixed, **dict(zip(names, values))} for values in found]

    def draw(self, seed: int, number: int) -> dict[str, Any]:
        """Return the settings of the trial of this number."""
        random = numpy.random.default_rng([seed, number])
        drawn = {name: span.draw(random) for name, span in self.spans.items()}
        return {**self.fixed, **drawn}
