"""Functions of one number, and their gradients, each in one pass over memory.

    formula of single numbers --value_loop--> out = f(x)          narrow(formula(wide(x[i])))
                              --gradient_loop--> out = gradient f'(kept)

A formula has no branch and calls nothing of the C library, so that LLVM makes vectors of its loop,
whose last elements are computed by the same operations: an element has the same bits wherever it
stands. Formulas with parameters take a tuple of them. Those that follow a polynomial are for
float32: in float64 the definition computes.

Errors of float32 in units of the last place, over all exponents (tests/pure/test_pointwise.py):
elu 1.1, tanh 1.5, erf_backward 3, mish and softplus 4. An exponential below 1.2e-38 is 0.
"""

import math

from numpy import uint8

from ..reference import pointwise as reference
from ..registry import on_cpu
from .arrays import elementwise, enter
from .compiled import compiled, named
from .notation import inlined
from .scalar import at_most, either, exp, expm1, fma, like, logistic, polynomial, with_sign
from .storage import narrow, wide


@on_cpu
def angle_backward(gradient, height, width, sign, out=None):
    return elementwise(_angle_backward, gradient, height, width, shared=(float(sign),), out=out)


@on_cpu
def extreme_backward(gradient, x, y, sign, out=None):
    return elementwise(_extreme_backward, gradient, x, y, shared=(float(sign),), out=out)


@on_cpu
def where_else(x, condition, number, holds, out=None):
    shared = float(number), bool(holds)
    return elementwise(_where_else, x, condition.view(uint8), shared=shared, out=out)


@on_cpu
def where_of(x, y, condition, out=None):
    return elementwise(_where_of, x, y, condition.view(uint8), out=out)


# ---- how loops are made --------------------------------------------------------------------------


def value_loop(module, name, formula, *, takes_parameters=False):
    """Return the compiled loop of this name out = formula(x), or formula(x, parameters)."""

    def plain(x, out):
        for i in range(x.size):
            out[i] = narrow(formula(wide(x[i])), out)

    def with_parameters(x, parameters, out):
        for i in range(x.size):
            out[i] = narrow(formula(wide(x[i]), parameters), out)

    return named(module, name, with_parameters if takes_parameters else plain)


def gradient_loop(module, name, formula, *, takes_parameters=False):
    """Return the compiled loop out = formula(gradient, kept), or (gradient, kept, parameters)."""

    def plain(gradient, kept, out):
        for i in range(kept.size):
            out[i] = narrow(formula(wide(gradient[i]), wide(kept[i])), out)

    def with_parameters(gradient, kept, parameters, out):
        for i in range(kept.size):
            out[i] = narrow(formula(wide(gradient[i]), wide(kept[i]), parameters), out)

    return named(module, name, with_parameters if takes_parameters else plain)


# ---- formulas ------------------------------------------------------------------------------------

END_OF_ERF = 10.0  # exp(-x^2) is 0 there
END_OF_TANH = 10.0  # 1 from there on in float32
END_OF_MISH = 20.0  # tanh(softplus(x)) is 1
LIMIT_OF_TANH = 0.55  # up to which it is x + x^3 T(x^2)
_tanh_polynomial = polynomial(
    -0.0062824515625834465,
    0.02107774093747139,
    -0.05385385453701019,
    0.13332602381706238,
    -0.33333319425582886,
)
# log(1 + e) = 2 s A(s^2) with s = e / (2 + e), for e in [0, 1]
_artanh_polynomial = polynomial(
    0.1408916562795639, 0.13980302214622498, 0.20012454688549042, 0.3333315849304199, 1.0
)


@inlined
def bell(size, rate):
    """Return exp(-rate size^2), with the digits of size^2 that have no place in one number."""
    square = size * size
    lost = fma(size, size, -square)
    y = exp(like(-rate, size) * square)
    return fma(like(-rate, size) * lost, y, y)


@inlined
def _erf_share(gradient, x):
    size = at_most(abs(x), END_OF_ERF)
    return gradient * (like(reference.ERF_SLOPE_AT_0, x) * bell(size, 1.0))


@inlined
def _tanh_of(x):
    size = at_most(abs(x), END_OF_TANH)
    square = size * size
    near = fma(size * square, _tanh_polynomial(square), size)
    beyond = like(1.0, x) - like(2.0, x) / (exp(size + size) + like(1.0, x))
    return with_sign(near if size < like(LIMIT_OF_TANH, x) else beyond, x)


@inlined
def _tanh_share(gradient, y):
    return gradient * (like(1.0, y) - y * y)


@inlined
def _sigmoid_share(gradient, y):
    return gradient * (y * (like(1.0, y) - y))


@inlined
def _relu_of(x):
    return like(0.0, x) if x <= like(0.0, x) else x  # NaN stays NaN


@inlined
def _relu_share(gradient, y):
    return like(0.0, y) if y <= like(0.0, y) else gradient  # 0 times infinity would be NaN


@inlined
def _leaky_relu_of(x, parameters):
    return x if x > like(0.0, x) else like(parameters[0], x) * x


@inlined
def _leaky_relu_share(gradient, x, parameters):
    return gradient * (like(1.0, x) if x > like(0.0, x) else like(parameters[0], x))


@inlined
def _elu_of(x, parameters):
    return x if x > like(0.0, x) else like(parameters[0], x) * expm1(at_most(x, 0.0))


@inlined
def _elu_share(gradient, x, parameters):
    below = like(parameters[0], x) * exp(at_most(x, 0.0))
    return gradient * (like(1.0, x) if x > like(0.0, x) else below)


@inlined
def _softplus_of(x, parameters):
    beta = like(parameters[0], x)
    z = x * beta
    e = exp(-abs(z))
    s = e / (e + like(2.0, x))
    above = z if z > like(0.0, x) else like(0.0, x)
    inverse = like(1.0, x) / beta
    soft = fma(s + s, _artanh_polynomial(s * s), above) * inverse
    return x if z > like(parameters[1], x) else soft


@inlined
def _softplus_share(gradient, x, parameters):
    z = x * like(parameters[0], x)
    return gradient * (like(1.0, x) if z > like(parameters[1], x) else logistic(z))


@inlined
def _mish_of(x):
    e = exp(at_most(x, END_OF_MISH))
    n = e * (e + like(2.0, x))  # (1 + e)^2 - 1
    return x * (n / (n + like(2.0, x)))


@inlined
def _mish_share(gradient, x):
    e = exp(at_most(x, END_OF_MISH))
    n = e * (e + like(2.0, x))
    inverse = like(1.0, x) / (n + like(2.0, x))
    rise = like(4.0, x) * (e * inverse) * ((like(1.0, x) + e) * inverse)
    rise = like(0.0, x) if x > like(END_OF_MISH, x) else rise
    return gradient * fma(x, rise, n * inverse)


@inlined
def _sign_of(x):
    above = like(1.0, x) if x > like(0.0, x) else like(0.0, x)
    return like(-1.0, x) if x < like(0.0, x) else above


@inlined
def _abs_share(gradient, x):
    return gradient * _sign_of(x)


@inlined
def _clamp_share(gradient, x, limits):
    is_inside = x >= like(limits[0], x) and x <= like(limits[1], x)
    return gradient * (like(1.0, x) if is_inside else like(0.0, x))


@inlined
def _hardtanh_share(gradient, x, limits):
    is_inside = x > like(limits[0], x) and x < like(limits[1], x)
    return gradient * (like(1.0, x) if is_inside else like(0.0, x))


@inlined
def _arctan_share(gradient, x):
    return gradient * (like(1.0, x) / (like(1.0, x) + x * x))


@inlined
def _cube_of(x):
    return x * x * x


@inlined
def _cube_share(gradient, x):
    return gradient * like(3.0, x) * (x * x)


@inlined
def _three_halves_of(x):
    y = x * math.sqrt(x)
    return like(math.inf, x) if x == like(-math.inf, x) else y  # as pow of C


@inlined
def _three_halves_share(gradient, x):
    return gradient * (like(1.5, x) * math.sqrt(x))


@inlined
def _expm1_share(gradient, x):
    return gradient * exp(x)


@inlined
def _log1p_share(gradient, x):
    return gradient * (like(1.0, x) / (like(1.0, x) + x))


@inlined
def _reciprocal_share(gradient, x):
    return gradient * (like(-1.0, x) / (x * x))


@inlined
def _rsqrt_of(x):
    return like(1.0, x) / math.sqrt(x)


@inlined
def _rsqrt_share(gradient, x):
    return gradient * (like(-0.5, x) / (abs(x) * math.sqrt(x)))


@inlined
def _sqrt_share(gradient, y):
    return gradient / (like(2.0, y) * y)


@inlined
def _square_share(gradient, x):
    return gradient * (like(2.0, x) * x)


@inlined
def _tan_share(gradient, y):
    return gradient * (like(1.0, y) + y * y)


# ---- loops ---------------------------------------------------------------------------------------

enter(gradient_loop(__name__, "_abs_backward", _abs_share))
enter(gradient_loop(__name__, "_arctan_backward", _arctan_share))
enter(gradient_loop(__name__, "_clamp_backward", _clamp_share, takes_parameters=True))
enter(value_loop(__name__, "_cube", _cube_of))
enter(gradient_loop(__name__, "_cube_backward", _cube_share))
enter(value_loop(__name__, "_elu", _elu_of, takes_parameters=True), has_polynomial=True)
enter(
    gradient_loop(__name__, "_elu_backward", _elu_share, takes_parameters=True), has_polynomial=True
)
enter(gradient_loop(__name__, "_erf_backward", _erf_share), has_polynomial=True)
enter(gradient_loop(__name__, "_expm1_backward", _expm1_share), has_polynomial=True)
enter(gradient_loop(__name__, "_hardtanh_backward", _hardtanh_share, takes_parameters=True))
enter(value_loop(__name__, "_leaky_relu", _leaky_relu_of, takes_parameters=True))
enter(gradient_loop(__name__, "_leaky_relu_backward", _leaky_relu_share, takes_parameters=True))
enter(gradient_loop(__name__, "_log1p_backward", _log1p_share))
enter(value_loop(__name__, "_mish", _mish_of), has_polynomial=True)
enter(gradient_loop(__name__, "_mish_backward", _mish_share), has_polynomial=True)
enter(gradient_loop(__name__, "_reciprocal_backward", _reciprocal_share))
enter(value_loop(__name__, "_relu", _relu_of))
enter(gradient_loop(__name__, "_relu_backward", _relu_share))
enter(value_loop(__name__, "_rsqrt", _rsqrt_of))
enter(gradient_loop(__name__, "_rsqrt_backward", _rsqrt_share))
enter(gradient_loop(__name__, "_sigmoid_backward", _sigmoid_share))
enter(value_loop(__name__, "_sign", _sign_of))
enter(value_loop(__name__, "_softplus", _softplus_of, takes_parameters=True), has_polynomial=True)
enter(gradient_loop(__name__, "_softplus_backward", _softplus_share, takes_parameters=True))
enter(gradient_loop(__name__, "_sqrt_backward", _sqrt_share))
enter(gradient_loop(__name__, "_square_backward", _square_share))
enter(gradient_loop(__name__, "_tan_backward", _tan_share))
enter(value_loop(__name__, "_three_halves", _three_halves_of))
enter(gradient_loop(__name__, "_three_halves_backward", _three_halves_share))
enter(value_loop(__name__, "_tanh", _tanh_of), has_polynomial=True)
enter(gradient_loop(__name__, "_tanh_backward", _tanh_share))


@compiled
def _angle_backward(gradient, height, width, sign, out):
    for i in range(width.size):
        h = wide(height[i])
        w = wide(width[i])
        squares = h * h + w * w
        is_zero = squares == like(0.0, squares)
        share = wide(gradient[i]) / either(is_zero, like(1.0, squares), squares)
        share = either(is_zero, like(0.0, squares), share)
        out[i] = narrow(like(sign, share) * (share * w), out)


@compiled
def _divisor_backward(gradient, x, y, out):
    for i in range(y.size):
        g = wide(gradient[i])
        above = wide(x[i])
        below = wide(y[i])
        scaled = g if above == like(0.0, above) else g / below  # infinite where y is 0
        out[i] = narrow(-(scaled * above) / below, out)


enter(_divisor_backward)


@compiled
def _extreme_backward(gradient, x, y, sign, out):
    for i in range(x.size):
        g = wide(gradient[i])
        mine = like(sign, g) * wide(x[i])
        other = like(sign, g) * wide(y[i])
        share = like(0.0, g) if mine < other else g
        out[i] = narrow(like(0.5, g) * g if mine == other else share, out)


@compiled
def _where_of(x, y, condition, out):
    for i in range(x.size):
        out[i] = either(condition[i] != 0, x[i], y[i])


@compiled
def _where_else(x, condition, number, holds, out):
    for i in range(x.size):
        other = narrow(like(number, wide(x[i])), out)
        out[i] = x[i] if (condition[i] != 0) == holds else other
