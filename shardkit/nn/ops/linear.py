"""Matrix products, and rows of a matrix."""

from math import prod
from typing import Any

import numpy

from ...array import fresh, halves, kernels, products
from ...array.backend import xp_of
from ...array.dtypes import is_floating
from ...errors import ShapeError
from ..autograd import Tensor, array_of, kept, no_grad, record, record_unary
from ..context import current_context, logits_are_late
from ..late import MANY_CLASSES, LateLogits
from .activation import bias_gelu, gelu
from .broadcast import record_broadcast, reshaped, summed
from .operands import check_ids, index_array


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Any = None) -> Tensor:
    """Return activation(x weight^T + bias), as one product of two matrices.

    Parameters
    ----------
    activation
        An op of one Tensor, or None; one that knows how takes the bias along, in one pass.

    Raises
    ------
    ShapeError
        If in, out or the dtypes differ.

    Notes
    -----
    Gradients without activation: g weight for x, g^T x for the weight, g summed over all rows for
    the bias.
    """
    _check_linear(x, weight, bias)
    texts = current_context().texts
    if texts is not None and texts.is_continued and type(x.array) is numpy.ndarray:
        y = _linear_by_row(x, weight, bias)
        return y if activation is None else activation(y)
    if activation is not None:
        if bias is not None and takes_bias_along(activation):
            return add_bias(linear(x, weight), bias, activation)
        return activation(linear(x, weight, bias))
    if bias is None and logits_are_late() and _are_logits(weight):
        return LateLogits(x, weight, _linear)
    return _linear(x, weight, bias)


def _linear_by_row(x, weight, bias):
    """Return x weight^T + bias of texts that are continued: each depends on no other."""
    rows = x.array.reshape(-1, x.shape[-1])
    y = products.matmul_by_row(rows, weight.array)
    if bias is not None:
        halves.add_row_in_place(y, bias.array)
    return Tensor(y.reshape(*x.shape[:-1], len(weight.array)))


def _are_logits(weight):
    """Return True where the product may be LateLogits, on all tensor ranks alike."""
    num_classes = (weight.global_shape if weight.is_parameter else weight.shape)[0]
    return num_classes >= MANY_CLASSES


def _linear(x, weight, bias=None):
    """Return x weight^T + bias, of what is known to fit together."""
    shape, num_out = x.shape, weight.shape[0]
    width = shape[-1]
    num_rows = prod(shape[:-1])
    y = _product_and_bias(x.array.reshape(num_rows, width), weight, bias)  # [rows, out]
    again, needs = kept(x) if weight.requires_grad else (None, ())
    bias_dtype = None if bias is None else bias.gradient_dtype

    def by_row():
        with no_grad():
            return again().array.reshape(num_rows, width)

    def backward(gradient, wanted):
        rows = gradient.reshape(num_rows, num_out)
        return (
            products.matmul(rows, weight.array).reshape(shape) if wanted[0] else None,
            products.matmul(rows.T, by_row(), out=weight.empty_gradient()) if wanted[1] else None,
            halves.total(rows, (0,), dtype=bias_dtype, there=bias.empty_gradient())
            if wanted[2]
            else None,
        )

    def differentiable(gradient, wanted, output):
        rows = reshaped(gradient, (num_rows, num_out))
        inputs = reshaped(again(), (num_rows, width)) if wanted[1] else None
        return (
            reshaped(product(rows, weight), shape) if wanted[0] else None,
            summed(product(rows, inputs, turn_x=True), (weight.shape, weight.gradient_dtype))
            if wanted[1]
            else None,
            summed(rows, ((num_out,), bias_dtype)) if wanted[2] else None,
        )

    return record(
        y.reshape(*shape[:-1], num_out),
        (x, weight, bias),
        backward,
        needs=(*needs, weight),
        differentiable=differentiable,
    )


def _product_and_bias(rows, weight, bias):
    if bias is not None and type(rows) is not numpy.ndarray:
        return products.matmul_and_row(rows, weight.array.T, bias.array)
    y = products.matmul(rows, weight.array.T)
    if bias is not None:
        halves.add_row_in_place(y, bias.array)
    return y


def linear_rows(x: Tensor, weight: Tensor, bias: Tensor | None, rows: slice, bias_rows: slice):
    """Return x weight[rows]^T + bias[bias_rows], for weights that are kept in one parameter.

    Gradients have the shape of the whole parameters, 0 in other rows. (A view of a sharded
    parameter would not outlive its buffer.)
    """
    shape, width, num_rows = x.shape, x.shape[-1], prod(x.shape[:-1])
    y = products.matmul(x.array.reshape(num_rows, width), weight.array[rows].T)
    if bias is not None:
        halves.add_row_in_place(y, bias.array[bias_rows])
    num_out = y.shape[1]
    x_kept = x if weight.requires_grad else None
    bias_form = None if bias is None else (bias.shape, bias.gradient_dtype)

    def backward(gradient, wanted):
        xp = xp_of(gradient)
        by_row = gradient.reshape(num_rows, num_out)
        for_weight = for_bias = None
        if wanted[1]:
            for_weight = fresh.zeros(weight.shape, weight.gradient_dtype, xp)
            products.matmul(by_row.T, x_kept.array.reshape(num_rows, width), out=for_weight[rows])
        if wanted[2]:
            for_bias = fresh.zeros(*bias_form, xp)
            for_bias[bias_rows] = halves.total(by_row, (0,), dtype=bias_form[1])
        return (
            products.matmul(by_row, weight.array[rows]).reshape(shape) if wanted[0] else None,
            for_weight,
            for_bias,
        )

    output = y.reshape(*shape[:-1], num_out)
    return record(output, (x, weight, bias), backward, needs=(x_kept, weight))


def takes_bias_along(activation: Any) -> bool:
    """Return True for an op that adds a bias and applies itself in one pass."""
    return activation is gelu


def add_bias(x: Tensor, bias: Tensor | None, activation: Any = None) -> Tensor:
    """Return activation(x + bias) for x [..., D] and bias [D]; both may be None."""
    if bias is not None and takes_bias_along(activation):
        return bias_gelu(x, bias)
    y = x if bias is None else x + bias
    return y if activation is None else activation(y)


def _check_linear(x, weight, bias):
    """Raise ShapeError unless the three fit together."""
    x_shape, weight_shape = x.shape, weight.shape
    if (
        not x_shape
        or len(weight_shape) != 2
        or x_shape[-1] != weight_shape[1]
        or (bias is not None and bias.shape != weight_shape[:1])
    ):
        raise ShapeError(
            f"linear of x {x_shape}, weight {weight_shape}, bias "
            f"{None if bias is None else bias.shape}; wanted x [..., in], weight [out, in], bias "
            "[out]"
        )
    _check_dtypes("linear", x.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype)


def _check_dtypes(name, *dtypes):
    """Raise ShapeError unless all are one floating dtype: nothing is widened silently."""
    if not is_floating(dtypes[0]) or len(set(dtypes)) > 1:
        raise ShapeError(
            f"{name} of dtypes {', '.join(map(str, dtypes))}; wanted one floating dtype, use "
            "ops.cast"
        )


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Return the matrix product over the last two dimensions; those before them broadcast.

    Gradients: g y^T for x and x^T g for y, summed over broadcast dimensions.
    """
    x, y = [operand if isinstance(operand, Tensor) else Tensor(operand) for operand in (x, y)]
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-2]:
        raise ShapeError(
            f"matmul of {x.shape} @ {y.shape}; wanted [..., n, k] @ [..., k, m] with the same k: "
            "transpose one of them, or unsqueeze a vector"
        )
    _check_dtypes("matmul", x.dtype, y.dtype)
    try:
        made = products.matmul(x.array, y.array)
    except ValueError:
        raise ShapeError(
            f"matmul of {x.shape} @ {y.shape}, whose leading dimensions do not broadcast: from the "
            "right, sizes must be equal or 1"
        ) from None
    return record_broadcast("matmul", made, x, y, _MATRICES, _MATRICES_AGAIN)


_MATRICES = (
    lambda gradient, x, y: products.matmul(gradient, y.array.swapaxes(-1, -2)),
    lambda gradient, x, y: products.matmul(x.array.swapaxes(-1, -2), gradient),
)
_MATRICES_AGAIN = (
    lambda gradient, x, y: product(gradient, y, turn_y=True),
    lambda gradient, x, y: product(x, gradient, turn_x=True),
)


def product(x: Tensor, y: Tensor, turn_x: bool = False, turn_y: bool = False) -> Tensor:
    """Return matmul of x and y, the matrices of each transposed or not, without a check.

    Its gradients are such products again. Unlike a transposed view, it reads a sharded parameter
    where that lies at the time.
    """

    def for_x(gradient, x, y):
        """Return the operands of the product that is the gradient of x."""
        return (y, gradient, turn_y, True) if turn_x else (gradient, y, False, not turn_y)

    def for_y(gradient, x, y):
        return (gradient, x, True, turn_x) if turn_y else (x, gradient, not turn_x, False)

    shares = (lambda *given: _times(*for_x(*given)), lambda *given: _times(*for_y(*given)))
    again = (lambda *given: product(*for_x(*given)), lambda *given: product(*for_y(*given)))
    return record_broadcast("product", _times(x, y, turn_x, turn_y), x, y, shares, again)


def _times(x, y, turn_x, turn_y):
    """Return the product of the arrays."""
    a, b = array_of(x), array_of(y)
    return products.matmul(a.swapaxes(-1, -2) if turn_x else a, b.swapaxes(-1, -2) if turn_y else b)


def embedding(weight: Tensor, ids: Any) -> Tensor:
    """Return the rows of weight [V, D] that the ids [...] name: [..., D].

    Parameters
    ----------
    ids
        Integer Tensor or array with 0 <= id < V.

    Raises
    ------
    ShapeError
        On ids that are not integers, or out of range on the host.

    Notes
    -----
    Row v of the gradient is the sum over the places where v was taken, in their order.
    """
    ids = index_array(ids)
    num_rows, width = weight.shape
    check_ids("embedding", ids, num_rows)
    ids = fresh.placed(ids, xp_of(weight.array))

    def backward(gradient):
        rows, out = gradient.reshape(ids.size, width), weight.empty_gradient()
        return kernels.embedding_backward(rows, ids.reshape(-1), num_rows, out=out)

    return record_unary(fresh.rows(weight.array, ids), weight, backward)
