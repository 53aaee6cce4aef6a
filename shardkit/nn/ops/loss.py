"""Losses of tensors; reduction "sum" adds the items up, "mean" divides by how many count."""

from functools import partial
from typing import Any

from ...array import fresh, kernels
from ...array.backend import xp_of
from ...array.halves import rounded, widened
from ...errors import ShapeError
from ..autograd import Tensor, constant_of, record
from ..late import LateLogits
from .blocks import goes_by_blocks, sum_by_blocks
from .elementwise import multiply, negative, subtract
from .operands import check_floating, check_ids, matched
from .shape import cast

WEIGHTS = "the weights of a loss"
IGNORED = -100  # the target that does not count, as in torch.nn.CrossEntropyLoss


def cross_entropy(
    logits: Tensor,
    targets: Any,
    ignore_index: int | None = None,
    reduction: str = "mean",
    weights: Any = None,
) -> Tensor:
    """Return the negative log probability of the targets under softmax(logits), in nats.

    Parameters
    ----------
    logits
        [..., V]; targets [...] integers in [0, V), an array or Tensor; those equal to ignore_index
        do not count.
    weights
        [...] factor of each target in the sum; a mean still divides by how many count.

    Returns
    -------
    Tensor
        A single element, float32 if the logits are half floats; 0 if nothing counts.

    Notes
    -----
    Kept for the backward: the logits and one number per row. LateLogits that nobody read are made
    by blocks (blocks.py), and their gradients with them.
    """
    late = logits if isinstance(logits, LateLogits) else None
    targets = constant_of(targets, "the targets of cross_entropy")
    targets = fresh.placed(targets, xp_of((logits if late is None else late.x).array))
    if logits.ndim < 1 or targets.shape != logits.shape[:-1]:
        raise ShapeError(
            f"cross_entropy of logits {logits.shape} and targets {targets.shape}; wanted logits "
            "[..., V] and targets of the shape before V"
        )
    check_floating("cross_entropy", logits)
    num_classes = logits.shape[-1]
    flat = targets.reshape(-1)
    counts = None if ignore_index is None else flat != ignore_index  # [rows] bool
    check_ids("cross_entropy", flat, num_classes, ignored=ignore_index)
    weight = _weight(reduction, lambda: flat.size if counts is None else int(counts.sum()))
    if late is not None and weights is None and goes_by_blocks(late):
        return sum_by_blocks(late, partial(_judged, flat, counts), weight)
    rows = (flat.size, num_classes)
    losses, log_sums = kernels.cross_entropy(logits.array.reshape(rows), flat, counts)
    factors = None if weights is None else _factors(weights, losses)
    losses = losses if factors is None else losses * factors

    def backward(gradient, wanted):
        for_rows = kernels.cross_entropy_backward(
            gradient * weight, logits.array.reshape(rows), flat, log_sums, counts
        )
        if factors is not None:
            for_rows = rounded(widened(for_rows) * factors[:, None], logits.dtype)
        return (for_rows.reshape(logits.shape),)

    return record(losses.sum() * weight, (logits,), backward, needs=(logits,))


def _judged(targets, counts, logits, part, with_gradient):
    """Return the losses of a block, whose logits become their gradients."""
    counts = None if counts is None else counts[part]
    if not with_gradient:
        return kernels.cross_entropy(logits, targets[part], counts)[0]
    return kernels.cross_entropy_with_gradient(logits, targets[part], counts, out=logits)[1]


def mse(prediction: Tensor, target: Any, reduction: str = "mean", weights: Any = None) -> Tensor:
    """Return the squared difference over all elements, of half floats as float32.

    The target is a Tensor or an array of the same shape.

    Parameters
    ----------
    weights
        [rows] factor of each row in the sum; a mean still divides by the number of elements.
    """
    target = target if isinstance(target, Tensor) else Tensor(target)
    if prediction.shape != target.shape:
        raise ShapeError(
            f"mse of prediction {prediction.shape} and target {target.shape}; wanted equal shapes "
            "(no broadcasting here: it hides mistakes)"
        )
    check_floating("mse", prediction)
    target = matched("mse", prediction, target)[1]
    target = target if isinstance(target, Tensor) else Tensor(target)
    weight = _weight(reduction, lambda: prediction.size)
    factors = None if weights is None else _by_row(weights, prediction)

    def backward(gradient, wanted):
        for_prediction = fresh.compute("subtract", widened(prediction.array), widened(target.array))
        for_prediction = fresh.compute("multiply", for_prediction, gradient * (2 * weight))
        if factors is not None:
            for_prediction *= factors
        return (
            rounded(for_prediction, prediction.dtype) if wanted[0] else None,
            -rounded(for_prediction, target.dtype) if wanted[1] else None,
        )

    def differentiable(gradient, wanted, output):
        dtype = gradient.dtype  # float32 of half floats
        both = [x if x.dtype == dtype else cast(x, dtype) for x in (prediction, target)]
        slope = multiply(subtract(*both), multiply(gradient, 2 * weight))
        slope = slope if factors is None else multiply(slope, factors)
        return (
            cast(slope, prediction.dtype) if wanted[0] else None,
            cast(negative(slope), target.dtype) if wanted[1] else None,
        )

    difference = fresh.compute("subtract", widened(prediction.array), widened(target.array))
    difference *= difference
    if factors is not None:
        difference *= factors
    return record(
        difference.sum() * weight,
        (prediction, target),
        backward,
        needs=(prediction, target),
        differentiable=differentiable,
    )


def binary_cross_entropy_with_logits(
    logits: Tensor,
    targets: Any,
    reduction: str = "mean",
    weights: Any = None,
    ignore_index: int | None = None,
) -> Tensor:
    """Return the negative log probability of the targets under sigmoid(logits), in nats.

    max(z, 0) - z t + log(1 + exp(-|z|)) for each logit z and target t, which overflows for no z.

    Parameters
    ----------
    logits, targets
        Of one shape; targets from 0 to 1, an array or Tensor.
    weights
        As of mse, or one for each element.
    ignore_index
        Targets of this value do not count; None: all do.
    """
    xp = xp_of(logits.array)
    target = fresh.placed(
        constant_of(targets, "the target of binary_cross_entropy_with_logits"), xp
    )
    if logits.shape != target.shape:
        raise ShapeError(
            f"binary_cross_entropy_with_logits of logits {logits.shape} and targets "
            f"{target.shape}; wanted equal shapes"
        )
    check_floating("binary_cross_entropy_with_logits", logits)
    counts = None if ignore_index is None else target != ignore_index
    z = widened(logits.array)
    target = target.astype(z.dtype, copy=False)
    target = target if counts is None else xp.where(counts, target, 0)
    weight = _weight(reduction, lambda: logits.size if counts is None else int(counts.sum()))
    factors = None if weights is None else _by_row(weights, logits)

    def backward(gradient, wanted):
        z = widened(logits.array)
        for_logits = (kernels.sigmoid(z) - target) * (gradient * weight)
        if factors is not None:
            for_logits *= factors
        if counts is not None:
            for_logits[~counts] = 0
        return (rounded(for_logits, logits.dtype),)

    losses = xp.maximum(z, 0) - z * target + xp.log1p(xp.exp(-xp.abs(z)))
    if factors is not None:
        losses *= factors
    if counts is not None:
        losses[~counts] = 0
    return record(losses.sum() * weight, (logits,), backward, needs=(logits,))


def _factors(weights, losses):
    """Return weights as a flat array of the losses' dtype and library."""
    weights = fresh.placed(constant_of(weights, WEIGHTS), xp_of(losses)).reshape(-1)
    if weights.shape != losses.shape:
        raise ShapeError(f"{weights.size} weights of {losses.size} losses; wanted one each")
    return weights.astype(losses.dtype, copy=False)


def _by_row(weights, prediction):
    """Return weights [rows] as an array that stretches over the rows of a prediction."""
    weights = fresh.placed(constant_of(weights, WEIGHTS), xp_of(prediction.array))
    if weights.shape == prediction.shape:
        return weights.astype(widened(prediction.array).dtype, copy=False)
    if weights.shape != prediction.shape[:1]:
        raise ShapeError(
            f"weights {weights.shape} of predictions {prediction.shape}; wanted one for each row"
        )
    shape = (len(weights),) + (1,) * (prediction.ndim - 1)
    return weights.reshape(shape).astype(widened(prediction.array).dtype, copy=False)


def _weight(reduction, count):
    """Return what each item counts, a Python float; count() is called for the mean only."""
    if reduction not in ("mean", "sum"):
        raise ShapeError(f'reduction {reduction!r}; wanted "mean" or "sum"')
    return 1.0 if reduction == "sum" else 1.0 / max(count(), 1)
