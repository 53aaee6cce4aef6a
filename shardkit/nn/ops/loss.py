"""Losses of tensors; reduction "sum" adds the items up, "mean" divides by how many count."""

from ...array import fresh, kernels
from ...array.backend import xp_of
from ...array.halves import rounded, widened
from ...errors import ShapeError
from ..autograd import Tensor, array_of, record
from .ids import check_ids


def cross_entropy(
    logits: Tensor, targets, ignore_index: int | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the negative log probability of the targets under softmax(logits), in nats.

    logits   [..., V]; targets [...] integers in [0, V), an array or Tensor; those equal to
             ignore_index do not count
    returns  a single element, float32 if the logits are half floats; 0 if nothing counts
    Kept for the backward: the logits and one number per row.
    """
    targets = fresh.placed(array_of(targets), xp_of(logits.array))
    if logits.ndim < 1 or targets.shape != logits.shape[:-1]:
        raise ShapeError(
            f"cross_entropy of logits {logits.shape} and targets {targets.shape}; wanted logits "
            "[..., V] and targets of the shape before V"
        )
    num_classes = logits.shape[-1]
    flat = targets.reshape(-1)
    counts = None if ignore_index is None else flat != ignore_index  # [rows] bool
    check_ids("cross_entropy", flat, num_classes, ignored=ignore_index)
    rows = (flat.size, num_classes)
    losses, log_sums = kernels.cross_entropy(logits.array.reshape(rows), flat, counts)
    weight = _weight(reduction, lambda: flat.size if counts is None else int(counts.sum()))

    def backward(gradient, wanted):
        for_rows = kernels.cross_entropy_backward(
            gradient * weight, logits.array.reshape(rows), flat, log_sums, counts
        )
        return (for_rows.reshape(logits.shape),)

    return record(losses.sum() * weight, (logits,), backward, needs=(logits,))


def mse(prediction: Tensor, target, reduction: str = "mean") -> Tensor:
    """Return the squared difference over all elements, of half floats as float32.

    The target is a Tensor or an array of the same shape.
    """
    target = target if isinstance(target, Tensor) else Tensor(target)
    if prediction.shape != target.shape:
        raise ShapeError(
            f"mse of prediction {prediction.shape} and target {target.shape}; wanted equal shapes "
            "(no broadcasting here: it hides mistakes)"
        )
    weight = _weight(reduction, lambda: prediction.size)

    def backward(gradient, wanted):
        for_prediction = fresh.compute("subtract", widened(prediction.array), widened(target.array))
        for_prediction = fresh.compute("multiply", for_prediction, gradient * (2 * weight))
        return (
            rounded(for_prediction, prediction.dtype) if wanted[0] else None,
            -rounded(for_prediction, target.dtype) if wanted[1] else None,
        )

    difference = fresh.compute("subtract", widened(prediction.array), widened(target.array))
    difference *= difference
    return record(
        difference.sum() * weight, (prediction, target), backward, needs=(prediction, target)
    )


def _weight(reduction, count):
    """Return what each item counts, a Python float; count() is called for the mean only."""
    if reduction not in ("mean", "sum"):
        raise ShapeError(f'reduction {reduction!r}; wanted "mean" or "sum"')
    return 1.0 if reduction == "sum" else 1.0 / max(count(), 1)
