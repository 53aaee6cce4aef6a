"""Cross-entropy with its gradient while a row is in cache; the gradient of an embedding."""

import math

import numpy

from ..arena import empty
from ..dtypes import FLOAT32
from ..fresh import BLOCK
from ..registry import on_cpu
from .arrays import empty_like, plain, run
from .compiled import compiled
from .scalar import exp, larger, like, plus


@on_cpu
def cross_entropy(logits, targets, counts=None):
    losses, log_sums = [empty(targets.shape, logits.dtype) for _ in range(2)]
    run(_cross_entropy, (logits, *_marks(targets, counts)), (), (losses, log_sums))
    return losses, log_sums


@on_cpu
def cross_entropy_backward(gradient, logits, targets, log_sums, counts=None, out=None):
    out = empty_like(logits, out)
    run(
        _cross_entropy_backward,
        (logits, *_marks(targets, counts), log_sums),
        (_one(gradient, log_sums.dtype),),
        (out,),
    )
    return out


@on_cpu
def cross_entropy_with_gradient(logits, targets, counts=None, out=None):
    out = empty_like(logits, out)
    if out is not logits:
        out[...] = logits
    losses = empty(targets.shape, logits.dtype)
    _cross_entropy_with_gradient(out, *map(plain, _marks(targets, counts)), losses)
    return out, losses


@on_cpu
def embedding_backward(gradient, ids, num_rows, out=None):
    out = empty((num_rows, gradient.shape[1]), gradient.dtype) if out is None else out
    out.fill(0)
    ids = plain(ids.astype(numpy.int64, copy=False))
    places = numpy.full(num_rows, -1, numpy.int32)  # in the sums in float64
    often = numpy.empty(0, numpy.int64)
    if gradient.dtype == FLOAT32 and ids.size > BLOCK:
        often = numpy.flatnonzero(numpy.bincount(ids, minlength=num_rows) > BLOCK)
        places[often] = numpy.arange(often.size)
    sums = numpy.zeros((often.size, gradient.shape[1]))
    _embedding_backward(plain(gradient), ids, places, sums, out)
    out[often] = sums
    return out


def _one(number, dtype):
    """Return a number, or an array of one element, as [1]: the loop reads it."""
    return numpy.asarray(number, dtype).reshape(1)


def _marks(targets, counts):
    """Return targets as int64 and counts as bool, always arrays: one machine code for all calls."""
    return targets.astype(numpy.int64, copy=False), numpy.ones(
        targets.shape, bool
    ) if counts is None else counts


@compiled
def _cross_entropy(logits, targets, counts, losses, log_sums):
    for i in range(logits.shape[0]):
        top = logits[i, 0]
        total = like(0.0, logits[i, 0])
        for j in range(logits.shape[1]):
            top = larger(top, logits[i, j])
        for j in range(logits.shape[1]):
            total = plus(total, exp(logits[i, j] - top))
        log_sums[i] = log_sum = top + math.log(total)
        losses[i] = log_sum
        if 0 <= targets[i] < logits.shape[1]:
            losses[i] = log_sum - logits[i, targets[i]]
        if not counts[i]:
            losses[i] = 0


@compiled
def _cross_entropy_backward(logits, targets, counts, log_sums, gradient, out):
    for i in range(logits.shape[0]):
        factor = gradient[0]
        if counts[i]:
            for j in range(logits.shape[1]):
                out[i, j] = exp(logits[i, j] - log_sums[i]) * factor
            if 0 <= targets[i] < logits.shape[1]:
                out[i, targets[i]] -= factor
        else:
            out[i, :] = 0


@compiled
def _cross_entropy_with_gradient(logits, targets, counts, losses):
    for i in range(logits.shape[0]):
        if not counts[i]:
            logits[i, :] = losses[i] = 0
            continue
        top = logits[i, 0]
        for j in range(logits.shape[1]):
            top = larger(top, logits[i, j])
        has_target = 0 <= targets[i] < logits.shape[1]
        chosen = logits[i, targets[i]] if has_target else like(0.0, top)
        for j in range(logits.shape[1]):
            logits[i, j] = exp(logits[i, j] - top)
        total = like(0.0, top)
        for j in range(logits.shape[1]):
            total = plus(total, logits[i, j])
        losses[i] = top + math.log(total)
        losses[i] -= chosen
        share = like(1.0, top) / total
        for j in range(logits.shape[1]):
            logits[i, j] *= share
        if has_target:
            logits[i, targets[i]] -= like(1.0, top)


@compiled
def _embedding_backward(gradient, ids, places, sums, out):
    for i in range(ids.size):
        place = places[ids[i]]
        if place < 0:
            for j in range(gradient.shape[1]):
                out[ids[i], j] += gradient[i, j]
        else:
            for j in range(gradient.shape[1]):
                sums[place, j] += gradient[i, j]
