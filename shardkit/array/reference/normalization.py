"""Layer norm and RMS norm over rows, each with its gradient and with the addition before it.

Both norms keep one or two numbers per row and compute the normalized rows again in the backward. A
sum over rows (the gradients of weight and bias) goes through the rows in order, in pieces whose
size depends on D alone.
"""

from ..backend import xp_of
from ..registry import WITH_BFLOAT16, kernel
from .chunks import empty_like, spans


@kernel(kinds=WITH_BFLOAT16, rounded=(True, False, False))
def layer_norm(x, weight, bias, eps, out=None):
    """Return y [N, D], mean [N], inverse [N] for x [N, D], weight [D], bias [D].

    The inverse is 1 / sqrt(variance + eps).
    """
    xp = xp_of(x)
    width = x.shape[1]
    y = empty_like(x, out)
    mean = xp.empty(x.shape[0], x.dtype)
    inverse = xp.empty_like(mean)
    for rows in spans(x, width):
        mean[rows] = x[rows].sum(axis=1) / width
        centered = xp.subtract(x[rows], mean[rows, None], out=y[rows])
        variance = (centered * centered).sum(axis=1) / width
        inverse[rows] = 1 / xp.sqrt(variance + eps)
        centered *= inverse[rows, None]
        centered *= weight
        centered += bias
    return y, mean, inverse


@kernel(kinds=WITH_BFLOAT16, after_adding="layer_norm")
def add_layer_norm(x, branch, weight, bias, eps, out=(None, None)):
    """Return total = x + branch [N, D], and layer_norm(total): y, mean, inverse.

    out  two buffers, of total and y, or None for new ones; total may be x or branch
    """
    total = xp_of(x).add(x, branch, out=empty_like(x, out[0]))
    return total, *layer_norm(total, weight, bias, eps, out[1])


@kernel(kinds=WITH_BFLOAT16, rounded=(True, False, False))
def layer_norm_backward(gradient, x, weight, mean, inverse, wanted=(True, True, True), out=None):
    """Return the gradients of x [N, D], weight [D], bias [D].

    Takes gradient [N, D], x and what layer_norm returned.

    With n the normalized row and h = gradient weight:  inverse (h - mean(h) - n mean(h n)).
    wanted  which of the three to compute; the others are None
    """
    xp = xp_of(gradient)
    width = x.shape[1]
    for_x = empty_like(x, out) if wanted[0] else None
    for_weight = xp.zeros(width, x.dtype) if wanted[1] else None
    for_bias = xp.zeros(width, x.dtype) if wanted[2] else None
    for rows in spans(x, width):
        normalized = (x[rows] - mean[rows, None]) * inverse[rows, None]
        if wanted[1]:
            for_weight += (gradient[rows] * normalized).sum(axis=0)
        if wanted[2]:
            for_bias += gradient[rows].sum(axis=0)
        if wanted[0]:  # last, since it may overwrite the gradient
            h = gradient[rows] * weight
            level = h.sum(axis=1, keepdims=True) / width
            along = (h * normalized).sum(axis=1, keepdims=True) / width
            for_x[rows] = (h - level - normalized * along) * inverse[rows, None]
    return for_x, for_weight, for_bias


@kernel(kinds=WITH_BFLOAT16, rounded=(True, False))
def rms_norm(x, weight, eps, out=None):
    """Return y [N, D], inverse [N] = 1 / sqrt(mean of squares + eps) for x [N, D], weight [D]."""
    xp = xp_of(x)
    width = x.shape[1]
    y = empty_like(x, out)
    inverse = xp.empty(x.shape[0], x.dtype)
    for rows in spans(x, width):
        mean_square = (x[rows] * x[rows]).sum(axis=1) / width
        inverse[rows] = 1 / xp.sqrt(mean_square + eps)
        y[rows] = x[rows] * inverse[rows, None] * weight
    return y, inverse


@kernel(kinds=WITH_BFLOAT16, after_adding="rms_norm")
def add_rms_norm(x, branch, weight, eps, out=(None, None)):
    """Return total = x + branch [N, D], and rms_norm(total): y, inverse.

    out  two buffers, of total and y, or None for new ones; total may be x or branch
    """
    total = xp_of(x).add(x, branch, out=empty_like(x, out[0]))
    return total, *rms_norm(total, weight, eps, out[1])


@kernel(kinds=WITH_BFLOAT16, rounded=(True, False))
def rms_norm_backward(gradient, x, weight, inverse, wanted=(True, True), out=None):
    """Return the gradients of x [N, D] and weight [D], None if not wanted.

    Takes gradient [N, D], x and what rms_norm returned.

    With n the normalized row and h = gradient weight:  inverse (h - n mean(h n)).
    """
    xp = xp_of(gradient)
    width = x.shape[1]
    for_x = empty_like(x, out) if wanted[0] else None
    for_weight = xp.zeros(width, x.dtype) if wanted[1] else None
    for rows in spans(x, width):
        normalized = x[rows] * inverse[rows, None]
        if wanted[1]:
            for_weight += (gradient[rows] * normalized).sum(axis=0)
        if wanted[0]:  # last, since it may overwrite the gradient
            h = gradient[rows] * weight
            along = (h * normalized).sum(axis=1, keepdims=True) / width
            for_x[rows] = (h - normalized * along) * inverse[rows, None]
    return for_x, for_weight
