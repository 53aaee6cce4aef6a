"""Heads: what each target of a table has of a prediction, how it is judged, and what is written.

    prediction   | price: 0.05 0.5 0.95 | grade: a logit for each class |
    y            | price                | grade                         | weight |

A head has a width, its columns of a prediction, a loss, metrics, each with what it takes of these
columns and y, and outputs. Quantiles are sorted before they are judged or written, so that they do
not cross, which brings them no farther from the true ones (Chernozhukov, Fernandez-Val, Galichon,
"Quantile and probability curves without crossing", Econometrica 78, 2010).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise, starmap
from typing import Any, TypeAlias

import numpy

from ..data.raw.encodings import Classes
from ..nn.loss import BinaryCrossEntropy, CrossEntropy, FunctionLoss, Loss, MeanSquaredError
from ..nn.losses import PinballLoss
from ..nn.metrics import MAE, R2, RMSE, Accuracy, Coverage, MacroF1, Metric, classes_of
from .described import Described
from .table_files import TableData

_FARTHEST_LOGIT = 700


@dataclass(frozen=True)
class NumberHead:
    """Targets that are numbers, or arrays of them; or the quantiles of one, 0.5 among them.

    units      bring them back into those of the file
    columns    of y
    width      columns of a prediction
    is_field   a row of y is an array
    """

    units: Any  # Numbers, ColumnEncoder or Scaling
    columns: slice
    width: int
    quantiles: tuple[float, ...] = ()
    is_field: bool = False

    @property
    def loss(self) -> Loss:
        return PinballLoss(self.quantiles) if self.quantiles else MeanSquaredError()

    def of_loss(self, y):
        return y[:, self.columns]

    def _predicted(self, prediction):
        ordered = numpy.sort(prediction, 1) if self.quantiles else prediction
        return self.units.predicted(ordered)

    def _middle(self, predicted):
        if not self.quantiles:
            return predicted
        return predicted[:, self.quantiles.index(0.5), None]

    def _judged(self, prediction, y):
        return self._predicted(prediction), self.units.invert(self.of_loss(y))

    def _judged_middle(self, prediction, y):
        predicted, targets = self._judged(prediction, y)
        return self._middle(predicted), targets

    def metrics(self):
        figures = {"rmse": RMSE(), "mae": MAE()} | ({} if self.is_field else {"r2": R2()})
        coverage = {"coverage": (Coverage(), self._judged)} if len(self.quantiles) > 1 else {}
        return {name: (metric, self._judged_middle) for name, metric in figures.items()} | coverage

    def outputs(self, prediction):
        predicted = self._predicted(prediction)
        names = [f"quantile_{quantile:g}" for quantile in self.quantiles]
        return {"prediction": self._middle(predicted), **dict(zip(names, predicted.T))}


@dataclass(frozen=True)
class ClassHead:
    """A target that is a class, in this column of y.

    names       of the classes; () if they are numbers 0, 1, ... in the file
    is_binary   one logit, of the second class
    """

    num_classes: int
    names: tuple[str, ...]
    column: int = 0
    is_binary: bool = False

    @property
    def width(self) -> int:
        return 1 if self.is_binary else self.num_classes

    @property
    def loss(self) -> Loss:
        return BinaryCrossEntropy() if self.is_binary else CrossEntropy()

    def of_loss(self, y):
        return y.reshape(len(y), -1)[:, self.column].astype("int64")

    def _judged(self, prediction, y):
        return prediction, self.of_loss(y)

    def metrics(self):
        figures = {"accuracy": Accuracy(), "macro_f1": MacroF1(self.num_classes)}
        return {name: (metric, self._judged) for name, metric in figures.items()}

    def outputs(self, prediction):
        wide = numpy.asarray(prediction, numpy.float64)
        if self.is_binary:
            logits = numpy.clip(wide[:, 0], -_FARTHEST_LOGIT, _FARTHEST_LOGIT)
            probability = 1 / (1 + numpy.exp(-logits))
        else:
            probability = numpy.exp(wide - wide.max(1, keepdims=True))
            probability /= probability.sum(1, keepdims=True)
        found = classes_of(prediction)
        names = numpy.array([name.encode() for name in self.names], "S")
        named = {"name": names[found]} if len(names) else {}
        return {"class": found, **named, "probability": probability}


Heads: TypeAlias = Mapping[str, NumberHead | ClassHead]  # by the names of targets


class OfHead(Metric):
    """A metric of one head, which has this place among the columns of a prediction."""

    def __init__(self, metric: Metric, judged: Any, place: slice):
        self._metric, self._judged = metric, judged
        self._place = place
        self.adds_parts = metric.adds_parts

    def sums(self, prediction, y):
        columns = prediction[:, self._place]
        return self._metric.sums(*self._judged(columns, numpy.asarray(y)))

    def value(self, sums):
        return self._metric.value(sums)


class LossOfHeads(FunctionLoss):
    """The losses of several heads: means over the rows, added up, and noted by their names.

    has_weights   the last column of y is the weight of the row
    """

    def __init__(self, heads: Heads, *, has_weights: bool):
        self._heads, self._has_weights = heads, has_weights
        super().__init__(self._means)

    def _means(self, prediction, y):
        places = places_of(self._heads).items()
        return {
            name: self._total(self._heads[name], prediction[:, place], y) / len(y)
            for name, place in places
        }

    def _total(self, head, columns, y):
        targets = head.of_loss(y)
        if self._has_weights:
            return head.loss.weighted_total(columns, targets, y[:, -1])
        return head.loss.total(columns, targets)


def heads_of(data: TableData, described: Described) -> Heads:
    """Return the heads of these targets, {name: head}."""
    names, classes = described.target_names, described.classes
    if data.has_classes:
        is_binary = data.kind == "binary"
        return {names[0]: ClassHead(classes, described.class_names, is_binary=is_binary)}
    if data.kind == "regression" and not data.quantiles:
        is_field = len(described.y_shape) > 1
        columns = slice(None if is_field else len(names))  # weights stand behind them
        return {"": NumberHead(described.units, columns, len(names), is_field=is_field)}
    targets = enumerate(described.columns.targets)
    return {each.name: _head_of(each, column, data.quantiles) for column, each in targets}


def _head_of(target: Any, column: int, quantiles) -> NumberHead | ClassHead:
    if isinstance(target, Classes):
        return ClassHead(len(target.values), target.values, column)
    return NumberHead(target, slice(column, column + 1), len(quantiles) or 1, quantiles)


def num_outputs(heads: Heads) -> int:
    """Return how many columns a prediction has."""
    return sum(head.width for head in heads.values())


def places_of(heads: Heads) -> dict[str, slice]:
    """Return which columns of a prediction each head has; one alone has all of them."""
    if len(heads) == 1:
        return dict.fromkeys(heads, slice(None))
    ends = accumulate((head.width for head in heads.values()), initial=0)
    return dict(zip(heads, starmap(slice, pairwise(ends))))


def metrics_of(heads: Heads) -> dict[str, Metric]:
    """Return the metrics of all heads, by their names: `rmse`, or of several `price.rmse`."""
    return {
        _full_name(heads, name, figure): OfHead(metric, judged, place)
        for name, place in places_of(heads).items()
        for figure, (metric, judged) in heads[name].metrics().items()
    }


def outputs_of(heads: Heads, prediction) -> dict[str, numpy.ndarray]:
    """Return what is written of all heads: `prediction`, or of several `price.prediction`."""
    return {
        _full_name(heads, name, part): values
        for name, place in places_of(heads).items()
        for part, values in heads[name].outputs(prediction[:, place]).items()
    }


def _full_name(heads, name: str, part: str) -> str:
    return part if len(heads) == 1 else f"{name}.{part}"
