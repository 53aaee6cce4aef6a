"""Rotary positions, whose tables are kept: all layers and steps turn by the same angles."""

import functools
from typing import Any

import numpy

from ...array import fresh, kernels
from ...array.backend import xp_of
from ...array.capture import kept_for_graph, outside_of_graphs
from ...array.dtypes import wide
from ...array.waits import await_stream
from ...errors import ShapeError
from ..autograd import Tensor, array_of, record_unary
from .joint_parts import JointPart
from .operands import check_floating

MAX_TABLES = 32  # that are kept: of lengths, models and dtypes in use at the same time


def rotary(
    x: Tensor,
    positions: Any = None,
    base: float = 10000.0,
    scaling: tuple[float, ...] | None = None,
) -> Tensor:
    """Return x with each pair (x[i], x[i + D/2]) turned by position * base^(-2i/D).

    Parameters
    ----------
    x
        [batch, heads, S, D], D even.
    positions
        [S] integers, an array or Tensor; or a tuple of runs (start, stop), whose tables are kept;
        None: 0 to S - 1.
    base
        Of the wavelengths.
    scaling
        (factor,) or (factor, low, high, length), see transformer.check_scaling; None: none.

    Notes
    -----
    The gradient is the same, turned back.

    References
    ----------
    arXiv 2104.09864.
    """
    check_floating("rotary", x)
    array = x.array
    if positions is None:
        positions = ((0, x.shape[2] if x.ndim == 4 else 0),)
    are_runs = _are_runs(positions)
    if are_runs:
        num_positions = (sum([stop - start for start, stop in positions]),)
    else:
        positions = fresh.placed(array_of(positions), xp_of(array))
        num_positions = positions.shape
    if x.ndim != 4 or x.shape[3] % 2 or num_positions != x.shape[2:3]:
        raise ShapeError(
            f"rotary of x {x.shape} at positions {num_positions}; wanted x [batch, heads, S, D] "
            "with D even and one position per S"
        )
    form = x.shape[3], base, wide(x.dtype), None if scaling is None else tuple(scaling)
    if are_runs:
        cos, sin, back = _kept_tables(xp_of(array), _device_of(array), positions, *form)
        kept_for_graph(cos, sin, back)
    else:
        cos, sin, back = _tables(positions, *form)

    if isinstance(x, JointPart):
        return _turned_in_place(x, cos, sin, back)

    turned = kernels.rotary(array, cos, sin)
    return record_unary(turned, x, lambda gradient: kernels.rotary(gradient, cos, back))


def _are_runs(positions) -> bool:
    """Return True for a tuple of pairs, or of nothing."""
    return isinstance(positions, tuple) and all(
        [isinstance(run, tuple) and len(run) == 2 for run in positions]
    )


def _turned_in_place(x: JointPart, cos, sin, back) -> JointPart:
    """Return the part, turned where it lies; its gradient is turned back where that belongs."""
    place = x.place
    turned = kernels.rotary(x.array, cos, sin, out=x.array)

    def backward(gradient):
        return kernels.rotary(gradient, cos, back, out=place.take_after(gradient))

    return JointPart.of(record_unary(turned, x, backward, view_of=x), place)


def _tables(positions, head_dim, base, dtype, scaling):
    """Return cos, sin and -sin [S, D/2] of these positions [S]."""
    cos, sin = kernels.rotary_tables(positions, head_dim, base, dtype, scaling)
    return cos, sin, -sin


@functools.lru_cache(maxsize=MAX_TABLES)
def _kept_tables(xp, device, runs, *form):
    """Return _tables of the positions of these runs, ready for every stream."""
    outside_of_graphs("tables of rotary positions have to be made by a step before")
    positions = [xp.arange(start, stop) for start, stop in runs]
    tables = _tables(xp.concatenate([xp.arange(0), *positions]), *form)
    if xp is not numpy:
        await_stream(xp.cuda)
    return tables


def _device_of(array):
    """Return the number of the GPU that holds the array; None: the host does."""
    return None if isinstance(array, numpy.ndarray) else array.data.device_id
