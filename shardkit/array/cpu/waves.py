"""Sines and cosines in one pass over memory, with their gradients.

    x = n pi/2 + r, |r| <= pi/4        n modulo 4:   0      1      2       3
                                       sin x         sin r  cos r  -sin r  -cos r

pi/2 is the sum of three numbers of float32, so that nothing that counts is lost of r (Cody and
Waite, Software Manual for the Elementary Functions, 1980). That holds up to FARTHEST: a loop counts
what lies beyond, and NumPy computes that again, number by number. cos x = sin (x + pi/2).

Errors of float32 in units of the last place, over all exponents (tests/pure/test_pointwise.py): 2.
"""

import functools

import numpy

from ..halves import rounded, widened
from ..registry import KERNELS, on_cpu
from .arrays import elementwise
from .compiled import named
from .notation import inlined
from .scalar import either, fma, like, nearest, polynomial
from .storage import narrow, wide

FARTHEST = 20_000.0
QUARTER = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)  # pi/2
# sin r = r + r^3 S(r^2) and cos r = 1 + r^2 C(r^2), fitted for |r| <= pi/4
_sine_polynomial = polynomial(-0.00019510870269872054, 0.008332131722128155, -0.16666654228994704)
_cosine_polynomial = polynomial(
    2.4382291325549853e-05, -0.0013886678385289786, 0.04166662068179163, -0.4999999970251843
)


@inlined
def _wave(x, quarters):
    """Return sin(x + quarters pi/2)."""
    n = nearest(x * like(0.6366197723675814, x))
    r = fma(n, like(-QUARTER[0], x), x)
    r = fma(n, like(-QUARTER[1], x), r)
    r = fma(n, like(-QUARTER[2], x), r)
    square = r * r
    sine = fma(r * square, _sine_polynomial(square), r)
    cosine = fma(square, _cosine_polynomial(square), like(1.0, x))
    half = (n + like(quarters, x)) * like(0.5, x)
    is_odd = half != nearest(half)
    quarter = either(is_odd, half - like(0.5, x), half) * like(0.5, x)
    y = either(is_odd, cosine, sine)
    return either(quarter != nearest(quarter), -y, y)


@inlined
def _sine(x):
    return either(x == like(0.0, x), x, _wave(x, 0.0))  # -0 stays -0


@inlined
def _cosine(x):
    return _wave(x, 1.0)


@inlined
def _is_far(x):
    """Return 1 if NumPy is to compute this, 0 if not."""
    return either(abs(x) > like(FARTHEST, x), 1, 0)


def _value_loop(name, wave):
    def loop(x, far, out):
        count = 0
        for i in range(x.size):
            number = wide(x[i])
            count += _is_far(number)
            out[i] = narrow(wave(number), out)
        far[0] += count

    return named(__name__, name, loop)


def _gradient_loop(name, wave, sign):
    def loop(gradient, x, far, out):
        count = 0
        for i in range(x.size):
            number = wide(x[i])
            count += _is_far(number)
            g = wide(gradient[i])
            out[i] = narrow(g * (like(sign, g) * wave(number)), out)
        far[0] += count

    return named(__name__, name, loop)


def _enter(loop):
    """Let a loop compute the kernel of its name; the definition what is far, and float64."""
    definition = KERNELS[loop.py_func.__name__.removeprefix("_")].reference

    @functools.wraps(definition)
    def implementation(*arrays, out=None):
        if arrays[0].dtype.char == "d":
            return definition(*arrays, out=out)
        far = numpy.zeros(1, numpy.int64)
        y = elementwise(loop, *arrays, shared=(far,))
        if far[0]:
            places = abs(widened(arrays[-1])) > FARTHEST
            beyond = [widened(each[places]) for each in arrays]
            y[places] = rounded(definition(*beyond), y.dtype)
        if out is None:
            return y
        out[...] = y
        return out

    on_cpu(implementation)


_enter(_value_loop("_sin", _sine))
_enter(_value_loop("_cos", _cosine))
_enter(_gradient_loop("_sin_backward", _cosine, 1.0))
_enter(_gradient_loop("_cos_backward", _sine, -1.0))
