"""Activation functions; each keeps the one of input and output that makes the gradient cheaper."""

from math import prod

from ...array import fresh, kernels
from ...array.backend import xp_of
from ...array.halves import rounded, widened
from ...array.reference.activation import CUBIC
from ...array.reference.activation import SQRT_2_OVER_PI as RATE
from ...array.reference.erf import ROOT_HALF, SLOPE_AT_0
from ...array.reference.pointwise import ERF_SLOPE_AT_0
from ...errors import ShapeError
from ..autograd import CheapTensor, Tensor, record, record_unary
from .broadcast import summed
from .elementwise import add, exp, multiply, subtract, where
from .operands import check_floating, check_numbers
from .reduction import reduced_dims, sum


def relu(x: Tensor) -> Tensor:
    """Return max(x, 0); the gradient at 0 is 0, whatever comes from above."""
    check_numbers("relu", x)

    def again(gradient, y):
        return where(y.array <= 0, 0, gradient)

    return of_output("relu", x, kernels.relu(x.array), again)


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of x."""
    check_floating("tanh", x)
    return of_output(
        "tanh",
        x,
        kernels.tanh(x.array),
        lambda gradient, y: multiply(gradient, subtract(1, multiply(y, y))),
    )


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)), without overflow for any x."""
    check_floating("sigmoid", x)
    return of_output(
        "sigmoid",
        x,
        kernels.sigmoid(x.array),
        lambda gradient, y: multiply(gradient, multiply(y, subtract(1, y))),
    )


def of_output(name: str, x: Tensor, y, again) -> Tensor:
    """Return y, whose gradient kernels.NAME_backward(gradient, y) gives.

    Parameters
    ----------
    again
        (gradient, y as a Tensor) -> the same by operations on Tensors, for second derivatives.
    """
    slope = getattr(kernels, f"{name}_backward")
    return record_unary(y, x, lambda gradient: slope(gradient, y), again, needs_output=True)


def of_input(name: str, x: Tensor, *parameters: float, slope, y=None) -> Tensor:
    """Return kernels.NAME(x, *parameters), whose gradient kernels.NAME_backward gives.

    Parameters
    ----------
    slope
        The derivative by operations on a Tensor x, for second derivatives.
    y
        The result, where there is no kernel of this name.
    """
    check_floating(name, x)
    backward = getattr(kernels, f"{name}_backward")
    y = getattr(kernels, name)(x.array, *parameters) if y is None else y
    return record_unary(
        y,
        x,
        lambda gradient: backward(gradient, x.array, *parameters),
        lambda gradient, output: multiply(gradient, slope(x)),
        needs=(x,),
    )


def gelu(x: Tensor) -> Tensor:
    """Return x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the tanh form (arXiv 1606.08415)."""
    return CheapTensor.of(of_input("gelu", x, slope=_gelu_slope), gelu, x)


def _gelu_slope(x):
    """Return the derivative of gelu at x, as a Tensor with its history."""
    square = multiply(x, x)
    tangent = tanh(multiply(x, add(multiply(square, RATE * CUBIC), RATE)))
    rate = add(multiply(square, 3 * RATE * CUBIC), RATE)
    inner = multiply(multiply(x, subtract(1, multiply(tangent, tangent))), rate)
    return multiply(add(add(tangent, 1), inner), 0.5)


def erf(x: Tensor) -> Tensor:
    """Return 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    return of_input("erf", x, slope=_erf_slope)


def _erf_slope(x):
    """Return the derivative of erf at x, as a Tensor with its history."""
    return multiply(exp(multiply(multiply(x, x), -1)), ERF_SLOPE_AT_0)


def erf_gelu(x: Tensor) -> Tensor:
    """Return x/2 (1 + erf(x / sqrt 2)), the form that PyTorch calls approximate="none"."""
    return of_input("erf_gelu", x, slope=_erf_gelu_slope)


def _erf_gelu_slope(x):
    """Return the derivative of erf_gelu at x, as a Tensor with its history."""
    share = multiply(add(erf(multiply(x, ROOT_HALF)), 1), 0.5)
    density = multiply(exp(multiply(multiply(x, x), -0.5)), SLOPE_AT_0)
    return add(share, multiply(x, density))


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Return gelu(x + bias) without the sum in between; x [..., D], bias [D] of one dtype."""
    if x.ndim < 1 or bias.shape != x.shape[-1:] or bias.dtype != x.dtype:
        raise ShapeError(
            f"bias_gelu of x {x.shape} {x.dtype} and bias {bias.shape} {bias.dtype}; wanted [..., "
            "D] and [D] of one dtype"
        )
    check_floating("bias_gelu", x)
    by_row = (prod(x.shape[:-1]), x.shape[-1])

    def backward(gradient, wanted):
        for_x, for_bias = kernels.bias_gelu_backward(
            gradient.reshape(by_row), x.array.reshape(by_row), bias.array, wanted
        )
        return None if for_x is None else for_x.reshape(gradient.shape), for_bias

    def differentiable(gradient, wanted, output):
        for_sum = multiply(gradient, _gelu_slope(add(x, bias)))
        return (
            for_sum if wanted[0] else None,
            summed(for_sum, (bias.shape, bias.gradient_dtype)) if wanted[1] else None,
        )

    y = record(
        kernels.bias_gelu(x.array.reshape(by_row), bias.array).reshape(x.shape),
        (x, bias),
        backward,
        needs=(x, bias),
        is_one_pass=True,
        differentiable=differentiable,
    )
    return CheapTensor.of(y, bias_gelu, x, bias)


def silu(x: Tensor) -> Tensor:
    """Return x sigmoid(x)."""
    return of_input("silu", x, slope=_silu_slope)


def _silu_slope(x):
    """Return the derivative of silu at x, as a Tensor with its history."""
    part = sigmoid(x)
    return multiply(part, add(multiply(x, subtract(1, part)), 1))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, of one shape (arXiv 2002.05202)."""
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise ShapeError(
            f"swiglu of gate {gate.shape} {gate.dtype} and up {up.shape} {up.dtype}; wanted one "
            "shape and dtype"
        )
    check_floating("swiglu", gate)

    def backward(gradient, wanted):
        return kernels.swiglu_backward(gradient, gate.array, up.array)

    def differentiable(gradient, wanted, output):
        return (
            multiply(multiply(gradient, up), _silu_slope(gate)) if wanted[0] else None,
            multiply(gradient, silu(gate)) if wanted[1] else None,
        )

    y = record(
        kernels.swiglu(gate.array, up.array),
        (gate, up),
        backward,
        needs=(gate, up),
        differentiable=differentiable,
    )
    return CheapTensor.of(y, swiglu, gate, up)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return exp(x) / sum of exp(x) over dim; x is shifted, so that nothing overflows.

    Examples
    --------
    >>> ops.softmax([[0.0, 0.0]])
    Tensor(array([[0.5, 0.5]]))
    """
    (dim,) = reduced_dims(x, dim)
    check_floating("softmax", x)
    y = kernels.softmax(x.array, dim)

    def backward(gradient):
        return kernels.softmax_backward(gradient, y, dim)

    def again(gradient, output):
        weighted = sum(multiply(gradient, output), dim, keepdim=True)
        return multiply(output, subtract(gradient, weighted))

    return record_unary(y, x, backward, again, needs_output=True)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return x - log of the sum of exp(x) over dim."""
    (dim,) = reduced_dims(x, dim)
    check_floating("log_softmax", x)
    xp = xp_of(x.array)
    dtype = x.dtype
    array = widened(x.array)
    y = array - array.max(axis=dim, keepdims=True) if array.size else array.copy()
    y -= xp.log(fresh.total(xp.exp(y), (dim,), True))
    y = rounded(y, dtype)

    def backward(gradient):
        gradient = widened(gradient)
        total = fresh.total(gradient, (dim,), True)
        return rounded(gradient - xp.exp(widened(y)) * total, dtype)

    def again(gradient, output):
        return subtract(gradient, multiply(exp(output), sum(gradient, dim, keepdim=True)))

    return record_unary(y, x, backward, again, needs_output=True)
