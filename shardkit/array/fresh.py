"""Operations of NumPy and CuPy whose results lie in the arena in use, if there is one.

    y = compute("multiply", x, 2.0)         xp.multiply(x, 2.0)

The values and their bits are those of the plain operation.
"""

from collections.abc import Callable

import numpy

from .arena import empty, is_arena_in_use
from .backend import xp_of
from .dtypes import BFLOAT16, is_floating

# {name: kernel of two arrays} that computes bfloat16 faster than NumPy; see half_kernels.py
FASTER: dict[str, Callable] = {}


def empty_like(x):
    """Return a new array of the shape and dtype of x, C-contiguous."""
    return empty(x.shape, x.dtype, xp_of(x))


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


def choose(condition, x, y):
    """Return x where the condition holds, y elsewhere.

    x and y have one dtype, or one of them is a Python number.
    """
    xp = xp_of(condition, x, y)
    form = _form((x, y), condition)
    if form is None:
        return xp.where(condition, x, y)
    out = empty(*form)
    out[...] = y
    xp.copyto(out, x, where=condition)
    return out


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
    arrays = [x for x in operands if type(x) not in (int, float)]
    if not arrays or not (
        is_arena_in_use() and all(type(x) is numpy.ndarray for x in arrays) or _are_bfloat16(arrays)
    ):
        return None
    if not is_floating(arrays[0].dtype) or any(x.dtype != arrays[0].dtype for x in arrays):
        return None
    shapes = {x.shape for x in (arrays if condition is None else [*arrays, condition])}
    return (
        shapes.pop() if len(shapes) == 1 else numpy.broadcast_shapes(*shapes),
        arrays[0].dtype,
        xp_of(*arrays),
    )


def _are_alike_in_bfloat16(x, y) -> bool:
    """Return True for two C-contiguous NumPy arrays of bfloat16, of one shape."""
    return (
        type(x) is type(y) is numpy.ndarray
        and x.dtype.char == y.dtype.char == BFLOAT16
        and x.shape == y.shape
        and x.flags.c_contiguous
        and y.flags.c_contiguous
    )


def _are_bfloat16(arrays) -> bool:
    return all(getattr(x, "ndim", 0) > 0 and x.dtype.kind == "V" for x in arrays)
