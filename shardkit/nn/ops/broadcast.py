"""Broadcasting and its adjoint, as arrays and as operations.

    stretched   [3, 1] -> [5, 3, 4]        its gradient is the sum:      summed
    summed      [5, 3, 4] -> [3, 1]        its gradient is the stretch:  stretched

The operations here are what the differentiable gradients of other operations are made of.
"""

from ...array import halves
from ...array.backend import xp_of
from ..autograd import Tensor, record, record_linear


def takes_gradient(operand) -> bool:
    """Return True for a Tensor that a gradient may flow to; False for scalars and arrays."""
    return isinstance(operand, Tensor) and operand.requires_grad


def form(operand):
    """Return the (shape, dtype) of an operand's gradient; holding this keeps no array alive."""
    return (operand.shape, operand.gradient_dtype) if takes_gradient(operand) else None


def fit(gradient, form):
    """Return a result's gradient as an operand's: summed over stretched dims, in its dtype."""
    shape, dtype = form
    if gradient.shape != shape:
        extra = gradient.ndim - len(shape)
        stretched_dims = [
            extra + dim
            for dim, size in enumerate(shape)
            if size == 1 and gradient.shape[extra + dim] != 1
        ]
        gradient = halves.total(gradient, (*range(extra), *stretched_dims), dtype=dtype)
        gradient = gradient.reshape(shape)
    return gradient if gradient.dtype == dtype else halves.copy(gradient, dtype)


def record_broadcast(result, operands, shares, again, *, needs=()) -> Tensor:
    """Record an operation of operands that broadcast; each gets its gradient summed to its form.

    shares   for each operand, gradient -> its gradient, of the shape of the result
    again    the same by operations on Tensors, for second derivatives
    """
    forms = [form(operand) for operand in operands]

    def made(parts, fitted, gradient, wanted):
        each = zip(parts, forms, wanted)
        return tuple([fitted(part(gradient), form) if want else None for part, form, want in each])

    def backward(gradient, wanted):
        return made(shares, fit, gradient, wanted)

    def differentiable(gradient, wanted, output):
        return made(again, summed, gradient, wanted)

    backward.__qualname__ = shares[0].__qualname__  # by which errors name the operation
    return record(result, operands, backward, needs=needs, differentiable=differentiable)


def summed(x: Tensor, form) -> Tensor:
    """Return `fit` of a Tensor, recorded; x itself if it fits as it is."""
    if (x.shape, x.dtype) == form:
        return x

    def stretch(gradient, shape, dtype):
        return xp_of(gradient).broadcast_to(halves.copy(gradient, dtype), shape)

    return record_linear(fit(x.array, form), x, stretch, stretched, x.shape, x.dtype)


def stretched(x: Tensor, shape, dtype=None) -> Tensor:
    """Return x broadcast to a shape, in another dtype if one is given."""
    array = x.array if dtype in (None, x.dtype) else halves.copy(x.array, dtype)
    view_of = x if array is x.array else None
    wide = xp_of(array).broadcast_to(array, shape)
    return record_linear(wide, x, fit, summed, (x.shape, x.dtype), view_of=view_of)


def reshaped(x: Tensor, shape) -> Tensor:
    """Return the elements of x, in C order, in another shape that holds as many."""

    def in_shape(array, shape):
        return array.reshape(shape)

    return record_linear(in_shape(x.array, shape), x, in_shape, reshaped, x.shape, view_of=x)
