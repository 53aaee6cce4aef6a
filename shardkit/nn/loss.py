"""Losses as sums and counts, so that a batch can be cut anywhere.

The mean over a batch is not the mean of the means of its parts when they count different numbers of
items (tokens that are ignored, a last part that is shorter). Sums and counts add up over
micro-batches and ranks whatever the cut:

    mean loss = sum over parts of total(prediction, y)  /  sum over parts of count(y)

Prediction and y may be trees of arrays (shardkit/tree.py): a function of one's own gets them as
they are, and so does a Loss of one's own. The losses here and in losses.py want one array of y.
"""

from contextvars import ContextVar
from math import prod
from typing import Any

from ..annotations import Shape
from ..arguments import is_number, require
from ..array import fresh, halves
from ..array.backend import is_array, xp_of
from ..array.dtypes import wide
from ..errors import ConfigurationError, ShapeError
from ..scoped import Scoped
from ..tree import is_tree, map_tree, num_samples, structure
from .autograd import Tensor, array_of, constant_of, wants_gradient
from .doors import as_tensor
from .layers.basic import input_tensor
from .looks import arguments_text
from .ops.loss import IGNORED, WEIGHTS, binary_cross_entropy_with_logits, cross_entropy, mse
from .recorded import recorded


@recorded
class Loss:
    """What training minimizes: `total` is its sum over a batch's items, `count` their number.

    A count need not be whole, where items have weights of their own.
    """

    has_class_targets = False  # y are the numbers of classes, and not numbers to be approached
    takes_trees = True  # False: y is one array
    ignore_index: int | None = None  # elements of y with this value do not count; None: all do

    def total(self, prediction: Any, y: Any) -> Tensor:
        """Return the sum over all items, a single element."""
        raise NotImplementedError

    def count(self, y: Any) -> float:
        """Return how many items y has."""
        raise NotImplementedError

    def weighted_total(self, prediction: Any, y: Any, weights: Any) -> Tensor:
        """Return the sum over all items, each times its weight.

        Parameters
        ----------
        weights
            [samples], or one for each item.

        Raises
        ------
        ConfigurationError
            If this loss knows no weights.
        """
        raise ConfigurationError(f"{type(self).__name__} cannot weight samples; give another loss")

    def check_targets(self, y: Any, prediction_shape: Shape | None) -> None:
        """Raise ShapeError unless y can be targets of predictions of this shape.

        None: the shape is not known. y is an array, or a tree of arrays if takes_trees.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({arguments_text(self)})"

    def __call__(self, prediction: Any, y: Any) -> Tensor:
        """Return the mean over the items; 0 if there are none."""
        prediction = as_tensor(prediction)
        y = y if isinstance(y, Tensor) else array_of(as_tensor(y))
        return self.total(prediction, y) / (self.count(y) or 1)


def is_ignored(y, ignore_index: int | None):
    """Return which elements of an array y do not count: booleans of its shape."""
    return y == ignore_index if ignore_index is not None else y != y


def num_counted(y: Any, ignore_index: int | None) -> int:
    """Return how many elements of y count."""
    y = array_of(y)
    return prod(y.shape) if ignore_index is None else int((y != ignore_index).sum())


def weights_of_items(weights: Any, shape: Shape, xp: Any) -> Any:
    """Return weights [samples], or of each item, as an array of this shape: of each item.

    Errors: ShapeError if they are neither.
    """
    weights = fresh.placed(constant_of(weights, WEIGHTS), xp)
    if weights.shape == shape:
        return weights
    if weights.shape != shape[:1]:
        raise ShapeError(f"weights {weights.shape} of items {shape}; wanted [samples] or one each")
    return xp.broadcast_to(weights.reshape(-1, *(1,) * (len(shape) - 1)), shape)


def weighted_sum(items: Tensor, weights: Any) -> Tensor:
    """Return the sum of items [samples, ...], each times its weight: [samples], or one each."""
    weights = weights_of_items(weights, items.shape, xp_of(items.array))
    return (items * weights.astype(items.dtype, copy=False)).sum()


def check_equal_shapes(y: Any, prediction_shape: Shape | None) -> None:
    """Raise ShapeError unless targets have the shape of predictions, if that is known."""
    if prediction_shape is not None and y.shape != prediction_shape:
        raise ShapeError(
            f"targets of shape {y.shape} for predictions of {prediction_shape}; wanted equal shapes"
        )


class CrossEntropy(Loss):
    """Negative log probability of the right class, in nats, per element of y.

    The prediction is logits [..., classes]; y [...] are class numbers.

    Parameters
    ----------
    ignore_index
        Elements of y with this value do not count; None: all do.
    """

    has_class_targets = True
    takes_trees = False

    def __init__(self, ignore_index: int | None = IGNORED) -> None:
        self.ignore_index = ignore_index

    def total(self, prediction: Any, y: Any) -> Tensor:
        prediction = one_array("CrossEntropy", "logits", prediction)
        return cross_entropy(prediction, y, self.ignore_index, reduction="sum")

    def weighted_total(self, prediction: Any, y: Any, weights: Any) -> Tensor:
        prediction = one_array("CrossEntropy", "logits", prediction)
        weights = weights_of_items(weights, array_of(y).shape, xp_of(array_of(y)))
        return cross_entropy(prediction, y, self.ignore_index, "sum", weights)

    def check_targets(self, y: Any, prediction_shape: Shape | None) -> None:
        if y.dtype.kind not in "iu":
            raise ShapeError(f"targets of dtype {y.dtype}; wanted integers, the numbers of classes")
        *shape, num_classes = (*y.shape, None) if prediction_shape is None else prediction_shape
        if y.shape != tuple(shape):
            raise ShapeError(
                f"targets of shape {y.shape} for logits of {prediction_shape}; wanted "
                f"{tuple(shape)}, one class number each"
            )
        self._check_range(y[~is_ignored(y, self.ignore_index)], num_classes)

    def _check_range(self, y, num_classes):
        if not y.size or y.min() >= 0 and (num_classes is None or y.max() < num_classes):
            return
        told = ""
        if y.min() < 0:
            told = f"; to leave targets out, use CrossEntropy(ignore_index={y.min()})"
            if self.ignore_index is not None:
                told += f", or {self.ignore_index} for them"
        raise ShapeError(
            f"targets from {y.min()} to {y.max()}; wanted 0 <= target"
            f"{'' if num_classes is None else f' < {num_classes}, the number of classes'}{told}"
        )

    def count(self, y: Any) -> float:
        return num_counted(y, self.ignore_index)


def target_beside(prediction: Any, target: Any, dtype: Any) -> Any:
    """Return an array of targets where the prediction lies, in this dtype."""
    target = fresh.placed(target, xp_of(prediction.array))
    return target if target.dtype == dtype else halves.copy(target, dtype)


class MeanSquaredError(Loss):
    """Squared difference per element; prediction and y have the same shape."""

    takes_trees = False

    def check_targets(self, y: Any, prediction_shape: Shape | None) -> None:
        check_equal_shapes(y, prediction_shape)

    def count(self, y: Any) -> float:
        return prod(array_of(y).shape)

    def total(self, prediction: Any, y: Any) -> Tensor:
        return mse(prediction, self._target(prediction, y), reduction="sum")

    def weighted_total(self, prediction: Any, y: Any, weights: Any) -> Tensor:
        return mse(prediction, self._target(prediction, y), "sum", weights)

    def _target(self, prediction, y):
        prediction = one_array("MeanSquaredError", "predictions", prediction)
        if wants_gradient(y):
            return y
        return target_beside(prediction, array_of(y), wide(prediction.dtype))


class BinaryCrossEntropy(Loss):
    """Negative log probability of the right one of two classes, in nats, per sample.

    The prediction is logits [samples, 1] of class 1; y [samples] are class numbers, 0 or 1.

    Parameters
    ----------
    ignore_index
        As of CrossEntropy.
    """

    has_class_targets = True
    takes_trees = False

    def __init__(self, ignore_index: int | None = IGNORED) -> None:
        self.ignore_index = ignore_index

    def total(self, prediction: Any, y: Any) -> Tensor:
        return self._total(prediction, y, None)

    def weighted_total(self, prediction: Any, y: Any, weights: Any) -> Tensor:
        return self._total(prediction, y, weights)

    def _total(self, prediction, y, weights):
        prediction = one_array("BinaryCrossEntropy", "logits", prediction)
        target = constant_of(y, "the target of BinaryCrossEntropy")
        target = fresh.placed(target, xp_of(prediction.array)).reshape(prediction.shape)
        return binary_cross_entropy_with_logits(
            prediction, target, "sum", weights, self.ignore_index
        )

    def check_targets(self, y: Any, prediction_shape: Shape | None) -> None:
        if prediction_shape is not None and (*y.shape, 1) != prediction_shape:
            raise ShapeError(
                f"targets of shape {y.shape} for logits of {prediction_shape}; wanted "
                "one logit for each target"
            )
        wrong = y[(y != 0) & (y != 1) & ~is_ignored(y, self.ignore_index)]
        if wrong.size:
            raise ShapeError(f"a target is {wrong.flat[0]}; wanted 0 or 1, one of two classes")

    def count(self, y: Any) -> float:
        return num_counted(y, self.ignore_index)


class Weighted(Loss):
    """Another loss with a weight for each sample, and one for each class.

    Parameters
    ----------
    loss
        Whose items are weighted.
    class_weights
        One for each class number; None: classes count alike.
    has_row_weights
        The last column of y, [samples, targets + 1], is the weight of the sample.

    Notes
    -----
    The mean divides by the number of items, not by their weights: weights of mean 1 leave the scale
    of the loss as it is.
    """

    takes_trees = False

    def __init__(
        self, loss: Loss, *, class_weights: Any = None, has_row_weights: bool = False
    ) -> None:
        self._loss = as_loss(loss)
        is_weightable = type(self._loss).weighted_total is not Loss.weighted_total
        wanted = "a Loss with weighted_total(), as nn.MSELoss(): a function tells no items apart"
        require(is_weightable, "the loss of Weighted", loss, wanted)
        self.ignore_index = self._loss.ignore_index
        given = array_of(() if class_weights is None else class_weights)
        weights = given.tolist() if is_array(given) else given
        is_list = isinstance(weights, (list, tuple))
        are_weights = is_list and all(is_number(each, at_least=0) for each in weights)
        require(are_weights, "class_weights", class_weights, "a number for each class, at least 0")
        self._class_weights = None if class_weights is None else tuple(map(float, weights))
        self._has_row_weights = has_row_weights

    def total(self, prediction: Any, y: Any) -> Tensor:
        y = array_of(y)
        targets = self._targets(y)
        xp = xp_of(y)
        weights = y[:, -1] if self._has_row_weights else xp.ones(len(y))
        if self._class_weights is not None:
            counted = xp.where(is_ignored(targets, self.ignore_index), 0, targets)
            of_class = xp.asarray(self._class_weights)[counted]
            weights = weights_of_items(weights, targets.shape, xp) * of_class
        return self._loss.weighted_total(prediction, targets, weights)

    def _targets(self, y):
        """Return y without the weights: class numbers [samples], or [samples, S] if there are S."""
        if not self._has_row_weights:
            return y
        if not self._loss.has_class_targets:
            return y[:, :-1]
        return (y[:, 0] if y.shape[1] == 2 else y[:, :-1]).astype("int64")

    def check_targets(self, y: Any, prediction_shape: Shape | None) -> None:
        if self._has_row_weights and (y.ndim < 2 or y.shape[1] < 2):
            raise ShapeError(
                f"targets of shape {y.shape}; wanted the weight of each sample in the last column"
            )
        self._loss.check_targets(self._targets(y), prediction_shape)

    def count(self, y: Any) -> float:
        return self._loss.count(self._targets(array_of(y)))


_NOTES: ContextVar[dict[str, Any] | None] = ContextVar("shardkit_loss_parts", default=None)


def parts_noted(notes: dict[str, Any] | None) -> Scoped:
    """Let losses inside that have parts note the total of each: {name: array of one element}."""
    return Scoped(_NOTES, notes)


class FunctionLoss(Loss):
    """A plain function (prediction, y) -> mean over the samples, as a Loss; an item is a sample.

    The function gets half floats as float32: what it adds up would not fit. It gets trees as they
    are, with Tensors as the leaves of the prediction and arrays as those of y. It may return a dict
    of means: their sum is the loss, and each is noted under its name. Beside it, a dict of weights,
    numbers or Tensors, says how often a mean counts in the sum, if not once.
    """

    def __init__(self, function):
        self.function = function

    def total(self, prediction, y):
        is_one = isinstance(prediction, Tensor)
        prediction = _widened(prediction) if is_one else map_tree(_widened, prediction)
        found = self.function(prediction, y)
        if not isinstance(found, (dict, tuple)):
            return found * self.count(y)
        means, weights = found if isinstance(found, tuple) else (found, {})
        return self._sum_of_parts(means, weights, self.count(y))

    def _sum_of_parts(self, means, weights, count):
        """Return the total of all parts, each times its weight, and note that of each without."""
        _check_parts(means)
        _check_weights(weights, means)
        notes, total = _NOTES.get(), None
        for name, mean in means.items():
            part = mean * count
            if notes is not None:
                notes[name] = part.array.reshape(())
            part = part * weights[name] if name in weights else part
            total = part if total is None else total + part
        return total

    def count(self, y):
        y = array_of(y)
        return len(y) if is_array(y) else num_samples(y)


def _check_parts(means: dict) -> None:
    """Raise ShapeError unless these are one mean or more, each under a name."""
    for name, mean in means.items() or [("nothing", None)]:
        is_mean = isinstance(mean, Tensor) and mean.size == 1
        if not isinstance(name, str) or not is_mean:
            told = f"of shape {mean.shape}" if isinstance(mean, Tensor) else type(mean).__name__
            raise ShapeError(
                f"the loss returned a dict with {name!r}: {told}; wanted {{name: mean}}, a text "
                "and a Tensor of one element each, one or more"
            )


def _check_weights(weights: dict, means: dict) -> None:
    for name, weight in weights.items():
        is_one = weight.size == 1 if isinstance(weight, Tensor) else is_number(weight)
        if name not in means or not is_one:
            told = f"the weight of {name!r} = {weight!r:.100}, beside means of {', '.join(means)}"
            raise ShapeError(f"the loss returned {told}; wanted one number, or a Tensor of one")


def _widened(prediction) -> Tensor:
    return input_tensor(prediction, wide(prediction.dtype))


def as_loss(loss: Any) -> Loss:
    """Return a Loss as it is, and a function (prediction, y) -> mean, or {name: mean}, as a Loss.

    Raises
    ------
    ConfigurationError
        On anything else.
    """
    if isinstance(loss, Loss):
        return loss
    if not callable(loss):
        raise ConfigurationError(
            f"the loss is {loss!r}; wanted a Loss or a function (prediction, y) -> mean loss: give "
            "the model an attribute `loss`, or pass one in the configuration"
        )
    return FunctionLoss(loss)


def check_targets_of(loss: Loss, y, prediction_shape: Shape | None) -> None:
    """Ask the loss whether y, an array or a tree of arrays, can be its targets.

    Errors: ShapeError.
    """
    if not (loss.takes_trees or is_array(y)) and is_tree(y):
        raise ShapeError(
            f"{type(loss).__name__} wants y as one array, but got {structure(y)}; give a loss of "
            "your own for trees: a function (prediction, y) -> mean loss, or a Loss"
        )
    loss.check_targets(y, prediction_shape)


def one_array(owner: str, what: str, value):
    """Return the value, which is one array or Tensor. Errors: ShapeError on a tree."""
    if not isinstance(value, Tensor) and is_tree(value):
        raise ShapeError(
            f"{owner} wants one array of {what}, but got {structure(value)}; give a loss of your "
            "own for trees: a function (prediction, y) -> mean loss, or a Loss"
        )
    return value
