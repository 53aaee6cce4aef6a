"""Functions of one number, and their gradients; what a choice between two arrays gives.

The gradient of a function is that of its result times its slope, at what the function has kept: x,
or its result y.
"""

import math
from typing import Any

from ..backend import xp_of
from ..registry import WITH_BFLOAT16, kernel
from .activation import sigmoid
from .chunks import elementwise

ERF_SLOPE_AT_0 = 2 / math.sqrt(math.pi)
FORM: dict[str, Any] = {"kinds": WITH_BFLOAT16, "rounded": (True,), "has_cuda_twin": False}


@kernel(**FORM)
def abs_backward(gradient, x, out=None):
    """Return gradient sign(x), all [...]."""
    return elementwise(lambda gradient, x: gradient * _sign(x), gradient, x, out=out)


@kernel(**FORM)
def angle_backward(gradient, height, width, sign, out=None):
    """Return sign gradient width / (height^2 + width^2), all [...]; 0 where both are 0."""
    xp = xp_of(gradient)

    def rule(gradient, height, width):
        squares = height * height + width * width
        is_zero = squares == 0
        share = gradient / xp.where(is_zero, 1, squares)
        return sign * (xp.where(is_zero, 0, share) * width)

    return elementwise(rule, gradient, height, width, out=out)


@kernel(**FORM)
def arctan_backward(gradient, x, out=None):
    """Return gradient / (1 + x^2), all [...]."""

    def rule(gradient, x):
        return gradient * (1 / (1 + x * x))

    return elementwise(rule, gradient, x, out=out)


@kernel(**FORM)
def clamp_backward(gradient, x, lowest, highest, out=None):
    """Return gradient where lowest <= x <= highest, and 0 times gradient elsewhere, all [...]."""

    def rule(gradient, x):
        return gradient * ((x >= lowest) & (x <= highest)).astype(x.dtype)

    return elementwise(rule, gradient, x, out=out)


@kernel(**FORM)
def cube(x, out=None):
    """Return x^3 for x [...]."""
    return elementwise(lambda x: x * x * x, x, out=out)


@kernel(**FORM)
def cube_backward(gradient, x, out=None):
    """Return 3 gradient x^2, all [...]."""
    return elementwise(lambda gradient, x: gradient * 3 * (x * x), gradient, x, out=out)


@kernel(**FORM)
def divisor_backward(gradient, x, y, out=None):
    """Return the gradient of y in x / y, -gradient / y x / y, all [...]."""

    def rule(gradient, x, y):
        scaled = gradient / y  # infinite where y is 0
        return -xp_of(x).where(x == 0, gradient * x, scaled * x) / y

    return elementwise(rule, gradient, x, y, out=out)


@kernel(**FORM)
def elu(x, alpha, out=None):
    """Return x where it is positive, alpha (exp(x) - 1) elsewhere, for x [...]."""
    xp = xp_of(x)

    def rule(x):
        return xp.where(x > 0, x, alpha * xp.expm1(xp.minimum(x, 0)))

    return elementwise(rule, x, out=out)


@kernel(**FORM)
def elu_backward(gradient, x, alpha, out=None):
    """Return gradient times 1 where x is positive, alpha exp(x) elsewhere, all [...]."""
    xp = xp_of(x)

    def rule(gradient, x):
        return gradient * xp.where(x > 0, 1, alpha * xp.exp(xp.minimum(x, 0)))

    return elementwise(rule, gradient, x, out=out)


@kernel(**FORM)
def erf_backward(gradient, x, out=None):
    """Return gradient 2/sqrt(pi) exp(-x^2), all [...]."""

    def rule(gradient, x):
        return gradient * (ERF_SLOPE_AT_0 * xp_of(x).exp(-x * x))

    return elementwise(rule, gradient, x, out=out)


@kernel(**FORM)
def expm1_backward(gradient, x, out=None):
    """Return gradient exp(x), all [...]."""
    return elementwise(lambda gradient, x: gradient * xp_of(x).exp(x), gradient, x, out=out)


@kernel(**FORM)
def extreme_backward(gradient, x, y, sign, out=None):
    """Return the gradient of x in the larger of x and y, sign 1, or the smaller, sign -1, [...].

    Half of it where they are equal, and all where one is NaN.
    """
    xp = xp_of(x)

    def rule(gradient, x, y):
        lost = xp.where(sign * x < sign * y, 0, gradient)
        return xp.where(x == y, gradient * 0.5, lost)

    return elementwise(rule, gradient, x, y, out=out)


@kernel(**FORM)
def hardtanh_backward(gradient, x, lowest, highest, out=None):
    """Return gradient where lowest < x < highest, and 0 times gradient elsewhere, all [...]."""

    def rule(gradient, x):
        return gradient * ((x > lowest) & (x < highest)).astype(x.dtype)

    return elementwise(rule, gradient, x, out=out)


@kernel(**FORM)
def leaky_relu(x, negative_slope, out=None):
    """Return x where it is positive, negative_slope x elsewhere, for x [...]."""
    xp = xp_of(x)
    return elementwise(lambda x: xp.where(x > 0, x, negative_slope * x), x, out=out)


@kernel(**FORM)
def leaky_relu_backward(gradient, x, negative_slope, out=None):
    """Return gradient times 1 where x is positive, negative_slope elsewhere, all [...]."""
    xp = xp_of(x)

    def rule(gradient, x):
        return gradient * xp.where(x > 0, 1, negative_slope).astype(x.dtype)

    return elementwise(rule, gradient, x, out=out)


@kernel(**FORM)
def log1p_backward(gradient, x, out=None):
    """Return gradient / (1 + x), all [...]."""
    return elementwise(lambda gradient, x: gradient * (1 / (1 + x)), gradient, x, out=out)


@kernel(**FORM)
def mish(x, out=None):
    """Return x tanh(softplus(x)) for x [...]."""
    return elementwise(lambda x: x * _tanh_of_softplus(x), x, out=out)


@kernel(**FORM)
def mish_backward(gradient, x, out=None):
    """Return gradient (t + x (1 - t^2) sigmoid(x)), t = tanh(softplus(x)), all [...]."""

    def rule(gradient, x):
        t = _tanh_of_softplus(x)
        return gradient * (t + x * (1 - t * t) * sigmoid(x))

    return elementwise(rule, gradient, x, out=out)


@kernel(**FORM)
def reciprocal_backward(gradient, x, out=None):
    """Return -gradient / x^2, all [...]."""
    return elementwise(lambda gradient, x: gradient * (-1 / (x * x)), gradient, x, out=out)


@kernel(**FORM)
def relu_backward(gradient, y, out=None):
    """Return gradient, and 0 where y = relu(x) is 0, all [...]."""
    return elementwise(lambda g, y: xp_of(y).where(y <= 0, 0, g), gradient, y, out=out)


@kernel(**FORM)
def rsqrt(x, out=None):
    """Return 1 / sqrt(x) for x [...]."""
    return elementwise(lambda x: 1 / xp_of(x).sqrt(x), x, out=out)


@kernel(**FORM)
def rsqrt_backward(gradient, x, out=None):
    """Return -gradient / (2 |x| sqrt(x)), all [...]: of -0 too, whose root is -0."""
    xp = xp_of(x)

    def rule(gradient, x):
        return gradient * (-0.5 / (xp.abs(x) * xp.sqrt(x)))

    return elementwise(rule, gradient, x, out=out)


@kernel(**FORM)
def sigmoid_backward(gradient, y, out=None):
    """Return gradient y (1 - y), all [...], for y = sigmoid(x)."""
    return elementwise(lambda gradient, y: gradient * (y * (1 - y)), gradient, y, out=out)


@kernel(**FORM)
def sign(x, out=None):
    """Return -1, 0 or 1 for x [...]; 0 of NaN."""
    return elementwise(_sign, x, out=out)


@kernel(**FORM)
def softplus(x, beta, threshold, out=None):
    """Return log(1 + exp(beta x)) / beta, and x where beta x is above the threshold, [...]."""
    xp = xp_of(x)

    def rule(x):
        z = x * beta
        return xp.where(z > threshold, x, _softplus(z) / beta)

    return elementwise(rule, x, out=out)


@kernel(**FORM)
def softplus_backward(gradient, x, beta, threshold, out=None):
    """Return gradient sigmoid(beta x), and gradient where beta x is above the threshold, [...]."""

    def rule(gradient, x):
        z = x * beta
        return gradient * xp_of(x).where(z > threshold, 1, sigmoid(z)).astype(x.dtype)

    return elementwise(rule, gradient, x, out=out)


@kernel(**FORM)
def sqrt_backward(gradient, y, out=None):
    """Return gradient / (2 y), all [...], for y = sqrt(x)."""
    return elementwise(lambda gradient, y: gradient / (2 * y), gradient, y, out=out)


@kernel(**FORM)
def square_backward(gradient, x, out=None):
    """Return 2 gradient x, all [...]."""
    return elementwise(lambda gradient, x: gradient * (2 * x), gradient, x, out=out)


@kernel(**FORM)
def tan_backward(gradient, y, out=None):
    """Return gradient (1 + y^2), all [...], for y = tan(x)."""
    return elementwise(lambda gradient, y: gradient * (1 + y * y), gradient, y, out=out)


@kernel(**FORM)
def tanh(x, out=None):
    """Return the hyperbolic tangent of x [...]."""
    return elementwise(xp_of(x).tanh, x, out=out)


@kernel(**FORM)
def tanh_backward(gradient, y, out=None):
    """Return gradient (1 - y y), all [...], for y = tanh(x)."""
    return elementwise(lambda gradient, y: gradient * (1 - y * y), gradient, y, out=out)


@kernel(**FORM)
def where_else(x, condition, number, holds, out=None):
    """Return x where the condition is `holds`, the number elsewhere, for x and condition [...]."""
    xp = xp_of(x)

    def rule(x, condition):
        return xp.where(condition == holds, x, number).astype(x.dtype)

    return elementwise(rule, x, condition, out=out)


@kernel(**FORM)
def where_of(x, y, condition, out=None):
    """Return x where the condition holds, y elsewhere, for x, y and condition [...]."""
    return elementwise(lambda x, y, c: xp_of(x).where(c, x, y), x, y, condition, out=out)


# ---- formulas ------------------------------------------------------------------------------------


def _softplus(z):
    xp = xp_of(z)
    return xp.maximum(z, 0) + xp.log1p(xp.exp(-xp.abs(z)))


def _tanh_of_softplus(x):
    return xp_of(x).tanh(_softplus(x))


def _sign(x):
    """Return the sign of x, and 0 of NaN."""
    xp = xp_of(x)
    sign = xp.asarray(xp.sign(x))
    return xp.where(xp.isnan(sign), sign.dtype.type(0), sign)
