"""Sums, means and maxima of rows by the segment that each belongs to: of edges by node, in graphs.

    rows [n, ...], ids [n]  ->  [num_segments, ...]        result[s] from the rows i with ids[i] = s

The rows of a segment are added in their order, so that the bits depend on nothing else. A segment
without rows is 0. The other way, from nodes to edges, is index_select(x, 0, ids).
"""

from typing import Any

import numpy

from ...array import fresh, kernels
from ...array.backend import xp_of
from ...array.halves import rounded, widened
from ...errors import ShapeError
from ..autograd import Tensor, array_of, record_linear, record_unary
from .elementwise import multiply
from .indexing import index_select
from .operands import check_ids, in_float64, index_array, is_counted, sum_dtype


def segment_sum(x: Tensor, ids: Any, num_segments: int) -> Tensor:
    """Return the sum of the rows of each segment: [num_segments, ...] for x [n, ...], ids [n].

    Parameters
    ----------
    ids
        Integers in [0, num_segments), in any order.
    """
    ids = _checked("segment_sum", x, ids, num_segments)
    if is_counted(x):
        array = x.array.astype(sum_dtype("segment_sum", x), copy=False)
        return Tensor(_sums(array, ids, num_segments))

    def again(gradient, ids):
        return index_select(gradient, 0, ids)

    sums = rounded(_sums(x.array, ids, num_segments), x.dtype)
    return record_linear(sums, x, fresh.rows, again, ids)


def segment_mean(x: Tensor, ids: Any, num_segments: int) -> Tensor:
    """Return the mean of the rows of each segment."""
    ids = _checked("segment_mean", x, ids, num_segments)
    if is_counted(x):
        return in_float64(segment_mean, x, ids, num_segments)
    xp = xp_of(x.array)
    counts = xp.maximum(xp.bincount(ids, minlength=num_segments), 1)
    shares = (1 / counts).reshape(-1, *(1,) * (x.ndim - 1)).astype(x.dtype)
    return multiply(segment_sum(x, ids, num_segments), shares)


def segment_max(x: Tensor, ids: Any, num_segments: int) -> Tensor:
    """Return the largest elements of each segment; equal ones share the gradient."""
    ids = _checked("segment_max", x, ids, num_segments)
    xp = xp_of(x.array)
    shape, dtype = x.shape, x.dtype
    if is_counted(x):
        return Tensor(_largest(xp, x.array, ids, num_segments))
    is_empty = (xp.bincount(ids, minlength=num_segments) == 0).reshape(-1, *(1,) * (x.ndim - 1))
    rows = widened(x.array).reshape(len(ids), -1) if x.size else widened(x.array)
    if x.size:
        top = kernels.segment_max(rows, ids, num_segments).reshape(num_segments, *shape[1:])
    else:
        top = xp.full((num_segments, *shape[1:]), -xp.inf, rows.dtype)

    def winners():
        """Return 1 for the largest elements, 0 for others; and how many each segment has.

        That is none for NaN, which makes gradients NaN, as those of max.
        """
        chosen = (widened(x.array) == top[ids]).astype(top.dtype)
        return chosen, _sums(chosen, ids, num_segments) + is_empty

    def backward(gradient):
        chosen, counts = winners()
        with numpy.errstate(invalid="ignore", divide="ignore"):
            return rounded(chosen * fresh.rows(widened(gradient) / counts, ids), dtype)

    def again(gradient, output):
        chosen, counts = winners()
        with numpy.errstate(invalid="ignore"):
            shares = chosen / counts[ids]
        return multiply(index_select(gradient, 0, ids), shares.astype(dtype))

    y = rounded(xp.where(is_empty, 0, top).astype(top.dtype, copy=False), dtype)
    return record_unary(y, x, backward, again, needs=(x,))


def _largest(xp, array, ids, num_segments):
    """Return the largest of each segment of booleans or integers."""
    top = fresh.zeros((num_segments, *array.shape[1:]), array.dtype, xp)
    top[ids] = False if array.dtype.kind == "b" else numpy.iinfo(array.dtype).min
    xp.maximum.at(top, ids, array)
    return top


def _sums(array, ids, num_segments):
    """Return the sums of the rows of each segment, of half floats in float32."""
    shape = (num_segments, *array.shape[1:])
    if not array.size:
        return fresh.zeros(shape, widened(array).dtype, xp_of(array))
    return kernels.embedding_backward(array.reshape(len(ids), -1), ids, num_segments).reshape(shape)


def _checked(name, x, ids, num_segments):
    """Return ids as an array beside that of x."""
    ids = fresh.placed(array_of(index_array(ids)), xp_of(x.array))
    if x.ndim < 1 or ids.shape != x.shape[:1]:
        raise ShapeError(f"{name} of x {x.shape} and ids {ids.shape}; wanted [n, ...] and [n]")
    check_ids(name, ids, num_segments)
    return ids
