"""Activation functions that are straight on one side or on both; half floats as in functions.py.

At the points where two pieces meet, the gradient is the one that PyTorch has there.
"""

from ...array import kernels
from ..autograd import Tensor
from .elementwise import exp, minimum, multiply, where
from .functions import flat, pointwise


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return x where it is positive, negative_slope x elsewhere."""

    def slope(xp, x):
        return xp.where(x > 0, 1, negative_slope).astype(x.dtype, copy=False)

    return pointwise(
        "leaky_relu", x, lambda xp, x: xp.where(x > 0, x, negative_slope * x), slope, flat(slope)
    )


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x where it is positive, alpha (exp(x) - 1) elsewhere (arXiv 1511.07289)."""
    return pointwise(
        "elu",
        x,
        lambda xp, x: xp.where(x > 0, x, alpha * xp.expm1(xp.minimum(x, 0))),
        lambda xp, x: xp.where(x > 0, 1, alpha * xp.exp(xp.minimum(x, 0))),
        lambda x: where(x.array > 0, 1, multiply(exp(minimum(x, 0)), alpha)),
    )


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Return x between the two values, and the nearer one elsewhere; no gradient passes there."""
    return pointwise(
        "hardtanh",
        x,
        lambda xp, x: xp.clip(x, min_val, max_val),
        lambda xp, x: ((x > min_val) & (x < max_val)).astype(x.dtype),
    )


def mish(x: Tensor) -> Tensor:
    """Return x tanh(softplus(x)) (arXiv 1908.08681)."""

    def soft(xp, x):
        return xp.tanh(xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x))))

    def slope(xp, x):
        y = soft(xp, x)
        return y + x * (1 - y * y) * kernels.sigmoid(x)

    return pointwise("mish", x, lambda xp, x: x * soft(xp, x), slope)
