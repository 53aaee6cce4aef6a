"""GELU, SiLU, SwiGLU, softmax, each with its gradient."""

import math

from ..backend import xp_of
from ..fresh import total_along
from ..registry import WITH_BFLOAT16, kernel
from .chunks import elementwise, empty_like, spans
from .numbers import pointwise

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715


@pointwise()
def gelu(x):
    """Return x/2 (1 + tanh u) for x [...], with u = sqrt(2/pi) (x + 0.044715 x^3)."""
    tanh = xp_of(x).tanh
    return 0.5 * x * (1 + tanh(x * (SQRT_2_OVER_PI + SQRT_2_OVER_PI * CUBIC * x * x)))


@pointwise(2)
def gelu_backward(gradient, x):
    """Return gradient (1/2 (1 + tanh u) + x/2 (1 - tanh^2 u) u') for gradient and x [...]."""
    tanh = xp_of(x).tanh
    square = x * x
    t = tanh(x * (SQRT_2_OVER_PI + SQRT_2_OVER_PI * CUBIC * square))
    slope = SQRT_2_OVER_PI + 3 * SQRT_2_OVER_PI * CUBIC * square  # u'
    return gradient * (0.5 * (1 + t) * (1 + x * (1 - t) * slope))  # 1 - t^2 = (1 + t) (1 - t)


@kernel(kinds=WITH_BFLOAT16, rounded=(True,))
def bias_gelu(x, bias, out=None):
    """Return gelu(x + bias) [N, D] for x [N, D], bias [D]."""
    out = empty_like(x, out)
    for rows in spans(x, x.shape[1]):
        gelu(x[rows] + bias, out=out[rows])
    return out


@kernel(kinds=WITH_BFLOAT16, rounded=(True, False))
def bias_gelu_backward(gradient, x, bias, wanted=(True, True), out=None):
    """Return the gradients of x [N, D] and bias [D], for gradient and x [N, D], bias [D].

    The gradient of the bias is that of x, summed over N in order.

    wanted  which of the two to compute; the other is None
    """
    xp = xp_of(x)
    for_bias = xp_of(x).zeros(bias.shape, bias.dtype) if wanted[1] else None
    out = empty_like(x, out) if wanted[0] else None
    for rows in spans(x, x.shape[1]):
        part = gelu_backward(gradient[rows], x[rows] + bias)
        if wanted[0]:
            out[rows] = part
        if wanted[1]:
            for_bias += xp.sum(part, axis=0)
    return out, for_bias


@pointwise()
def sigmoid(x):
    """Return 1 / (1 + exp(-x)) for x [...], as (1 + tanh(x/2)) / 2, which cannot overflow."""
    tanh = xp_of(x).tanh
    return 0.5 * tanh(0.5 * x) + 0.5


@pointwise()
def silu(x):
    """Return x sigmoid(x) for x [...]."""
    tanh = xp_of(x).tanh
    return x * (0.5 * tanh(0.5 * x) + 0.5)


@pointwise(2)
def silu_backward(gradient, x):
    """Return gradient s (1 + x (1 - s)) for gradient and x [...], with s = sigmoid(x)."""
    tanh = xp_of(x).tanh
    s = 0.5 * tanh(0.5 * x) + 0.5
    return gradient * (s * (1 + x * (1 - s)))


@pointwise(2)
def swiglu(gate, up):
    """Return silu(gate) up for gate and up [...]."""
    return silu(gate) * up


@kernel(kinds=WITH_BFLOAT16, rounded=(True, True))
def swiglu_backward(gradient, gate, up, out=(None, None)):
    """Return the gradients of gate and up, for gradient, gate and up [...].

    out  two buffers, or None for new ones; they may be gradient, gate or up, but not one array
         twice
    """
    for_gate = elementwise(
        lambda gradient, gate, up: silu_backward(gradient * up, gate), gradient, gate, up
    )
    for_up = elementwise(lambda gradient, gate: gradient * silu(gate), gradient, gate)
    return tuple([into(buffer, array) for buffer, array in zip(out, (for_gate, for_up))])


@kernel(rounded=(True,))
def softmax(x, dim=-1, out=None):
    """Return exp(x) / its sum over dim, for x [...]; the maximum is subtracted first."""
    xp = xp_of(x)
    out = empty_like(x, out)
    if x.size == 0:
        return out
    xp.subtract(x, x.max(axis=dim, keepdims=True), out=out)
    xp.exp(out, out=out)
    out /= total_along(out, dim)
    return out


@kernel(rounded=(True,))
def softmax_backward(gradient, y, dim=-1, out=None):
    """Return y (gradient - sum of gradient y over dim), for gradient and y = softmax [...]."""
    product = gradient * y
    product -= y * total_along(product, dim)
    return into(out, product)


def into(out, array):
    """Return the array, in `out` if that is given."""
    if out is None:
        return array
    out[...] = array
    return out
