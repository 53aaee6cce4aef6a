"""Standardization: columns of mean 0 and standard deviation 1, fitted on the training rows.

    training rows, block after block, in their order --> count, mean, squared deviations --> Scaling

The order of additions is that of survey.py. Source: Chan, Golub, LeVeque, "Updating formulae and a
pairwise algorithm for computing sample variances" (1979).
"""

from dataclasses import dataclass

import numpy


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

    def _along(self, ndim: int):
        """Return center and scale in a form that spreads over values of so many dims."""
        shape = [1] * ndim
        shape[self.axis] = -1
        return self.center.reshape(shape), self.scale.reshape(shape)


def in_columns(values, axis: int) -> numpy.ndarray:
    """Return values with the columns along an axis as [n, columns]."""
    return numpy.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])


class Moments:
    """What is known of the rows that were added, column by column.

    count, mean, squares  how many; [columns] float64: their mean, the sum of squared deviations
    """

    def __init__(self, columns: int):
        self.count = 0
        self.mean = numpy.zeros(columns)
        self.squares = numpy.zeros(columns)

    def add(self, values) -> None:
        """Add rows [n, columns]."""
        values = numpy.asarray(values, numpy.float64)
        count = len(values)
        if not count:
            return
        mean = values.mean(0)
        deviations = values - mean
        self._merge(count, mean, (deviations * deviations).sum(0))

    def merge(self, other: "Moments") -> None:
        """Add the rows that were added to another."""
        if other.count:
            self._merge(other.count, other.mean, other.squares)

    def _merge(self, count, mean, squares):
        difference = mean - self.mean
        total = self.count + count
        self.squares += squares
        self.squares += difference**2 * (self.count * count / total)
        self.mean += difference * (count / total)
        self.count = total

    def scaling(self, axis: int = -1) -> Scaling:
        """Return the scaling to mean 0 and deviation 1; a constant column is only shifted."""
        deviation = numpy.sqrt(self.squares / max(self.count, 1))
        is_constant = deviation <= 1e-12 * numpy.abs(self.mean)
        return Scaling(self.mean.copy(), numpy.where(is_constant, 1.0, deviation), axis)
