"""Losses by PyTorch's names whose predictions or targets are no pair of equal arrays, and those of
counts and probabilities.
"""

import math
from typing import Any

from ..annotations import Shape
from ..arguments import is_integer, is_number, require
from ..array.backend import is_true, to_host, xp_of
from ..errors import ShapeError
from . import ops
from .autograd import Tensor, array_of
from .layers.basic import input_tensor
from .loss import Loss, weighted_sum
from .losses import PointwiseLoss, check_equal, check_reduction


class BCELoss(PointwiseLoss):
    """Negative log probability of y, from 0 to 1, under predictions from 0 to 1, in nats.

    A logarithm is at least -100, as in PyTorch. BCEWithLogitsLoss of the values before a sigmoid
    loses no digits.
    """

    def items(self, prediction: Any, target: Any) -> Tensor:
        check_equal(prediction, target)
        inside = (prediction.array >= 0) & (prediction.array <= 1)
        if not is_true(inside.all()):
            raise ShapeError("BCELoss of predictions outside of 0 to 1; apply a sigmoid first")
        logarithms = [_log(prediction), _log(1 - prediction)]
        return -(logarithms[0] * target + logarithms[1] * (1 - target))


def _log(x):
    """Return the logarithm of x, at least -100, where no gradient passes."""
    limit = math.exp(-100)
    return ops.log(ops.where(x.array > limit, x, limit))


class PoissonNLLLoss(PointwiseLoss):
    """Negative log likelihood of counts y under Poisson distributions.

    Parameters
    ----------
    log_input
        The prediction is the logarithm of the mean; False: the mean.
    full
        With Stirling's approximation of log y!.
    eps
        Added to a mean whose logarithm is taken.
    reduction
        "mean"; any other is refused.
    """

    def __init__(
        self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        require(is_number(eps, above=0), "PoissonNLLLoss with eps", eps, "a number above 0")
        self.log_input = log_input
        self.full = full
        self.eps = eps

    def items(self, prediction: Any, target: Any) -> Tensor:
        check_equal(prediction, target)
        if self.log_input:
            items = ops.exp(prediction) - prediction * target
        else:
            items = prediction - ops.log(prediction + self.eps) * target
        return items + _log_factorial(target) if self.full else items


def _log_factorial(y):
    """Return Stirling's approximation of log y!, 0 up to 1."""
    xp = xp_of(y)
    y = xp.maximum(y, 1)
    half = 0.5 * xp.log(2 * math.pi * y)
    items = y * xp.log(y) - y + half
    return xp.where(y > 1, items, 0).astype(y.dtype)


class TripletMarginLoss(PointwiseLoss):
    """max(|anchor - positive| - |anchor - negative| + margin, 0) for triples of vectors.

    The prediction is (anchor, positive, negative), each [samples, features]; y [samples, ...] says
    how many there are; by hand criterion(anchor, positive, negative) too.

    Parameters
    ----------
    margin
        That the negative is farther away.
    p, eps
        As of ops.pairwise_distance.
    swap, reduction
        Use |positive - negative|, where that is smaller; "mean", any other is refused.
    """

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        require(is_number(margin, above=0), "TripletMarginLoss with margin", margin, "above 0")
        self.margin = margin
        self.swap = swap
        self.p = p
        self.eps = eps
        super().__init__(reduction)

    def __call__(self, prediction: Any, y: Any, negative: Any = None) -> Tensor:
        if negative is None:
            return super().__call__(prediction, y)
        return super().__call__((prediction, y, negative), array_of(y))

    def items(self, prediction: Any, target: Any) -> Tensor:
        if not isinstance(prediction, tuple) or len(prediction) != 3:
            raise ShapeError(
                "TripletMarginLoss of one prediction; wanted (anchor, positive, negative)"
            )
        anchor, positive, negative = prediction
        far = ops.pairwise_distance(anchor, negative, self.p, self.eps)
        if self.swap:
            far = ops.minimum(far, ops.pairwise_distance(positive, negative, self.p, self.eps))
        near = ops.pairwise_distance(anchor, positive, self.p, self.eps)
        return ops.relu(near - far + self.margin)

    def count(self, y: Any) -> float:
        return len(array_of(y))

    def check_targets(self, y: Any, prediction_shape: Shape | None) -> None:
        """Do nothing: y is only counted."""


class CTCLoss(Loss):
    """Minus the log probability of texts, whichever way their classes are spelled out over time.

    In training the prediction is [N, T, classes], log probabilities, and y a tree (targets [N, S],
    input_lengths [N], target_lengths [N]). By hand it takes PyTorch's four arguments too:
    criterion(log_probs [T, N, classes], targets, input_lengths, target_lengths).

    Parameters
    ----------
    blank
        The class between two equal ones.
    reduction
        "mean" over the samples, each divided by its length; any other is refused.
    zero_infinity
        Texts that do not fit into their steps cost nothing.
    """

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        check_reduction("CTCLoss", reduction)
        require(is_integer(blank, at_least=0), "CTCLoss with blank", blank, "the number of a class")
        self.blank, self.zero_infinity = blank, zero_infinity

    def __call__(
        self, prediction: Any, y: Any, input_lengths: Any = None, target_lengths: Any = None
    ) -> Tensor:
        if input_lengths is None:
            return super().__call__(prediction, y)
        items = self._items(prediction, y, input_lengths, target_lengths)
        return items.sum() / (items.shape[0] or 1)

    def total(self, prediction: Any, y: Any) -> Tensor:
        return self._items(ops.transpose(prediction, 0, 1), *_three(y)).sum()

    def weighted_total(self, prediction: Any, y: Any, weights: Any) -> Tensor:
        return weighted_sum(self._items(ops.transpose(prediction, 0, 1), *_three(y)), weights)

    def _items(self, log_probs, targets, input_lengths, target_lengths):
        items = ops.ctc_loss(
            input_tensor(log_probs), targets, input_lengths, target_lengths, self.blank
        )
        if self.zero_infinity:
            items = ops.where(xp_of(items.array).isfinite(items.array), items, 0.0)
        xp = xp_of(items.array)
        lengths = xp.maximum(xp.asarray(to_host(array_of(target_lengths))), 1)
        return items / lengths.astype(items.dtype)

    def count(self, y: Any) -> float:
        return len(array_of(_three(y)[1]))

    def check_targets(self, y: Any, prediction_shape: Shape | None) -> None:
        _three(y)


def _three(y):
    """Return the parts of the targets. Errors: ShapeError if they are no three."""
    parts = list(y.values()) if isinstance(y, dict) else y
    if not isinstance(parts, (list, tuple)) or len(parts) != 3:
        raise ShapeError(
            "targets of CTCLoss; wanted (targets [N, S], input_lengths [N], target_lengths [N])"
        )
    return parts
