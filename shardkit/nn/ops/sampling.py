"""grid_sample: a picture or a volume, read at any places between its points.

grid [N, *out, 2 or 3], from -1 to 1    x before y    place = (u + 1) / 2 (size - 1), or
                                                              ((u + 1) size - 1) / 2
"""

from itertools import product

from ...arguments import is_among, require
from ...array import fresh
from ...array.backend import xp_of
from ...errors import ShapeError
from ..autograd import Tensor
from .elementwise import add, multiply, subtract, where
from .functions import clamp
from .operands import check_floating
from .shape import gather, getitem, reshape, unsqueeze

MODES = ("bilinear", "nearest")
PADDING_MODES = ("zeros", "border", "reflection")


def grid_sample(
    x: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = False,
) -> Tensor:
    """Return [N, C, *out]: x [N, C, *sizes] at the places of grid [N, *out, dims].

    Parameters
    ----------
    grid
        From -1 to 1, the last size of x first, as in torch.nn.functional.grid_sample.
    mode
        "bilinear" (of volumes trilinear), or "nearest", through which no gradient of the grid goes.
    padding_mode
        What stands outside: "zeros", the nearest point of the "border", or a "reflection".
    align_corners
        -1 and 1 are the middles of the outermost points, and not their outer edges.

    Raises
    ------
    ShapeError
        If the two do not fit.
    ConfigurationError
        On another mode.
    """
    require(is_among(mode, MODES), "grid_sample with mode", mode, f"one of {MODES}")
    is_known = is_among(padding_mode, PADDING_MODES)
    require(is_known, "grid_sample with padding_mode", padding_mode, f"one of {PADDING_MODES}")
    check_floating("grid_sample", x, grid)
    sizes = x.shape[2:]
    dims = len(sizes)
    fits = grid.ndim == x.ndim and (grid.shape[0], grid.shape[-1]) == (x.shape[0], dims)
    if not fits or dims not in (2, 3):
        raise ShapeError(
            f"grid_sample of x {x.shape} and grid {grid.shape}; wanted [N, C, H, W] and [N, h, w, "
            "2], or [N, C, D, H, W] and [N, d, h, w, 3]"
        )
    places = []
    for dim, size in enumerate(sizes):
        u = getitem(grid, (..., len(sizes) - 1 - dim))
        place = _place(reshape(u, (u.shape[0], -1)), size, bool(align_corners))  # [N, L]
        places.append(_kept_inside(place, size, padding_mode, bool(align_corners)))
    rows = reshape(x, (*x.shape[:2], -1))
    y = _nearest(rows, places, sizes) if mode == "nearest" else _between(rows, places, sizes)
    out = grid.shape[1:-1]
    return reshape(y, (*x.shape[:2], *out))


def _place(u, size, align_corners):
    """Return the number of the point, counted from 0, that u from -1 to 1 stands for."""
    if align_corners:
        return multiply(add(u, 1.0), (size - 1) / 2)
    return subtract(multiply(add(u, 1.0), size / 2), 0.5)


def _kept_inside(place, size, padding_mode, align_corners):
    """Return places from 0 to size - 1, where what stands outside is read from inside."""
    if padding_mode == "zeros":
        return place
    if padding_mode == "reflection":
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        place = _reflected(place, low, high)
    is_inside = (place.array > 0) & (place.array < size - 1)
    return where(is_inside, place, clamp(place.detach(), 0.0, size - 1.0))


def _reflected(place, low, high):
    """Return places between two mirrors."""
    span = high - low
    if span == 0:
        return multiply(place, 0.0)
    xp = xp_of(place.array)
    way = place.array - low
    sign = xp.where(way < 0, -1.0, 1.0)
    turns = xp.floor(abs(way) / span)
    is_even = turns % 2 == 0
    # |way| - turns span, or the rest of the span
    slope = sign * xp.where(is_even, 1.0, -1.0)
    start = low - slope * low
    start = start + xp.where(is_even, -turns, turns + 1) * span
    return add(multiply(place, slope.astype(place.dtype)), start.astype(place.dtype))


def _nearest(rows, places, sizes):
    xp = xp_of(rows.array)
    return _read(rows, [xp.rint(place.array) for place in places], sizes, None)


def _between(rows, places, sizes):
    """Return the mean of the neighbors of each place, the nearer the heavier."""
    xp = xp_of(rows.array)
    floors = [xp.floor(place.array) for place in places]
    after = [subtract(place, floor) for place, floor in zip(places, floors)]
    before = [subtract(1.0, each) for each in after]
    total = None
    for corner in product((0, 1), repeat=len(sizes)):
        weight = None
        for dim, step in enumerate(corner):
            share = after[dim] if step else before[dim]
            weight = share if weight is None else multiply(weight, share)
        at = [floor + step for floor, step in zip(floors, corner)]
        part = _read(rows, at, sizes, weight)
        total = part if total is None else add(total, part)
    return total


def _read(rows, at, sizes, weight):
    """Return [N, C, L]: what stands at numbers of points, 0 outside, times a weight [N, L]."""
    xp = xp_of(rows.array)
    is_inside, index = True, 0
    for place, size in zip(at, sizes):
        is_inside = is_inside & (place >= 0) & (place < size)
        nearest = xp.clip(xp.nan_to_num(place), 0, size - 1)
        index = index * size + nearest.astype("int64")
    shape = *rows.shape[:2], index.shape[-1]
    index = xp.broadcast_to(index[:, None], shape)
    share = Tensor(is_inside.astype(rows.dtype))
    if weight is not None:
        share = where(is_inside, weight, 0.0)
    return multiply(gather(rows, 2, fresh.copy(index)), unsqueeze(share, 1))
