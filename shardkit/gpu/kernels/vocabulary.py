"""Cross-entropy with its gradient, a block of threads per row; the gradient of an embedding."""

import numpy

from ...array.backend import is_device_array
from ...array.fresh import BLOCK
from ...array.registry import on_cuda
from .arrays import by_rows, new, new_like, plain, real, real_dtype
from .sorting import by_segments

FILE = "rows.cu"


@on_cuda()
def cross_entropy(logits, targets, counts=None):
    losses, log_sums = [new(logits, targets.shape, real_dtype(logits)) for _ in range(2)]
    marks = _marks(targets, counts)
    by_rows(FILE, "cross_entropy", logits, plain(logits), *marks, losses, log_sums)
    return losses, log_sums


@on_cuda()
def cross_entropy_backward(gradient, logits, targets, log_sums, counts=None, out=None):
    out = new_like(logits, out)
    targets, counts = _marks(targets, counts)
    if is_device_array(gradient):  # read there by the kernel: nothing waits
        factor = gradient.astype(real_dtype(logits), copy=False), 0.0
    else:
        factor = None, float(gradient)
    arrays = plain(logits), targets, real(log_sums, logits), counts, out
    by_rows(FILE, "cross_entropy_backward", logits, *factor, *arrays)
    return out


@on_cuda()
def cross_entropy_with_gradient(logits, targets, counts=None, out=None):
    losses, log_sums = cross_entropy(logits, targets, counts)
    return cross_entropy_backward(1, logits, targets, log_sums, counts, out), losses


def _marks(targets, counts):
    """Return targets as int64, and counts as bool or None."""
    return plain(targets.astype(numpy.int64, copy=False)), None if counts is None else plain(counts)


@on_cuda()
def embedding_backward(gradient, ids, num_rows, out=None):
    dtype = real_dtype(gradient)
    sums = out
    if out is None or out.dtype != dtype:
        sums = new(gradient, (num_rows, gradient.shape[1]), dtype)
    by_segments("embedding_backward", gradient, ids, num_rows, sums, BLOCK)
    if out is None or out is sums:
        return sums
    out[...] = sums  # half floats: rounded once, after all is added
    return out
