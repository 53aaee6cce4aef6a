"""The error function, and the GELU that is made of it, with its gradient.

    erf(x) = 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x

Rational approximations over three intervals of |x|, right to the last digits of float64
(W. J. Cody, Mathematics of Computation 23, 1969).
"""

import math

from ..backend import xp_of
from .numbers import pointwise

# Coefficients (numerator, denominator), highest power first; |x| up to 0.46875: x P(x^2) / Q(x^2).
NEAR = (
    (
        1.85777706184603153e-1,
        3.16112374387056560e0,
        1.13864154151050156e2,
        3.77485237685302021e2,
        3.20937758913846947e3,
    ),
    (
        1.0,
        2.36012909523441209e1,
        2.44024637934444173e2,
        1.28261652607737228e3,
        2.84423683343917062e3,
    ),
)
# |x| up to 4: 1 - exp(-x^2) P(|x|) / Q(|x|).
MIDDLE = (
    (
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594e0,
        6.61191906371416295e1,
        2.98635138197400131e2,
        8.81952221241769090e2,
        1.71204761263407058e3,
        2.05107837782607147e3,
        1.23033935479799725e3,
    ),
    (
        1.0,
        1.57449261107098347e1,
        1.17693950891312499e2,
        5.37181101862009858e2,
        1.62138957456669019e3,
        3.29079923573345963e3,
        4.36261909014324716e3,
        3.43936767414372164e3,
        1.23033935480374942e3,
    ),
)
# Beyond: 1 - exp(-x^2) / |x| (1/sqrt(pi) - P(1/x^2) / Q(1/x^2) / x^2); 1 from 6 on.
FAR = (
    (
        1.63153871373020978e-2,
        3.05326634961232344e-1,
        3.60344899949804439e-1,
        1.25781726111229246e-1,
        1.60837851487422766e-2,
        6.58749161529837803e-4,
    ),
    (
        1.0,
        2.56852019228982242e0,
        1.87295284992346725e0,
        5.27905102951428412e-1,
        6.05183413124413191e-2,
        2.33520497626869185e-3,
    ),
)
LIMITS = (0.46875, 4.0, 6.0)
ROOT_HALF = math.sqrt(0.5)
SLOPE_AT_0 = 1 / math.sqrt(2 * math.pi)


def _ratio(coefficients, x):
    """Return the quotient of two polynomials, by Horner's rule."""
    above, below = [_polynomial(part, x) for part in coefficients]
    return above / below


def _polynomial(coefficients, x):
    y = coefficients[0]
    for coefficient in coefficients[1:]:
        y = y * x + coefficient
    return y


@pointwise()
def erf(x):
    """Return erf(x) for x [...], each interval by its formula."""
    xp = xp_of(x)
    near, middle, far = LIMITS
    size = xp.minimum(xp.abs(x), far)
    inverse = 1 / xp.maximum(size, middle) ** 2
    tail = xp.where(
        size <= middle,
        _ratio(MIDDLE, size),
        (1 / math.sqrt(math.pi) - inverse * _ratio(FAR, inverse)) * inverse**0.5,
    )
    beyond = xp.copysign(1 - xp.exp(-size * size) * tail, x)
    small = xp.clip(x, -near, near)
    return xp.where(size <= near, small * _ratio(NEAR, small * small), beyond)


@pointwise()
def erf_gelu(x):
    """Return x/2 (1 + erf(x / sqrt 2)) for x [...]."""
    return 0.5 * x * (1 + erf(x * ROOT_HALF))


@pointwise(2)
def erf_gelu_backward(gradient, x):
    """Return gradient (1/2 (1 + erf(x / sqrt 2)) + x exp(-x^2 / 2) / sqrt(2 pi)), all [...]."""
    density = SLOPE_AT_0 * xp_of(x).exp(-0.5 * x * x)
    return gradient * (0.5 * (1 + erf(x * ROOT_HALF)) + x * density)
