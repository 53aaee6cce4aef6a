"""Sums along any dims that keep the digits of float32: by blocks.

NumPy adds neighbors in memory in pairs, but rows one after the other, and of the digits of a sum of
400,000 rows two or three are lost. Here BLOCK rows are added one after the other, and the sums of
the blocks by blocks again:

    x [N, D] --> [N / BLOCK, BLOCK, D] --> [N / BLOCK, D] --> ... --> [D]

The order depends on the shape and the place of the dims in memory alone. Up to BLOCK rows it is
NumPy's. (Higham, "The accuracy of floating point summation", SIAM J. Sci. Comput. 14, 1993.)
"""

import numpy

from .dtypes import FLOAT32

BLOCK = 128  # rows, as many numbers as NumPy adds before it begins with pairs


def total(x, dims: tuple[int, ...], keepdims: bool = False, dtype=None, out=None):
    """Return x.sum(axis=dims, dtype=dtype, keepdims=keepdims, out=out); dtype None: that of x.

    dims are counted from 0. Other dtypes than float32, and GPUs, add as their library does.
    """
    dtype = x.dtype if dtype is None else dtype
    if type(x) is not numpy.ndarray or dtype != FLOAT32 or not _adds_many_rows(x, dims):
        return x.sum(axis=dims, dtype=dtype, keepdims=keepdims, out=out)
    if dims == (0,) and x.ndim == 2 and not keepdims and out is None:
        return _by_blocks(x, 0)
    kept = [size for dim, size in enumerate(x.shape) if dim not in dims]
    y = _added(x, dims).reshape(kept)
    if keepdims:
        y = y.reshape([1 if dim in dims else size for dim, size in enumerate(x.shape)])
    if out is None:
        return y
    out[...] = y
    return out


def total_along(x, dim: int, keepdims: bool = False):
    """Return the total over one dim, which may be counted from the end."""
    return total(x, (dim % x.ndim,), keepdims)


def _adds_many_rows(x, dims) -> bool:
    """Return True unless NumPy adds in pairs, or there are few rows."""
    count = 1
    for dim in dims:
        count *= x.shape[dim]
    if count <= BLOCK or x.size == 0:
        return False
    if not x.flags.c_contiguous:
        return True
    first = x.ndim
    while first and (first - 1 in dims or x.shape[first - 1] == 1):
        first -= 1
        count //= x.shape[first]
    return count > BLOCK


def _added(x, dims):
    """Return the sums over dims, float32, with the other dims in their order."""
    order = sorted(range(x.ndim), key=lambda dim: -abs(x.strides[dim]))  # as they lie in memory
    y = x.transpose(order)
    is_reduced = [dim in dims for dim in order]
    neighbors = _neighbors(y, is_reduced)
    if neighbors:
        y = y.sum(axis=tuple(range(y.ndim - neighbors, y.ndim)), dtype=FLOAT32)
    for axis in reversed(range(y.ndim)):
        if is_reduced[axis]:
            y = _by_blocks(y, axis)
    left = [dim for dim in order if dim not in dims]
    return y.transpose([left.index(dim) for dim in sorted(left)])


def _neighbors(y, is_reduced) -> int:
    """Return how many of the last dims, all reduced, are one run of numbers in memory."""
    stride = y.itemsize
    number = 0
    for size, its_stride, goes in zip(y.shape[::-1], y.strides[::-1], is_reduced[::-1]):
        if not goes or its_stride != stride and size != 1:
            break
        stride *= size
        number += 1
    return number


def _by_blocks(x, axis):
    """Return the sum over one axis."""
    size = x.shape[axis]
    if size <= BLOCK:
        return numpy.add.reduce(x, axis, FLOAT32)
    before = (slice(None),) * axis
    end = size - size % BLOCK
    shape = (*x.shape[:axis], end // BLOCK, BLOCK, *x.shape[axis + 1 :])
    whole = x if end == size else x[(*before, slice(end))]
    sums = numpy.add.reduce(whole.reshape(shape), axis + 1, FLOAT32)
    if end < size:
        rest = numpy.add.reduce(x[(*before, slice(end, None))], axis, FLOAT32, keepdims=True)
        sums = numpy.concatenate([sums, rest], axis)
    return _by_blocks(sums, axis)
