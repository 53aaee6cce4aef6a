"""Metrics: figures about predictions, from sums over rows, whatever the rows are divided into.

    rows of a rank, a batch at a time --sums--> [n] float64 --added up over batches and ranks-->
    --value--> one number

Sums are exact: each number is cut into pieces that are whole multiples of fixed powers of two, and
each power has a lane of its own. A lane is far from full, so adding lanes rounds nothing, and the
value has the same bits for any number of ranks and any size of batch. Squares are added with what
their rounding took away, so that the deviations from a mean are exact too, however far from 0 the
mean is: they are differences of sums, made of fractions.
Sources: Demmel, Nguyen, "Parallel reproducible summation", IEEE Transactions on Computers 64
(2015); Dekker, "A floating-point technique for extending the available precision" (1971).
"""

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any

import numpy

from ..annotations import Array
from ..errors import ConfigurationError, ShapeError
from .ops.loss import IGNORED
from .recorded import recorded

# Pieces are below 2^20 units, so 2^33 of them fit into the 53 bits of a float64.
_LANE_BITS = 20
_HIGHEST = 280  # of the unit of the first lane, as a power of two
_NUM_LANES = 35  # down to 2^-400, below the squares of the smallest float32
_UNITS = 2.0 ** (_HIGHEST - _LANE_BITS * numpy.arange(_NUM_LANES))
LANES = _NUM_LANES


def exact_lanes(values) -> numpy.ndarray:
    """Return the sum of these numbers as lanes: [LANES] float64, which add up without rounding.

    values   up to 2^33 in all that are added up, each below 2^300, about 2e90. Digits below 2^-400
             are dropped. Larger numbers, infinity and NaN make the value NaN
    """
    return column_lanes(numpy.array(values, numpy.float64).reshape(-1, 1))[0]


def column_lanes(values) -> numpy.ndarray:
    """Return the sums of the columns of [n, columns] as lanes: [columns, LANES]."""
    rest = numpy.array(values, numpy.float64)
    lanes = numpy.zeros((rest.shape[1], LANES))
    largest = numpy.abs(rest).max(0, initial=0)
    held = largest < _UNITS[0] * 2.0**_LANE_BITS
    lanes[~held] = numpy.nan
    rest[:, ~held] = 0
    for lane, unit in enumerate(_UNITS):
        if unit > largest[held].max(initial=0):
            continue  # no piece is that large
        pieces = numpy.trunc(rest / unit) * unit
        lanes[held, lane] = pieces.sum(0)[held]  # exact, in any order
        rest -= pieces
        if not rest.any():
            break
    return lanes


def exact_value(lanes) -> float:
    """Return the sum that lanes hold, rounded once."""
    if not numpy.isfinite(lanes).all():
        return math.nan
    return math.fsum(lanes)


def _rounding_of_squares(x):
    """Return x^2 - fl(x^2), exact: what is lost where float64 numbers are squared."""
    with numpy.errstate(over="ignore", invalid="ignore"):
        shifted = x * 134217729.0  # 2^27 + 1
        high = shifted - (shifted - x)
        low = x - high
        return ((high * high - x * x) + 2 * high * low) + low * low


@recorded
class Metric(ABC):
    """A figure about predictions of many rows, made of sums over them.

    Attributes
    ----------
    adds_parts
        The sums of parts of samples, cut along any dim, add up to those of whole ones. False: where
        ranks share samples, their predictions are joined for it.
    """

    adds_parts: bool = False

    @abstractmethod
    def sums(self, prediction: Any, y: Any) -> numpy.ndarray:
        """Return what these rows add to the figure: [n] float64, n the same for all batches.

        Parameters
        ----------
        prediction
            What the model says about the rows; y their targets; NumPy arrays.
        y
            Their targets.
        """

    @abstractmethod
    def value(self, sums: Array) -> float:
        """Return the figure of the rows whose sums were added up; NaN if it is not defined.

        Parameters
        ----------
        sums
            [n] float64, added up over all rows.
        """


def metrics_of(module) -> dict[str, Metric]:
    """Return what a module says that it is judged by beside its loss: its attribute `metrics`.

    {} if that is something of the module's own.

    Errors: ConfigurationError if only some of its values are metrics.
    """
    metrics = module.metrics
    if not isinstance(metrics, dict):
        return {}
    are_metrics = [isinstance(metric, Metric) for metric in metrics.values()]
    if any(are_metrics) and not all(are_metrics):
        raise ConfigurationError(
            f"{type(module).__name__}.metrics has values that are no Metric; wanted a dict "
            "of Metric by name"
        )
    return metrics if all(are_metrics) else {}


# ---- regression ----------------------------------------------------------------------------------


def _difference(prediction, y):
    """Return prediction - y, float64. Errors: ValueError if their shapes differ."""
    prediction, y = numpy.asarray(prediction, numpy.float64), numpy.asarray(y, numpy.float64)
    if prediction.shape != y.shape:
        raise ValueError(f"predictions {prediction.shape} of targets {y.shape}; wanted one shape")
    return prediction - y


class _Mean(Metric):
    """A mean over all elements."""

    adds_parts = True

    def items(self, prediction, y) -> numpy.ndarray:
        """Return what is averaged, one number for each element."""
        raise NotImplementedError

    def sums(self, prediction, y):
        items = self.items(prediction, y)
        return numpy.array([*exact_lanes(items), items.size])

    def value(self, sums):
        return exact_value(sums[:-1]) / float(sums[-1]) if sums[-1] else math.nan


class RMSE(_Mean):
    """Root of the mean squared difference, over all rows and targets."""

    def items(self, prediction, y):
        return _difference(prediction, y) ** 2

    def value(self, sums):
        return math.sqrt(super().value(sums))


class MAE(_Mean):
    """Mean absolute difference, over all rows and targets."""

    def items(self, prediction, y):
        return numpy.abs(_difference(prediction, y))


class Coverage(_Mean):
    """Share of the targets [rows, 1] in the interval from the first column to the last."""

    def items(self, prediction, y):
        lowest, highest = prediction[:, :1], prediction[:, -1:]
        return (lowest <= y) & (y <= highest)


class R2(Metric):
    """Share of the targets' variance that is explained: 1 - squared error / squared deviation.

    Of several targets the mean of their shares; NaN if one of them is constant. The deviation is
    exact for targets of float64 up to about 1e45, wherever their mean is.
    """

    def sums(self, prediction, y):
        errors = _difference(prediction, y)
        rows, width = len(errors), math.prod(errors.shape[1:])
        errors, y = (numpy.asarray(a, numpy.float64).reshape(rows, width) for a in (errors, y))
        squares = column_lanes(y * y) + column_lanes(_rounding_of_squares(y))
        lanes = numpy.concatenate([column_lanes(errors**2), column_lanes(y), squares])
        return numpy.array([*lanes.reshape(-1), rows])

    def value(self, sums):
        rows = int(sums[-1])
        if not rows or not numpy.isfinite(sums).all():
            return math.nan
        totals = [sum(map(Fraction, lanes)) for lanes in sums[:-1].reshape(-1, LANES)]
        num = len(totals) // 3
        errors, firsts, squares = totals[:num], totals[num : 2 * num], totals[2 * num :]
        deviations = [square - first * first / rows for first, square in zip(firsts, squares)]
        if any(not deviation for deviation in deviations):
            return math.nan
        return 1 - math.fsum(e / d for e, d in zip(errors, deviations)) / num


# ---- classes -------------------------------------------------------------------------------------


def classes_of(prediction) -> numpy.ndarray:
    """Return the most probable class of each row: [n, classes] logits -> [n] int64.

    A single column is the logit of class 1, the only other being class 0.
    """
    prediction = numpy.asarray(prediction)
    if prediction.shape[-1] == 1:
        return (prediction[..., 0] > 0).astype(numpy.int64)
    return prediction.argmax(-1).astype(numpy.int64)


def class_pairs(prediction, y, ignore_index: int | None, dim: int | None):
    """Return the predicted and the right class of each target that counts: twice [n] int64.

    prediction   logits: of y [...] they are [..., classes], or [samples, classes, ...]
    dim          of the classes, -1 or 1; None: where the shape of y says
    Errors: ShapeError if the shapes do not fit, or both do, or a target is no class.
    """
    prediction, y = numpy.asarray(prediction), numpy.asarray(y)
    if prediction.ndim == 2 and y.size == len(prediction):
        y = y.reshape(len(prediction))
    dims = [
        each
        for each in (-1, 1)
        if prediction.ndim > 1 and numpy.delete(prediction.shape, each).tolist() == [*y.shape]
    ]
    dims = [each for each in dims if dim is None or each % prediction.ndim == dim % prediction.ndim]
    if not dims or len(dims) == 2 and prediction.ndim > 2:
        raise ShapeError(
            f"classes of predictions {prediction.shape} for targets {y.shape}; wanted [..., "
            "classes] or [samples, classes, ...]: where both fit, give dim = -1 or dim = 1"
        )
    predicted = classes_of(numpy.moveaxis(prediction, dims[0], -1)).reshape(-1)
    right = y.reshape(-1).astype(numpy.int64)
    counts = numpy.full(right.shape, True) if ignore_index is None else right != ignore_index
    predicted, right = predicted[counts], right[counts]
    if right.size and right.min() < 0:
        raise ShapeError(
            f"a target is {right.min()}, no class; to leave it out give the metric "
            f"ignore_index = {right.min()}, as the loss"
        )
    return predicted, right


class _OfClasses(Metric):
    """A figure about classes.

    Parameters
    ----------
    ignore_index
        Targets of this value do not count, as in the losses; None: all do.
    dim
        Of the predictions, where the classes are: -1 or 1; None: where the shape of y says.
    """

    def __init__(self, *, ignore_index: int | None = IGNORED, dim: int | None = None):
        self.ignore_index = ignore_index
        self.dim = dim

    def _pairs(self, prediction, y):
        return class_pairs(prediction, y, self.ignore_index, self.dim)


class Accuracy(_OfClasses, _Mean):
    """Share of targets whose most probable class is the right one."""

    def items(self, prediction, y):
        predicted, right = self._pairs(prediction, y)
        return (predicted == right) * 1.0


class MacroF1(_OfClasses):
    """F1 = 2 hits / (predicted + present) of each class, and their mean.

    Classes that are neither present nor predicted do not count.
    """

    adds_parts = True

    def __init__(
        self, num_classes: int, *, ignore_index: int | None = IGNORED, dim: int | None = None
    ):
        super().__init__(ignore_index=ignore_index, dim=dim)
        self.num_classes = num_classes

    def sums(self, prediction, y):
        predicted, present = self._pairs(prediction, y)
        hits = present[predicted == present]
        counts = [
            numpy.bincount(classes, minlength=self.num_classes)
            for classes in (hits, predicted, present)
        ]
        if len(counts[1]) > self.num_classes or len(counts[2]) > self.num_classes:
            raise ShapeError(
                f"MacroF1 of {self.num_classes} classes, but one is number "
                f"{max(map(len, counts)) - 1}; give it as many as the model has"
            )
        return numpy.concatenate(counts).astype(numpy.float64)

    def value(self, sums):
        hits, predicted, present = sums.reshape(3, self.num_classes)
        occurs = predicted + present
        shares = 2 * hits[occurs > 0] / occurs[occurs > 0]
        return math.fsum(shares) / len(shares) if len(shares) else math.nan
