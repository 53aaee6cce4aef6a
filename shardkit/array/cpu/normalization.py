"""Layer norm and RMS norm, each with its gradient and with the addition before it.

A row is read while it lies in the first cache, once for its sums and once for its results. The
gradients of weight and bias are added up row after row, whatever else is computed.
"""

import math

from ..arena import empty
from ..registry import on_cpu
from .arrays import RowSums, computed_dtype, empty_like, run
from .compiled import compiled, inlined
from .scalar import block_end, close, fma, like, plus
from .storage import narrow, wide


@on_cpu
def layer_norm(x, weight, bias, eps, out=None):
    y = empty_like(x, out)
    mean = _per_row(x)
    inverse = _per_row(x)
    run(_layer_norm, (x,), (weight, bias, eps), (y, mean, inverse))
    return y, mean, inverse


@on_cpu
def add_layer_norm(x, branch, weight, bias, eps, out=(None, None)):
    total = empty_like(x, out[0])
    y = empty_like(x, out[1])
    mean = _per_row(x)
    inverse = _per_row(x)
    run(_add_layer_norm, (x, branch), (weight, bias, eps), (total, y, mean, inverse))
    return total, y, mean, inverse


@on_cpu
def layer_norm_backward(gradient, x, weight, mean, inverse, wanted=(True, True, True), out=None):
    for_x = empty_like(x, out) if wanted[0] else _no_rows(x)
    wants_sums = wanted[1] or wanted[2]
    sums = RowSums(weight, 2)
    shared = (weight, wanted[0], wants_sums, *sums.shared)
    run(_layer_norm_backward, (gradient, x, mean, inverse), shared, (for_x,))
    results = (for_x, *sums.vectors())
    return tuple([array if want else None for array, want in zip(results, wanted)])


@on_cpu
def rms_norm(x, weight, eps, out=None):
    y = empty_like(x, out)
    inverse = _per_row(x)
    run(_rms_norm, (x,), (weight, eps), (y, inverse))
    return y, inverse


@on_cpu
def add_rms_norm(x, branch, weight, eps, out=(None, None)):
    total = empty_like(x, out[0])
    y = empty_like(x, out[1])
    inverse = _per_row(x)
    run(_add_rms_norm, (x, branch), (weight, eps), (total, y, inverse))
    return total, y, inverse


@on_cpu
def rms_norm_backward(gradient, x, weight, inverse, wanted=(True, True), out=None):
    for_x = empty_like(x, out) if wanted[0] else _no_rows(x)
    sums = RowSums(weight, 1)
    run(_rms_norm_backward, (gradient, x, inverse), (weight, *wanted, *sums.shared), (for_x,))
    results = (for_x, *sums.vectors())
    return tuple([array if want else None for array, want in zip(results, wanted)])


def _per_row(x):
    return empty(x.shape[0], computed_dtype(x))


def _no_rows(x):
    return empty((0, x.shape[1]), x.dtype)


# ---- rows ----------------------------------------------------------------------------------------


@inlined
def _layer_norm_row(x, i, weight, bias, eps, y, mean, inverse):
    columns = x.shape[1]
    width = like(columns, wide(x[i, 0]))
    total = squares = like(0.0, width)
    for j in range(columns):
        total = plus(total, wide(x[i, j]))
    mean[i] = middle = total / width
    for j in range(columns):
        distance = wide(x[i, j]) - middle
        squares = plus(squares, distance * distance)
    variance = squares / width
    inverse[i] = scale = like(1.0, width) / math.sqrt(variance + like(eps, width))
    for j in range(columns):
        normalized = (wide(x[i, j]) - middle) * scale
        placed = fma(normalized, wide(weight[j]), wide(bias[j]))
        y[i, j] = narrow(placed, y)


@inlined
def _rms_norm_row(x, i, weight, eps, y, inverse):
    columns = x.shape[1]
    width = like(columns, wide(x[i, 0]))
    squares = like(0.0, width)
    for j in range(columns):
        value = wide(x[i, j])
        squares = plus(squares, value * value)
    mean_square = squares / width
    inverse[i] = scale = like(1.0, width) / math.sqrt(mean_square + like(eps, width))
    for j in range(columns):
        normalized = wide(x[i, j]) * scale
        y[i, j] = narrow(normalized * wide(weight[j]), y)


@inlined
def _add_row(x, branch, i, total):
    for j in range(x.shape[1]):
        both = wide(x[i, j]) + wide(branch[i, j])
        total[i, j] = narrow(both, total)


# ---- loops ---------------------------------------------------------------------------------------


@compiled
def _layer_norm(x, weight, bias, eps, y, mean, inverse):
    for i in range(x.shape[0]):
        _layer_norm_row(x, i, weight, bias, eps, y, mean, inverse)


@compiled
def _add_layer_norm(x, branch, weight, bias, eps, total, y, mean, inverse):
    for i in range(x.shape[0]):
        _add_row(x, branch, i, total)
        _layer_norm_row(total, i, weight, bias, eps, y, mean, inverse)


@compiled
def _layer_norm_backward(
    gradient,
    x,
    mean,
    inverse,
    weight,
    wants_x,
    wants_sums,
    for_weight,
    for_bias,
    whole,
    seen,
    for_x,
):
    given = gradient, x, mean, inverse, weight
    sums = for_weight, for_bias
    start = 0
    while start < x.shape[0]:
        stop = block_end(start, x.shape[0], seen)
        _layer_norm_backward_rows(given, wants_x, wants_sums, sums, for_x, start, stop)
        close(for_weight, whole[0], seen)
        close(for_bias, whole[1], seen)
        start = stop


@inlined
def _layer_norm_backward_rows(given, wants_x, wants_sums, sums, for_x, start, stop):
    gradient, x, mean, inverse, weight = given
    for_weight, for_bias = sums
    columns = x.shape[1]
    for i in range(start, stop):
        middle, scale = mean[i], inverse[i]
        if wants_x:
            width = like(columns, scale)
            level = along = like(0.0, scale)
            for j in range(columns):
                h = wide(gradient[i, j]) * wide(weight[j])
                normalized = (wide(x[i, j]) - middle) * scale
                level = plus(level, h)
                along = plus(along, h * normalized)
            level, along = level / width, along / width
            for j in range(columns):
                h = wide(gradient[i, j]) * wide(weight[j])
                normalized = (wide(x[i, j]) - middle) * scale
                rest = h - level - normalized * along
                for_x[i, j] = narrow(rest * scale, for_x)
        if wants_sums:
            for j in range(columns):
                normalized = (wide(x[i, j]) - middle) * scale
                for_weight[j] += wide(gradient[i, j]) * normalized
                for_bias[j] += wide(gradient[i, j])


@compiled
def _rms_norm(x, weight, eps, y, inverse):
    for i in range(x.shape[0]):
        _rms_norm_row(x, i, weight, eps, y, inverse)


@compiled
def _add_rms_norm(x, branch, weight, eps, total, y, inverse):
    for i in range(x.shape[0]):
        _add_row(x, branch, i, total)
        _rms_norm_row(total, i, weight, eps, y, inverse)


@compiled
def _rms_norm_backward(
    gradient, x, inverse, weight, wants_x, wants_sum, for_weight, whole, seen, for_x
):
    start = 0
    while start < x.shape[0]:
        stop = block_end(start, x.shape[0], seen)
        _rms_norm_backward_rows(
            gradient, x, inverse, weight, wants_x, wants_sum, for_weight, for_x, start, stop
        )
        close(for_weight, whole[0], seen)
        start = stop


@inlined
def _rms_norm_backward_rows(
    gradient, x, inverse, weight, wants_x, wants_sum, for_weight, for_x, start, stop
):
    columns = x.shape[1]
    for i in range(start, stop):
        scale = inverse[i]
        if wants_x:
            width = like(columns, scale)
            along = like(0.0, scale)
            for j in range(columns):
                h = wide(gradient[i, j]) * wide(weight[j])
                normalized = wide(x[i, j]) * scale
                along = plus(along, h * normalized)
            along = along / width
            for j in range(columns):
                h = wide(gradient[i, j]) * wide(weight[j])
                normalized = wide(x[i, j]) * scale
                for_x[i, j] = narrow((h - normalized * along) * scale, for_x)
        if wants_sum:
            for j in range(columns):
                normalized = wide(x[i, j]) * scale
                for_weight[j] += wide(gradient[i, j]) * normalized
