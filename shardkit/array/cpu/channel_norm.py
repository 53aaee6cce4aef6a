"""Norms of x [N, C, L] by groups of channels, and by channel over all samples.

A channel of a sample is a line [L]: read once for its sum, once for its squares, once for its
result, while its group lies in the cache. Sums of lines go from one to the next, in float64, and
so do those of the parts of a long line.
"""

import math

import numpy

from .. import fresh
from ..arena import empty
from ..registry import on_cpu
from .arrays import empty_like, plain
from .compiled import compiled, inlined
from .scalar import fma, like, plus

LINE = 1 << 13  # numbers of a part
FAR = 2.0**20  # square of a mean, in variances: what rounding takes from it shows in these


@on_cpu
def group_norm(x, weight, bias, groups, eps):
    y = empty_like(x, None)
    mean, variance = _no_moments(x, (x.shape[0], groups))
    _group_norm(plain(x), plain(weight), plain(bias), eps, True, y, mean, variance)
    return y, mean, variance


@on_cpu
def group_norm_backward(gradient, x, weight, mean, variance, eps, wanted=(True, True, True)):
    sums = [numpy.zeros(mean.shape) for _ in range(2)]
    return _gradients(
        _group_norm_backward, (gradient, x, weight, mean, variance), eps, wanted, sums
    )


@on_cpu
def group_moments(x, groups):
    moments = _no_moments(x, (x.shape[0], groups))
    none = empty(0, x.dtype)
    _group_norm(plain(x), none, none, 0.0, False, none.reshape(0, 0, 0), *moments)
    return moments


@on_cpu
def scale_groups(x, weight, bias, mean, variance, eps):
    y = empty_like(x, None)
    _scale_groups(*map(plain, (x, weight, bias, mean, variance)), eps, y)
    return y


@on_cpu
def group_gradient_sums(gradient, x, weight, mean, variance, eps):
    of_groups = [numpy.zeros(mean.shape) for _ in range(2)]  # float64, as those of lines
    given = gradient, x, weight, mean, variance
    wanted = False, True, True
    _, *of_channels = _gradients(_group_norm_backward, given, eps, wanted, of_groups)
    return *[each.astype(weight.dtype) for each in of_groups], *of_channels


@on_cpu
def group_gradient(gradient, x, weight, mean, variance, level, along, eps):
    for_x = empty_like(x, None)
    given = (gradient, x, weight, mean, variance, level, along)
    _group_gradient(*map(plain, given), eps, for_x)
    return for_x


@on_cpu
def batch_norm(x, weight, bias, eps):
    y = empty_like(x, None)
    mean, variance = _no_moments(x, x.shape[1])
    _batch_norm(plain(x), plain(weight), plain(bias), eps, y, mean, variance)
    return y, mean, variance


@on_cpu
def batch_norm_backward(gradient, x, weight, mean, variance, eps, wanted=(True, True, True)):
    return _gradients(_batch_norm_backward, (gradient, x, weight, mean, variance), eps, wanted)


def _no_moments(x, shape):
    return fresh.zeros(shape, x.dtype), fresh.zeros(shape, x.dtype)


def _gradients(loop, given, eps, wanted, sums_of_groups=()):
    """Return the gradients of x, weight and bias that the loop computes; None for the others."""
    _, x, weight, *_ = given
    sums = [numpy.zeros(weight.shape) for _ in range(2)]  # float64: one line after another
    for_x = empty_like(x, None) if wanted[0] else empty((0, 0, 0), x.dtype)
    loop(*map(plain, given), eps, wanted[0], for_x, *sums_of_groups, *sums)
    results = (for_x, *[each.astype(weight.dtype) for each in sums])
    return tuple([array if want else None for array, want in zip(results, wanted)])


# ---- lines ---------------------------------------------------------------------------------------


@inlined
def _line_sum(x, n, c):
    whole = 0.0
    for start in range(0, x.shape[2], LINE):
        whole += _sum(x[n, c, start : start + LINE])
    return like(whole, x[n, c, 0])


@inlined
def _line_squares(x, n, c, mean):
    whole = 0.0
    for start in range(0, x.shape[2], LINE):
        whole += _squares(x[n, c, start : start + LINE], mean)
    return like(whole, mean)


@inlined
def _line_distances(x, n, c, mean):
    """Return what a rounded mean leaves."""
    whole = 0.0
    for start in range(0, x.shape[2], LINE):
        whole += _distances(x[n, c, start : start + LINE], mean)
    return whole


@inlined
def _line_products(gradient, x, n, c, mean):
    whole = 0.0
    for start in range(0, x.shape[2], LINE):
        part = slice(start, start + LINE)
        whole += _products(gradient[n, c, part], x[n, c, part], mean)
    return like(whole, mean)


@inlined
def _sum(x):
    total = like(0.0, x[0])
    for j in range(x.size):
        total = plus(total, x[j])
    return total


@inlined
def _squares(x, mean):
    total = like(0.0, mean)
    for j in range(x.size):
        total = plus(total, (x[j] - mean) * (x[j] - mean))
    return total


@inlined
def _distances(x, mean):
    total = like(0.0, mean)
    for j in range(x.size):
        total = plus(total, x[j] - mean)
    return total


@inlined
def _products(gradient, x, mean):
    total = like(0.0, mean)
    for j in range(x.size):
        total = plus(total, gradient[j] * (x[j] - mean))
    return total


@inlined
def _scale_line(x, n, c, mean, factor, level, y):
    for j in range(x.shape[2]):
        distance = x[n, c, j] - mean
        y[n, c, j] = fma(distance, factor, level)


@inlined
def _gradient_line(gradient, x, n, c, mean, factor, level, along, for_x):
    """Set for_x = factor gradient - level - (x - mean) along."""
    for j in range(x.shape[2]):
        rest = fma(mean - x[n, c, j], along, -level)
        for_x[n, c, j] = fma(gradient[n, c, j], factor, rest)


@inlined
def _inverse(variance, eps):
    return like(1.0, variance) / math.sqrt(variance + like(eps, variance))


# ---- loops ---------------------------------------------------------------------------------------


@inlined
def _group_mean(x, n, first, stop):
    count = (stop - first) * x.shape[2]
    total = 0.0  # float64: of one line after another
    for c in range(first, stop):
        total += _line_sum(x, n, c)
    return like(total / count, x[0, 0, 0])


@inlined
def _group_variance(x, n, first, stop, mean):
    count = (stop - first) * x.shape[2]
    total = squares = 0.0
    for c in range(first, stop):
        squares += _line_squares(x, n, c, mean)
    if mean * mean * count > FAR * squares:
        for c in range(first, stop):
            total += _line_distances(x, n, c, mean)
        squares -= total * (total / count)
    return like(squares / count, x[0, 0, 0])


@compiled
def _group_norm(x, weight, bias, eps, wants_y, y, mean, variance):
    width = x.shape[1] // mean.shape[1]
    for n in range(mean.shape[0] if x.size > 0 else 0):
        for g in range(mean.shape[1]):
            first, stop = g * width, (g + 1) * width
            mean[n, g] = middle = _group_mean(x, n, first, stop)
            variance[n, g] = _group_variance(x, n, first, stop, middle)
            if wants_y:
                inverse = _inverse(variance[n, g], eps)
                for c in range(first, stop):
                    _scale_line(x, n, c, middle, inverse * weight[c], bias[c], y)


@compiled
def _scale_groups(x, weight, bias, mean, variance, eps, y):
    width = x.shape[1] // mean.shape[1]
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            factor = _inverse(variance[n, c // width], eps) * weight[c]
            _scale_line(x, n, c, mean[n, c // width], factor, bias[c], y)


@compiled
def _group_gradient(gradient, x, weight, mean, variance, level, along, eps, for_x):
    width = x.shape[1] // mean.shape[1]
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            g = c // width
            inverse = _inverse(variance[n, g], eps)
            factor = weight[c] * inverse
            moments = level[n, g] * inverse, along[n, g] * inverse * inverse
            _gradient_line(gradient, x, n, c, mean[n, g], factor, *moments, for_x)


@compiled
def _group_norm_backward(
    gradient, x, weight, mean, variance, eps, wants_x, for_x, level, along, for_weight, for_bias
):
    width = x.shape[1] // mean.shape[1]
    count = width * x.shape[2]
    for n in range(mean.shape[0] if x.size > 0 else 0):
        for g in range(mean.shape[1]):
            channels = range(g * width, (g + 1) * width)
            middle = mean[n, g]
            inverse = _inverse(variance[n, g], eps)
            totals = moments = 0.0
            for c in channels:
                total = _line_sum(gradient, n, c)
                moment = _line_products(gradient, x, n, c, middle) * inverse
                for_bias[c] += total
                for_weight[c] += moment
                totals += total * weight[c]
                moments += moment * weight[c]
            level[n, g] = totals
            along[n, g] = moments
            if wants_x:
                mean_level = like(totals * inverse / count, inverse)
                mean_along = like(moments * inverse * inverse / count, inverse)
                for c in channels:
                    factor = weight[c] * inverse
                    _gradient_line(gradient, x, n, c, middle, factor, mean_level, mean_along, for_x)


@compiled
def _batch_norm(x, weight, bias, eps, y, mean, variance):
    samples = range(x.shape[0])
    for c in range(x.shape[1] if x.size > 0 else 0):
        count = x.shape[0] * x.shape[2]
        total = squares = 0.0
        for n in samples:
            total += _line_sum(x, n, c)
        mean[c] = middle = like(total / count, x[0, 0, 0])
        for n in samples:
            squares += _line_squares(x, n, c, middle)
        if middle * middle * count > FAR * squares:
            total = 0.0
            for n in samples:
                total += _line_distances(x, n, c, middle)
            squares -= total * (total / count)
        variance[c] = like(squares / count, x[0, 0, 0])
        factor = _inverse(variance[c], eps) * weight[c]
        for n in samples:
            _scale_line(x, n, c, middle, factor, bias[c], y)


@compiled
def _batch_norm_backward(
    gradient, x, weight, mean, variance, eps, wants_x, for_x, for_weight, for_bias
):
    samples = range(x.shape[0])
    for c in range(x.shape[1] if x.size > 0 else 0):
        count = x.shape[0] * x.shape[2]
        middle = mean[c]
        inverse = _inverse(variance[c], eps)
        total = moment = 0.0
        for n in samples:
            total += _line_sum(gradient, n, c)
            moment += _line_products(gradient, x, n, c, middle)
        for_bias[c] = total
        for_weight[c] = moment * inverse
        if wants_x:
            factor = weight[c] * inverse
            level = like(factor * total / count, factor)
            along = like(factor * inverse * inverse * moment / count, factor)
            for n in samples:
                _gradient_line(gradient, x, n, c, middle, factor, level, along, for_x)
