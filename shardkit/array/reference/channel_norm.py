"""Norms of x [N, C, L] by mean and variance of some channels, or of one over all samples.

    group_norm   one mean for each sample and each group of C/groups channels
    batch_norm   one mean for each channel, over all samples

Both scale each channel by its weight and add its bias. Means of no elements are 0. Where samples
are cut over ranks, a norm is made of its halves, with sums over ranks between them:

    group_moments -> scale_groups         backward: group_gradient_sums -> group_gradient
"""

from math import prod

from ..backend import xp_of
from ..fresh import total
from ..registry import kernel


@kernel(rounded=(True, False, False), has_cuda_twin=False)
def group_norm(x, weight, bias, groups, eps):
    """Return y [N, C, L], and mean and variance [N, groups], for weight and bias [C]."""
    (x,) = _contiguous(x)
    parts = _grouped(x, groups)
    mean, variance = _moments(parts, (2,))
    shape = (x.shape[0], groups)
    return (
        _scaled(x, parts, mean, variance, weight, bias, eps),
        mean.reshape(shape),
        variance.reshape(shape),
    )


@kernel(rounded=(True, False, False), has_cuda_twin=False)
def group_norm_backward(gradient, x, weight, mean, variance, eps, wanted=(True, True, True)):
    """Return the gradients of x, weight and bias; those not wanted are None.

    mean, variance   [N, groups], as group_norm returned them
    """
    gradient, x = _contiguous(gradient, x)
    parts = _grouped(x, mean.shape[1])
    form = (mean[..., None], variance[..., None], eps, (2,), wanted)
    return _backward(gradient, x, parts, weight, *form)


@kernel(rounded=(False, False), has_cuda_twin=False)
def group_moments(x, groups):
    """Return mean and variance [N, groups] of x [N, C, L]."""
    (x,) = _contiguous(x)
    shape = (x.shape[0], groups)
    return tuple([moment.reshape(shape) for moment in _moments(_grouped(x, groups), (2,))])


@kernel(rounded=(True,), has_cuda_twin=False)
def scale_groups(x, weight, bias, mean, variance, eps):
    """Return y [N, C, L] as group_norm, by a mean and variance [N, groups] that are given."""
    parts = _grouped(x, mean.shape[1])
    return _scaled(x, parts, mean[..., None], variance[..., None], weight, bias, eps)


@kernel(rounded=(False,) * 4, has_cuda_twin=False)
def group_gradient_sums(gradient, x, weight, mean, variance, eps):
    """Return sums over groups of h and h n [N, groups], and the gradients of weight and bias.

    n is x normalized by these moments, h the gradient times the weight.
    """
    gradient, x = _contiguous(gradient, x)
    groups = mean.shape[1]
    moments = mean[..., None], variance[..., None]
    n = _normalized(_grouped(x, groups), *moments, eps).reshape(x.shape)
    h = gradient * weight[:, None]
    level = total(_grouped(h, groups), (2,))
    along = total(_grouped(h * n, groups), (2,))
    return level, along, total(gradient * n, (0, 2)), total(gradient, (0, 2))


@kernel(rounded=(True,), has_cuda_twin=False)
def group_gradient(gradient, x, weight, mean, variance, level, along, eps):
    """Return the gradient of x, for means [N, groups] of what group_gradient_sums has summed."""
    parts = _grouped(x, mean.shape[1])
    moments = mean[..., None], variance[..., None]
    n = _normalized(parts, *moments, eps)
    h = (gradient * weight[:, None]).reshape(parts.shape)
    inverse = 1 / xp_of(x).sqrt(moments[1] + eps)
    h = h - level[..., None] - n * along[..., None]
    return (h * inverse).reshape(x.shape)


@kernel(rounded=(True, False, False), has_cuda_twin=False)
def batch_norm(x, weight, bias, eps):
    """Return y [N, C, L], and mean and variance [C], for weight and bias [C]."""
    (x,) = _contiguous(x)
    mean, variance = _moments(x, (0, 2))
    y = _scaled(x, x, mean, variance, weight, bias, eps)
    return y, mean.reshape(-1), variance.reshape(-1)


@kernel(rounded=(True, False, False), has_cuda_twin=False)
def batch_norm_backward(gradient, x, weight, mean, variance, eps, wanted=(True, True, True)):
    """Return the gradients of x, weight and bias; those not wanted are None.

    mean, variance   [C], as batch_norm returned them
    """
    gradient, x = _contiguous(gradient, x)
    form = (mean[None, :, None], variance[None, :, None], eps, (0, 2), wanted)
    return _backward(gradient, x, x, weight, *form)


def _contiguous(*arrays):
    """Return the arrays C-contiguous: the order of a sum follows the memory."""
    return [xp_of(array).ascontiguousarray(array) for array in arrays]


def _grouped(x, groups):
    """Return x as [N, groups, C/groups * L]."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups * x.shape[2])


def _count(parts, dims):
    """Return how many elements a mean is over; 1 if there are none."""
    return max(prod([parts.shape[dim] for dim in dims]), 1)


def _moments(parts, dims):
    """Return mean and variance over dims, which stay as sizes of 1."""
    count = _count(parts, dims)
    mean = total(parts, dims, True) / count
    centered = parts - mean
    return mean, total(centered * centered, dims, True) / count


def _scaled(x, parts, mean, variance, weight, bias, eps):
    """Return weight (parts - mean) / sqrt(variance + eps) + bias, in the shape of x."""
    normalized = _normalized(parts, mean, variance, eps).reshape(x.shape)
    return normalized * weight[:, None] + bias[:, None]


def _normalized(parts, mean, variance, eps):
    return (parts - mean) / xp_of(parts).sqrt(variance + eps)


def _backward(gradient, x, parts, weight, mean, variance, eps, dims, wanted):
    """Return the gradients of x, weight and bias.

    With n = the normalized x and h = gradient weight, that of x is, means being over dims,
    (h - mean(h) - n mean(h n)) / sqrt(variance + eps).
    """
    xp = xp_of(x)
    inverse = 1 / xp.sqrt(variance + eps)
    n = (parts - mean) * inverse
    for_weight = total(gradient * n.reshape(x.shape), (0, 2)) if wanted[1] else None
    for_bias = total(gradient, (0, 2)) if wanted[2] else None
    if not wanted[0]:
        return None, for_weight, for_bias
    h = (gradient * weight[:, None]).reshape(parts.shape)
    count = _count(parts, dims)
    level = total(h, dims, True) / count
    along = total(h * n, dims, True) / count
    for_x = ((h - level - n * along) * inverse).reshape(x.shape)
    return for_x, for_weight, for_bias
