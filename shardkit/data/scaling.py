"""Standardization: columns of mean 0 and standard deviation 1, fitted on the training rows.

    training rows, block after block, in their order --> count, mean, squared deviations --> Scaling

The order of additions is that of survey.py. Source: Chan, Golub, LeVeque, "Updating formulae and a
pairwise algorithm for computing sample variances" (1979).
"""

from dataclasses import dataclass
from typing import Any

import numpy

from ..errors import ConfigurationError
from ..layout.part import Rows, each_part

# Of a table: sums of squares of any number of rows stay within float64, in which it is compared.
LARGEST_NUMBER = numpy.float64(1e140)
_ROUNDING = 2.0**-53  # of a float64, relative
_FAR = 2.0**20  # deviations from 0 to a mean


@dataclass(frozen=True, eq=False)
class Scaling:
    """Column by column, scaled = (value - center) / scale; [columns] float64 each.

    axis   of the values along which the columns lie: the last, or 1 of [n, channels, *grid]
    """

    center: numpy.ndarray
    scale: numpy.ndarray
    axis: int = -1

    @classmethod
    def none(cls, columns: int, axis: int = -1) -> "Scaling":
        """Return the scaling that changes nothing."""
        return cls(numpy.zeros(columns), numpy.ones(columns), axis)

    @classmethod
    def from_lists(cls, lists: dict) -> "Scaling":
        """Return what to_lists() described."""
        center, scale = (numpy.array(lists[name], numpy.float64) for name in ("center", "scale"))
        return cls(center, scale, lists.get("axis", -1))

    def to_lists(self) -> dict[str, list[float] | int]:
        """Return center and scale as JSON can hold them."""
        return {"center": self.center.tolist(), "scale": self.scale.tolist(), "axis": self.axis}

    def apply(self, values) -> numpy.ndarray:
        """Return values, [n, columns] or of more dims, scaled: float64."""
        center, scale = self._along(values.ndim)
        return (values - center) / scale

    def invert(self, values) -> numpy.ndarray:
        """Return scaled values in their own units, float64."""
        center, scale = self._along(values.ndim)
        return values * scale + center

    predicted = invert

    def of(self, values: Any) -> "Scaling":
        """Return the scaling of the columns that are in an array or slab: a slab may cut them."""
        cuts = values.cuts if isinstance(values, Rows) else ()
        for cut in cuts:
            if cut.dim == self.axis % values.ndim:
                there = slice(cut.start, cut.stop)
                return Scaling(self.center[there], self.scale[there], self.axis)
        return self

    def scaled(self, values: Any) -> Any:
        """Return an array or a slab scaled: float32. Errors: ConfigurationError."""
        scaling = self.of(values)
        return each_part(lambda array: narrowed(scaling, array), values)

    def _along(self, ndim: int):
        """Return center and scale in a form that spreads over values of so many dims."""
        shape = [1] * ndim
        shape[self.axis] = -1
        return self.center.reshape(shape), self.scale.reshape(shape)


def narrowed(scaling: Scaling, values) -> numpy.ndarray:
    """Return values scaled, as float32. Errors: ConfigurationError if one would be infinite."""
    try:
        with numpy.errstate(over="raise"):
            return scaling.apply(values).astype(numpy.float32)
    except FloatingPointError:
        raise ConfigurationError(
            f"{values.flat[numpy.abs(values).argmax()]:.6g} of a table is so far from the values "
            "in training that float32 cannot hold it, scaled; is it a mark for nothing?"
        ) from None


def in_columns(values, axis: int) -> numpy.ndarray:
    """Return values with the columns along an axis as [n, columns]."""
    return numpy.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])


class Moments:
    """What is known of the rows that were added, column by column.

    count, mean, squares  how many; [columns] float64: their mean, the sum of squared deviations
    origin                [columns] float64: from where the mean is counted; 0 unless it is so far
                          that its last digit says something of the deviation
    lowest, highest       [columns] float64
    """

    def __init__(self, columns: int):
        self.count = 0
        self.origin = numpy.zeros(columns)
        self.mean = numpy.zeros(columns)
        self.squares = numpy.zeros(columns)
        self.lowest = numpy.full(columns, numpy.inf)
        self.highest = numpy.full(columns, -numpy.inf)

    def add(self, values) -> None:
        """Add rows [n, columns]."""
        values = numpy.asarray(values, numpy.float64)
        if not len(values):
            return
        added = Moments(len(self.mean))
        added.count = len(values)
        added.lowest, added.highest = values.min(0), values.max(0)
        added._observe(values)
        is_far = numpy.abs(added.mean) > _FAR * numpy.sqrt(added.squares / added.count)
        if is_far.any():
            added.origin = numpy.where(is_far, added.mean, 0.0)
            added._observe(values - added.origin)
        self.merge(added)

    def _observe(self, values):
        self.mean = values.mean(0)
        deviations = values - self.mean
        self.squares = (deviations * deviations).sum(0)

    def merge(self, other: "Moments") -> None:
        """Add the rows that were added to another."""
        if not other.count:
            return
        if not self.count:
            self.origin = other.origin
        difference = other.mean - self.mean + (other.origin - self.origin)
        total = self.count + other.count
        self.squares += other.squares
        if self.count:
            self.squares += difference**2 * (self.count * other.count / total)
        self.mean += difference * (other.count / total)
        self.count = total
        self.lowest = numpy.minimum(self.lowest, other.lowest)
        self.highest = numpy.maximum(self.highest, other.highest)

    def scaling(self, axis: int = -1) -> Scaling:
        """Return the scaling to mean 0 and deviation 1; a constant column is only shifted.

        Constant is also what differs in the last digits alone: by rounding.
        """
        deviation = numpy.sqrt(self.squares / max(self.count, 1))
        largest = numpy.maximum(numpy.abs(self.lowest), numpy.abs(self.highest))
        is_constant = (self.highest - self.lowest <= 8 * _ROUNDING * largest) | (deviation == 0)
        return Scaling(self.origin + self.mean, numpy.where(is_constant, 1.0, deviation), axis)
