"""GELU, SiLU, softmax, each with its gradient."""
import math

from ...backend import xp_of
from .chunks import elementwise

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715


def gelu(x):
    """x [...] -> x/2 (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3)."""
    tanh = xp_of(x).tanh

    def rule(x):
        return 0.5 * x * (1 + tanh(x * (SQRT_2_OVER_PI + SQRT_2_OVER_PI * CUBIC * x * x)))
    return elementwise(rule, x)


def gelu_backward(gradient, x):
    """gradient [...], x [...] -> gradient (1/2 (1 + tanh u) + x/2 (1 - tanh^2 u) u')."""
    tanh = xp_of(x).tanh

    def rule(gradient, x):
        square = x * x
        t = tanh(x * (SQRT_2_OVER_PI + SQRT_2_OVER_PI * CUBIC * square))
        slope = SQRT_2_OVER_PI + 3 * SQRT_2_OVER_PI * CUBIC * square                 # u'
        return gradient * (0.5 * (1 + t) * (1 + x * (1 - t) * slope))                # 1 - t^2 = (1 + t) (1 - t)
    return elementwise(rule, gradient, x)


def sigmoid(x):
    """x [...] -> 1 / (1 + exp(-x)), as (1 + tanh(x/2)) / 2, which cannot overflow."""
    tanh = xp_of(x).tanh
    return elementwise(lambda x: 0.5 * tanh(0.5 * x) + 0.5, x)


def silu(x):
    """x [...] -> x sigmoid(x)."""
    tanh = xp_of(x).tanh
    return elementwise(lambda x: x * (0.5 * tanh(0.5 * x) + 0.5), x)


def silu_backward(gradient, x):
    """gradient [...], x [...] -> gradient s (1 + x (1 - s)) with s = sigmoid(x)."""
    tanh = xp_of(x).tanh

    def rule(gradient, x):
        s = 0.5 * tanh(0.5 * x) + 0.5
        return gradient * (s * (1 + x * (1 - s)))
    return elementwise(rule, gradient, x)


def softmax(x, dim=-1):
    """x [...] -> exp(x) / its sum over dim; the maximum is taken off first."""
    if x.size == 0:
        return x.copy()
    y = x - x.max(axis=dim, keepdims=True)
    xp_of(x).exp(y, out=y)
    y /= y.sum(axis=dim, keepdims=True)
    return y


def softmax_backward(gradient, y, dim=-1):
    """gradient [...], y = softmax [...] -> y (gradient - sum of gradient y over dim)."""
    out = gradient * y
    total = out.sum(axis=dim, keepdims=True)
    out -= y * total
    return out
