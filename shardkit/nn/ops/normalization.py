"""Layer norms, and dropout."""
from ...array import kernels
from ...array.random import key_of
from ...array.backend import xp_of
from ...errors import ShapeError
from ..autograd import Tensor, record
from ..context import ForwardContext


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension (arXiv 1607.06450).

    x [..., D], weight [D], bias [D] -> [..., D]; the variance is the mean square, not the sample variance
    """
    rows = _rows("layer_norm", x, weight, bias)
    by_row = rows.shape                                                # [N, D]
    y, mean, inverse = kernels.layer_norm(rows, weight.array, bias.array, eps)

    def backward(gradient, wanted):
        for_x, for_weight, for_bias = kernels.layer_norm_backward(
            gradient.reshape(by_row), x.array.reshape(by_row), weight.array, mean, inverse, wanted)
        return None if for_x is None else for_x.reshape(gradient.shape), for_weight, for_bias
    return record(y.reshape(x.shape), (x, weight, bias), backward, needs=(x, weight))


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean of x^2 + eps) * weight over the last dimension (arXiv 1910.07467).

    x [..., D], weight [D] -> [..., D]
    """
    rows = _rows("rms_norm", x, weight)
    by_row = rows.shape                                                # [N, D]
    y, inverse = kernels.rms_norm(rows, weight.array, eps)

    def backward(gradient, wanted):
        for_x, for_weight = kernels.rms_norm_backward(
            gradient.reshape(by_row), x.array.reshape(by_row), weight.array, inverse, wanted)
        return None if for_x is None else for_x.reshape(gradient.shape), for_weight
    return record(y.reshape(x.shape), (x, weight), backward, needs=(x, weight))


def _rows(name, x, *parameters):
    """x as [rows, D]. Errors: ShapeError unless each parameter is [D] in the dtype of x."""
    if x.ndim < 1 or x.shape[-1] == 0 or any(p.shape != x.shape[-1:] or p.dtype != x.dtype for p in parameters):
        got = ", ".join(f"{p.shape} {p.dtype}" for p in (x, *parameters))
        raise ShapeError(f"{name} of {got}; wanted x [..., D] with D > 0 and then [D], all of one dtype")
    return x.array.reshape(x.size // x.shape[-1], x.shape[-1])


def dropout(x: Tensor, p: float, path: str, context: ForwardContext) -> Tensor:
    """x with each element zeroed with probability p, the others times 1 / (1 - p); x itself if not training.

    x        [samples, ...]; row i is sample context.first_sample + i of the global batch
    path     of the layer in the model; two dropouts of one model must not share it
    The mask depends on (seed, path, step, global sample, place in the sample) alone, so it is the same however the batch
    is cut. Errors: ShapeError unless 0 <= p < 1 and x has samples to count.
    """
    if not 0 <= p < 1:
        raise ShapeError(f"dropout with p = {p}; wanted 0 <= p < 1")
    if not context.training or p == 0:
        return x
    if x.ndim == 0:
        raise ShapeError("dropout of a single number; wanted [samples, ...]")
    key = key_of(context.seed, "dropout", path, context.step)
    start = context.first_sample * (x.size // max(x.shape[0], 1))
    keep = kernels.dropout_mask(key, start, start + x.size, p, xp=xp_of(x.array)).reshape(x.shape)
    scale = 1 / (1 - p)

    def scaled(array):
        y = array * keep
        y *= scale
        return y
    return record(scaled(x.array), (x,), lambda gradient, wanted: (scaled(gradient),))
