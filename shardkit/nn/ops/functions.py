"""Functions of one number, element by element; half floats are computed in float32.

Each has its slope beside it. sign, floor, ceil and round are flat wherever they have a slope: their
results take no gradient.
"""

import math
from typing import Any

from ...array import kernels
from ...array.backend import xp_of
from ...array.dtypes import is_half
from ...array.halves import rounded, widened
from ...errors import ShapeError
from ..autograd import Tensor, TensorLike, array_of, record
from .activation import sigmoid
from .elementwise import (
    _compute,
    add,
    divide,
    exp,
    fit,
    form,
    multiply,
    negative,
    power,
    sqrt,
    where,
)


def pointwise(x: Tensor, compute, slope, slope_again=None) -> Tensor:
    """Return compute(xp, x), whose gradient is multiplied by slope(xp, x).

    Parameters
    ----------
    slope_again
        The slope as operations on a Tensor, for second derivatives; None: there are none.
    """
    xp = xp_of(x.array)
    dtype = x.dtype

    def backward(gradient, wanted):
        return (rounded(widened(gradient) * slope(xp, widened(x.array)), dtype),)

    def differentiable(gradient, wanted, output):
        return (multiply(gradient, slope_again(x)),)

    y = compute(xp, widened(x.array))
    return record(
        rounded(y, dtype) if is_half(dtype) else y,
        (x,),
        backward,
        needs=(x,),
        differentiable=differentiable if slope_again else None,
    )


def flat(slope):
    """Return a slope(xp, x) that is constant nearly everywhere, as an operation on a Tensor."""
    return lambda x: Tensor(slope(xp_of(x.array), x.array))


def abs(x: Tensor) -> Tensor:
    """Return the magnitude of x; its gradient at 0 is 0."""
    return pointwise(x, lambda xp, x: xp.abs(x), lambda xp, x: xp.sign(x), sign)


def sin(x: Tensor) -> Tensor:
    """Return the sine of x, in radians."""
    return pointwise(x, lambda xp, x: xp.sin(x), lambda xp, x: xp.cos(x), cos)


def cos(x: Tensor) -> Tensor:
    """Return the cosine of x, in radians."""
    return pointwise(
        x, lambda xp, x: xp.cos(x), lambda xp, x: -xp.sin(x), lambda x: negative(sin(x))
    )


def tan(x: Tensor) -> Tensor:
    """Return the tangent of x, in radians."""
    return pointwise(
        x,
        lambda xp, x: xp.tan(x),
        lambda xp, x: 1 + xp.tan(x) ** 2,
        lambda x: add(power(tan(x), 2), 1),
    )


def arctan(x: Tensor) -> Tensor:
    """Return the angle between -pi/2 and pi/2 whose tangent is x."""
    return pointwise(
        x,
        lambda xp, x: xp.arctan(x),
        lambda xp, x: 1 / (1 + x * x),
        lambda x: divide(1, add(multiply(x, x), 1)),
    )


def arctan2(y: TensorLike, x: TensorLike) -> Tensor:
    """Return the angle of the point (x, y), from -pi to pi.

    gradients  y: x / (x^2 + y^2), x: -y / (x^2 + y^2)
    """
    form_y, form_x = form(y), form(x)

    def backward(gradient, wanted):
        height, width = array_of(y), array_of(x)
        scaled = gradient / (height * height + width * width)
        return (
            fit(scaled * width, form_y) if wanted[0] else None,
            fit(scaled * -height, form_x) if wanted[1] else None,
        )

    return record(_compute("arctan2", array_of(y), array_of(x)), (y, x), backward, needs=(y, x))


def erf(x: Tensor) -> Tensor:
    """Return 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    return pointwise(
        x,
        lambda xp, x: kernels.erf(x),
        lambda xp, x: 2 / math.sqrt(math.pi) * xp.exp(-x * x),
        lambda x: multiply(exp(negative(multiply(x, x))), 2 / math.sqrt(math.pi)),
    )


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return log(1 + exp(beta x)) / beta, and x where beta x is above the threshold."""

    def compute(xp, x):
        z = x * beta
        soft = (xp.maximum(z, 0) + xp.log1p(xp.exp(-xp.abs(z)))) / beta
        return xp.where(z > threshold, x, soft)

    def slope(xp, x):
        z = x * beta
        return xp.where(z > threshold, 1, kernels.sigmoid(z)).astype(x.dtype, copy=False)

    def slope_again(x):
        z = multiply(x, beta)
        return where(z.array > threshold, 1, sigmoid(z))

    return pointwise(x, compute, slope, slope_again)


def log1p(x: Tensor) -> Tensor:
    """Return log(1 + x), exact for small x."""
    return pointwise(
        x, lambda xp, x: xp.log1p(x), lambda xp, x: 1 / (1 + x), lambda x: divide(1, add(x, 1))
    )


def expm1(x: Tensor) -> Tensor:
    """Return exp(x) - 1, exact for small x."""
    return pointwise(x, lambda xp, x: xp.expm1(x), lambda xp, x: xp.exp(x), exp)


def square(x: Tensor) -> Tensor:
    """Return x x."""
    return pointwise(x, lambda xp, x: x * x, lambda xp, x: 2 * x, lambda x: multiply(x, 2))


def reciprocal(x: Tensor) -> Tensor:
    """Return 1 / x."""
    return pointwise(
        x, lambda xp, x: 1 / x, lambda xp, x: -1 / (x * x), lambda x: divide(-1, multiply(x, x))
    )


def rsqrt(x: Tensor) -> Tensor:
    """Return 1 / sqrt(x)."""
    return pointwise(
        x,
        lambda xp, x: 1 / xp.sqrt(x),
        lambda xp, x: -0.5 / (x * xp.sqrt(x)),
        lambda x: divide(-0.5, multiply(x, sqrt(x))),
    )


def clamp(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """Return x, raised to min and lowered to max; the gradient passes from min to max, both too.

    Parameters
    ----------
    min, max
        Numbers; None: no limit on this side.
    """
    if min is None and max is None:
        raise ShapeError("clamp without limits; give min, max or both")

    def is_inside(xp, x):
        above = True if min is None else x >= min
        below = True if max is None else x <= max
        return (above & below).astype(x.dtype)

    return pointwise(x, lambda xp, x: xp.clip(x, min, max), is_inside, flat(is_inside))


clip = clamp  # NumPy's name


def masked_fill(x: Tensor, mask: Any, value: Any) -> Tensor:
    """Return x, and the value where the mask, booleans that broadcast to x, is True."""
    return where(mask, value, x)


def sign(x: Tensor) -> Tensor:
    """Return -1, 0 or 1, without a gradient."""
    return Tensor(xp_of(x.array).sign(x.array))


def floor(x: Tensor) -> Tensor:
    """Return the largest whole number that is not above x, without a gradient."""
    return Tensor(xp_of(x.array).floor(x.array))


def ceil(x: Tensor) -> Tensor:
    """Return the smallest whole number that is not below x, without a gradient."""
    return Tensor(xp_of(x.array).ceil(x.array))


def round(x: Tensor) -> Tensor:
    """Return the nearest whole number, of two the even one, without a gradient."""
    return Tensor(xp_of(x.array).rint(x.array))
