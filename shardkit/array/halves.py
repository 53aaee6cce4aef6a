"""Half floats: from and to float32, and sums of them.

Half floats are for storing and for messages: everything that adds up computes in float32.
"""

from math import prod

import numpy

from . import fresh
from .arena import empty, is_arena_in_use
from .backend import xp_of
from .dtypes import BFLOAT16, FLOAT32, is_half, wide
from .reference.half import from_half, to_half
from .reference.sums import add_row, sum_of_rows


def widened(x):
    """Return half floats as float32, exactly; any other array as it is."""
    if not is_half(x.dtype):
        return x
    dims = _dims_in_memory(x)
    out = _empty(x.shape, FLOAT32, xp_of(x), dims)
    if dims is not None:
        from_half.dispatch(_flat(x, dims), FLOAT32, out=_flat(out, dims))
    else:
        out[...] = x
    return out


def rounded(x, dtype, out=None):
    """Return x in another dtype, rounded to nearest, infinite beyond its range, in `out` if given.

    That is x itself if it has the dtype and there is no `out`.
    """
    dims = _dims_in_memory(x)
    if out is None:
        if x.dtype == dtype:
            return x
        out = _empty(x.shape, dtype, xp_of(x), dims)
    if (
        x.dtype == FLOAT32
        and is_half(out.dtype)
        and dims is not None
        and dims == _dims_in_memory(out)
    ):
        to_half.dispatch(_flat(x, dims), out=_flat(out, dims))
        return out
    with numpy.errstate(over="ignore"):
        out[...] = x
    return out


def _dims_in_memory(x) -> tuple[int, ...] | None:
    """Return the dims of an array without gaps, longest stride first; None if there are gaps."""
    if x.flags.c_contiguous:
        return tuple(range(x.ndim))
    if not isinstance(x, numpy.ndarray):
        return None  # kernels for GPUs read rows as they are written
    dims = tuple(sorted(range(x.ndim), key=lambda dim: -x.strides[dim]))
    return dims if x.transpose(dims).flags.c_contiguous else None


def _empty(shape, dtype, xp, dims):
    """Return a new array whose dims lie in memory in this order; None: in their own."""
    if dims is None:
        return empty(shape, dtype, xp)
    return empty([shape[dim] for dim in dims], dtype, xp).transpose(
        [dims.index(dim) for dim in range(len(dims))]
    )


def _flat(x, dims):
    return x.transpose(dims).reshape(-1)


def copy(x, dtype):
    """Return a new array with the values of x in this dtype, C-contiguous."""
    out = empty(x.shape, dtype, xp_of(x))
    if out.dtype.itemsize == 2 and is_half(out.dtype):
        return rounded(x, out.dtype, out)
    out[...] = x
    return out


def add_row_in_place(x, row):
    """Compute x += row for x [N, D] and row [D] of one dtype."""
    if type(x) is numpy.ndarray and x.dtype.char == BFLOAT16:
        add_row.dispatch(x, row, out=x)
    else:
        x += row


def total(x, dims: tuple, keepdims: bool = False, dtype=None, there=None):
    """Return the sum of x over these dims, in the dtype of x.

    Half floats are summed in float32; dtype=float32 leaves their sum so.
    there   where the sum on a GPU goes, if that is of its dtype; None: a new array
    """
    if type(x) is not numpy.ndarray and not keepdims:
        rows = _as_rows(x, dims)
        if rows is not None:
            goes_there = there is not None and there.dtype == wide(x.dtype)
            added = sum_of_rows.dispatch(rows, out=there if goes_there else None)
            if not goes_there:
                added = added.reshape([s for dim, s in enumerate(x.shape) if dim not in dims])
            return rounded(added, x.dtype if dtype is None else dtype)
    if x.dtype.itemsize == 2 and is_half(x.dtype):
        if dims == (0,) and x.ndim == 2 and type(x) is numpy.ndarray and not keepdims:
            added = sum_of_rows.dispatch(x)
        else:
            added = fresh.total(x, dims, keepdims, FLOAT32)
        return rounded(added, x.dtype if dtype is None else dtype)
    out = None
    # Else `out` might change the order.
    if is_arena_in_use() and type(x) is numpy.ndarray and x.flags.c_contiguous:
        out = empty(
            [
                1 if d in dims else size
                for d, size in enumerate(x.shape)
                if keepdims or d not in dims
            ],
            x.dtype,
        )
    return fresh.total(x, dims, keepdims, out=out)


def _as_rows(x, dims):
    """Return a view [N, D] or [M, N, D] of x whose sum over N is that over dims; or None."""
    if x.ndim == 3 and dims == (1,):
        return x
    if dims != tuple(range(len(dims))) or len(dims) in (0, x.ndim):
        return None
    if x.ndim == 2:
        return x
    return x.reshape(prod(x.shape[: len(dims)]), -1) if x.flags.c_contiguous and x.size else None
