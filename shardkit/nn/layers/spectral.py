"""Convolution over a whole grid, as a product of spectra (arXiv 2010.08895).

    x [batch, in, *grid] --to modes--> [..., *modes] --matrices--> [..., *modes] --back--> grid

Only the lowest frequencies are kept, so that the layer works on a grid of any size.
"""

from collections.abc import Sequence
from typing import Any

from ...annotations import DTypeLike
from ...array.backend import xp_of
from ...errors import ConfigurationError, ShapeError
from ..autograd import Tensor
from ..init import Fill, Uniform
from ..module import Module, Parameter
from ..ops.elementwise import add
from ..ops.linear import matmul
from ..ops.modes import Slab, from_modes, multiply_modes, to_modes
from ..ops.shape import concatenate, reshape
from .basic import check_sizes, input_tensor


class SpectralConv(Module):
    """A linear map of channels for each of the lowest frequencies of x [batch, in, *grid].

    Parameters
    ----------
    in_channels, out_channels
        Of x, and of the output.
    modes
        Frequencies kept of each grid dimension: 0 to m - 1 of the last; of the others these and -m
        to -1.
    dtype
        Of the parameters, such as "float32".

    Attributes
    ----------
    weight
        [in_channels, out_channels, 2 m, ..., m, 2], pairs of real and imaginary part.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        modes: Sequence[int],
        *,
        dtype: DTypeLike = "float32",
    ) -> None:
        check_sizes("SpectralConv", in_channels=in_channels, out_channels=out_channels)
        self.modes = checked_modes("SpectralConv", modes)
        kept = [2 * m for m in self.modes[:-1]] + [self.modes[-1]]
        bound = 1 / (in_channels * out_channels)
        self.weight = Parameter((in_channels, out_channels, *kept, 2), Uniform(bound), dtype)

    def check_input(self, x: Any) -> None:
        check_grid("SpectralConv", x.shape, self.weight.global_shape[0], self.modes)

    def forward(self, x: Tensor) -> Tensor:
        y = multiply_modes(to_modes(x, self.modes), self.weight)
        return from_modes(y, x.shape[2:])


class ChannelLinear(Module):
    """A linear map of channels at each point of x [batch, in, *grid].

    weight [out_channels, in_channels], uniform in +-1/sqrt(in_channels); bias [out_channels]
    """

    def __init__(self, in_channels: int, out_channels: int, *, dtype="float32"):
        check_sizes("ChannelLinear", in_channels=in_channels, out_channels=out_channels)
        bound = Uniform(in_channels**-0.5)
        self.weight = Parameter((out_channels, in_channels), bound, dtype)
        self.bias = Parameter((out_channels,), Fill(0.0), dtype)

    def forward(self, x):
        points = reshape(x, (*x.shape[:2], -1 if x.size else 0))
        y = matmul(self.weight, points)
        y = add(y, reshape(self.bias, (-1, 1)))
        return reshape(y, (x.shape[0], self.weight.shape[0], *x.shape[2:]))


class Lifting(Module):
    """Channels and coordinates of each point, from 0 to 1, mapped to `width` channels."""

    def __init__(self, in_channels: int, width: int, modes: tuple, *, dtype):
        self.in_channels = in_channels
        self.modes = modes
        self.map = ChannelLinear(in_channels + len(modes), width, dtype=dtype)

    def check_input(self, x):
        check_grid("FNO", x.shape, self.in_channels, self.modes)

    def forward(self, x, slab: Slab | None = None):
        """Compute [batch, width, *grid]; slab: the part of the grid that x is, if not all."""
        x = input_tensor(x, self.map.weight.dtype)
        return self.map(concatenate([x, *_coordinates(x, slab)], 1))


def _coordinates(x, slab):
    """Yield an array [batch, 1, *grid] for each dimension of the grid."""
    xp = xp_of(x.array)
    for dim, size in enumerate(x.shape[2:], 2):
        is_cut = slab is not None and slab.dim == dim - 2
        start, length = (slab.start, slab.length) if is_cut else (0, size)
        shape = [size if d == dim else 1 for d in range(x.ndim)]
        line = xp.linspace(0, 1, length)[start : start + size].astype(x.dtype).reshape(shape)
        yield xp.broadcast_to(line, (x.shape[0], 1, *x.shape[2:]))


def checked_modes(owner, modes) -> tuple[int, ...]:
    """Return the modes of each grid dimension as a tuple of one to three."""
    modes = (modes,) if isinstance(modes, int) else tuple(modes)
    if not 1 <= len(modes) <= 3:
        raise ConfigurationError(f"{owner} with modes = {modes}; wanted one to three numbers")
    check_sizes(owner, **{f"modes[{index}]": m for index, m in enumerate(modes)})
    return modes


def check_grid(owner, shape, in_channels, modes):
    """Raise ShapeError unless a shape is [batch, in_channels, *grid] with room for the modes."""
    grid = shape[2:]
    has_room = len(grid) == len(modes) and all(
        2 * m <= size for m, size in zip(modes[:-1], grid[:-1])
    )
    if not has_room or modes[-1] > grid[-1] // 2 + 1 or shape[1] != in_channels:
        raise ShapeError(
            f"{owner} of x {tuple(shape)} with modes {modes}; wanted [samples, {in_channels}, "
            "*grid] with a grid of at least twice the modes"
        )
