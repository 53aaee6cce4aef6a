"""Convolution over a whole grid, as a product of spectra (arXiv 2010.08895).

    x [batch, in, *grid] --rfftn--> modes --matrices--> modes --irfftn--> [batch, out, *grid]

Only the lowest frequencies are kept, so that the layer works on a grid of any size. Each dimension
is cut as soon as it is transformed: the transforms over the others see modes, not the grid.
"""

from ...array import fresh
from ...array.backend import xp_of
from ...errors import ConfigurationError, ShapeError
from ..init import Fill, Uniform
from ..module import Module, Parameter
from ..ops.elementwise import add
from ..ops.fft import complex_einsum, fft, ifft, irfft, rfft
from ..ops.linear import matmul
from ..ops.shape import concatenate, getitem, reshape
from .basic import check_sizes


class SpectralConv(Module):
    """A linear map of channels for each of the lowest frequencies of x [batch, in, *grid].

    modes   frequencies kept of each grid dimension: 0 to m - 1 of the last; of the others these
            and -m to -1
    weight  [in_channels, out_channels, 2 m, ..., m, 2], pairs of real and imaginary part
    """

    def __init__(self, in_channels: int, out_channels: int, modes, *, dtype="float32"):
        check_sizes("SpectralConv", in_channels=in_channels, out_channels=out_channels)
        self.modes = checked_modes("SpectralConv", modes)
        kept = [2 * m for m in self.modes[:-1]] + [self.modes[-1]]
        bound = 1 / (in_channels * out_channels)
        self.weight = Parameter((in_channels, out_channels, *kept, 2), Uniform(bound), dtype)

    def check_input(self, x):
        check_grid("SpectralConv", x.shape, self.weight.global_shape[0], self.modes)

    def forward(self, x):
        grid = x.shape[2:]
        last = x.ndim - 1
        spectrum = getitem(rfft(x, dim=last), _part(last, slice(self.modes[-1])))
        for dim in range(last - 1, 1, -1):
            m = self.modes[dim - 2]
            spectrum = fft(spectrum, dim=dim)
            ends = [getitem(spectrum, _part(dim, part)) for part in (slice(m), slice(-m, None))]
            spectrum = concatenate(ends, dim)
        letters = "xyz"[: len(grid)]
        y = complex_einsum(f"bi{letters},io{letters}->bo{letters}", spectrum, self.weight)
        for dim in range(2, last):
            y = ifft(_with_middle(y, dim, self.modes[dim - 2], grid[dim - 2]), dim=dim)
        return irfft(y, grid[-1], dim=last)


def _part(dim, part):
    """Return the index of a part along dim."""
    return (slice(None),) * dim + (part,)


def _with_middle(y, dim, m, size):
    """Return y with zeros between its first m and last m frequencies: `size` along dim."""
    if size == 2 * m:
        return y
    shape = (*y.shape[:dim], size - 2 * m, *y.shape[dim + 1 :])
    zeros = fresh.zeros(shape, y.dtype, xp_of(y.array))
    first, rest = [getitem(y, _part(dim, part)) for part in (slice(m), slice(m, None))]
    return concatenate([first, zeros, rest], dim)


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
        points = reshape(x, (*x.shape[:2], -1)) if x.size else reshape(x, (*x.shape[:2], 0))
        y = matmul(self.weight, points)
        y = add(y, reshape(self.bias, (-1, 1)))
        return reshape(y, (x.shape[0], self.weight.shape[0], *x.shape[2:]))


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
