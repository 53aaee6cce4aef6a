"""Running sums and products along a dimension."""

from ...array.backend import xp_of
from ...array.dtypes import FLOAT32, wide
from ...array.fresh import BLOCK
from ...array.halves import rounded, widened
from ..autograd import Tensor, record_unary
from .arrangement import flip
from .operands import is_counted, sum_dtype
from .reduction import reduced_dims


def cumsum(x: Tensor, dim: int) -> Tensor:
    """Return y with y[i] = x[0] + ... + x[i] along dim; the gradient sums from the end."""
    (dim,) = reduced_dims(x, dim)
    xp = xp_of(x.array)
    dtype = x.dtype
    is_long = wide(dtype) == FLOAT32 and x.shape[dim] > BLOCK
    wider = "float64" if is_long else None  # one sum follows another, and each would be rounded

    def backward(gradient):
        turned = xp.flip(widened(gradient), dim)
        return rounded(xp.flip(turned.cumsum(axis=dim, dtype=wider), dim), dtype)

    def again(gradient, output):
        return flip(cumsum(flip(gradient, dim), dim), dim)

    if is_counted(x):
        return Tensor(x.array.cumsum(axis=dim, dtype=sum_dtype("cumsum", x)))
    y = rounded(widened(x.array).cumsum(axis=dim, dtype=wider), dtype)
    return record_unary(y, x, backward, again)


def cumprod(x: Tensor, dim: int) -> Tensor:
    """Return y with y[i] = x[0] ... x[i] along dim.

    The gradient of x[i] is the product of all before it times r[i] = g[i] + x[i + 1] r[i + 1]:
    nothing is divided, so that it is right where elements are 0.
    """
    (dim,) = reduced_dims(x, dim)
    xp = xp_of(x.array)
    dtype = x.dtype

    def backward(gradient):
        rows = xp.moveaxis(widened(x.array), dim, 0)
        result = xp.moveaxis(widened(gradient), dim, 0).copy()
        is_zero = rows == 0  # what comes after a zero does not count, though it is infinite
        for i in range(len(rows) - 2, -1, -1):
            later = i + 1
            result[i] += xp.where(is_zero[later], 0, rows[later] * result[later])
        has_zero = is_zero[:-1].cumsum(axis=0) > 0
        result[1:] = xp.where(has_zero, 0, result[1:] * rows[:-1].cumprod(axis=0))
        return rounded(xp.moveaxis(result, 0, dim), dtype)

    if is_counted(x):
        return Tensor(x.array.cumprod(axis=dim, dtype=sum_dtype("cumprod", x)))
    y = rounded(widened(x.array).cumprod(axis=dim), dtype)
    return record_unary(y, x, backward, needs=(x,))
