"""Rearrangements beyond those of shape.py: stacked, rolled, flipped, repeated, triangular."""

from collections.abc import Sequence
from math import prod
from typing import Any

from ...array import fresh
from ...array.backend import xp_of
from ...errors import ShapeError
from ..autograd import Tensor, record_linear, record_unary
from .reduction import reduced_dims
from .shape import concatenate, expand, getitem, reshape, unsqueeze


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return tensors of one shape side by side along a new dimension, number dim of the result."""
    tensors = [tensor if isinstance(tensor, Tensor) else Tensor(tensor) for tensor in tensors]
    shapes = {tensor.shape for tensor in tensors}
    if len(shapes) != 1:
        raise ShapeError(f"stack of shapes {sorted(shapes)}; wanted at least one, all equal")
    return concatenate([unsqueeze(tensor, dim) for tensor in tensors], dim)


def roll(x: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Return x moved by `shifts` places along dims; what leaves at one end enters at the other.

    Parameters
    ----------
    shifts
        An int, or one for each of dims.
    dims
        None: the elements are rolled in C order, and the shape stays.
    """
    if dims is not None:
        dims = reduced_dims(x, dims)
        shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
        if len(shifts) != len(dims):
            raise ShapeError(f"roll by {shifts} along dims {dims}; wanted one shift for each dim")
    xp = xp_of(x.array)
    back = -shifts if isinstance(shifts, int) else tuple([-shift for shift in shifts])
    return record_linear(xp.roll(x.array, shifts, dims), x, xp.roll, roll, back, dims)


def flip(x: Tensor, dims: Any) -> Tensor:
    """Return x in reverse order along dims, as a view."""
    dims = reduced_dims(x, dims)
    turn = xp_of(x.array).flip
    return record_linear(turn(x.array, dims), x, turn, flip, dims, view_of=x)


def repeat(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return x `sizes` times along each dimension, as torch.Tensor.repeat and numpy.tile do.

    Parameters
    ----------
    sizes
        At least as many as x has dimensions; those in front are of new ones.
    """
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if len(sizes) < x.ndim:
        raise ShapeError(f"repeat of a tensor of shape {x.shape} by {sizes}; wanted one per dim")
    shape = (1,) * (len(sizes) - x.ndim) + x.shape
    apart = [part for size in shape for part in (1, size)]
    stretched = [part for times, size in zip(sizes, shape) for part in (times, size)]
    whole = [times * size for times, size in zip(sizes, shape)]
    return reshape(expand(reshape(x, apart), stretched), whole)


def tile(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return x repeated; if there are fewer sizes than dimensions, those of the last ones."""
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return repeat(x, (1,) * (x.ndim - len(sizes)) + sizes)


def repeat_interleave(x: Tensor, repeats: int, dim: int) -> Tensor:
    """Return x with each slice along dim `repeats` times in a row, as numpy.repeat does."""
    (dim,) = reduced_dims(x, dim)
    before, size, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
    apart = expand(reshape(x, (*before, size, 1, *after)), (*before, size, repeats, *after))
    return reshape(apart, (*before, size * repeats, *after))


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return matrices x [..., n, m], 0 above this diagonal."""
    return _triangle("tril", tril, x, diagonal)


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """Return matrices x [..., n, m], 0 below this diagonal."""
    return _triangle("triu", triu, x, diagonal)


def _triangle(name, again, x, diagonal):
    if x.ndim < 2:
        raise ShapeError(f"{name} of a tensor of shape {x.shape}; wanted [..., n, m]")
    cut = getattr(xp_of(x.array), name)
    return record_linear(cut(x.array, diagonal), x, cut, again, diagonal)


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return the elements whose numbers along dim1 and dim2 differ by offset, in a last dim."""
    first, second = reduced_dims(x, (dim1, dim2))
    xp = xp_of(x.array)
    shape = x.shape
    start = (max(-offset, 0), max(offset, 0))
    count = max(min(shape[first] - start[0], shape[second] - start[1]), 0)
    places = (..., xp.arange(count) + start[0], xp.arange(count) + start[1])

    def backward(gradient):
        whole = fresh.zeros(shape, gradient.dtype, xp)
        xp.moveaxis(whole, (first, second), (-2, -1))[places] = gradient
        return whole

    chosen = xp.moveaxis(x.array, (first, second), (-2, -1))[places]
    return record_unary(chosen, x, backward)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return x with the dimensions from start_dim to end_dim, both too, as one."""
    if x.ndim == 0:
        return reshape(x, (1,))
    (first,), (last,) = reduced_dims(x, start_dim), reduced_dims(x, end_dim)
    if first > last:
        raise ShapeError(
            f"flatten from dim {start_dim} to {end_dim} of a tensor of shape {x.shape}; wanted "
            "the first before the last"
        )
    merged = prod(x.shape[first : last + 1])
    return reshape(x, (*x.shape[:first], merged, *x.shape[last + 1 :]))


def chunk(x: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    """Return at most so many consecutive parts along dim, as torch.chunk cuts: views of x."""
    (dim,) = reduced_dims(x, dim)
    if chunks < 1:
        raise ShapeError(f"chunk into {chunks} parts; wanted at least 1")
    if x.shape[dim] == 0:
        return [getitem(x, ...) for _ in range(chunks)]
    return parts_of(x, -(-x.shape[dim] // chunks), dim)


def parts_of(x: Tensor, size: int, dim: int) -> list[Tensor]:
    """Return consecutive parts of this size along dim, the last one perhaps smaller."""
    (dim,) = reduced_dims(x, dim)
    before = (slice(None),) * dim
    starts = range(0, max(x.shape[dim], 1), size)
    return [getitem(x, (*before, slice(start, start + size))) for start in starts]
