"""The error function, and the GELU that is made of it, with its gradient, in one pass.

Every element computes the formulas of all its intervals and chooses, so that LLVM makes vectors.
"""

import math

from ..reference import erf as reference
from ..registry import on_cpu
from .arrays import elementwise
from .compiled import compiled
from .notation import inlined, jitable
from .scalar import exp, fma, like

NEAR, MIDDLE, FAR = reference.LIMITS
ROOT_HALF = reference.ROOT_HALF
SLOPE_AT_0 = reference.SLOPE_AT_0
ROOT_OF_INVERSE_PI = 1 / math.sqrt(math.pi)


@on_cpu
def erf(x, out=None):
    return elementwise(_erf_loop, x, out=out)


@on_cpu
def erf_gelu(x, out=None):
    return elementwise(_erf_gelu, x, out=out)


@on_cpu
def erf_gelu_backward(gradient, x, out=None):
    return elementwise(_erf_gelu_backward, gradient, x, out=out)


# ---- formulas ------------------------------------------------------------------------------------


def _polynomial(coefficients):
    """Return the formula of the polynomial with these coefficients, highest power first."""
    first, *rest = coefficients
    rest = tuple(rest)

    @jitable
    def polynomial(x):
        y = like(first, x)
        for coefficient in rest:
            y = fma(y, x, like(coefficient, x))
        return y

    return polynomial


near_p, near_q = map(_polynomial, reference.NEAR)
middle_p, middle_q = map(_polynomial, reference.MIDDLE)
far_p, far_q = map(_polynomial, reference.FAR)


@inlined
def _erf_of(x):
    size = abs(x)
    size = like(FAR, x) if size > like(FAR, x) else size
    square = size * size
    near = x * near_p(square) / near_q(square)
    middle = middle_p(size) / middle_q(size)
    inverse = like(1.0, x) / (size if size > like(MIDDLE, x) else like(MIDDLE, x))
    inverse_square = inverse * inverse
    ratio = far_p(inverse_square) / far_q(inverse_square)
    far = (like(ROOT_OF_INVERSE_PI, x) - inverse_square * ratio) * inverse
    tail = middle if size <= like(MIDDLE, x) else far
    beyond = like(1.0, x) - exp(-square) * tail
    beyond = -beyond if x < like(0.0, x) else beyond
    return near if size <= like(NEAR, x) else beyond


# ---- loops ---------------------------------------------------------------------------------------


@compiled
def _erf_loop(x, out):
    for i in range(x.size):
        out[i] = _erf_of(x[i])


@compiled
def _erf_gelu(x, out):
    for i in range(x.size):
        out[i] = like(0.5, x[i]) * x[i] * (like(1.0, x[i]) + _erf_of(x[i] * like(ROOT_HALF, x[i])))


@compiled
def _erf_gelu_backward(gradient, x, out):
    for i in range(x.size):
        z = x[i]
        half = like(0.5, z)
        density = like(SLOPE_AT_0, z) * exp(-half * z * z)
        share = half * (like(1.0, z) + _erf_of(z * like(ROOT_HALF, z)))
        out[i] = gradient[i] * (share + z * density)
