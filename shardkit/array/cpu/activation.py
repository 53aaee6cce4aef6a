"""GELU, SiLU, SwiGLU, softmax, each with its gradient, in one pass over the arrays.

x/2 (1 + tanh u) is x / (1 + exp(-2u)), which needs one exponential and loses no digits where tanh
is near -1.
"""

from ..reference import activation as reference
from ..registry import on_cpu
from .arrays import RowSums, empty_like, enter, run
from .compiled import compiled, inlined
from .pointwise import gradient_loop, value_loop
from .scalar import block_end, close, exp, fma, larger, like, logistic, plus
from .storage import narrow, wide

TWICE = 2 * reference.SQRT_2_OVER_PI
TWICE_CUBIC = TWICE * reference.CUBIC


@on_cpu
def bias_gelu(x, bias, out=None):
    out = empty_like(x, out)
    run(_bias_gelu, (x,), (bias,), (out,))
    return out


@on_cpu
def bias_gelu_backward(gradient, x, bias, wanted=(True, True), out=None):
    out = empty_like(x, out if wanted[0] else None)
    sums = RowSums(bias, 1)
    run(_bias_gelu_backward, (gradient, x), (bias, *sums.shared), (out,))
    return out if wanted[0] else None, sums.vectors()[0] if wanted[1] else None


@on_cpu
def swiglu_backward(gradient, gate, up, out=(None, None)):
    for_gate, for_up = [empty_like(gate, buffer) for buffer in out]
    run(
        _swiglu_backward,
        [x.reshape(-1) for x in (gradient, gate, up)],
        (),
        [for_gate.reshape(-1), for_up.reshape(-1)],
    )
    return for_gate, for_up


@on_cpu
def softmax(x, dim=-1, out=None):
    if dim not in (-1, x.ndim - 1) or x.size == 0:
        return reference.softmax(x, dim, out)
    out = empty_like(x, out)
    rows = (-1, x.shape[-1])
    run(_softmax, (x.reshape(rows),), (), (out.reshape(rows),))
    return out


@on_cpu
def softmax_backward(gradient, y, dim=-1, out=None):
    if dim not in (-1, y.ndim - 1) or y.size == 0:
        return reference.softmax_backward(gradient, y, dim, out)
    out = empty_like(y, out)
    rows = (-1, y.shape[-1])
    run(_softmax_backward, (gradient.reshape(rows), y.reshape(rows)), (), (out.reshape(rows),))
    return out


# ---- formulas ------------------------------------------------------------------------------------


@inlined
def _twice_u(x):
    return x * fma(x * x, like(TWICE_CUBIC, x), like(TWICE, x))


@inlined
def _gelu_of(x):
    return x / (like(1.0, x) + exp(-_twice_u(x)))


@inlined
def _gelu_slope(x):
    s = logistic(_twice_u(x))
    slope = fma(x * x, like(3 * TWICE_CUBIC, x), like(TWICE, x))  # 2u'
    return s * fma(x * (like(1.0, x) - s), slope, like(1.0, x))


@inlined
def _gelu_share(gradient, x):
    return gradient * _gelu_slope(x)


@inlined
def _silu_of(x):
    return x * logistic(x)


@inlined
def _silu_slope(x, s):
    return s * fma(x, like(1.0, x) - s, like(1.0, x))


@inlined
def _silu_share(gradient, x):
    return gradient * _silu_slope(x, logistic(x))


# ---- loops ---------------------------------------------------------------------------------------


enter(value_loop(__name__, "_gelu", _gelu_of))
enter(gradient_loop(__name__, "_gelu_backward", _gelu_share))
enter(value_loop(__name__, "_sigmoid", logistic))
enter(value_loop(__name__, "_silu", _silu_of))
enter(gradient_loop(__name__, "_silu_backward", _silu_share))


@compiled
def _bias_gelu(x, bias, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            biased = wide(x[i, j]) + wide(bias[j])
            out[i, j] = narrow(_gelu_of(biased), out)


@compiled
def _bias_gelu_backward(gradient, x, bias, for_bias, whole, seen, out):
    start = 0
    while start < x.shape[0]:
        stop = block_end(start, x.shape[0], seen)
        _bias_gelu_backward_rows(gradient, x, bias, for_bias, out, start, stop)
        close(for_bias, whole[0], seen)
        start = stop


@inlined
def _bias_gelu_backward_rows(gradient, x, bias, for_bias, out, start, stop):
    for i in range(start, stop):
        for j in range(x.shape[1]):
            biased = wide(x[i, j]) + wide(bias[j])
            for_x = wide(gradient[i, j]) * _gelu_slope(biased)
            out[i, j] = narrow(for_x, out)
            for_bias[j] += for_x


@compiled
def _swiglu(gate, up, out):
    for i in range(gate.size):
        out[i] = narrow(_silu_of(wide(gate[i])) * wide(up[i]), out)


enter(_swiglu)


@compiled
def _swiglu_backward(gradient, gate, up, for_gate, for_up):
    for i in range(gate.size):
        g = wide(gradient[i])
        x = wide(gate[i])
        y = wide(up[i])
        s = logistic(x)
        for_gate[i] = narrow(g * y * _silu_slope(x, s), for_gate)
        for_up[i] = narrow(g * x * s, for_up)


@compiled
def _softmax(x, out):
    for i in range(x.shape[0]):
        top = x[i, 0]
        total = like(0.0, x[0, 0])
        for j in range(x.shape[1]):
            top = larger(top, x[i, j])
        for j in range(x.shape[1]):
            out[i, j] = exp(x[i, j] - top)
        for j in range(x.shape[1]):
            total = plus(total, out[i, j])
        for j in range(x.shape[1]):
            out[i, j] /= total


@compiled
def _softmax_backward(gradient, y, out):
    for i in range(y.shape[0]):
        total = like(0.0, y[0, 0])
        for j in range(y.shape[1]):
            total = plus(total, gradient[i, j] * y[i, j])
        for j in range(y.shape[1]):
            beyond = gradient[i, j] - total
            out[i, j] = y[i, j] * beyond
