"""Functions of one number, element by element; half floats are computed in float32.

Each has its slope beside it. sign, floor, ceil and round are flat wherever they have a slope: their
results take no gradient.
"""

import builtins
import math
from typing import Any

import numpy

from ...array import fresh, kernels
from ...array.backend import xp_of
from ...array.halves import rounded, widened
from ...errors import ShapeError
from ..autograd import Tensor, TensorLike, array_of, record
from .activation import of_input, of_output, sigmoid
from .broadcast import fit, form
from .elementwise import _compute, add, alike, divide, exp, multiply, negative, power, sqrt, where
from .operands import FLOAT32, check_floating, check_numbers, divided, is_counted
from .shape import cast


def of_library(name: str, x: Tensor, slope) -> Tensor:
    """Return xp.NAME(x) of floats, whose gradient kernels.NAME_backward gives.

    Half floats are computed in float32.
    slope   the derivative as operations on a Tensor, for second derivatives
    """
    check_floating(name, x)
    return of_input(name, x, slope=slope, y=by_library(x, name))


def by_library(x: Tensor, name: str):
    """Return xp.NAME(array), half floats computed in float32."""
    return rounded(fresh.compute(name, widened(x.array)), x.dtype)


def flat(slope):
    """Return a slope(xp, x) that is constant nearly everywhere, as an operation on a Tensor."""
    return lambda x: Tensor(slope(xp_of(x.array), x.array))


def abs(x: Tensor) -> Tensor:
    """Return the magnitude of x; its gradient at 0 is 0."""
    if is_counted(x):
        return _whole("abs", x)
    check_floating("abs", x)
    y = by_library(x, "absolute")
    return of_input("abs", x, slope=sign, y=y)


def sin(x: Tensor) -> Tensor:
    """Return the sine of x, in radians."""
    return of_input("sin", x, slope=cos)


def cos(x: Tensor) -> Tensor:
    """Return the cosine of x, in radians."""
    return of_input("cos", x, slope=lambda x: negative(sin(x)))


def tan(x: Tensor) -> Tensor:
    """Return the tangent of x, in radians."""
    check_floating("tan", x)
    return of_output(
        "tan",
        x,
        by_library(x, "tan"),
        lambda gradient, y: multiply(gradient, add(multiply(y, y), 1)),
    )


def arctan(x: Tensor) -> Tensor:
    """Return the angle between -pi/2 and pi/2 whose tangent is x."""
    return of_library("arctan", x, lambda x: divide(1, add(multiply(x, x), 1)))


def arctan2(y: TensorLike, x: TensorLike) -> Tensor:
    """Return the angle of the point (x, y), from -pi to pi.

    Gradients: x / (x^2 + y^2) for y and -y / (x^2 + y^2) for x; 0 where both are 0.
    """
    y, x = divided("arctan2", y, x)
    form_y, form_x = form(y), form(x)
    share = kernels.angle_backward

    def backward(gradient, wanted):
        gradient, height, width = alike(gradient, array_of(y), array_of(x))
        return (
            fit(share(gradient, height, width, 1), form_y) if wanted[0] else None,
            fit(share(gradient, width, height, -1), form_x) if wanted[1] else None,
        )

    return record(_compute("arctan2", array_of(y), array_of(x)), (y, x), backward, needs=(y, x))


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return log(1 + exp(beta x)) / beta, and x where beta x is above the threshold."""

    def slope(x):
        z = multiply(x, beta)
        return where(z.array > threshold, 1, sigmoid(z))

    return of_input("softplus", x, beta, threshold, slope=slope)


def log1p(x: Tensor) -> Tensor:
    """Return log(1 + x), exact for small x."""
    return of_library("log1p", x, lambda x: divide(1, add(x, 1)))


def expm1(x: Tensor) -> Tensor:
    """Return exp(x) - 1, exact for small x."""
    return of_library("expm1", x, exp)


def square(x: Tensor) -> Tensor:
    """Return x x."""
    if is_counted(x):
        return power(x, 2)
    return of_library("square", x, lambda x: multiply(x, 2))


def reciprocal(x: Tensor) -> Tensor:
    """Return 1 / x."""
    return of_library("reciprocal", x, lambda x: divide(-1, multiply(x, x)))


def rsqrt(x: Tensor) -> Tensor:
    """Return 1 / sqrt(x)."""
    # Of -0 too, whose root is -0.
    return of_input("rsqrt", x, slope=lambda x: divide(-0.5, multiply(abs(x), sqrt(x))))


def clamp(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """Return x, raised to min and lowered to max; the gradient passes from min to max, both too.

    Parameters
    ----------
    min, max
        Numbers; None: no limit on this side.
    """
    if min is None and max is None:
        raise ShapeError("clamp without limits; give min, max or both")
    if is_counted(x):
        return _clamped(x, min, max)

    def is_inside(xp, x):
        above = True if min is None else x >= min
        below = True if max is None else x <= max
        return (above & below).astype(x.dtype)

    check_floating("clamp", x)
    limits = -math.inf if min is None else min, math.inf if max is None else max
    y = rounded(fresh.clip(widened(x.array), min, max), x.dtype)
    return of_input("clamp", x, *limits, slope=flat(is_inside), y=y)


clip = clamp  # NumPy's name


def _clamped(x, min, max):
    """Return clamp of integers: of their own dtype between integers, else as float32."""
    check_numbers("clamp", x)
    limits = [limit for limit in (min, max) if limit is not None]
    if not builtins.all(isinstance(limit, (int, numpy.integer)) for limit in limits):
        return clamp(cast(x, FLOAT32), min, max)
    held = numpy.iinfo(x.dtype)
    if min is not None and min > held.max or max is not None and max < held.min:
        raise ShapeError(
            f"clamp of {x.dtype} between {min} and {max}, which it does not hold; cast it first, "
            'as ops.cast(x, "int64")'
        )
    lowest = None if min is None else builtins.max(int(min), held.min)
    highest = None if max is None else builtins.min(int(max), held.max)
    return Tensor(xp_of(x.array).clip(x.array, lowest, highest))


def masked_fill(x: Tensor, mask: Any, value: Any) -> Tensor:
    """Return x, and the value where the mask, booleans that broadcast to x, is True."""
    if x.dtype == bool and type(value) is int and value in (0, 1):
        value = bool(value)
    return where(mask, value, x)


def sign(x: Tensor) -> Tensor:
    """Return -1, 0 or 1, without a gradient; 0 of NaN, as in PyTorch."""
    check_numbers("sign", x)
    return Tensor(kernels.sign(x.array))


def _whole(name, x, keeps=False):
    """Return xp.name(x), or x itself if that keeps integers, without a gradient."""
    check_numbers(name, x)
    return Tensor(x.array if keeps else fresh.compute(name, x.array))


def floor(x: Tensor) -> Tensor:
    """Return the largest whole number that is not above x, without a gradient."""
    return _whole("floor", x, keeps=is_counted(x))


def ceil(x: Tensor) -> Tensor:
    """Return the smallest whole number that is not below x, without a gradient."""
    return _whole("ceil", x, keeps=is_counted(x))


def round(x: Tensor) -> Tensor:
    """Return the nearest whole number, of two the even one, without a gradient."""
    return _whole("rint", x, keeps=is_counted(x))
