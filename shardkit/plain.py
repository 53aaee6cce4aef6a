"""Plain data: what users pass, as JSON, TOML and the manifests of checkpoints hold it.

    numpy.int64(4), a 0-d array   4         numpy.float32(0.5), Fraction(1, 2)   0.5
    numpy.bool_(True)             True      numpy.str_("a")                      "a"
    Path("/data")                 "/data"   numpy.array([1, 2]), range(1, 3)     [1, 2]

What is something else stays what it is: whoever stores it checks it, and says what was wanted.
"""

import os
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy

_TAKEN = "bool", "int", "float", "str"  # the types of Python's own, and what they are made of
_LISTS = (list, range, numpy.ndarray)


def plain(value: Any) -> Any:
    """Return the value with all that it contains as plain data, as far as there is some."""
    value = unboxed(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, _LISTS):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {unboxed(name): plain(each) for name, each in value.items()}
    return value


def unboxed(value: Any) -> Any:
    """Return Python's own number or text in the place of another kind of one; the value else."""
    if type(value).__name__ in _TAKEN and type(value).__module__ == "builtins":
        return value
    if isinstance(value, numpy.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (bool, numpy.bool_)):
        return bool(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) or _is_half(value):
        return _as_float(value)
    return value


def _is_half(value) -> bool:
    """Return True for a bfloat16 or float8, which numpy knows from ml_dtypes as no number."""
    return isinstance(value, numpy.generic) and "float" in value.dtype.name


def _as_float(value) -> Any:
    try:
        return float(value)
    except OverflowError:  # a fraction of integers that no float can hold
        return value


def counted(number: int, name: str) -> str:
    """Return how many there are of what has this name: "1 rank", "2,000 steps"."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"
