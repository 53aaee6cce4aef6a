"""Arithmetic element by element, with broadcasting.

The gradient of a broadcast operand is summed over the dimensions that were stretched. Where two
operands share a maximum, each gets half of the gradient (as in PyTorch), so that maximum(x, x) has
the gradient of x.
"""

import operator

from ...array import fresh
from ...array.backend import xp_of
from ...array.dtypes import is_half
from ...array.halves import rounded
from ...array.reference import chunks
from ...array.reference.pointwise import (
    cube,
    cube_backward,
    divisor_backward,
    extreme_backward,
    sqrt_backward,
    three_halves,
    three_halves_backward,
)
from ...errors import ShapeError
from ..autograd import Tensor, TensorLike, array_of, record_unary
from .broadcast import record_broadcast, takes_gradient
from .operands import check_floating, check_numbers, counted_power, divided, matched, of_numpy


def _compute(name, *operands, function=None):
    """Return xp.name(*operands), or function(*operands).

    Errors: ShapeError that shows the shapes, if they do not broadcast, or the dtypes, if there is
    no such operation on them.
    """
    try:
        return fresh.compute(name, *operands) if function is None else function(*operands)
    except TypeError:
        dtypes = " and ".join(str(getattr(operand, "dtype", operand)) for operand in operands)
        raise ShapeError(
            f'{name} of {dtypes}, which is not defined; cast them first, as ops.cast(x, "int64")'
        ) from None
    except ValueError:
        shapes = " and ".join(str(getattr(operand, "shape", ())) for operand in operands)
        raise ShapeError(
            f"{name} of shapes {shapes}, which do not broadcast: from the right, each pair of "
            "sizes must be equal or one of them 1; reshape or expand one operand"
        ) from None


def add(x: TensorLike, y: TensorLike) -> Tensor:
    """Return x + y."""
    x, y = matched("add", x, y)
    result = _compute("add", array_of(x), array_of(y))
    return record_broadcast("add", result, x, y, _SUM, _SUM, ())


def _as_it_is(gradient, x, y):
    return gradient


_SUM = (_as_it_is, _as_it_is)


def subtract(x: TensorLike, y: TensorLike) -> Tensor:
    """Return x - y."""
    x, y = matched("subtract", x, y)
    result = _compute("subtract", array_of(x), array_of(y))
    return record_broadcast("subtract", result, x, y, _DIFFERENCE, _DIFFERENCE_AGAIN, ())


_DIFFERENCE = (_as_it_is, lambda gradient, x, y: fresh.compute("negative", gradient))
_DIFFERENCE_AGAIN = (_as_it_is, lambda gradient, x, y: negative(gradient))


def multiply(x: TensorLike, y: TensorLike) -> Tensor:
    """Return x * y."""
    x, y = matched("multiply", x, y)
    result = _compute("multiply", array_of(x), array_of(y))
    return record_broadcast("multiply", result, x, y, _PRODUCT, _PRODUCT_AGAIN)


_PRODUCT = (
    lambda gradient, x, y: fresh.compute("multiply", gradient, array_of(y)),
    lambda gradient, x, y: fresh.compute("multiply", gradient, array_of(x)),
)
_PRODUCT_AGAIN = (
    lambda gradient, x, y: multiply(gradient, y),
    lambda gradient, x, y: multiply(gradient, x),
)


def divide(x: TensorLike, y: TensorLike) -> Tensor:
    """Return x / y."""
    x, y = divided("divide", x, y)
    result = _compute("divide", array_of(x), array_of(y))
    needs = (x if takes_gradient(y) else None, y)
    return record_broadcast("divide", result, x, y, _QUOTIENT, _QUOTIENT_AGAIN, needs)


_QUOTIENT = (
    lambda gradient, x, y: fresh.compute("divide", gradient, array_of(y)),
    lambda gradient, x, y: divisor_backward.dispatch(*alike(gradient, array_of(x), array_of(y))),
)
_QUOTIENT_AGAIN = (
    lambda gradient, x, y: divide(gradient, y),
    lambda gradient, x, y: negative(divide(multiply(divide(gradient, y), x), y)),
)


def alike(gradient, *operands):
    """Return all as arrays of the shape and dtype of the gradient, which kernels take."""
    xp = xp_of(gradient)
    shape, dtype = gradient.shape, gradient.dtype
    arrays = [xp.asarray(operand, dtype) for operand in operands]

    def stretched(x):
        return x if x.shape == shape else xp.broadcast_to(x, shape)

    return gradient, *map(stretched, arrays)  # what broadcasts is read-only: kernels would copy it


def negative(x: Tensor) -> Tensor:
    """Return -x."""
    check_numbers("negative", x)

    def minus(array):
        return fresh.compute("negative", array)

    return record_unary(minus(x.array), x, minus, lambda gradient, output: negative(gradient))


def power(x: TensorLike, exponent: TensorLike) -> Tensor:
    """Return x ** exponent.

    The gradient of a Tensor exponent needs x > 0; at x = 0 it is 0 unless the exponent is negative.
    """
    x, exponent = matched("power", *counted_power(x, exponent))
    result = _compute("power", array_of(x), array_of(exponent), function=_powers)
    dtypes = {each.dtype for each in (x, exponent) if hasattr(each, "dtype")}
    if len(dtypes) == 1 and is_half(*dtypes):
        result = rounded(result, *dtypes)
    needs = (x, exponent)
    return record_broadcast("power", result, x, exponent, _POWER, _POWER_AGAIN, needs)


# {exponent: (power, its gradient)}; of negative numbers pow to 3 takes 100 times as long, to 1.5 it
# takes 10 times as long as a root
_QUICK_POWERS = {
    3: (cube.dispatch, cube_backward.dispatch),
    1.5: (three_halves.dispatch, three_halves_backward.dispatch),
}


def _powers(base, n):
    """Return base^n; base^-0.5 is 1 / sqrt(base) at -0 and -inf too, where C has another limit."""
    if isinstance(n, (int, float)) and n in _QUICK_POWERS:
        return _QUICK_POWERS[n][0](base)
    y = base**n
    if isinstance(n, float) and n == -0.5:
        xp = xp_of(y)
        y = xp.where(base == -xp.inf, xp.nan, xp.copysign(y, base)).astype(y.dtype, copy=False)
    return y


def _for_base(gradient, base, n):
    """Return gradient n base^(n - 1), and 0 where n is 0: base^(-1) may be infinite there."""
    if isinstance(n, (int, float)):
        if n == 0:
            return fresh.zeros(gradient.shape, gradient.dtype, xp_of(gradient))
        if n in _QUICK_POWERS:
            return _QUICK_POWERS[n][1](gradient, base)
        return gradient * n * _powers(base, n - 1)
    return chunks.elementwise(_share_of_base, *alike(gradient, base, n))


def _share_of_base(gradient, base, n):
    xp = xp_of(gradient)
    is_constant = n == 0
    below = xp.where(is_constant, 0, n - 1)
    return xp.where(is_constant, 0, gradient * n * base**below)


def _for_exponent(gradient, base, n):
    """Return gradient base^n log(base), and 0 where base^n is 0 or 1 because base is 0."""
    return chunks.elementwise(_share_of_exponent, *alike(gradient, base, n))


def _share_of_exponent(gradient, base, n):
    xp = xp_of(gradient)
    safe = xp.where((base == 0) & (n >= 0), 1, base)  # log 1 = 0
    return gradient * base**n * xp.log(safe)


def _again_for_base(gradient, base, n):
    """Return _for_base as a Tensor with its history."""
    if isinstance(n, (int, float)):
        if n == 0:
            return multiply(gradient, 0)
        return gradient if n == 1 else multiply(gradient, multiply(power(base, n - 1), n))
    is_constant = array_of(n) == 0
    slope = multiply(gradient, multiply(n, power(base, where(is_constant, 1, n) - 1)))
    return where(is_constant, 0, slope)


def _again_for_exponent(gradient, base, n):
    """Return _for_exponent as a Tensor with its history."""
    array = array_of(base)
    is_safe = (array == 0) & (array_of(n) >= 0)
    safe = where(is_safe, 1, base)  # log 1 = 0
    safe = safe if isinstance(base, Tensor) else Tensor(safe.array.astype(gradient.dtype))
    return multiply(multiply(gradient, power(base, n)), log(safe))


_POWER = (
    lambda gradient, x, n: _for_base(gradient, array_of(x), array_of(n)),
    lambda gradient, x, n: _for_exponent(gradient, array_of(x), array_of(n)),
)
_POWER_AGAIN = (_again_for_base, _again_for_exponent)


def exp(x: Tensor) -> Tensor:
    """Return e to the x."""
    check_floating("exp", x)
    y = fresh.compute("exp", x.array)
    return record_unary(
        y, x, lambda gradient: fresh.compute("multiply", gradient, y), multiply, needs_output=True
    )


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of x."""
    check_floating("log", x)
    y = fresh.compute("log", x.array)
    return record_unary(
        y,
        x,
        lambda gradient: fresh.compute("divide", gradient, x.array),
        lambda gradient, output: divide(gradient, x),
        needs=(x,),
    )


def sqrt(x: Tensor) -> Tensor:
    """Return the square root of x; its gradient at 0 is infinite."""
    check_floating("sqrt", x)
    y = fresh.compute("sqrt", x.array)
    return record_unary(
        y,
        x,
        lambda gradient: sqrt_backward.dispatch(gradient, y),
        lambda gradient, output: divide(gradient, multiply(output, 2)),
        needs_output=True,
    )


def maximum(x: TensorLike, y: TensorLike) -> Tensor:
    """Return the larger of the two.

    Equal elements share the gradient half and half; NaN gives it to both.
    """
    return _extreme("maximum", _LARGER, _LARGER_AGAIN, x, y)


def minimum(x: TensorLike, y: TensorLike) -> Tensor:
    """Return the smaller of the two; ties and NaN as in maximum."""
    return _extreme("minimum", _SMALLER, _SMALLER_AGAIN, x, y)


def _extreme(name, shares, again, x, y):
    """Return xp.name(x, y)."""
    x, y = matched(name, x, y)
    result = _compute(name, array_of(x), array_of(y))
    return record_broadcast(name, result, x, y, shares, again, (x, y))


def _of_extreme(sign):
    """Return the shares of both operands in a gradient; the sign is -1 for the smaller one."""

    def share(gradient, mine, other):
        return extreme_backward.dispatch(*alike(gradient, array_of(mine), array_of(other)), sign)

    return share, lambda gradient, x, y: share(gradient, y, x)


def _of_extreme_again(loses):
    """Return the same by operations on Tensors; loses(a, b) says whether b is taken."""

    def share(gradient, mine, other):
        a, b = array_of(mine), array_of(other)
        return where(a == b, multiply(gradient, 0.5), where(loses(a, b), 0, gradient))

    return share, lambda gradient, x, y: share(gradient, y, x)


_LARGER, _SMALLER = _of_extreme(1), _of_extreme(-1)
_LARGER_AGAIN, _SMALLER_AGAIN = _of_extreme_again(operator.lt), _of_extreme_again(operator.gt)


def where(condition: TensorLike, x: TensorLike, y: TensorLike) -> Tensor:
    """Return x where the condition, booleans without a gradient, holds, and y elsewhere."""
    x, y = matched("where", x, y)
    arrays = [array_of(operand) for operand in (condition, x, y)]
    result = _compute("where", *arrays, function=fresh.choose)
    return record_broadcast("where", result, x, y, _CHOICE, _CHOICE_AGAIN, (condition, None))


_CHOICE = (
    lambda gradient, condition, _: fresh.choose(array_of(condition), gradient, 0),
    lambda gradient, condition, _: fresh.choose(array_of(condition), 0, gradient),
)
_CHOICE_AGAIN = (
    lambda gradient, condition, _: where(condition, gradient, 0),
    lambda gradient, condition, _: where(condition, 0, gradient),
)


def compare(name: str, x: TensorLike, y: TensorLike) -> Tensor:
    """Return x == y, x < y, ... as a Tensor of booleans without a gradient.

    Parameters
    ----------
    name
        Of the function in `operator`.
    """
    arrays = of_numpy(array_of(x)), of_numpy(array_of(y))
    return Tensor(_compute(name, *arrays, function=getattr(operator, name)))
