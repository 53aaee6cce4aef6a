"""Padding of the last dimensions: with a number, or with what stands elsewhere in x.

x           1 2 3 4
constant    0 0 1 2 3 4 0          reflect     3 2 1 2 3 4 3
circular    3 4 1 2 3 4 1          replicate   1 1 1 2 3 4 4
"""

from collections.abc import Sequence

from ...array.arena import empty
from ...array.backend import xp_of
from ...errors import ConfigurationError, ShapeError
from ..autograd import Tensor, constant_of, record_unary
from .operands import check_holds
from .shape import concatenate, expand, getitem

PADDING_MODES = ("constant", "circular", "reflect", "replicate")


def pad(x: Tensor, padding: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    """Return x with more elements before and after it, in its last dimensions.

    Parameters
    ----------
    padding
        Pairs (before, after), of the last dimension first, as torch.nn.functional.pad takes them:
        (left, right, top, bottom); in mode "constant" below 0: so many are left out.
    value
        In mode "constant".

    Raises
    ------
    ConfigurationError
        On another mode.
    ShapeError
        If x has too few dimensions or elements, or integers that the value is none of.

    Examples
    --------
    >>> ops.pad([1, 2, 3], (1, 2))
    Tensor(array([0, 1, 2, 3, 0, 0]))
    """
    padding = tuple(padding)
    value = constant_of(value, "value of pad")
    check_holds("pad", x, value)
    if mode not in PADDING_MODES:
        raise ConfigurationError(f"pad with mode = {mode!r}; wanted one of {PADDING_MODES}")
    if mode != "constant" and value:
        raise ConfigurationError(f"pad with mode = {mode!r} and value = {value}; it has no value")
    if len(padding) % 2 or len(padding) > 2 * x.ndim:
        raise ShapeError(
            f"pad of a tensor of shape {x.shape} by {padding}; wanted a pair (before, after) for "
            "each of its last dimensions, the last one first"
        )
    pairs = list(zip(padding[::2], padding[1::2]))
    first = x.ndim - len(pairs)
    if mode == "constant":
        return _surrounded(x, [(0, 0)] * first + pairs[::-1], value)
    for number, (before, after) in enumerate(pairs):
        if before or after:
            x = _continued(x, x.ndim - 1 - number, before, after, mode)
    return x


def _surrounded(x, pairs, value):
    """Return x with a number around it; pairs (before, after) of each dimension."""
    shape = tuple([before + size + after for size, (before, after) in zip(x.shape, pairs)])
    if min(shape, default=0) < 0:
        raise ShapeError(f"pad of a tensor of shape {x.shape} to {shape}; nothing would be left")
    inside = tuple(
        [slice(max(before, 0), size - max(after, 0)) for size, (before, after) in zip(shape, pairs)]
    )
    kept = tuple(
        [
            slice(max(-before, 0), size - max(-after, 0))
            for size, (before, after) in zip(x.shape, pairs)
        ]
    )
    back = [(-before, -after) for before, after in pairs]

    def backward(gradient):
        if kept == tuple([slice(0, size) for size in before_shape]):
            return gradient[inside]
        whole = empty(before_shape, gradient.dtype, xp_of(gradient))
        whole.fill(0)
        whole[kept] = gradient[inside]
        return whole

    before_shape = x.shape
    y = empty(shape, x.dtype, xp_of(x.array))
    y.fill(value)
    y[inside] = x.array[kept]
    return record_unary(y, x, backward, lambda gradient, output: _surrounded(gradient, back, 0.0))


def _continued(x, dim, before, after, mode):
    """Return x with elements of its own before and after it along dim."""
    size = x.shape[dim]
    _check_continued(x, dim, before, after, mode)

    def part(*bounds):
        return getitem(x, (slice(None),) * dim + (slice(*bounds),))

    if mode == "circular":
        parts = [part(size - before, size), x, part(0, after)]
    elif mode == "reflect":
        parts = [_reversed(part(1, before + 1), dim), x, part(size - 1 - after, size - 1)]
        parts[2] = _reversed(parts[2], dim)
    else:
        left, right = x.shape[:dim], x.shape[dim + 1 :]
        first = expand(part(0, 1), (*left, before, *right))
        last = expand(part(size - 1, size), (*left, after, *right))
        parts = [first, x, last]
    return concatenate([one for one in parts if one.shape[dim]] or [x], dim)


def _reversed(x, dim):
    return getitem(x, (slice(None),) * dim + (slice(None, None, -1),))


def _check_continued(x, dim, before, after, mode):
    """Raise ShapeError unless x has enough elements along dim to continue it."""
    size = x.shape[dim]
    most = {"circular": size, "reflect": size - 1, "replicate": max(before, after)}[mode]
    if min(before, after) < 0 or max(before, after) > most or size == 0:
        raise ShapeError(
            f"pad of dim {dim} of a tensor of shape {x.shape} by ({before}, {after}) in mode "
            f"{mode!r}; wanted at least one element, and 0 to {most}"
        )
