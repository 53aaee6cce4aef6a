"""Functions of one number, and their gradients; what a choice between two arrays gives.

The gradient of a function is that of its result times its slope, at what the function has kept: x,
or its result y.
"""

import functools
import math

from ..backend import xp_of
from .activation import sigmoid
from .numbers import pointwise

ERF_SLOPE_AT_0 = 2 / math.sqrt(math.pi)
_pointwise = functools.partial(pointwise, has_cuda_twin=False)


@_pointwise(2)
def abs_backward(gradient, x):
    """Return gradient sign(x), all [...]."""
    return gradient * sign(x)


@_pointwise(3)
def angle_backward(gradient, height, width, sign):
    """Return sign gradient width / (height^2 + width^2), all [...]; 0 where both are 0."""
    xp = xp_of(gradient)
    squares = height * height + width * width
    is_zero = squares == 0
    share = gradient / xp.where(is_zero, 1, squares)
    return sign * (xp.where(is_zero, 0, share) * width)


@_pointwise(2)
def arctan_backward(gradient, x):
    """Return gradient / (1 + x^2), all [...]."""
    return gradient * (1 / (1 + x * x))


@_pointwise(2)
def clamp_backward(gradient, x, lowest, highest):
    """Return gradient where lowest <= x <= highest, and 0 times gradient elsewhere, all [...]."""
    return gradient * ((x >= lowest) & (x <= highest)).astype(x.dtype)


@_pointwise()
def cube(x):
    """Return x^3 for x [...]."""
    return x * x * x


@_pointwise(2)
def cube_backward(gradient, x):
    """Return 3 gradient x^2, all [...]."""
    return gradient * 3 * (x * x)


@_pointwise(3)
def divisor_backward(gradient, x, y):
    """Return the gradient of y in x / y, -gradient / y x / y, all [...]."""
    scaled = gradient / y  # infinite where y is 0
    return -xp_of(x).where(x == 0, gradient * x, scaled * x) / y


@_pointwise()
def elu(x, alpha):
    """Return x where it is positive, alpha (exp(x) - 1) elsewhere, for x [...]."""
    xp = xp_of(x)
    return xp.where(x > 0, x, alpha * xp.expm1(xp.minimum(x, 0)))


@_pointwise(2)
def elu_backward(gradient, x, alpha):
    """Return gradient times 1 where x is positive, alpha exp(x) elsewhere, all [...]."""
    xp = xp_of(x)
    return gradient * xp.where(x > 0, 1, alpha * xp.exp(xp.minimum(x, 0)))


@_pointwise(2)
def erf_backward(gradient, x):
    """Return gradient 2/sqrt(pi) exp(-x^2), all [...]."""
    return gradient * (ERF_SLOPE_AT_0 * xp_of(x).exp(-x * x))


@_pointwise(2)
def expm1_backward(gradient, x):
    """Return gradient exp(x), all [...]."""
    return gradient * xp_of(x).exp(x)


@_pointwise(3)
def extreme_backward(gradient, x, y, sign):
    """Return the gradient of x in the larger of x and y, sign 1, or the smaller, sign -1, [...].

    Half of it where they are equal, and all where one is NaN.
    """
    xp = xp_of(x)
    lost = xp.where(sign * x < sign * y, 0, gradient)
    return xp.where(x == y, gradient * 0.5, lost)


@_pointwise(2)
def hardtanh_backward(gradient, x, lowest, highest):
    """Return gradient where lowest < x < highest, and 0 times gradient elsewhere, all [...]."""
    return gradient * ((x > lowest) & (x < highest)).astype(x.dtype)


@_pointwise()
def leaky_relu(x, negative_slope):
    """Return x where it is positive, negative_slope x elsewhere, for x [...]."""
    xp = xp_of(x)
    return xp.where(x > 0, x, negative_slope * x)


@_pointwise(2)
def leaky_relu_backward(gradient, x, negative_slope):
    """Return gradient times 1 where x is positive, negative_slope elsewhere, all [...]."""
    xp = xp_of(x)
    return gradient * xp.where(x > 0, 1, negative_slope).astype(x.dtype)


@_pointwise(2)
def log1p_backward(gradient, x):
    """Return gradient / (1 + x), all [...]."""
    return gradient * (1 / (1 + x))


@_pointwise()
def mish(x):
    """Return x tanh(softplus(x)) for x [...]."""
    return x * _tanh_of_softplus(x)


@_pointwise(2)
def mish_backward(gradient, x):
    """Return gradient (t + x (1 - t^2) sigmoid(x)), t = tanh(softplus(x)), all [...]."""
    t = _tanh_of_softplus(x)
    return gradient * (t + x * (1 - t * t) * sigmoid(x))


@_pointwise(2)
def reciprocal_backward(gradient, x):
    """Return -gradient / x^2, all [...]."""
    return gradient * (-1 / (x * x))


@_pointwise()
def relu(x):
    """Return x where it is positive, 0 elsewhere, for x [...]; NaN of NaN."""
    return xp_of(x).maximum(x, 0)


@_pointwise(2)
def relu_backward(gradient, y):
    """Return gradient, and 0 where y = relu(x) is 0, all [...]."""
    return xp_of(y).where(y <= 0, 0, gradient)


@_pointwise()
def rsqrt(x):
    """Return 1 / sqrt(x) for x [...]."""
    return 1 / xp_of(x).sqrt(x)


@_pointwise(2)
def rsqrt_backward(gradient, x):
    """Return -gradient / (2 |x| sqrt(x)), all [...]: of -0 too, whose root is -0."""
    xp = xp_of(x)
    return gradient * (-0.5 / (xp.abs(x) * xp.sqrt(x)))


@_pointwise(2)
def sigmoid_backward(gradient, y):
    """Return gradient y (1 - y), all [...], for y = sigmoid(x)."""
    return gradient * (y * (1 - y))


@_pointwise()
def sign(x):
    """Return -1, 0 or 1 for x [...]; 0 of NaN."""
    xp = xp_of(x)
    found = xp.asarray(xp.sign(x))
    return xp.where(xp.isnan(found), found.dtype.type(0), found)


@_pointwise()
def softplus(x, beta, threshold):
    """Return log(1 + exp(beta x)) / beta, and x where beta x is above the threshold, [...]."""
    xp = xp_of(x)
    z = x * beta
    return xp.where(z > threshold, x, _softplus(z) / beta)


@_pointwise(2)
def softplus_backward(gradient, x, beta, threshold):
    """Return gradient sigmoid(beta x), and gradient where beta x is above the threshold, [...]."""
    z = x * beta
    return gradient * xp_of(x).where(z > threshold, 1, sigmoid(z)).astype(x.dtype)


@_pointwise(2)
def sqrt_backward(gradient, y):
    """Return gradient / (2 y), all [...], for y = sqrt(x)."""
    return gradient / (2 * y)


@_pointwise(2)
def square_backward(gradient, x):
    """Return 2 gradient x, all [...]."""
    return gradient * (2 * x)


@_pointwise(2)
def tan_backward(gradient, y):
    """Return gradient (1 + y^2), all [...], for y = tan(x)."""
    return gradient * (1 + y * y)


@_pointwise()
def tanh(x):
    """Return the hyperbolic tangent of x [...]."""
    return xp_of(x).tanh(x)


@_pointwise(2)
def tanh_backward(gradient, y):
    """Return gradient (1 - y y), all [...], for y = tanh(x)."""
    return gradient * (1 - y * y)


@_pointwise()
def three_halves(x):
    """Return x^1.5 for x [...]; as in C, infinity of -infinity."""
    xp = xp_of(x)
    y = x * xp.sqrt(x)
    return xp.where(x == -xp.inf, xp.inf, y).astype(x.dtype)


@_pointwise(2)
def three_halves_backward(gradient, x):
    """Return 1.5 gradient sqrt(x), all [...]."""
    return gradient * (1.5 * xp_of(x).sqrt(x))


@_pointwise(2)
def where_else(x, condition, number, holds):
    """Return x where the condition is `holds`, the number elsewhere, for x and condition [...]."""
    xp = xp_of(x)
    return xp.where(condition == holds, x, number).astype(x.dtype)


@_pointwise(3)
def where_of(x, y, condition):
    """Return x where the condition holds, y elsewhere, for x, y and condition [...]."""
    return xp_of(x).where(condition, x, y)


# ---- formulas ------------------------------------------------------------------------------------


def _softplus(z):
    xp = xp_of(z)
    return xp.maximum(z, 0) + xp.log1p(xp.exp(-xp.abs(z)))


def _tanh_of_softplus(x):
    return xp_of(x).tanh(_softplus(x))
