"""Sums, means, maxima and variances over some or all dimensions.

dim is None (all dimensions), an int or a tuple; keepdim leaves a size of 1 in its place.
"""

from math import prod

import numpy

from ...annotations import PerDim
from ...array import fresh, halves
from ...array.backend import xp_of
from ...array.halves import rounded, widened
from ...errors import ShapeError
from ..autograd import Tensor, record_linear, record_unary
from .broadcast import reshaped, stretched
from .elementwise import divide, multiply, subtract
from .operands import FLOAT32, in_float64, is_counted, sum_dtype


def sum(x: Tensor, dim: PerDim | None = None, keepdim: bool = False) -> Tensor:
    """Return the sum over dim, of booleans and integers as int64.

    Examples
    --------
    >>> ops.sum([[1, 2], [3, 4]], axis=0)
    Tensor(array([4, 6]))
    """
    dims = reduced_dims(x, dim)
    if is_counted(x):
        return Tensor(x.array.sum(axis=dims, dtype=sum_dtype("sum", x), keepdims=keepdim))
    total = halves.total(x.array, dims, keepdim)
    return record_linear(total, x, _stretch, _stretch_again, x.shape, dims)


def mean(x: Tensor, dim: PerDim | None = None, keepdim: bool = False) -> Tensor:
    """Return the sum over dim, divided by the number of elements: float32 of what is counted.

    Raises
    ------
    ShapeError
        If that number is 0.
    """
    dims = reduced_dims(x, dim)
    shape = x.shape
    count = _count(x, dims, "mean")
    if is_counted(x):
        return Tensor((sum(x, dims, keepdim).array / count).astype(FLOAT32))

    return record_unary(
        halves.total(x.array, dims, keepdim) / count,
        x,
        lambda gradient: _stretch(fresh.compute("divide", gradient, count), shape, dims),
        lambda gradient, output: _stretch_again(divide(gradient, count), shape, dims),
    )


def max(x: Tensor, dim: PerDim | None = None, keepdim: bool = False) -> Tensor:
    """Return the largest element over dim; equal ones share the gradient (as in torch.amax)."""
    return _extreme("max", x, dim, keepdim)


def min(x: Tensor, dim: PerDim | None = None, keepdim: bool = False) -> Tensor:
    """Return the smallest element over dim; equal ones share the gradient (as in torch.amin)."""
    return _extreme("min", x, dim, keepdim)


def _extreme(name, x, dim, keepdim):
    """Return x.name() over dim."""
    dims = reduced_dims(x, dim)
    _count(x, dims, name)
    y = getattr(x.array, name)(axis=dims, keepdims=True)

    def backward(gradient):
        chosen = (x.array == y).astype(gradient.dtype)
        return chosen * (gradient.reshape(y.shape) / fresh.total(chosen, dims, True))

    def again(gradient, output):
        chosen = (x.array == y).astype(gradient.dtype)
        share = chosen / fresh.total(chosen, dims, True)
        return multiply(reshaped(gradient, y.shape), share)

    kept = y if keepdim else y.squeeze(axis=dims)
    return record_unary(kept, x, backward, again, needs=(x,), needs_output=True)


def any(x: Tensor, dim: PerDim | None = None, keepdim: bool = False) -> Tensor:
    """Return whether an element over dim is not 0: booleans, which take no gradient."""
    return Tensor(x.array.astype(bool).any(axis=reduced_dims(x, dim), keepdims=keepdim))


def all(x: Tensor, dim: PerDim | None = None, keepdim: bool = False) -> Tensor:
    """Return whether all elements over dim are not 0: booleans, which take no gradient."""
    return Tensor(x.array.astype(bool).all(axis=reduced_dims(x, dim), keepdims=keepdim))


def variance(x: Tensor, dim: PerDim | None = None, keepdim: bool = False) -> Tensor:
    """Return the mean squared distance from the mean over dim; the divisor is the count."""
    dims = reduced_dims(x, dim)
    count = _count(x, dims, "variance")
    if is_counted(x):
        return in_float64(variance, x, dims, keepdim)

    def centered():
        return _distances(widened(x.array), dims, count)

    def backward(gradient):
        scale = _stretch(widened(gradient) * (2 / count), x.shape, dims)
        return rounded(scale * centered(), x.dtype)

    def again(gradient, output):
        distance = subtract(x, mean(x, dims, keepdim=True))
        distance = subtract(distance, mean(distance, dims, keepdim=True))
        scale = _stretch_again(multiply(gradient, 2 / count), x.shape, dims)
        return multiply(scale, distance)

    y = fresh.total(centered() ** 2, dims, keepdim) / count
    return record_unary(rounded(y, x.dtype), x, backward, again, needs=(x,))


_FAR = 2.0**-34  # squared distance of a rounded mean from the mean, in variances


def _distances(array, dims, count):
    """Return the distances from the mean over dims.

    The mean of numbers far from 0 is rounded by more than their last digits: there what is left of
    it is taken off too. Elsewhere the bits are those of one subtraction.
    """
    xp = xp_of(array)
    distance = array - fresh.total(array, dims, True) / count
    left = fresh.total(distance, dims, True) / count
    with numpy.errstate(over="ignore", invalid="ignore"):
        is_far = left * left > _FAR * (fresh.total(distance**2, dims, True) / count)
    if xp is numpy and not is_far.any():
        return distance
    return distance - xp.where(is_far, left, 0).astype(distance.dtype)


def reduced_dims(x, dim) -> tuple[int, ...]:
    """Return dim as a tuple of dimensions counted from 0.

    Errors: ShapeError on one that does not exist or comes twice, and on True or False, which are
    numbers to Python.
    """
    dims = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if bool in map(type, dims):
        raise ShapeError(f"dim {dim}; wanted whole numbers, and what is True or False by its name")
    if not set(dims) <= set(range(-x.ndim, x.ndim)):
        raise ShapeError(
            f"dim {dim} of a tensor of shape {x.shape}; wanted dims from {-x.ndim} to {x.ndim - 1}"
        )
    dims = tuple([d % x.ndim for d in dims])
    if len(set(dims)) < len(dims):
        raise ShapeError(
            f"dim {dim} of a tensor of shape {x.shape} names a dimension twice; name each once"
        )
    return dims


def _count(x, dims, name):
    """Return the number of elements that are reduced into one."""
    count = prod([x.shape[d] for d in dims])
    if count == 0:
        raise ShapeError(
            f"{name} over dims {dims} of a tensor of shape {x.shape}, which has no elements there; "
            "only sum is defined for none"
        )
    return count


def _stretch(gradient, shape, dims):
    """Return the gradient of a reduction, repeated over its dimensions, as a read-only view."""
    by_dim = [1 if d in dims else size for d, size in enumerate(shape)]
    return xp_of(gradient).broadcast_to(gradient.reshape(by_dim), shape)


def _stretch_again(gradient, shape, dims):
    """Return _stretch as a Tensor with its history."""
    by_dim = [1 if d in dims else size for d, size in enumerate(shape)]
    return stretched(reshaped(gradient, by_dim), shape)
