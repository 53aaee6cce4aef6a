"""Interpolation of x [N, C, *grid] to a grid of another size, one dimension after the other."""

from typing import Any

from ...annotations import Shape
from ...arguments import is_number, require
from ...array import lines
from ...errors import ConfigurationError, ShapeError
from ..autograd import Tensor
from .convolution import per_dim
from .pooling import check_pooled
from .windows import window_sums

LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}  # dimensions of the grid: mode
MODES = (*lines.NEAREST, *LINEAR.values())


def interpolate(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Tensor:
    """Return x [N, C, *grid] on a grid of another size.

    Parameters
    ----------
    size
        Of the new grid: an int, or one for each dimension.
    scale_factor
        Instead: new size / old size, rounded down; a number, or one for each dimension.
    mode
        "nearest", "nearest-exact"; "linear" in one dimension, "bilinear" in two, "trilinear" in
        three.
    align_corners
        Of linear modes: first and last elements of both grids lie at the same places.
    recompute_scale_factor
        True: elements lie as the rounded sizes say, not the scale_factor.

    Raises
    ------
    ShapeError
        If x does not fit.
    ConfigurationError
        On other arguments.
    """
    form = (size, scale_factor, mode, align_corners, recompute_scale_factor)
    windows = interpolation_windows(x.shape[2:], *form)
    check_pooled("interpolate", x.ndim - 2, x)
    for dim, line in enumerate(windows, 2):
        x = window_sums(x, dim, line)
    return x


def interpolation_windows(
    old: Shape,
    size: Any,
    scale_factor: Any,
    mode: str,
    align_corners: bool | None,
    recompute_scale_factor: bool | None,
) -> tuple:
    """Return what interpolate reads of a grid of these old sizes, by dimension.

    Errors: its own.
    """
    _check(len(old), mode, align_corners)
    sizes, scales = _sizes(old, size, scale_factor)
    scales = [None] * len(old) if recompute_scale_factor else scales
    form = mode if mode in lines.NEAREST else "linear", bool(align_corners)
    return tuple(
        [
            lines.interpolation(length, count, *form, scale)
            for length, count, scale in zip(old, sizes, scales)
        ]
    )


def check_mode(owner, mode, align_corners):
    """Raise ConfigurationError unless mode and align_corners go together."""
    require(mode in MODES, f"{owner} with mode", mode, f"one of {', '.join(MODES)}")
    if mode in lines.NEAREST and align_corners is not None:
        raise ConfigurationError(
            f'{owner} with mode = "{mode}" and align_corners = {align_corners}; only the linear '
            "modes have it"
        )


def _check(num_dims, mode, align_corners):
    check_mode("interpolate", mode, align_corners)
    if num_dims not in LINEAR or mode not in (*lines.NEAREST, LINEAR[num_dims]):
        raise ShapeError(
            f'interpolate of x with {num_dims} dimensions of a grid in mode "{mode}"; wanted '
            f"{', '.join(f'{mode} of {dims}' for dims, mode in LINEAR.items())}, or nearest"
        )


def _sizes(old, size, scale_factor):
    """Return the new sizes, and the scale of each dimension or None."""
    if (size is None) == (scale_factor is None):
        raise ConfigurationError(
            f"interpolate with size = {size} and scale_factor = {scale_factor}; wanted one of them"
        )
    if size is not None:
        return per_dim("interpolate", "size", size, len(old)), [None] * len(old)
    scales = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * len(old)
    is_right = len(scales) == len(old) and all(is_number(s, at_least=0) and s > 0 for s in scales)
    wanted = f"a number above 0, or {len(old)} of them"
    require(is_right, "interpolate with scale_factor", scale_factor, wanted)
    sizes = [int(size * scale) for size, scale in zip(old, scales)]
    return per_dim("interpolate", "scale_factor, and so sizes", sizes, len(old)), scales
