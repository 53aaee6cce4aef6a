"""Norms whose moments are those of whole samples, or of a whole micro-batch.

    own sums --all-reduce--> mean --> own sums of squared distances --all-reduce--> variance

The same in two sums over the ranks, forward and backward; each sum is added as the tree over ranks.
"""

from ...array import halves
from ...array.dtypes import wide
from ...errors import ShapeError
from ...nn.autograd import record
from ...nn.context import current_context
from ...nn.layers.basic import input_tensor
from ...nn.layers.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    TrackedNorm,
    observe_moments,
)
from ...nn.ops import reduction
from ...nn.ops.shape import reshape
from ..conjugate import all_reduce
from .axis import CutLayer

OVER_BATCH = (BatchNorm1d, BatchNorm2d, BatchNorm3d)


class CutGroupNorm(CutLayer):
    """Group norm of x [N, C, part, *grid] local, by the moments of whole samples."""

    def forward(self, x):
        layer = self._whole
        size = _whole_size(self, x)
        groups = (x.shape[0], layer.num_groups, -1, *x.shape[2:])
        dims = tuple(range(2, x.ndim + 1))
        count = size // (x.shape[0] * layer.num_groups)
        by_group = reshape(x, groups)
        y, _, _ = _normalized(by_group, dims, count, layer.eps, self._axis.group)
        return _scaled(layer, reshape(y, x.shape), x.dtype)


class CutTrackedNorm(CutLayer):
    """Batch or instance norm of x [N, C, part, *grid] local; running moments as without a cut."""

    _whole: TrackedNorm

    def forward(self, x):
        layer = self._whole
        layer.check_input(x)
        if layer.track_running_stats and not current_context().training:
            return layer.forward(x)
        is_over_batch = isinstance(layer, OVER_BATCH)
        dims = (*(0,) * is_over_batch, *range(2, x.ndim))
        means = x.shape[1] if is_over_batch else x.shape[0] * x.shape[1]
        count = _whole_size(self, x) // means
        y, mean, variance = _normalized(x, dims, count, layer.eps, self._axis.group)
        if layer.track_running_stats:
            observe_moments(layer, mean.array, variance.array, count)
        return _scaled(layer, y, x.dtype)


def _whole_size(layer: CutLayer, x) -> int:
    """Return the elements of x on all ranks. Collective over the axis.

    Errors: ShapeError if it has no grid.
    """
    dim = layer.axis.dim
    if x.ndim <= dim:
        raise ShapeError(f"{layer.path_in_model} of x {x.shape}; wanted a grid from dim {dim} on")
    return x.size // x.shape[dim] * layer.axis.length(x, layer.path_in_model)


def _normalized(x, dims, count, eps, group):
    """Return x at mean 0 and variance 1 over dims and ranks, in a wide dtype; mean, variance.

    count   elements of each mean, on all ranks
    """
    x = input_tensor(x, wide(x.dtype))
    mean = all_reduce(reduction.sum(x, dims, keepdim=True), group) / count
    centered = x - mean
    squares = reduction.sum(centered * centered, dims, keepdim=True)
    variance = all_reduce(squares, group) / count
    return centered * (variance + eps) ** -0.5, mean, variance


def _scaled(layer, y, dtype):
    """Return y [N, C, ...] times the weight of each channel, plus its bias, in this dtype."""
    if layer.weight is None:
        return input_tensor(y, dtype)
    weight, bias = layer.weight, layer.bias
    along = (-1, *[1] * (y.ndim - 2))
    others = (0, *range(2, y.ndim))

    def backward(gradient, wanted):
        for_weight = halves.total(gradient * y.array, others, dtype=weight.gradient_dtype)
        for_bias = halves.total(gradient, others, dtype=weight.gradient_dtype)
        return gradient * weight.array.reshape(along), for_weight, for_bias

    array = y.array * weight.array.reshape(along) + bias.array.reshape(along)
    about = {"needs": (y, weight), "is_one_pass": True}
    return input_tensor(record(array, (y, weight, bias), backward, **about), dtype)
