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
    if isinstance(operand, Tensor) and operand.requires_grad:
        return operand.shape, operand.gradient_dtype
    return None


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


def record_broadcast(name, result, x, y, shares, again, needs=None) -> Tensor:
    """Record an operation of two operands that broadcast; each gets a gradient of its form.

    name     by which errors call the operation
    shares   for each operand, (gradient, *needs) -> its gradient, of the shape of the result
    again    the same by operations on Tensors, for second derivatives
    needs    two operands, () if none is needed; None: x for the gradient of y, y for that of x
    """
    form_x, form_y = form(x), form(y)
    if needs is None:
        needs = (x if form_y else None, y if form_x else None)
    first, second = needs or (None, None)
    share_x, share_y = shares

    def backward(gradient, wanted):
        return (
            fit(share_x(gradient, first, second), form_x) if wanted[0] else None,
            fit(share_y(gradient, first, second), form_y) if wanted[1] else None,
        )

    def differentiable(gradient, wanted, output):
        again_x, again_y = again
        return (
            summed(again_x(gradient, first, second), form_x) if wanted[0] else None,
            summed(again_y(gradient, first, second), form_y) if wanted[1] else None,
        )

    backward.__qualname__ = name
    return record(result, (x, y), backward, needs=needs, differentiable=differentiable)


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
