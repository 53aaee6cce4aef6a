"""Standardization: columns of mean 0 and standard deviation 1, fitted on the training rows.

    training rows, block after block, in their order --> count, mean, squared deviations --> Scaling

The blocks have a fixed size and are merged in their order, on one rank, so that no mesh changes a
bit. Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances" (1979).
"""

from dataclasses import dataclass

import numpy

from ..data.samples import Samples

_BLOCK_ELEMENTS = 1 << 22


@dataclass(frozen=True, eq=False)
class Scaling:
    """Column by column, scaled = (value - center) / scale; [columns] float64 each."""

    center: numpy.ndarray
    scale: numpy.ndarray

    @classmethod
    def none(cls, columns: int) -> "Scaling":
        """Return the scaling that changes nothing."""
        return cls(numpy.zeros(columns), numpy.ones(columns))

    @classmethod
    def from_lists(cls, lists: dict) -> "Scaling":
        """Return what to_lists() described."""
        return cls(*(numpy.array(lists[name], numpy.float64) for name in ("center", "scale")))

    def to_lists(self) -> dict[str, list[float]]:
        """Return center and scale as JSON can hold them."""
        return {"center": self.center.tolist(), "scale": self.scale.tolist()}

    def apply(self, values) -> numpy.ndarray:
        """Return values [n, columns] scaled, float64."""
        return (values - self.center) / self.scale

    def invert(self, values) -> numpy.ndarray:
        """Return scaled values [n, columns] in their own units, float64."""
        return values * self.scale + self.center


class Moments:
    """Count, mean and squared deviations of the columns that were added, block after block."""

    def __init__(self, columns: int):
        self._count = 0
        self._mean = numpy.zeros(columns)
        self._squares = numpy.zeros(columns)

    def add(self, values) -> None:
        """Add rows [n, columns]."""
        values = numpy.asarray(values, numpy.float64)
        count = len(values)
        if not count:
            return
        mean = values.mean(0)
        difference = mean - self._mean
        total = self._count + count
        self._squares += ((values - mean) ** 2).sum(0)
        self._squares += difference**2 * (self._count * count / total)
        self._mean += difference * (count / total)
        self._count = total

    def scaling(self) -> Scaling:
        """Return the scaling to mean 0 and deviation 1; a constant column is only shifted."""
        deviation = numpy.sqrt(self._squares / max(self._count, 1))
        is_constant = deviation <= 1e-12 * numpy.abs(self._mean)
        return Scaling(self._mean.copy(), numpy.where(is_constant, 1.0, deviation))


def blocks_of(samples: Samples, columns: int):
    """Yield x, y of all samples in their order, in blocks of a size that `columns` decides."""
    rows = max(_BLOCK_ELEMENTS // max(columns, 1), 1)
    for first in range(0, len(samples), rows):
        yield samples.read(numpy.arange(first, min(first + rows, len(samples))))
