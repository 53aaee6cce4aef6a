"""Check arguments at the door: numbers, integers, words. And offer the known name that an unknown
one is close to.

require(is_number(lr, at_least=0), "lr", lr, "a finite number, at least 0")
nearest("run.setps", ("run.steps", "run.seed"))             "run.steps"
"""

from math import inf, isfinite
from numbers import Integral, Real
from typing import Any

from .errors import ConfigurationError

_CLOSE = 0.6  # of difflib's ratio, its own cutoff: below it names have little in common


def require(holds: bool, name: str, got, wanted: str) -> None:
    """Errors: ConfigurationError with what was got and what was wanted unless `holds`."""
    if not holds:
        raise ConfigurationError(f"{name} = {got!r}; wanted {wanted}")


def is_number(
    value: Any, *, at_least: float = -inf, above: float = -inf, below: float = inf
) -> bool:
    """Return True for a finite number of Python or NumPy in this range; no bool."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    number: Any = value
    try:
        return isfinite(number) and number >= at_least and above < number < below
    except OverflowError:  # an integer that no float can hold
        return False


def is_integer(value, *, at_least: float = -inf) -> bool:
    """Return True for an integer of Python or NumPy of at least this; no bool, no 2.0."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return int(value) >= at_least


def is_among(value, names) -> bool:
    """Return True for one of these names; no value of another type, whatever it equals."""
    return isinstance(value, str) and value in names


def nearest(name: str, known) -> str | None:
    """Return the known name that is probably meant; None if none is close.

    Of dotted names the last parts must be close, so that "optimizer.x" is not near all that begins
    with "optimizer.".
    """

    def likeness(candidate: str) -> tuple[float, float]:
        last = _last_part(name), _last_part(candidate)
        is_same = name.replace("_", ".") == candidate.replace("_", ".")
        of_last = 1.0 if is_same or _is_short_for(*last) else _likeness(*last)
        return of_last, _likeness(name, candidate)

    best = max(known, key=likeness, default=None)
    return best if best is not None and likeness(best)[0] >= _CLOSE else None


def _is_short_for(one: str, other: str) -> bool:
    """Return True for the beginning of a name, "vocab", and for the first letters of its words."""
    initials = "".join(word[:1] for word in other.split("_"))
    begins = len(one) > 2 and other.startswith(one)
    return begins or len(one) > 1 and one == initials


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _likeness(one: str, other: str) -> float:
    from difflib import SequenceMatcher

    return SequenceMatcher(None, one.lower(), other.lower()).ratio()
