"""Numbers that describe many: products, norms, deviations, and the logarithm of a sum of exp.

dim is None (all dimensions), an int or a tuple; keepdim leaves a size of 1 in its place. Half
floats are computed in float32.
"""

from math import inf
from math import prod as product

import numpy

from ...annotations import PerDim
from ...array import fresh
from ...array.backend import is_true, xp_of
from ...array.dtypes import wide
from ...array.halves import rounded, widened
from ...errors import ShapeError
from ..autograd import Tensor, record_unary
from .elementwise import divide, exp, multiply, power, subtract, where
from .functions import abs, square
from .operands import in_float64, is_counted, sum_dtype
from .reduction import max, min, reduced_dims, sum, variance
from .shape import cast, permute, reshape


def prod(x: Tensor, dim: PerDim | None = None, keepdim: bool = False) -> Tensor:
    """Return the product over dim; the gradient of an element is the product of the others.

    It is right where elements are 0: the others' product is that of all before times all after.
    """
    dims = reduced_dims(x, dim)
    kept = [d for d in range(x.ndim) if d not in dims]
    sizes = [x.shape[d] for d in kept]
    length = product([x.shape[d] for d in dims])
    rows = reshape(permute(x, (*kept, *dims)), (*sizes, length))
    shape = [1 if d in dims else size for d, size in enumerate(x.shape)] if keepdim else sizes
    return reshape(_row_products(rows), shape)


def _row_products(x):
    """Return the products [...] of the rows of x [..., n]."""
    xp = xp_of(x.array)
    dtype = x.dtype

    def backward(gradient):
        rows = widened(x.array)
        ones = xp.ones((*rows.shape[:-1], 1), rows.dtype)
        length = rows.shape[-1]
        before = xp.concatenate([ones, rows[..., :-1]], axis=-1)[..., :length]
        after = xp.concatenate([rows[..., 1:], ones], axis=-1)[..., :length]
        from_the_end = after[..., ::-1].cumprod(axis=-1)
        others = before.cumprod(axis=-1) * from_the_end[..., ::-1]
        return rounded(widened(gradient)[..., None] * others, dtype)

    y = widened(x.array).prod(axis=-1, dtype=sum_dtype("prod", x))
    if is_counted(x):
        return Tensor(y)
    return record_unary(rounded(xp.asarray(y), dtype), x, backward, needs=(x,))


def logsumexp(x: Tensor, dim: PerDim | None = None, keepdim: bool = False) -> Tensor:
    """Return the logarithm of the sum of exp(x) over dim, without overflow for any x.

    The gradient is softmax(x).

    Raises
    ------
    ShapeError
        Over no elements.
    """
    dims = reduced_dims(x, dim)
    _check_count("logsumexp", x, dims, 0)
    if is_counted(x):
        return in_float64(logsumexp, x, dims, keepdim)
    xp = xp_of(x.array)
    dtype = x.dtype
    array = widened(x.array)
    top = array.max(axis=dims, keepdims=True)
    top = xp.where(xp.isfinite(top), top, 0)
    with numpy.errstate(divide="ignore"):  # the logarithm of 0; CuPy never warns
        y = top + xp.log(fresh.total(xp.exp(array - top), dims, True))

    def backward(gradient):
        gradient = widened(gradient).reshape(y.shape)
        return rounded(gradient * xp.exp(widened(x.array) - y), dtype)

    def again(gradient, output):
        parts = exp(subtract(x, reshape(output, y.shape)))
        return multiply(reshape(gradient, y.shape), parts)

    result = rounded(y, dtype) if keepdim else rounded(y.squeeze(axis=dims), dtype)
    return record_unary(result, x, backward, again, needs=(x,), needs_output=True)


def var(
    x: Tensor, dim: PerDim | None = None, correction: float = 1, keepdim: bool = False
) -> Tensor:
    """Return the squared distances from the mean, summed over dim, by count - correction.

    Parameters
    ----------
    correction
        1: unbiased (PyTorch's default); 0: the mean, which is ops.variance.

    Raises
    ------
    ShapeError
        Unless there are more elements than correction.
    """
    count = _check_count("var", x, reduced_dims(x, dim), correction)
    if is_counted(x):
        return in_float64(var, x, dim, correction, keepdim)
    wider = cast(x, wide(x.dtype)) if x.dtype != wide(x.dtype) else x
    y = variance(wider, dim, keepdim) * (count / (count - correction))
    return y if wider is x else cast(y, x.dtype)


def std(
    x: Tensor, dim: PerDim | None = None, correction: float = 1, keepdim: bool = False
) -> Tensor:
    """Return the square root of var; where that is 0, the gradient is 0."""
    if is_counted(x):
        return in_float64(std, x, dim, correction, keepdim)
    return _of_squares(lambda x: _root(var(x, dim, correction, keepdim)), x, dim)


def norm(x: Tensor, p: float = 2, dim: PerDim | None = None, keepdim: bool = False) -> Tensor:
    """Return the p-norm of the elements over dim.

    Parameters
    ----------
    p
        1: the sum of magnitudes; 2: the root of the sum of squares, whatever their size, whose
        gradient is 0 where it is 0; inf, -inf: the largest, the smallest magnitude, where equal
        ones share the gradient; 0: how many are not 0; any other: the root of the sum of powers,
        which may overflow.

    Raises
    ------
    ShapeError
        If p is no number.
    """
    if not isinstance(p, (int, float)) or p != p:
        raise ShapeError(f"norm with p = {p!r}; wanted a number")
    if is_counted(x):
        return in_float64(norm, x, p, dim, keepdim)
    wider = cast(x, wide(x.dtype)) if x.dtype != wide(x.dtype) else x
    if p == 1:
        y = sum(abs(wider), dim, keepdim)
    elif p == 2:
        y = _of_squares(lambda x: _root(sum(square(x), dim, keepdim)), wider, dim)
    elif p == inf:
        y = _largest_magnitude(wider, dim, keepdim)
    else:
        y = _of_powers(wider, p, dim, keepdim)
    return y if wider is x else cast(y, x.dtype)


def _of_powers(x, p, dim, keepdim):
    """Return the p-norm for another p; where it is 0, and for elements of 0, the gradient is 0."""
    if p == 0:
        return Tensor(sum(Tensor(x.array != 0), dim, keepdim).array.astype(x.dtype))
    if p == -inf:
        return min(abs(x), dim, keepdim)
    is_zero = x.array == 0
    powers = power(abs(where(is_zero, 1.0, x)), p)
    powers = where(is_zero, 0.0 if p > 0 else inf, powers)
    total = sum(powers, dim, keepdim)
    is_none = (total.array == 0) | (total.array == inf)
    y = power(where(is_none, 1.0, total), 1.0 / p)
    return where(is_none, 0.0, y)


def _largest_magnitude(x, dim, keepdim):
    """Return the largest magnitude over dim; where that is NaN, the gradient is 0."""
    y = max(abs(x), dim, keepdim)
    xp = xp_of(y.array)
    if not is_true(xp.isnan(y.array).any()):
        return y
    is_nan = xp.isnan(x.array).any(axis=reduced_dims(x, dim), keepdims=True)
    return where(xp.isnan(y.array), y.array, max(abs(where(is_nan, 0, x)), dim, keepdim))


def _of_squares(function, x, dim):
    """Return function(x), the root of sums of squares over dim, where squares do not fit as well.

    Rows of very large or small numbers are divided by a power of two first, and the result is
    multiplied by it, which rounds nothing: others have the bits that they have without. Denormals
    alone have squares of 0, as in PyTorch.
    """
    dims = reduced_dims(x, dim)
    array = widened(x.array)
    if not array.size:
        return function(x)
    xp = xp_of(array)
    top = xp.maximum(array.max(axis=dims, keepdims=True), -array.min(axis=dims, keepdims=True))
    limit = _SQUARED[array.dtype.itemsize]
    is_small = (top < 1 / limit) & (top >= numpy.finfo(array.dtype).tiny)
    is_extreme = xp.isfinite(top) & (is_small | (top > limit))
    if xp is numpy and not is_extreme.any():
        return function(x)
    _, power = xp.frexp(xp.where(is_extreme, top, 1))
    power = xp.where(is_extreme, power, 0)
    half = power // 2  # in two steps: the power itself need not fit, nor its inverse
    down = [xp.ldexp(xp.ones_like(top), -each).astype(x.dtype) for each in (half, power - half)]
    up = [xp.ldexp(xp.ones_like(top), each).astype(x.dtype) for each in (half, power - half)]
    y = function(multiply(multiply(x, down[0]), down[1]))
    return multiply(multiply(y, up[0].reshape(y.shape)), up[1].reshape(y.shape))


# squares of numbers up to this, and down to its inverse, keep their digits in sums of many
_SQUARED = {4: 2.0**40, 8: 2.0**400}


def _root(x):
    """Return the square root of x, with the gradient 0 where it is 0."""
    xp = xp_of(x.array)
    y = xp.sqrt(x.array)

    def backward(gradient):
        is_zero = y == 0
        return xp.where(is_zero, 0, gradient / (2 * xp.where(is_zero, 1, y)))

    def again(gradient, output):
        is_zero = y == 0
        return where(is_zero, 0, divide(gradient, multiply(where(is_zero, 1, output), 2)))

    return record_unary(y, x, backward, again, needs_output=True)


def _check_count(name, x, dims, correction):
    """Return how many elements are reduced into one, more than `correction`."""
    count = product([x.shape[d] for d in dims])
    if count <= correction:
        raise ShapeError(
            f"{name} over dims {dims} of a tensor of shape {x.shape}, which has {count} elements "
            f"there; wanted more than {correction}"
        )
    return count
