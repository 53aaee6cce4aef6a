"""The losses of PyTorch, by its names and arguments, as sums and counts (loss.py).

    criterion = HuberLoss(delta=0.5)
    model.loss = criterion                      in training: the mean over the global batch
    criterion(prediction, y)                    by hand: the mean over what is there

Targets are arrays. A Tensor that wants a gradient gets one from L1Loss, MSELoss, HuberLoss,
SmoothL1Loss, BCEWithLogitsLoss and GaussianNLLLoss, and is refused by the others. reduction is
"mean", since the engine makes means of sums and counts over micro-batches and ranks; any other is
refused. Half floats are computed in float32.
"""

import math
from collections.abc import Sequence
from math import prod
from typing import Any

from ..annotations import Shape
from ..arguments import is_among, is_number, require
from ..array import fresh
from ..array.backend import is_true, to_host, xp_of
from ..array.dtypes import wide
from ..errors import ShapeError
from . import ops
from .autograd import Tensor, array_of, constant_of, wants_gradient
from .layers.basic import input_tensor
from .loss import (
    Loss,
    check_equal_shapes,
    is_ignored,
    one_array,
    target_beside,
    weighted_sum,
    weights_of_items,
)
from .ops.loss import IGNORED
from .ops.operands import check_floating


class PointwiseLoss(Loss):
    """A loss with one item for each element of y, or for each row of it.

    A subclass writes items(prediction, target) -> Tensor. Prediction and target have one shape;
    where the prediction is a tuple or list of Tensors, items() gets a tuple of them.

    Parameters
    ----------
    reduction
        "mean", since means are made of sums and counts over micro-batches and ranks; any other is
        refused.
    """

    takes_trees = False
    gives_targets_gradients = False  # True: a target that wants a gradient is a Tensor in items()

    def __init__(self, reduction: str = "mean") -> None:
        check_reduction(type(self).__name__, reduction)

    def items(self, prediction: Any, target: Any) -> Tensor:
        """Return the loss of each item, [samples, ...]."""
        raise NotImplementedError

    def total(self, prediction: Any, y: Any) -> Tensor:
        return self._items(prediction, y).sum()

    def weighted_total(self, prediction: Any, y: Any, weights: Any) -> Tensor:
        return weighted_sum(self._items(prediction, y), weights)

    def _items(self, prediction, y):
        parts = prediction if isinstance(prediction, (tuple, list)) else (prediction,)
        parts = [one_array(type(self).__name__, "predictions", part) for part in parts]
        check_floating(type(self).__name__, *parts)
        parts = [input_tensor(part, wide(part.dtype)) for part in parts]
        target = self._target(y, parts[0])
        return self.items(parts[0] if len(parts) == 1 else tuple(parts), target)

    def _target(self, y, prediction):
        if self.gives_targets_gradients and wants_gradient(y):
            return input_tensor(y, prediction.dtype)
        target = constant_of(y, f"the target of {type(self).__name__}")
        return target_beside(prediction, target, prediction.dtype)

    def check_targets(self, y: Any, prediction_shape: Shape | None) -> None:
        check_equal_shapes(y, prediction_shape)

    def count(self, y: Any) -> float:
        return prod(array_of(y).shape)


class L1Loss(PointwiseLoss):
    """|prediction - y| per element."""

    gives_targets_gradients = True

    def items(self, prediction: Any, target: Any) -> Tensor:
        return ops.abs(_difference(prediction, target))


class MSELoss(PointwiseLoss):
    """(prediction - y)^2 per element.

    Examples
    --------
    >>> nn.MSELoss()(np.ones(3), np.zeros(3)).item()
    1.0
    """

    gives_targets_gradients = True

    def items(self, prediction: Any, target: Any) -> Tensor:
        return ops.square(_difference(prediction, target))


class HuberLoss(PointwiseLoss):
    """d^2 / 2 per element for a difference d up to delta, and delta (|d| - delta / 2) beyond.

    Parameters
    ----------
    delta
        Where the square ends, above 0.
    """

    gives_targets_gradients = True

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        require(is_number(delta, above=0), "HuberLoss with delta", delta, "a number above 0")
        self.delta = delta

    def items(self, prediction: Any, target: Any) -> Tensor:
        size, is_near, square = _around(self.delta, _difference(prediction, target))
        return ops.where(is_near, square * 0.5, (size - self.delta / 2) * self.delta)


class SmoothL1Loss(PointwiseLoss):
    """d^2 / (2 beta) per element for a difference d up to beta, and |d| - beta / 2 beyond.

    Parameters
    ----------
    beta
        Where the square ends, above 0.
    """

    gives_targets_gradients = True

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        require(is_number(beta, at_least=0), "SmoothL1Loss with beta", beta, "a number, at least 0")
        self.beta = beta

    def items(self, prediction: Any, target: Any) -> Tensor:
        difference = _difference(prediction, target)
        if self.beta == 0:
            return ops.abs(difference)
        size, is_near, square = _around(self.beta, difference)
        return ops.where(is_near, square * (0.5 / self.beta), size - self.beta / 2)


class BCEWithLogitsLoss(PointwiseLoss):
    """Negative log probability of y, from 0 to 1, under sigmoid(prediction), in nats per element.

    Parameters
    ----------
    pos_weight
        Factor of the part of y that is 1, a number or an array that broadcasts to the predictions;
        None: 1.
    """

    gives_targets_gradients = True

    def __init__(self, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self.pos_weight = None if pos_weight is None else _constant(pos_weight, "pos_weight")

    def items(self, prediction: Any, target: Any) -> Tensor:
        check_equal(prediction, target)
        soft = ops.softplus(-prediction, threshold=math.inf)  # -log sigmoid(z)
        if self.pos_weight is not None:
            weight = xp_of(prediction.array).asarray(self.pos_weight, target.dtype)
            soft = soft * (1 + (weight - 1) * target)
        return prediction * (1 - target) + soft


class PinballLoss(PointwiseLoss):
    """q (y - p) above a predicted quantile p and (1 - q) (p - y) below, the mean over all q.

    The prediction is [samples, quantiles], y [samples, 1]; an item is a sample.

    Parameters
    ----------
    quantiles
        Which they are, each between 0 and 1, in the order of the prediction's columns.

    References
    ----------
    Koenker, Bassett, "Regression quantiles", Econometrica 46, 1978.
    """

    def __init__(self, quantiles: Sequence[float], reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.quantiles = tuple(map(float, quantiles))
        are_inside = self.quantiles and all(0 < quantile < 1 for quantile in self.quantiles)
        require(bool(are_inside), "PinballLoss with quantiles", quantiles, "some of 0 < q < 1")

    def items(self, prediction: Any, target: Any) -> Tensor:
        xp = xp_of(prediction.array)
        above = target - prediction  # [samples, quantiles]
        weighted = above * xp.asarray(self.quantiles, prediction.dtype)
        return (weighted + ops.relu(-above)).mean(1)

    def check_targets(self, y: Any, prediction_shape: Shape | None) -> None:
        width = len(self.quantiles)
        fits = prediction_shape in (None, (len(y), width))
        if not fits or y.shape != (len(y), 1):
            raise ShapeError(
                f"targets of shape {y.shape} for predictions of {prediction_shape}; wanted "
                f"[samples, 1] for [samples, {width}], its quantiles"
            )


class KLDivLoss(PointwiseLoss):
    """y (log y - prediction) for log probabilities as the prediction, and probabilities as y.

    Parameters
    ----------
    reduction
        "mean" over elements, or "batchmean" over samples, which is the divergence.
    log_target
        y are log probabilities too.
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        known = ("mean", "batchmean")
        require(is_among(reduction, known), "KLDivLoss with reduction", reduction, _REDUCTION)
        self.reduction = reduction
        self.log_target = log_target

    def items(self, prediction: Any, target: Any) -> Tensor:
        check_equal(prediction, target)
        xp = xp_of(target)
        if self.log_target:
            return (prediction - target) * -xp.exp(target)
        logarithm = xp.log(xp.where(target > 0, target, 1))
        return (prediction - logarithm) * -target

    def count(self, y: Any) -> float:
        return len(array_of(y)) if self.reduction == "batchmean" else super().count(y)


class GaussianNLLLoss(PointwiseLoss):
    """Negative log likelihood of y under normal distributions, in nats per element.

    The prediction is (mean, variance): mean [...] as y, variance as y or with a last size of 1; by
    hand criterion(mean, y, variance) too.

    Parameters
    ----------
    full
        With the constant log(2 pi) / 2.
    eps
        Smallest variance; a smaller one counts as this, and takes its gradient all the same.
    """

    gives_targets_gradients = True

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        require(is_number(eps, above=0), "GaussianNLLLoss with eps", eps, "a number above 0")
        self.full = full
        self.eps = eps

    def __call__(self, prediction: Any, y: Any, var: Any = None) -> Tensor:
        return super().__call__(prediction if var is None else (prediction, var), y)

    def items(self, prediction: Any, target: Any) -> Tensor:
        mean, variance = _two("GaussianNLLLoss", prediction, "(mean, variance)")
        check_equal(mean, target)
        lifted = xp_of(mean.array).maximum(variance.array, self.eps) - variance.array
        variance = variance + lifted  # a constant: the gradient is that of the variance
        items = (ops.log(variance) + ops.square(mean - target) / variance) * 0.5
        return items + 0.5 * math.log(2 * math.pi) if self.full else items

    def check_targets(self, y: Any, prediction_shape: Shape | None) -> None:
        """Do nothing: the shapes of a pair are compared when it is there."""


class CosineEmbeddingLoss(PointwiseLoss):
    """1 - cos for pairs of vectors with y = 1, and max(cos - margin, 0) for those with y = -1.

    The prediction is (x1, x2), both [samples, features]; y [samples]; by hand criterion(x1, x2, y)
    too.

    Parameters
    ----------
    margin
        Cosines up to this cost nothing for pairs with y = -1.
    """

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        require(is_number(margin), "CosineEmbeddingLoss with margin", margin, "a number")
        self.margin = margin

    def __call__(self, x1: Any, x2: Any, target: Any = None) -> Tensor:
        return super().__call__(x1, x2) if target is None else super().__call__((x1, x2), target)

    def items(self, prediction: Any, target: Any) -> Tensor:
        x1, x2 = _two("CosineEmbeddingLoss", prediction, "(x1, x2)")
        if x1.shape != x2.shape or x1.shape[:-1] != target.shape:
            raise ShapeError(
                f"CosineEmbeddingLoss of {x1.shape}, {x2.shape} and targets {target.shape}; wanted "
                "[samples, features] twice and [samples]"
            )
        tiny = 1e-12  # PyTorch's, so that a vector of zeros has the cosine 0
        sizes = (ops.square(x1).sum(-1) + tiny) * (ops.square(x2).sum(-1) + tiny)
        cosine = (x1 * x2).sum(-1) * ops.rsqrt(sizes)
        zeros = cosine.array * 0
        apart = ops.where(target == -1, ops.relu(cosine - self.margin), zeros)
        return ops.where(target == 1, 1 - cosine, apart)

    def check_targets(self, y: Any, prediction_shape: Shape | None) -> None:
        if is_true(((y != 1) & (y != -1)).any()):
            raise ShapeError("targets of CosineEmbeddingLoss; wanted 1 or -1 for each pair")


class RelativeL2Loss(PointwiseLoss):
    """The norm of prediction - y, divided by that of y, for each sample (arXiv 2010.08895).

    y is [samples, ...], with no sample of zeros alone: that would be divided by 0.
    """

    def items(self, prediction: Any, target: Any) -> Tensor:
        rows = ops.flatten(_difference(prediction, target), 1)
        sizes = ops.norm(Tensor(target.reshape(len(target), -1)), 2, 1)
        return ops.norm(rows, 2, 1) / sizes.array

    def count(self, y: Any) -> float:
        return len(array_of(y))


class NLLLoss(Loss):
    """Negative log probability of the right class, for log probabilities as the prediction.

    The prediction is [samples, classes, ...]; y [samples, ...] are class numbers.

    Parameters
    ----------
    weight
        [classes] factor of each class; the mean divides by the sum of the factors.
    ignore_index
        Elements of y with this value do not count.
    reduction
        "mean", since means are made of sums and counts over micro-batches and ranks; any other is
        refused.
    """

    has_class_targets = True
    takes_trees = False

    def __init__(
        self, weight: Any = None, ignore_index: int = IGNORED, reduction: str = "mean"
    ) -> None:
        check_reduction(type(self).__name__, reduction)
        self.weight = None if weight is None else _constant(weight, "weight").astype("float64")
        self.ignore_index = ignore_index

    def total(self, prediction: Any, y: Any) -> Tensor:
        return self._total(self._log_probabilities(prediction), y, None)

    def weighted_total(self, prediction: Any, y: Any, weights: Any) -> Tensor:
        return self._total(self._log_probabilities(prediction), y, weights)

    def _log_probabilities(self, prediction):
        """Return [samples, ..., classes]."""
        prediction = one_array(type(self).__name__, "predictions", prediction)
        check_floating(type(self).__name__, prediction)
        return _classes_last(input_tensor(prediction, wide(prediction.dtype)))

    def _total(self, log_probabilities, y, weights):
        return self._right(log_probabilities, *self._factors(log_probabilities, y, weights))

    def _right(self, log_probabilities, y, factors):
        chosen = ops.squeeze(ops.gather(log_probabilities, -1, y[..., None]), -1)
        return -(_times(chosen, factors) * self._of_class(log_probabilities)[y]).sum()

    def _factors(self, log_probabilities, y, weights):
        """Return y with 0 in place of what does not count, and the factor of each element."""
        xp = xp_of(log_probabilities.array)
        y = fresh.placed(constant_of(y, "the targets of a loss"), xp)
        if y.shape != log_probabilities.shape[:-1]:
            raise ShapeError(
                f"{type(self).__name__} of {y.shape} targets and {log_probabilities.shape[:-1]} "
                "predictions, each of classes in dim 1; wanted equal shapes"
            )
        counts = ~is_ignored(y, self.ignore_index)
        factors = counts.astype(log_probabilities.dtype)
        if weights is not None:
            weights = weights_of_items(weights, y.shape, xp)
            factors = factors * weights.astype(factors.dtype, copy=False)
        return xp.where(counts, y, 0), factors

    def _of_class(self, log_probabilities):
        """Return the factor of each class, [classes]."""
        xp = xp_of(log_probabilities.array)
        dtype = log_probabilities.dtype
        num_classes = log_probabilities.shape[-1]
        if self.weight is None:
            return xp.ones(num_classes, dtype)
        if self.weight.shape != (num_classes,):
            raise ShapeError(
                f"{type(self).__name__} with weight of shape {self.weight.shape}, but predictions "
                f"of {num_classes} classes; wanted one number for each class, ({num_classes},)"
            )
        return xp.asarray(self.weight, dtype)

    def check_targets(self, y: Any, prediction_shape: Shape | None) -> None:
        if y.dtype.kind not in "iu":
            raise ShapeError(f"targets of dtype {y.dtype}; wanted integers, the numbers of classes")
        num_classes = None if self.weight is None else len(self.weight)
        if prediction_shape is not None:
            num_classes = prediction_shape[1]
            if y.shape != (prediction_shape[0], *prediction_shape[2:]):
                raise ShapeError(
                    f"targets of shape {y.shape} for predictions of {prediction_shape}; wanted "
                    "[samples, ...] and [samples, classes, ...]"
                )
        y = y[~is_ignored(y, self.ignore_index)]
        if y.size and (y.min() < 0 or num_classes is not None and y.max() >= num_classes):
            below = "" if num_classes is None else f" < {num_classes}"
            raise ShapeError(
                f"targets from {y.min()} to {y.max()}; wanted 0 <= target{below}, or "
                f"{self.ignore_index} for those that do not count"
            )

    def count(self, y: Any) -> float:
        y = array_of(y)
        y = to_host(y[~is_ignored(y, self.ignore_index)])
        return y.size if self.weight is None else float(self.weight[y].sum())


class CrossEntropyLoss(NLLLoss):
    """Negative log probability of the right class under softmax(prediction), in nats.

    The prediction is logits [samples, classes, ...]; y [samples, ...] are class numbers.

    Parameters
    ----------
    weight, ignore_index, reduction
        As of NLLLoss.
    label_smoothing
        Share of each target, from 0 to 1, that all classes divide evenly (arXiv 1512.00567).

    Examples
    --------
    >>> loss = nn.CrossEntropyLoss()
    >>> round(loss(np.zeros((2, 4)), np.array([0, 3])).item(), 4)
    1.3863
    """

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = IGNORED,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, ignore_index, reduction)
        fits = is_number(label_smoothing, at_least=0) and label_smoothing <= 1
        wanted = "a number from 0 to 1"
        require(fits, "CrossEntropyLoss with label_smoothing", label_smoothing, wanted)
        self.label_smoothing = label_smoothing

    def _log_probabilities(self, prediction):
        return ops.log_softmax(super()._log_probabilities(prediction), -1)

    def _total(self, log_probabilities, y, weights):
        y, factors = self._factors(log_probabilities, y, weights)
        right = self._right(log_probabilities, y, factors)
        if self.label_smoothing == 0:
            return right
        share = self.label_smoothing / log_probabilities.shape[-1]
        weighted = log_probabilities * self._of_class(log_probabilities)
        evenly = -_times(weighted.sum(-1), factors).sum()
        return right * (1 - self.label_smoothing) + evenly * share


_REDUCTION = (
    '"mean", which the engine makes over the global batch (KLDivLoss: or "batchmean"); '
    "for a sum use total(prediction, y)"
)


def check_reduction(owner: str, reduction: str) -> None:
    """Raise ConfigurationError unless the reduction is the mean."""
    require(reduction == "mean", f"{owner} with reduction", reduction, _REDUCTION)


def _constant(weights, name):
    return to_host(constant_of(weights, f"{name} of a loss"))


def check_equal(prediction: Any, target: Any) -> None:
    """Raise ShapeError unless a prediction has the shape of its target."""
    one_array("this loss", "predictions", prediction)
    if prediction.shape != target.shape:
        raise ShapeError(
            f"a loss of prediction {prediction.shape} and target {target.shape}; wanted equal "
            "shapes (no broadcasting here: it hides mistakes)"
        )


def _difference(prediction, target):
    check_equal(prediction, target)
    return prediction - target


def _times(items, factors):
    """Return items times factors, 0 where a factor is 0: an item may be infinite there."""
    return ops.where(factors == 0, 0, items) * factors


def _around(knee, difference):
    """Return |d| of a difference d, where it is below the knee, and d^2 there."""
    size = ops.abs(difference)
    is_near = ~(size.array >= knee)  # NaN is near, and stays NaN
    square = ops.square(ops.where(is_near, difference, 0))  # elsewhere d may be infinite
    return size, is_near, square


def _two(owner, prediction, wanted):
    """Return a prediction of two parts."""
    if not isinstance(prediction, (tuple, list)) or len(prediction) != 2:
        raise ShapeError(f"{owner} of one prediction; wanted {wanted}")
    return prediction


def _classes_last(x):
    """Return [samples, classes, ...] as [samples, ..., classes]."""
    if x.ndim < 2:
        raise ShapeError(f"predictions of shape {x.shape}; wanted [samples, classes, ...]")
    return ops.permute(x, (0, *range(2, x.ndim), 1)) if x.ndim > 2 else x
