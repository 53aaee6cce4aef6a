"""Mean and variance of the fields of samples, exact over samples: in any order, on any ranks.

    a sample --float64, in its own order--> n, mean, squares --fractions--> sums over samples

Within a sample the sums are NumPy's, over the same array on any ranks; over samples they are sums
of fractions, which round nothing.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from operator import add

import numpy

ZERO = Fraction(0)


@dataclass(frozen=True)
class FieldMoments:
    """Sums over the samples of one field.

    values        elements of all samples
    means         sum over samples of n * mean
    mean_squares  sum over samples of n * mean^2
    squares       sum over samples of their squared deviations from their own mean
    not_finite    samples that hold NaN or infinity; they are in none of the others
    """

    values: int = 0
    means: Fraction = ZERO
    mean_squares: Fraction = ZERO
    squares: Fraction = ZERO
    not_finite: int = 0

    @classmethod
    def of(cls, sample) -> "FieldMoments":
        """Return those of one sample, an array."""
        wide = numpy.abs(sample) if numpy.iscomplexobj(sample) else sample
        with numpy.errstate(invalid="ignore", over="ignore"):
            flat = numpy.asarray(wide, numpy.float64).ravel()
            mean = flat.mean()
            squares = numpy.square(flat - mean).sum()
        if not numpy.isfinite([mean, squares]).all():
            return cls(not_finite=1)
        whole = Fraction(float(mean))
        size = flat.size
        return cls(size, size * whole, size * whole**2, Fraction(float(squares)))

    def __add__(self, other: "FieldMoments") -> "FieldMoments":
        return FieldMoments(*map(add, vars(self).values(), vars(other).values()))

    @property
    def mean(self) -> float:
        """Mean of all elements, rounded once; NaN without any."""
        return float(self.means / self.values) if self.values else float("nan")

    @property
    def variance(self) -> float:
        """Mean squared deviation from the mean, rounded once; NaN without any."""
        if not self.values:
            return float("nan")
        between = self.mean_squares - self.means**2 / self.values
        return float((self.squares + between) / self.values)

    @property
    def deviation(self) -> float:
        """Square root of the variance."""
        return sqrt(self.variance)


Moments = dict[str, FieldMoments]


def moments_of(arrays: dict) -> Moments:
    """Return the moments of fields [n, ...]."""
    found = {}
    for name, samples in arrays.items():
        found[name] = sum((FieldMoments.of(each) for each in samples), FieldMoments())
    return found


def added(moments: Moments, more: Moments) -> Moments:
    """Return the sums of both."""
    names = sorted({*moments, *more})
    none = FieldMoments()
    return {name: moments.get(name, none) + more.get(name, none) for name in names}


def to_stored(moments: Moments) -> dict[str, list[str]]:
    """Return moments as JSON can hold them."""
    return {name: [str(value) for value in vars(moments[name]).values()] for name in moments}


def from_stored(stored: dict[str, list[str]]) -> Moments:
    """Return what to_stored() wrote. Errors: ValueError, TypeError, AttributeError."""
    kinds = int, Fraction, Fraction, Fraction, int
    found = {}
    for name, texts in stored.items():
        pairs = zip(kinds, texts, strict=True)
        found[name] = FieldMoments(*(kind(text) for kind, text in pairs))
    return found
