"""Activation functions that are straight on one side or on both; half floats as in functions.py.

At the points where two pieces meet, the gradient is the one that PyTorch has there.
"""

from ...array import fresh
from ...array.halves import rounded, widened
from ..autograd import Tensor
from .activation import of_input, sigmoid, tanh
from .elementwise import add, exp, minimum, multiply, subtract, where
from .functions import flat, softplus
from .operands import check_floating


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return x where it is positive, negative_slope x elsewhere."""

    def slope(xp, x):
        return xp.where(x > 0, 1, negative_slope).astype(x.dtype, copy=False)

    return of_input("leaky_relu", x, negative_slope, slope=flat(slope))


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x where it is positive, alpha (exp(x) - 1) elsewhere (arXiv 1511.07289)."""

    def slope(x):
        return where(x.array > 0, 1, multiply(exp(minimum(x, 0)), alpha))

    return of_input("elu", x, alpha, slope=slope)


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Return x between the two values, and the nearer one elsewhere; no gradient passes there."""
    check_floating("hardtanh", x)

    def is_inside(xp, x):
        return ((x > min_val) & (x < max_val)).astype(x.dtype)

    y = rounded(fresh.clip(widened(x.array), min_val, max_val), x.dtype)
    return of_input("hardtanh", x, min_val, max_val, slope=flat(is_inside), y=y)


def mish(x: Tensor) -> Tensor:
    """Return x tanh(softplus(x)) (arXiv 1908.08681)."""
    return of_input("mish", x, slope=_mish_slope)


def _mish_slope(x):
    """Return the derivative of mish at x, as a Tensor with its history."""
    y = tanh(softplus(x))
    return add(y, multiply(multiply(x, subtract(1, multiply(y, y))), sigmoid(x)))
