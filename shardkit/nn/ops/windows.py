"""Sums and maxima of windows along one dimension, which pooling and interpolation are made of."""

from ...array import fresh
from ...array.backend import xp_of
from ...array.halves import rounded, widened
from ..autograd import Tensor, record


def window_sums(x: Tensor, dim: int, windows) -> Tensor:
    """Return the weighted sum of what each window reads of x along dim.

    windows  array.lines.Windows over x.shape[dim] elements
    """
    dtype = x.dtype

    def backward(gradient, wanted):
        return (rounded(_sums(widened(gradient), dim, windows.back), dtype),)

    def differentiable(gradient, wanted, output):
        return (window_sums(gradient, dim, windows.back),)

    y = rounded(_sums(widened(x.array), dim, windows), dtype)
    return record(y, (x,), backward, differentiable=differentiable)


def window_maxima(x: Tensor, dim: int, windows) -> Tensor:
    """Return the largest of what each window reads of x along dim; the first of equal ones takes
    the gradient. Every window reads something.
    """
    xp = xp_of(x.array)
    best = _read(x.array, dim, windows.index[0]).copy()
    chosen = xp.zeros(best.shape, "int16" if len(windows.index) < 2**15 else "int32")
    for tap, row in enumerate(windows.index[1:], 1):
        part = _read(x.array, dim, row)
        is_better = (part > best) | (part != part)
        xp.copyto(best, part, where=is_better)
        xp.copyto(chosen, chosen.dtype.type(tap), where=is_better)
    return _recorded(x, best, chosen, dim, windows)


def _recorded(x, y, chosen, dim, windows):
    """Return y, which reads x where `chosen` says."""

    def backward(gradient, wanted):
        return (_placed(gradient, chosen, dim, windows),)

    def differentiable(gradient, wanted, output):
        return (_placed_again(gradient, chosen, dim, windows),)

    return record(y, (x,), backward, differentiable=differentiable)


def _placed_again(gradient, chosen, dim, windows):
    """Return _placed of a Tensor, recorded: its gradient is what was chosen."""

    def backward(second, wanted):
        return (_picked(second, chosen, dim, windows),)

    def differentiable(second, wanted, output):
        picked = _picked(second.array, chosen, dim, windows)
        return (_recorded(second, picked, chosen, dim, windows),)

    placed = _placed(gradient.array, chosen, dim, windows)
    return record(placed, (gradient,), backward, differentiable=differentiable)


def _placed(gradient, chosen, dim, windows):
    """Return the gradient of x: that of each window, where it was chosen."""
    back = windows.back
    shape = [*gradient.shape]
    shape[dim] = back.index.shape[1]
    total = fresh.zeros(tuple(shape), widened(gradient[:0]).dtype, xp_of(gradient))
    for row, tap in zip(back.index, back.tap):
        taps = _along(xp_of(gradient).asarray(tap.astype(chosen.dtype)), dim, gradient.ndim)
        total += _read(gradient, dim, row) * (_read(chosen, dim, row) == taps)
    return rounded(total, gradient.dtype)


def _picked(x, chosen, dim, windows):
    """Return what was chosen of x."""
    y = _read(x, dim, windows.index[0]).copy()
    for tap, row in enumerate(windows.index[1:], 1):
        xp_of(x).copyto(y, _read(x, dim, row), where=chosen == tap)
    return y


def _sums(x, dim, windows):
    """Return the weighted sums of an array's windows; a table that goes back may have none."""
    xp = xp_of(x)
    shape = [*x.shape]
    shape[dim] = windows.index.shape[1]
    total = fresh.zeros(tuple(shape), x.dtype, xp)
    for row, weight in zip(windows.index, windows.weight):
        part = _read(x, dim, row)
        if weight.size and (weight == weight[0]).all():
            total += part if weight[0] == 1 else part * x.dtype.type(weight[0])
        else:
            total += part * _along(xp.asarray(weight.astype(x.dtype)), dim, x.ndim)
    return total


def _read(x, dim, row):
    """Return the elements of x along dim that a row of a table names: a view if they are even."""
    before = (slice(None),) * dim
    steps = row[1:] - row[:-1]
    if row.size and (steps == (steps[0] if steps.size else 1)).all() and (steps > 0).all():
        step = int(steps[0]) if steps.size else 1
        return x[(*before, slice(int(row[0]), int(row[-1]) + 1, step))]
    return xp_of(x).take(x, xp_of(x).asarray(row), axis=dim)


def _along(line, dim, ndim):
    """Return a line in a form that is broadcast over all dimensions but dim."""
    return line.reshape([-1 if d == dim else 1 for d in range(ndim)])
