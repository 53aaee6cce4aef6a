"""Operations of NumPy and CuPy whose results lie in the arena in use, if there is one.

    y = compute("multiply", x, 2.0)         xp.multiply(x, 2.0)

The values and their bits are those of the plain operation, but for sums along any dims, which keep
the digits of float32 (total): NumPy adds neighbors in memory in pairs, but rows one after the
other, and of the digits of a sum of 400,000 rows two or three are lost. Here BLOCK rows are added
one after the other, and the sums of the blocks by blocks again:

    x [N, D] --> [N / BLOCK, BLOCK, D] --> [N / BLOCK, D] --> ... --> [D]

The order depends on the shape and the place of the dims in memory alone. Up to BLOCK rows it is
NumPy's. (Higham, "The accuracy of floating point summation", SIAM J. Sci. Comput. 14, 1993.)
"""

from collections.abc import Callable

import numpy

from .arena import empty, is_arena_in_use
from .backend import xp_of
from .dtypes import BFLOAT16, FLOAT32, is_floating

BLOCK = 128  # rows, as many numbers as NumPy adds before it begins with pairs
# {name: kernel of two arrays} that computes bfloat16 faster than NumPy; see half_kernels.py
FASTER: dict[str, Callable] = {}


def empty_like(x):
    """Return a new array of the shape and dtype of x, C-contiguous."""
    return empty(x.shape, x.dtype, xp_of(x))


def ordered_as(x, shape):
    """Return a new array of this shape and the dtype of x, with its dims in the same order in
    memory.
    """
    order = sorted(range(x.ndim), key=lambda dim: -x.strides[dim])
    lying = empty([shape[dim] for dim in order], x.dtype, xp_of(x))
    return lying.transpose([order.index(dim) for dim in range(x.ndim)])


def zeros(shape, dtype, xp=numpy):
    """Return a new array of xp, filled with zero."""
    out = empty(shape, dtype, xp)
    out.fill(0)
    return out


def copy(x):
    """Return a new array with the values of x, C-contiguous."""
    out = empty_like(x)
    out[...] = x
    return out


def placed(values, xp):
    """Return the values as an array of xp: themselves, if they are one."""
    return values if isinstance(values, xp.ndarray) else xp.asarray(values)


def contiguous(x):
    """Return x itself if it is C-contiguous, else a copy."""
    return x if x.flags.c_contiguous else copy(x)


def compute(name: str, *operands):
    """Return xp.name(*operands), for an elementwise function with one result."""
    kernel = FASTER.get(name)
    if kernel is not None and _are_alike_in_bfloat16(*operands):
        return kernel(*operands)
    function = getattr(xp_of(*operands), name)
    form = _form(operands)
    return function(*operands) if form is None else function(*operands, out=empty(*form))


def add_to(x, y) -> None:
    """Compute x += y."""
    kernel = FASTER.get("add")
    if kernel is not None and _are_alike_in_bfloat16(x, y):
        kernel(x, y, out=x)
    else:
        x += y


def clip(x, lowest, highest):
    """Return xp.clip(x, lowest, highest); None: no limit on this side."""
    return xp_of(x).clip(x, lowest, highest, out=empty_like(x))


def choose(condition, x, y):
    """Return x where the condition holds, y elsewhere.

    x and y have one dtype, or one of them is a Python number.
    """
    xp = xp_of(condition, x, y)
    if xp is numpy and _is_one_form(condition, x, y):
        return _chosen(condition, x, y)
    form = _form((x, y), condition)
    if form is None:
        return xp.where(condition, x, y)
    out = empty(*form)
    out[...] = y
    xp.copyto(out, x, where=condition)
    return out


def _is_one_form(condition, x, y) -> bool:
    """Return True if kernels choose: booleans and floats of one shape and dtype, or a number."""
    arrays = [each for each in (x, y) if type(each) is numpy.ndarray]
    return (
        "where_of" in FASTER
        and len(arrays) + (type(x) in (int, float)) + (type(y) in (int, float)) == 2
        and type(condition) is numpy.ndarray
        and condition.dtype == bool
        and len({(each.shape, each.dtype) for each in arrays}) == 1
        and is_floating(arrays[0].dtype)
        and arrays[0].shape == condition.shape
    )


def _chosen(condition, x, y):
    if type(y) is not numpy.ndarray:
        return FASTER["where_else"](x, condition, y, True)
    if type(x) is not numpy.ndarray:
        return FASTER["where_else"](y, condition, x, False)
    return FASTER["where_of"](x, y, condition)


def rows(table, ids):
    """Return the rows [..., *row] of table [V, ...] that ids [...] name, integers in [0, V)."""
    if not is_arena_in_use() or xp_of(table) is not numpy:
        return xp_of(table).take(table, ids, axis=0)
    # With mode="clip" NumPy writes into `out` without a buffer.
    return table.take(
        ids, axis=0, out=empty((*ids.shape, *table.shape[1:]), table.dtype), mode="clip"
    )


def _form(operands, condition=None):
    """Return (shape, dtype, xp) of a result that is allocated here, or None if the library does it.

    That is: in the arena in use, or of bfloat16, which Python numbers would widen.
    """
    if len(operands) == 2 and condition is None and is_arena_in_use():
        x, y = operands  # as most are
        are_plain = type(x) is type(y) is numpy.ndarray
        if are_plain and x.shape == y.shape and x.dtype == y.dtype:
            return (x.shape, x.dtype, numpy) if is_floating(x.dtype) else None
    arrays = [x for x in operands if type(x) not in (int, float)]
    if not arrays or not (
        is_arena_in_use() and all(type(x) is numpy.ndarray for x in arrays) or _are_bfloat16(arrays)
    ):
        return None
    dtype = arrays[0].dtype
    if not is_floating(dtype) or any(x.dtype != dtype for x in arrays):
        return None
    shapes = {x.shape for x in (arrays if condition is None else [*arrays, condition])}
    return (
        shapes.pop() if len(shapes) == 1 else numpy.broadcast_shapes(*shapes),
        dtype,
        xp_of(*arrays),
    )


def _are_alike_in_bfloat16(x, y) -> bool:
    """Return True for two C-contiguous arrays of bfloat16, of one shape."""
    return (
        type(x) is type(y)
        and getattr(x, "ndim", 0) > 0
        and x.dtype.char == y.dtype.char == BFLOAT16
        and x.shape == y.shape
        and x.flags.c_contiguous
        and y.flags.c_contiguous
    )


def _are_bfloat16(arrays) -> bool:
    return all(getattr(x, "ndim", 0) > 0 and x.dtype.kind == "V" for x in arrays)


# ---- sums ----------------------------------------------------------------------------------------


def total(x, dims: tuple[int, ...], keepdims: bool = False, dtype=None, out=None):
    """Return x.sum(axis=dims, dtype=dtype, keepdims=keepdims, out=out); dtype None: that of x.

    dims are counted from 0. Other dtypes than float32, and GPUs, add as their library does.
    """
    dtype = x.dtype if dtype is None else dtype
    if type(x) is not numpy.ndarray or dtype != FLOAT32 or not _adds_many_rows(x, dims):
        if type(x) is numpy.ndarray:
            return numpy.add.reduce(x, axis=dims, dtype=dtype, out=out, keepdims=keepdims)
        return x.sum(axis=dims, dtype=dtype, keepdims=keepdims, out=out)
    if dims == (0,) and x.ndim == 2 and (out is None or x.flags.c_contiguous):
        y = _by_blocks(x, 0)
    else:
        y = _added(x, dims).reshape([size for dim, size in enumerate(x.shape) if dim not in dims])
    if keepdims:
        y = y.reshape([1 if dim in dims else size for dim, size in enumerate(x.shape)])
    if out is None:
        return y
    out[...] = y
    return out


def total_along(x, dim: int):
    """Return the total over one dim, which may be counted from the end, and stays."""
    return total(x, (dim % x.ndim,), True)


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
