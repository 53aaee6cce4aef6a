"""Norms whose moments are those of whole samples, or of a whole micro-batch.

    own mean and variance --all-gather--> those of all rows --> y
    backward: own sums of the gradient, and of it times n --all-reduce, both at once--> that of x

Moments of parts are joined as Chan, Golub and LeVeque say (Stanford STAN-CS-79-773), in float64 and
in the order of the ranks; sums over ranks are added as the tree over them. What is kept for the
backward is x.
"""

from math import prod

import numpy

from ...array import kernels
from ...array.dtypes import wide
from ...array.halves import rounded
from ...nn.autograd import record
from ...nn.context import current_context
from ...nn.layers.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    TrackedNorm,
    observe_moments,
)
from ...nn.ops.channel_norm import lines_of, or_constant
from ..conjugate import gathered, summed
from .axis import CutLayer

OVER_BATCH = (BatchNorm1d, BatchNorm2d, BatchNorm3d)


class CutGroupNorm(CutLayer):
    """Group norm of x [N, C, part, *grid] local, by the moments of whole samples."""

    def forward(self, x):
        self._whole.check_input(x)
        return _normalized(self, self._whole, x, self._whole.num_groups, (0,))[0]


class CutTrackedNorm(CutLayer):
    """Batch or instance norm of x [N, C, part, *grid] local; running moments as without a cut."""

    _whole: TrackedNorm

    def forward(self, x):
        layer = self._whole
        layer.check_input(x)
        if layer.track_running_stats and not current_context().training:
            return layer.forward(x)
        dims = (0, 1) if isinstance(layer, OVER_BATCH) else (0,)
        y, mean, variance, count = _normalized(self, layer, x, layer.num_features, dims)
        if layer.track_running_stats:
            observe_moments(layer, mean, variance, count)
        return y


def _normalized(layer: CutLayer, whole, x, num_groups: int, dims: tuple):
    """Return x at mean 0 and variance 1, times the weight, plus the bias; mean and variance, and
    the elements of each.

    whole   the layer that it stands for
    dims    of [ranks, N, groups] that moments go over
    Collective over the axis, forward and backward.
    """
    axis = layer.axis
    counts = axis.counts(axis.lengths(x, layer.path_in_model))
    weight, bias = or_constant(whole.weight, 1, x), or_constant(whole.bias, 0, x)
    lines, eps = lines_of(x), whole.eps
    own = prod([x.shape[each.dim] for each in axis.axes])
    row = lines.shape[2] // max(own, 1)
    per_place = row * x.shape[1] // num_groups
    counts = [per_place * places for places in counts]
    moments, count = _moments_of_all(lines, num_groups, counts, dims, axis.everyone)
    by_line, places = lines.shape, (lines.shape[0], num_groups)
    mean, variance = [numpy.broadcast_to(each, places).astype(each.dtype) for each in moments]

    def backward(gradient, wanted):
        given = gradient.reshape(by_line), lines_of(x), weight.array, mean, variance
        *sums, for_weight, for_bias = kernels.group_gradient_sums(*given, eps)
        of_parameters = [
            rounded(each, weight.gradient_dtype) if is_wanted else None
            for each, is_wanted in zip((for_weight, for_bias), wanted[1:])
        ]
        if not wanted[0]:
            return None, *of_parameters
        means = _sums_of_all(sums, dims, axis.everyone) / max(count, 1)
        for_x = kernels.group_gradient(*given, *means, eps)
        return for_x.reshape(x.shape), *of_parameters

    y = kernels.scale_groups(lines, weight.array, bias.array, mean, variance, eps)
    y = y.reshape(x.shape)
    parents, needs = (x, weight, bias), (x, weight)
    y = record(y, parents, backward, needs=needs, is_one_pass=True, gives_new=True)
    return y, *moments, count


def _moments_of_all(lines, num_groups, counts, dims, group):
    """Return (mean, variance) over `dims` of [ranks, N, groups], and the elements of each.

    counts   the elements of a group of a sample, for each rank
    Collective over the group.
    """
    own = numpy.stack(kernels.group_moments(lines, num_groups)).astype(float)
    parts = gathered(own[None], group, 0, None)  # [ranks, 2, N, groups]
    means, variances = parts[:, 0], parts[:, 1]
    weights = numpy.reshape(counts, (-1, 1, 1)).astype(float)
    count = sum(counts) * (len(lines) if 1 in dims else 1)
    mean = (weights * means).sum(dims) / max(count, 1)
    far = means - numpy.expand_dims(mean, dims)
    variance = (weights * (variances + far * far)).sum(dims) / max(count, 1)
    dtype = wide(lines.dtype)
    return (mean.astype(dtype), variance.astype(dtype)), count


def _sums_of_all(sums, dims, group):
    """Return both sums over `dims` of [ranks, N, groups], as [2, N, groups]. Collective."""
    both = numpy.stack(sums)
    if 1 in dims:
        both = numpy.broadcast_to(both.sum(1, keepdims=True), both.shape)
    return summed(both, group)
