"""Where rows meet class numbers: cross-entropy, and the gradient of an embedding."""

from operator import itemgetter

from ..backend import xp_of
from ..dtypes import FLOAT32
from ..fresh import BLOCK
from ..registry import kernel
from .chunks import empty_like, spans


@kernel(rounded=(False, False))
def cross_entropy(logits, targets, counts=None):
    """Return losses [N] and log_sums [N] for logits [N, V], targets [N] integers.

    A log_sum is the logarithm of the sum of exp over V.

    targets  one that is not in [0, V) stands in columns that others hold: its logit is taken as 0
    counts   [N] bool or None (all): rows that do not count have loss 0, whatever their target
    """
    xp = xp_of(logits)
    width = logits.shape[1]
    losses, log_sums = xp.empty(targets.shape, logits.dtype), xp.empty(targets.shape, logits.dtype)
    for rows in spans(logits, width):
        top = logits[rows].max(axis=1)
        total = xp.exp(logits[rows] - top[:, None]).sum(axis=1)
        log_sums[rows] = top + xp.log(total)
        losses[rows] = log_sums[rows]
        places, columns = _chosen(targets[rows], width)
        losses[rows][places] -= logits[rows][places, columns]
    if counts is not None:
        losses[~counts] = 0
    return losses, log_sums


@kernel(deciding=itemgetter(1), rounded=(True,))
def cross_entropy_backward(gradient, logits, targets, log_sums, counts=None, out=None):
    """Return the gradient [N, V]: (softmax - one-hot) gradient.

    Takes the gradient, one number, and what the forward took and returned. A row whose target is
    not in [0, V) has no one-hot; log_sums may be those of more columns than are here.
    """
    xp = xp_of(logits)
    width = logits.shape[1]
    out = empty_like(logits, out)
    for rows in spans(logits, width):
        part = xp.subtract(logits[rows], log_sums[rows, None], out=out[rows])
        xp.exp(part, out=part)
        part[_chosen(targets[rows], width)] -= 1
        part *= gradient
    if counts is not None:
        out[~counts] = 0
    return out


@kernel(rounded=(True, False))
def cross_entropy_with_gradient(logits, targets, counts=None, out=None):
    """Return the gradient [N, V] of the sum of the losses, softmax - one-hot, and the losses [N].

    Takes what cross_entropy takes; the gradient is 0 in rows that do not count.
    """
    losses, log_sums = cross_entropy(logits, targets, counts)
    return cross_entropy_backward(1, logits, targets, log_sums, counts, out), losses


def _chosen(targets, width):
    """Return (rows, columns) of the targets in [0, width)."""
    rows = xp_of(targets).flatnonzero((targets >= 0) & (targets < width))
    return rows, targets[rows]


@kernel(rounded=(False,))
def embedding_backward(gradient, ids, num_rows, out=None):
    """Return [num_rows, D]: row v sums the rows of gradient [N, D] whose id is v.

    ids [N] are in [0, num_rows). Each row is summed in the order of N, so its bits depend on
    nothing but its own gradients. More than BLOCK rows of float32 are added in float64, and rounded
    once. `out` is overwritten.
    """
    xp = xp_of(gradient)
    out = xp.empty((num_rows, gradient.shape[1]), gradient.dtype) if out is None else out
    out.fill(0)
    if ids.size == 0:
        return out
    order = xp.argsort(ids, kind="stable")  # equal ids side by side, in the order they came
    sorted_ids = ids[order]
    inner = xp.flatnonzero(sorted_ids[1:] != sorted_ids[:-1]) + 1
    starts = xp.concatenate([xp.zeros(1, inner.dtype), inner])
    counts = xp.concatenate([inner, xp.full(1, ids.size, inner.dtype)]) - starts
    out[sorted_ids[starts]] = gradient[order[starts]]  # all there is for ids that came once
    for start, count in zip(starts[counts > 1].tolist(), counts[counts > 1].tolist()):
        is_wide = gradient.dtype == FLOAT32 and count > BLOCK
        rows = gradient[order[start : start + count]]
        out[sorted_ids[start]] = rows.sum(axis=0, dtype="float64" if is_wide else None)
    return out
