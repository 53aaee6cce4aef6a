"""Where elements stand, and elements by where they stand.

Numbers of places are int64 Tensors without a gradient. Of equal elements the first comes first,
in sorts of either direction.
"""

from typing import Any

import numpy

from ...annotations import DTypeLike
from ...array import fresh, kernels
from ...array.backend import xp_of
from ...array.dtypes import wide
from ...array.halves import rounded
from ...array.scatter import add_at
from ...errors import ShapeError
from ..autograd import Tensor, array_of, record_linear
from .broadcast import record_broadcast
from .operands import check_ids, index_array, is_counted, sum_dtype
from .reduction import reduced_dims
from .shape import expand, gather, others_fit, permute, places_of, reshape


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the number of the largest element along dim, the first of equal ones.

    Parameters
    ----------
    dim
        None: along all dimensions, in C order.
    """
    return _place("argmax", x, dim, keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the number of the smallest element along dim, the first of equal ones."""
    return _place("argmin", x, dim, keepdim)


def _place(name, x, dim, keepdim):
    if dim is not None:
        (dim,) = reduced_dims(x, dim)
    if (x.size if dim is None else x.shape[dim]) == 0:
        raise ShapeError(f"{name} of a tensor of shape {x.shape}, which has no elements there")
    xp = xp_of(x.array)
    place = xp.asarray(getattr(x.array, name)(axis=dim), numpy.int64)
    if keepdim:
        place = place.reshape((1,) * x.ndim) if dim is None else xp.expand_dims(place, dim)
    return Tensor(place)


def one_hot(ids: Any, num_classes: int, dtype: DTypeLike = "int64") -> Tensor:
    """Return [..., num_classes]: 1 at the place that each of ids [...] names, else 0."""
    ids = index_array(ids)
    check_ids("one_hot", ids, num_classes)
    xp = xp_of(ids)
    return Tensor((ids[..., None] == xp.arange(num_classes)).astype(dtype))


def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Return the numbers that sort x along dim."""
    (dim,) = reduced_dims(x, dim)
    xp = xp_of(x.array)
    if not descending:
        return Tensor(xp.argsort(x.array, axis=dim, kind="stable"))
    turned = xp.argsort(xp.flip(x.array, dim), axis=dim, kind="stable")
    return Tensor(x.shape[dim] - 1 - xp.flip(turned, dim))


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Return x sorted along dim, and the number of each element in x; gradients go back there."""
    order = argsort(x, dim, descending)
    return gather(x, dim, order), order


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the k largest (or smallest) elements along dim, the first first, and their numbers."""
    (dim,) = reduced_dims(x, dim)
    if not 0 <= k <= x.shape[dim]:
        raise ShapeError(f"topk with k = {k} along dim {dim} of {x.shape}; wanted 0 to the size")
    part = (slice(None),) * dim + (slice(k),)
    places = argsort(x, dim, descending=largest).array[part]
    return gather(x, dim, places), Tensor(places)


def take_along_dim(x: Tensor, index: Any, dim: int | None = None) -> Tensor:
    """Return gather(x, dim, index), where the other sizes of both broadcast.

    Parameters
    ----------
    dim
        None: x is read as one row, in C order, and so is the index.
    """
    index = index_array(index)
    if dim is None:
        return gather(reshape(x, -1), 0, index.reshape(-1))
    (dim,) = reduced_dims(x, dim)
    if index.ndim != x.ndim:
        raise ShapeError(
            f"take_along_dim of {x.shape} by an index of {index.shape}; wanted as many dimensions"
        )
    xp = xp_of(x.array)
    others = [(1 if d == dim else size) for d, size in enumerate(x.shape)]
    theirs = [(1 if d == dim else size) for d, size in enumerate(index.shape)]
    try:
        common = list(numpy.broadcast_shapes(tuple(others), tuple(theirs)))
    except ValueError:
        raise ShapeError(
            f"take_along_dim of {x.shape} by an index of {index.shape} along dim {dim}; the other "
            "sizes must be equal or 1"
        ) from None
    wide_x = expand(x, [x.shape[dim] if d == dim else size for d, size in enumerate(common)])
    shape = [index.shape[dim] if d == dim else size for d, size in enumerate(common)]
    return gather(wide_x, dim, xp.broadcast_to(index, shape))


def index_select(x: Tensor, dim: int, index: Any) -> Tensor:
    """Return the slices of x along dim that index [n] names, in its order."""
    (dim,) = reduced_dims(x, dim)
    index = _checked_index("index_select", x, dim, index)
    order = (dim, *[d for d in range(x.ndim) if d != dim])
    rows = _rows(permute(x, order), index)
    return permute(rows, sorted(range(x.ndim), key=order.__getitem__))


def _rows(x, index):
    """Return rows index [n] of x [V, ...]; the gradients of a row are added in their order."""
    rows = fresh.rows(x.array, index)
    return record_linear(rows, x, _added_rows, _rows_adjoint, index, x.shape[0])


def _added_rows(rows, index, num_rows):
    """Return [num_rows, ...]: rows [n, ...] added up where index [n] says."""
    shape = (num_rows, *rows.shape[1:])
    if not rows.size:
        return fresh.zeros(shape, rows.dtype, xp_of(rows))
    whole = kernels.embedding_backward(rows.reshape(index.size, -1), index, num_rows)
    return rounded(whole, rows.dtype).reshape(shape)


def _rows_adjoint(x, index, num_rows):
    """Return _added_rows of a Tensor, recorded."""
    added = _added_rows(x.array, index, num_rows)
    return record_linear(added, x, fresh.rows, _rows, index)


def index_add(x: Tensor, dim: int, index: Any, source: Tensor) -> Tensor:
    """Return x with slice i of source added to its slice index[i] along dim, in order of i."""
    (dim,) = reduced_dims(x, dim)
    index = _checked_index("index_add", x, dim, index)
    wanted_shape = (*x.shape[:dim], index.size, *x.shape[dim + 1 :])
    if source.shape != wanted_shape:
        raise ShapeError(f"index_add of a source of {source.shape}; wanted {wanted_shape}")
    xp = xp_of(x.array)
    places = (slice(None),) * dim + (index,)
    return _added(
        "index_add",
        x,
        source,
        places,
        lambda gradient: xp.take(gradient, index, axis=dim),
        lambda gradient: index_select(gradient, dim, index),
    )


def scatter_add(x: Tensor, dim: int, index: Any, source: Tensor) -> Tensor:
    """Return x with source[i, j, ...] added at [index[i, j, ...], j, ...] (index at dim).

    source and index have one shape, with the sizes of x in all other dimensions.
    """
    (dim,) = reduced_dims(x, dim)
    index = index_array(index)
    if index.shape != source.shape or not others_fit(x.shape, dim, index):
        raise ShapeError(
            f"scatter_add into {x.shape} along dim {dim} with an index of {index.shape} and a "
            f"source of {source.shape}; wanted one shape, with the sizes of x in every other dim"
        )
    check_ids("scatter_add", index, x.shape[dim])
    xp = xp_of(x.array)
    return _added(
        "scatter_add",
        x,
        source,
        places_of(index, dim),
        lambda gradient: xp.take_along_axis(gradient, index, dim),
        lambda gradient: gather(gradient, dim, index),
    )


def _added(name, x, source, places, taken, taken_again):
    """Return x with source added at these places; taken(gradient) is what comes back to source.

    taken_again  the same of a Tensor, recorded
    """
    source = _summand(name, x, source)
    y = x.array.astype(wide(x.dtype))
    add_at(y, places, source.array.astype(y.dtype, copy=False))
    shares = (lambda gradient, *none: gradient, lambda gradient, *none: taken(gradient))
    again = (shares[0], lambda gradient, *none: taken_again(gradient))
    return record_broadcast(name, rounded(y, x.dtype), x, source, shares, again, ())


def _summand(name, x, source):
    """Return a source to be added to x, which has the dtype of the sums."""
    dtype = sum_dtype(name, x)
    if is_counted(x) and (x.dtype != dtype or not is_counted(source)):
        wanted = dtype if is_counted(source) else source.dtype
        raise ShapeError(
            f"{name} of {source.dtype} into {x.dtype}, which does not hold the sums; wanted x of "
            f'{wanted}: ops.cast(x, "{wanted}")'
        )
    return source


def _checked_index(name, x, dim, index):
    """Return a 1-D array of places along dim."""
    index = fresh.placed(array_of(index_array(index)), xp_of(x.array))
    if index.ndim != 1:
        raise ShapeError(f"{name} with an index of shape {index.shape}; wanted [n]")
    check_ids(name, index, x.shape[dim])
    return index
