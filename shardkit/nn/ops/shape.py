"""Rearrangements of elements, and parts of them.

Where NumPy gives a view, the result is a view: it shares memory and version with its input. The
gradient goes back to where each element came from; elements that were taken several times get the
sum.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy

from ...annotations import DTypeLike, PerDim, Shape
from ...array import fresh, halves
from ...array.backend import xp_of
from ...array.dtypes import is_floating, wide
from ...array.halves import rounded
from ...array.scatter import add_at
from ...errors import ShapeError
from ..autograd import Tensor, _index, array_of, record, record_linear
from ..context import stream_dtype
from .broadcast import fit, form, reshaped, summed
from .operands import check_ids, common, index_array
from .reduction import reduced_dims


def reshape(x: Tensor, shape: PerDim) -> Tensor:
    """Return the elements, in C order, in another shape; one size may be -1."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    try:
        return reshaped(x, shape)
    except ValueError:
        raise ShapeError(
            f"reshape of {x.shape} ({x.size} elements) to {shape}; the numbers of elements must be "
            "equal, and at most one size may be -1"
        ) from None


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return x with dimension dims[i] as dimension i."""
    dims = reduced_dims(x, tuple(dims))
    if len(dims) != x.ndim:
        raise ShapeError(
            f"permute of a tensor of shape {x.shape} by {dims}; wanted each of its {x.ndim} dims "
            "once"
        )
    inverse = sorted(range(len(dims)), key=dims.__getitem__)

    def turned(array, dims):
        return array.transpose(dims)

    return record_linear(turned(x.array, dims), x, turned, permute, inverse, view_of=x)


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """Return x with two dimensions exchanged."""
    dim0, dim1 = reduced_dims(x, dim0) + reduced_dims(x, dim1)

    def swapped(array, dim0, dim1):
        return array.swapaxes(dim0, dim1)

    y = swapped(x.array, dim0, dim1)
    return record_linear(y, x, swapped, transpose, dim0, dim1, view_of=x)


def squeeze(x: Tensor, dim: int) -> Tensor:
    """Return x without dimension dim, which must have size 1."""
    dims = reduced_dims(x, dim)
    if any(x.shape[d] != 1 for d in dims):
        raise ShapeError(
            f"squeeze of dim {dim} of a tensor of shape {x.shape}; only a size of 1 can be left out"
        )
    return reshape(x, [size for d, size in enumerate(x.shape) if d not in dims])


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Return x with a new dimension of size 1, number dim of the result."""
    if not -x.ndim - 1 <= dim <= x.ndim:
        raise ShapeError(
            f"unsqueeze at dim {dim} of a tensor of shape {x.shape}; wanted {-x.ndim - 1} to "
            f"{x.ndim}"
        )
    at = dim % (x.ndim + 1)
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


def expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return x stretched to a shape that it broadcasts to: read-only, no copy."""
    try:
        y = xp_of(x.array).broadcast_to(x.array, tuple(shape))
    except ValueError:
        raise ShapeError(
            f"expand of {x.shape} to {tuple(shape)}; from the right, sizes must be equal or 1"
        ) from None
    return record_linear(y, x, fit, summed, form(x), view_of=x)


def concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return the tensors one after the other along dim; all other sizes must be equal."""
    tensors = tuple(tensors)
    arrays = [array_of(tensor) for tensor in tensors]
    try:
        y = xp_of(*arrays).concatenate(common(arrays), axis=dim)
    except ValueError:
        raise ShapeError(
            f"concatenate of shapes {[a.shape for a in arrays]} along dim {dim}; there must be at "
            "least one, with that dim, and all other sizes must be equal"
        ) from None
    forms = [form(tensor) for tensor in tensors]
    parts = list(_parts(y.ndim, [array.shape[dim] for array in arrays], dim))

    def backward(gradient, wanted):
        return tuple(
            [
                fit(gradient[part], form_) if want else None
                for form_, part, want in zip(forms, parts, wanted)
            ]
        )

    def differentiable(gradient, wanted, output):
        return tuple(
            [
                summed(getitem(gradient, part), form_) if want else None
                for form_, part, want in zip(forms, parts, wanted)
            ]
        )

    return record(y, tensors, backward, differentiable=differentiable)


def split(x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    """Return consecutive parts along dim, views of x: of these sizes, or so many equal ones."""
    (dim,) = reduced_dims(x, dim)
    whole = x.shape[dim]
    if isinstance(sizes, int):
        if sizes < 1 or whole % sizes:
            raise ShapeError(
                f"split of size {whole} (dim {dim} of {x.shape}) into {sizes} equal parts; wanted "
                "a divisor, or a list of sizes"
            )
        sizes = [whole // sizes] * sizes
    if sum(sizes) != whole or any(size < 0 for size in sizes):
        raise ShapeError(
            f"split of size {whole} (dim {dim} of {x.shape}) into {list(sizes)}; they must add up "
            f"to {whole}"
        )
    return [getitem(x, part) for part in _parts(x.ndim, sizes, dim)]


def _parts(ndim, sizes, dim):
    """Yield one index per part along dim."""
    start = 0
    dim = dim % ndim
    for size in sizes:
        yield (slice(None),) * dim + (slice(start, start + size),)
        start += size


def getitem(x: Tensor, index: Any) -> Tensor:
    """Return x[index], by all of NumPy's rules: slices and integers give a view, arrays a copy."""
    index = _index(index)
    is_view = _is_basic(index)
    try:
        y = x.array[index]
    except IndexError as error:
        raise ShapeError(f"index into a tensor of shape {x.shape}: {error}") from None
    return record_linear(y, x, _put, _placed, index, x.shape, view_of=x if is_view else None)


def _put(values, index, shape):
    """Return zeros of a shape, to which values are added at the index."""
    xp = xp_of(values)
    is_view = _is_basic(index)
    whole = fresh.zeros(shape, values.dtype if is_view else wide(values.dtype), xp)
    if is_view:
        whole[index] = values
    else:
        add_at(whole, index, values)  # an element may be taken several times
    return rounded(whole, values.dtype)


def _placed(x, index, shape):
    """Return _put of a Tensor, recorded: the adjoint of getitem."""
    return record_linear(_put(x.array, index, shape), x, operator.getitem, getitem, index)


def _is_basic(index) -> bool:
    """Return whether NumPy answers this index with a view."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None
        or part is Ellipsis
        or isinstance(part, (int, numpy.integer, slice))
        and not isinstance(part, bool)
        for part in parts
    )


def gather(x: Tensor, dim: int, index: Any) -> Tensor:
    """Return y[i, j, ...] = x[i, index[i, j, ...], ...], with the index at dim.

    All other sizes are those of x.
    """
    (dim,) = reduced_dims(x, dim)
    index, shape = index_array(index), x.shape
    if not others_fit(shape, dim, index):
        raise ShapeError(
            f"gather from shape {shape} along dim {dim} with an index of shape {index.shape}; "
            "wanted the sizes of x in every other dim"
        )
    check_ids("gather", index, shape[dim])
    return record_linear(
        xp_of(x.array).take_along_axis(x.array, index, dim),
        x,
        lambda gradient: _put(gradient, places_of(index, dim), shape),
        lambda gradient: _placed(gradient, places_of(index, dim), shape),
    )


def others_fit(shape: Shape, dim: int, index: Any) -> bool:
    """Return whether an index along dim has the sizes of this shape in every other dim."""
    sizes = list(zip(shape, index.shape))
    return index.ndim == len(shape) and all(a == b for a, b in sizes[:dim] + sizes[dim + 1 :])


def places_of(index: Any, dim: int) -> tuple:
    """Return an index that takes x[i, j, ...] with the elements of this one at dim."""
    places = list(xp_of(index).ogrid[tuple(map(slice, index.shape))])  # [1.., size, ..1] each
    places[dim] = index
    return tuple(places)


def cast(x: Tensor, dtype: DTypeLike) -> Tensor:
    """Return x in another dtype; the gradient comes back in the dtype of x, or of its sum.

    No gradient flows to integers or booleans.
    """
    y = halves.copy(x.array, dtype)
    if not is_floating(y.dtype):
        return Tensor(y)
    return record_linear(y, x, halves.copy, cast, x.gradient_dtype)


# ---- residual streams ----------------------------------------------------------------------------
# What branches are added to may be kept in a wider dtype than branches compute in, as PyTorch's
# autocast and Megatron-LM's fp32_residual_connection have it; context.py says in which.


def to_stream(x: Tensor) -> Tensor:
    """Return x in the dtype of residual streams: itself where they have none of their own."""
    dtype = stream_dtype()
    return x if dtype is None or x.dtype == dtype else cast(x, dtype)


def from_stream(x: Tensor, weight: Tensor) -> Tensor:
    """Return x as the branch of this weight reads it, or as a norm of this weight returns it."""
    dtype = weight.dtype
    return x if stream_dtype() is None or x.dtype == dtype else cast(x, dtype)


def beside_stream(x: Tensor, *parameters: Tensor) -> list[Tensor]:
    """Return the parameters of a norm in the dtype of x, if x is a residual stream."""
    dtype = stream_dtype()
    is_stream = dtype is not None and x.dtype == dtype
    return [cast(each, dtype) if is_stream else each for each in parameters]
