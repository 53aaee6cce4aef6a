"""Arithmetic element by element, with broadcasting.

The gradient of a broadcast operand is summed over the dimensions that were stretched. Where two
operands share a maximum, each gets half of the gradient (as in PyTorch), so that maximum(x, x) has
the gradient of x.
"""

import operator
from typing import Any

from ...array import fresh
from ...array.backend import xp_of
from ...array.dtypes import is_half
from ...array.halves import rounded
from ...array.reference.pointwise import (
    cube,
    cube_backward,
    divisor_backward,
    extreme_backward,
    sqrt_backward,
)
from ...errors import ShapeError
from ..autograd import Tensor, TensorLike, array_of, record
from .broadcast import record_broadcast, takes_gradient
from .operands import check_floating, check_numbers, counted_power, divided, matched


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
    same = (lambda gradient: gradient,) * 2
    return record_broadcast(_compute("add", array_of(x), array_of(y)), (x, y), same, same)


def subtract(x: TensorLike, y: TensorLike) -> Tensor:
    """Return x - y."""
    x, y = matched("subtract", x, y)
    shares = (lambda gradient: gradient, lambda gradient: fresh.compute("negative", gradient))
    difference = _compute("subtract", array_of(x), array_of(y))
    return record_broadcast(difference, (x, y), shares, (shares[0], negative))


def multiply(x: TensorLike, y: TensorLike) -> Tensor:
    """Return x * y."""
    x, y = matched("multiply", x, y)
    # keep only what a gradient will need
    for_y: Any = x if takes_gradient(y) else None
    for_x: Any = y if takes_gradient(x) else None
    return record_broadcast(
        _compute("multiply", array_of(x), array_of(y)),
        (x, y),
        (
            lambda gradient: fresh.compute("multiply", gradient, array_of(for_x)),
            lambda gradient: fresh.compute("multiply", gradient, array_of(for_y)),
        ),
        (lambda gradient: multiply(gradient, for_x), lambda gradient: multiply(gradient, for_y)),
        needs=(for_y, for_x),
    )


def divide(x: TensorLike, y: TensorLike) -> Tensor:
    """Return x / y."""
    x, y = divided("divide", x, y)
    for_y: Any = x if takes_gradient(y) else None
    return record_broadcast(
        _compute("divide", array_of(x), array_of(y)),
        (x, y),
        (
            lambda gradient: fresh.compute("divide", gradient, array_of(y)),
            lambda gradient: _for_divisor(gradient, array_of(for_y), array_of(y)),
        ),
        (
            lambda gradient: divide(gradient, y),
            lambda gradient: negative(divide(multiply(divide(gradient, y), for_y), y)),
        ),
        needs=(for_y, y),
    )


def _for_divisor(gradient, x, y):
    """Return -gradient x / y^2, and 0 where x and not y is 0."""
    return divisor_backward.dispatch(*alike(gradient, x, y))


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

    def backward(gradient, wanted):
        return (fresh.compute("negative", gradient),)

    return record(
        fresh.compute("negative", x.array),
        (x,),
        backward,
        differentiable=lambda gradient, wanted, output: (negative(gradient),),
    )


def power(x: TensorLike, exponent: TensorLike) -> Tensor:
    """Return x ** exponent.

    The gradient of a Tensor exponent needs x > 0; at x = 0 it is 0 unless the exponent is negative.
    """
    x, exponent = matched("power", *counted_power(x, exponent))
    result = _compute("power", array_of(x), array_of(exponent), function=_powers)
    dtypes = {each.dtype for each in (x, exponent) if hasattr(each, "dtype")}
    if len(dtypes) == 1 and is_half(*dtypes):
        result = rounded(result, *dtypes)
    return record_broadcast(
        result,
        (x, exponent),
        (
            lambda gradient: _for_base(gradient, array_of(x), array_of(exponent)),
            lambda gradient: _for_exponent(gradient, array_of(x), array_of(exponent)),
        ),
        (
            lambda gradient: _again_for_base(gradient, x, exponent),
            lambda gradient: _again_for_exponent(gradient, x, exponent),
        ),
        needs=(x, exponent),
    )


def _powers(base, n):
    """Return base^n; base^-0.5 is 1 / sqrt(base) at -0 and -inf too, where C has another limit."""
    if isinstance(n, (int, float)) and n == 3:  # of negative numbers pow takes 100 times as long
        return cube.dispatch(base)
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
        if n == 3:
            return cube_backward.dispatch(gradient, base)
        return gradient * n * _powers(base, n - 1)
    xp = xp_of(gradient)
    is_constant = n == 0
    return xp.where(is_constant, 0, gradient * n * base ** xp.where(is_constant, 0, n - 1))


def _for_exponent(gradient, base, n):
    """Return gradient base^n log(base), and 0 where base^n is 0 or 1 because base is 0."""
    xp = xp_of(gradient)
    safe = xp.where((base == 0) & (n >= 0), 1, base)  # log 1 = 0
    safe = safe.astype(gradient.dtype, copy=False)
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


def exp(x: Tensor) -> Tensor:
    """Return e to the x."""
    check_floating("exp", x)
    y = fresh.compute("exp", x.array)
    return record(
        y,
        (x,),
        lambda gradient, wanted: (fresh.compute("multiply", gradient, y),),
        needs_output=True,
        differentiable=lambda gradient, wanted, output: (multiply(gradient, output),),
    )


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of x."""
    check_floating("log", x)
    y = fresh.compute("log", x.array)
    return record(
        y,
        (x,),
        lambda gradient, wanted: (fresh.compute("divide", gradient, x.array),),
        needs=(x,),
        differentiable=lambda gradient, wanted, output: (divide(gradient, x),),
    )


def sqrt(x: Tensor) -> Tensor:
    """Return the square root of x; its gradient at 0 is infinite."""
    check_floating("sqrt", x)
    y = fresh.compute("sqrt", x.array)
    return record(
        y,
        (x,),
        lambda gradient, wanted: (sqrt_backward.dispatch(gradient, y),),
        needs_output=True,
        differentiable=lambda gradient, wanted, output: (divide(gradient, multiply(output, 2)),),
    )


def maximum(x: TensorLike, y: TensorLike) -> Tensor:
    """Return the larger of the two.

    Equal elements share the gradient half and half; NaN gives it to both.
    """
    return _extreme("maximum", 1, x, y)


def minimum(x: TensorLike, y: TensorLike) -> Tensor:
    """Return the smaller of the two; ties and NaN as in maximum."""
    return _extreme("minimum", -1, x, y)


def _extreme(name, sign, x, y):
    """Return xp.name(x, y): the larger one for the sign 1, the smaller for -1."""
    x, y = matched(name, x, y)
    loses = operator.lt if sign > 0 else operator.gt

    def share(gradient, mine, other):
        return extreme_backward.dispatch(*alike(gradient, array_of(mine), array_of(other)), sign)

    def again(gradient, mine, other):
        a, b = array_of(mine), array_of(other)
        return where(a == b, multiply(gradient, 0.5), where(loses(a, b), 0, gradient))

    return record_broadcast(
        _compute(name, array_of(x), array_of(y)),
        (x, y),
        (lambda gradient: share(gradient, x, y), lambda gradient: share(gradient, y, x)),
        (lambda gradient: again(gradient, x, y), lambda gradient: again(gradient, y, x)),
        needs=(x, y),
    )


def where(condition: TensorLike, x: TensorLike, y: TensorLike) -> Tensor:
    """Return x where the condition, booleans without a gradient, holds, and y elsewhere."""
    x, y = matched("where", x, y)
    result = _compute(
        "where", *[array_of(operand) for operand in (condition, x, y)], function=fresh.choose
    )
    return record_broadcast(
        result,
        (x, y),
        (
            lambda gradient: fresh.choose(array_of(condition), gradient, 0),
            lambda gradient: fresh.choose(array_of(condition), 0, gradient),
        ),
        (
            lambda gradient: where(condition, gradient, 0),
            lambda gradient: where(condition, 0, gradient),
        ),
        needs=(condition,),
    )


def compare(name: str, x: TensorLike, y: TensorLike) -> Tensor:
    """Return x == y, x < y, ... as a Tensor of booleans without a gradient.

    Parameters
    ----------
    name
        Of the function in `operator`.
    """
    return Tensor(_compute(name, array_of(x), array_of(y), function=getattr(operator, name)))
