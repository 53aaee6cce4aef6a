"""Initial values, as functions of (seed, parameter name, element index) alone.

    Normal(0.02).span(seed=7, name="blocks.0.mlp.up.weight", start=1000, stop=2000, dtype="float32")

are elements [1000, 2000) of that parameter, in C order. So a rank fills the part that it owns
without ever making the whole, and a model starts from the same weights however it is sharded.
"""

from dataclasses import dataclass

import numpy

from ..annotations import Array
from ..array.random import key_of, normal, uniform
from ..errors import ConfigurationError, ShardingError

CHUNK = 1 << 18  # elements per pass: the float64 temporaries stay small beside the result


class Initializer:
    """Anything with `span`; two that are equal by value give equal parameters."""

    needs_origin = True  # False: the values depend on neither seed nor name

    def span(self, seed: int, name: str, start: int, stop: int, dtype="float32"):
        """Return elements [start, stop) of the parameter: a new array [stop - start] of dtype."""
        values = numpy.empty(max(stop - start, 0), dtype)
        for begin in range(start, stop, CHUNK):
            end = min(begin + CHUNK, stop)
            values[begin - start : end - start] = self._elements(
                key_of(seed, "weights", name), begin, end
            )
        return values

    def _elements(self, key: int, start: int, stop: int):
        """Return the float64 values [stop - start], or one number for all of them."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Normal(Initializer):
    """Normally distributed around 0 with standard deviation `std`."""

    std: float

    def __post_init__(self):
        _check_not_negative("Normal", "std", self.std)

    def _elements(self, key, start, stop):
        return normal(key, start, stop) * self.std


@dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """Uniform in [-bound, bound)."""

    bound: float

    def __post_init__(self):
        _check_not_negative("Uniform", "bound", self.bound)

    def _elements(self, key, start, stop):
        return (2 * uniform(key, start, stop) - 1) * self.bound


@dataclass(frozen=True, slots=True)
class Fill(Initializer):
    """One value everywhere."""

    value: float

    def _elements(self, key, start, stop):
        return self.value


@dataclass(frozen=True, slots=True, eq=False)
class Copied(Initializer):
    """The values of an array, whatever seed and name are."""

    needs_origin = False
    values: Array

    def __eq__(self, other):
        return type(other) is Copied and numpy.array_equal(self.values, other.values)

    __hash__ = object.__hash__

    def _elements(self, key, start, stop):
        return self.values.reshape(-1)[start:stop]


@dataclass(frozen=True, slots=True)
class Unread(Initializer):
    """Values still to be read from the checkpoint at `path`; asking for them is a ShardingError."""

    class_name: str
    path: str

    def _elements(self, key, start, stop):
        raise ShardingError(self.what_to_do)

    @property
    def what_to_do(self) -> str:
        built = f"{self.class_name}.from_checkpoint({self.path!r})"
        return (
            f"this model has no weights yet: {built} reads what the model is, and not its weights. "
            f"sk.load({self.path!r}) has them, on one process; or load them into a sharded model: "
            f"model = sk.FSDPModel({built}, config), then model.load_model({self.path!r})"
        )


def _check_not_negative(class_name, field, value):
    """Raise ConfigurationError unless 0 <= value."""
    if not value >= 0:
        raise ConfigurationError(f"{class_name}({field}={value}); wanted {field} >= 0")
