"""The error function, and the GELU that is made of it, with its gradient, in one pass.

float32 and bfloat16 are computed in float32, from what is left of the integral:

    1 - erf(a) = exp(-a^2) tail(a)      tail(a) = u P(q), u = 1 / (a + 3), q = 1 - 50/19 a u

tail falls from 1 to 0.05 where exp(-a^2) ends, and a polynomial of degree 9 follows it to 1.5e-9.
So GELU and its gradient, x Phi(x) and Phi(x) + x phi(x), need one exponential, keep their digits
for negative x, where 1 + erf loses them, and have no branch: LLVM makes vectors. float64 takes the
formulas of the definition, all of them, and chooses.

Errors over all float32, in units of the last place (ULP): erf 1.3, GELU 4.5, its gradient 4 or
1e-7. Beyond |x| = 13.2, where exp(-x^2 / 2) is below 1.2e-38, GELU and its gradient are 0 or x and
1. float64 has the bits of the definition's formulas.
"""

import math

from ..reference import erf as reference
from .arrays import enter
from .notation import always_inlined, inlined
from .pointwise import END_OF_ERF, bell, gradient_loop, value_loop
from .scalar import at_most, either, exp, fma, like, of_dtypes, polynomial, with_sign

NEAR, MIDDLE, FAR = reference.LIMITS
ROOT_HALF = reference.ROOT_HALF
SLOPE_AT_0 = reference.SLOPE_AT_0
ROOT_OF_INVERSE_PI = 1 / math.sqrt(math.pi)


# ---- formulas of float32 -------------------------------------------------------------------------

LIMIT = 0.75  # up to which erf is x + x S(x^2)
END_OF_GELU = 14.0  # exp(-x^2 / 2) is 0 there
_POINT = 3.0
_SLOPE = -50 / 19  # of q, from 1 where a is 0 to -1 where it is 9.5
_tail_polynomial = polynomial(
    2.7900634449906647e-05,
    2.4549361114623025e-05,
    -0.000488959311041981,
    -0.0013111223233863711,
    0.005352941807359457,
    0.04974554479122162,
    0.19313199818134308,
    0.4959670901298523,
    0.9328218698501587,
    1.3247281312942505,
)
_near_polynomial = polynomial(
    -0.0006749510648660362,
    0.005114345345646143,
    -0.026834623888134956,
    0.11283376812934875,
    -0.3761261999607086,
    0.1283791670955126,
)


@inlined
def _tail(size):
    u = like(1.0, size) / (size + like(_POINT, size))
    return u * _tail_polynomial(fma(size * u, like(_SLOPE, u), like(1.0, u)))


@inlined
def _single_erf(x):
    size = at_most(abs(x), END_OF_ERF)
    near = fma(size, _near_polynomial(size * size), size)
    beyond = like(1.0, x) - exp(-size * size) * _tail(size)
    return with_sign(near if size <= like(LIMIT, x) else beyond, x)


@inlined
def _single_gelu(x):
    size = at_most(abs(x), END_OF_GELU)
    half = like(0.5, x) * at_most(x, END_OF_GELU)
    lower = half * _tail(size * like(ROOT_HALF, x)) * bell(size, 0.5)
    return lower if x <= like(0.0, x) else x - lower


@inlined
def _single_gelu_slope(x):
    size = at_most(abs(x), END_OF_GELU)
    density = bell(size, 0.5)
    lower = like(0.5, x) * _tail(size * like(ROOT_HALF, x)) * density
    share = lower if x < like(0.0, x) else like(1.0, x) - lower
    return fma(like(SLOPE_AT_0, x) * x, density, share)


# ---- formulas of float64 -------------------------------------------------------------------------

near_p, near_q = [polynomial(*part) for part in reference.NEAR]
middle_p, middle_q = [polynomial(*part) for part in reference.MIDDLE]
far_p, far_q = [polynomial(*part) for part in reference.FAR]


@always_inlined
def _double_erf(x):
    size = at_most(abs(x), FAR)
    square = size * size
    near = x * near_p(square) / near_q(square)
    middle = middle_p(size) / middle_q(size)
    inverse = like(1.0, x) / either(size > like(MIDDLE, x), size, like(MIDDLE, x))
    inverse_square = inverse * inverse
    ratio = far_p(inverse_square) / far_q(inverse_square)
    far = (like(ROOT_OF_INVERSE_PI, x) - inverse_square * ratio) * inverse
    tail = either(size <= like(MIDDLE, x), middle, far)
    beyond = with_sign(like(1.0, x) - exp(-square) * tail, x)
    return either(size <= like(NEAR, x), near, beyond)


@always_inlined
def _double_gelu(x):
    return like(0.5, x) * x * (like(1.0, x) + _double_erf(x * like(ROOT_HALF, x)))


@always_inlined
def _double_gelu_slope(x):
    half = like(0.5, x)
    density = like(SLOPE_AT_0, x) * exp(-half * x * x)
    share = half * (like(1.0, x) + _double_erf(x * like(ROOT_HALF, x)))
    return share + x * density


# ---- loops ---------------------------------------------------------------------------------------

_erf_of = of_dtypes(_single_erf, _double_erf)
_gelu_of = of_dtypes(_single_gelu, _double_gelu)
_gelu_slope = of_dtypes(_single_gelu_slope, _double_gelu_slope)


@inlined
def _gelu_share(gradient, x):
    return gradient * _gelu_slope(x)


enter(value_loop(__name__, "_erf", _erf_of))
enter(value_loop(__name__, "_erf_gelu", _gelu_of))
enter(gradient_loop(__name__, "_erf_gelu_backward", _gelu_share))
