"""Norms whose moments are those of whole samples, or of a whole micro-batch.

    own sums --all-reduce--> mean --> own sums of squared distances --all-reduce--> variance
    backward: own sums of the gradient, and of it times y --all-reduce, both at once--> that of x

Each sum over ranks is added as the tree over them. What is kept for the backward is x.
"""

from math import prod

from ...array import halves
from ...array.backend import xp_of
from ...array.halves import rounded, widened
from ...nn.autograd import record
from ...nn.context import current_context
from ...nn.layers.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    TrackedNorm,
    observe_moments,
)
from ..conjugate import summed
from .axis import CutLayer

OVER_BATCH = (BatchNorm1d, BatchNorm2d, BatchNorm3d)


class CutGroupNorm(CutLayer):
    """Group norm of x [N, C, part, *grid] local, by the moments of whole samples."""

    def forward(self, x):
        self._whole.check_input(x)
        return _normalized(self, self._whole, x, self._whole.num_groups, (2,))[0]


class CutTrackedNorm(CutLayer):
    """Batch or instance norm of x [N, C, part, *grid] local; running moments as without a cut."""

    _whole: TrackedNorm

    def forward(self, x):
        layer = self._whole
        layer.check_input(x)
        if layer.track_running_stats and not current_context().training:
            return layer.forward(x)
        dims = (0, 2) if isinstance(layer, OVER_BATCH) else (2,)
        y, mean, variance, count = _normalized(self, layer, x, layer.num_features, dims)
        if layer.track_running_stats:
            observe_moments(layer, mean, variance, count)
        return y


def _normalized(layer: CutLayer, whole, x, num_groups: int, dims: tuple):
    """Return x at mean 0 and variance 1, times the weight, plus the bias; mean and variance, and
    the elements of each.

    whole   the layer that it stands for
    dims    of [N, groups, elements of a group] that a mean goes over
    Collective over the axis, forward and backward.
    """
    axis = layer.axis
    shape, dtype = x.shape, x.dtype
    dim = axis.dim
    length = axis.length(x, layer.path_in_model)
    num_rows = max(shape[0] * num_groups, 1)
    view = (shape[0], num_groups, x.size // num_rows)
    count = prod(shape[1:]) // shape[dim] * length // num_groups
    if 0 in dims:
        count *= shape[0]
    values = widened(x.array).reshape(view)
    mean = _sum_over_ranks(values, dims, axis.group) / count
    distances = values - mean
    variance = _sum_over_ranks(distances * distances, dims, axis.group) / count
    scale = 1 / xp_of(variance).sqrt(variance + whole.eps)
    weight, bias = whole.weight, whole.bias
    along = (-1, *[1] * (x.ndim - 2))
    others = (0, *range(2, x.ndim))

    def backward(gradient, wanted):
        y = (widened(x.array).reshape(view) - mean) * scale
        y = y.reshape(shape)
        gradient = widened(gradient)
        of_parameters = (None, None)
        if weight is not None and any(wanted[1:]):
            sums = [halves.total(each, others) for each in (gradient * y, gradient)]
            of_parameters = [rounded(each, weight.gradient_dtype) for each in sums]
        if weight is not None:
            gradient = gradient * widened(weight.array).reshape(along)
        if not wanted[0]:
            return None, *of_parameters
        y, gradient = y.reshape(view), gradient.reshape(view)
        both = xp_of(y).stack([gradient, gradient * y])
        there = [dim + 1 for dim in dims]
        total, product = _sum_over_ranks(both, there, axis.group) / count
        for_x = scale * (gradient - total - y * product)
        return rounded(for_x.reshape(shape), dtype), *of_parameters

    y = (distances * scale).reshape(shape)
    if weight is not None:
        y = y * widened(weight.array).reshape(along)
        y = y + widened(bias.array).reshape(along)
    y = rounded(y, dtype)
    parents = (x, weight, bias)
    y = record(y, parents, backward, needs=(x, weight), is_one_pass=True)
    return y, mean, variance, count


def _sum_over_ranks(array, dims, group):
    """Return the sums over these dims, of length 1 then, and over the ranks. Collective."""
    return summed(halves.total(array, tuple(dims), True), group)
