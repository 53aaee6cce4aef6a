"""Convolution over a whole grid, as a product of spectra (arXiv 2010.08895).

    x [batch, in, *grid] --to modes--> [..., *modes] --matrices--> [..., *modes] --back--> grid

Only the lowest frequencies are kept, so that the layer works on a grid of any size. They are few:
a product with the matrix of their waves gives them in less time than a whole fast transform, and
the dimensions that are transformed later see modes, not the grid.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy

from ...annotations import DTypeLike
from ...array.backend import xp_of
from ...errors import ConfigurationError, ShapeError
from ..autograd import Tensor
from ..init import Fill, Uniform
from ..module import Module, Parameter
from ..ops.elementwise import add
from ..ops.fft import complex_einsum
from ..ops.linear import matmul
from ..ops.shape import reshape
from .basic import check_sizes

LETTERS = "xyz"


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
        grid = x.shape[2:]
        letters = LETTERS[: len(grid)]
        spectrum = _to_modes(x, self.modes[-1])
        for letter, m, size in reversed(list(zip(letters, self.modes[:-1], grid))):
            after = letters.replace(letter, "k")
            waves = Tensor(_complex_waves(xp_of(x.array), size, m, x.dtype, -1))
            spectrum = complex_einsum(f"bc{letters},{letter}k->bc{after}", spectrum, waves)
        y = complex_einsum(f"bi{letters},io{letters}->bo{letters}", spectrum, self.weight)
        for letter, m, size in zip(letters, self.modes[:-1], grid):
            after = letters.replace(letter, "k")
            waves = _complex_waves(xp_of(x.array), size, m, x.dtype, 1).swapaxes(0, 1) / size
            y = complex_einsum(f"bc{letters},{letter}k->bc{after}", y, Tensor(waves))
        return _from_modes(y, grid[-1])


def _to_modes(x, m):
    """Return the first m frequencies of the last dim: [..., m, 2] pairs for x [..., n]."""
    size = x.shape[-1]
    waves = _waves(xp_of(x.array), size, tuple(range(m)), x.dtype, -1)  # [n, m, 2]
    rows = reshape(x, (math.prod(x.shape[:-1]), size))
    return reshape(matmul(rows, Tensor(waves.reshape(size, 2 * m))), (*x.shape[:-1], m, 2))


def _from_modes(y, size):
    """Return the real signal [..., size] whose first frequencies are y [..., m, 2].

    A frequency stands for its negative too, but 0 and size / 2. Imaginary parts of these two do
    not count, as in irfft.
    """
    m = y.shape[-2]
    xp = xp_of(y.array)
    waves = _waves(xp, size, tuple(range(m)), y.dtype, -1)  # cos, -sin: the real part of a product
    twice = xp.asarray([1 if 2 * k in (0, size) else 2 for k in range(m)], y.dtype)
    back = (waves * (twice / size)[:, None]).reshape(size, 2 * m).swapaxes(0, 1)
    rows = reshape(y, (math.prod(y.shape[:-2]), 2 * m))
    return reshape(matmul(rows, Tensor(back)), (*y.shape[:-2], size))


def _complex_waves(xp, size, m, dtype, sign):
    """Return the waves [size, 2 m, 2] of the frequencies 0 to m - 1 and -m to -1."""
    return _waves(xp, size, (*range(m), *range(-m, 0)), dtype, sign)


def _waves(xp, size, frequencies, dtype, sign):
    """Return exp(sign 2 pi i j k / size) as pairs [size, frequencies, 2], for j < size."""
    if xp is numpy:
        return _waves_of_host(size, frequencies, dtype, sign)
    return _made_waves(xp, size, frequencies, dtype, sign)


@functools.lru_cache(maxsize=64)
def _waves_of_host(size, frequencies, dtype, sign):
    waves = _made_waves(numpy, size, frequencies, dtype, sign)
    waves.flags.writeable = False
    return waves


def _made_waves(xp, size, frequencies, dtype, sign):
    turns = xp.arange(size)[:, None] * xp.asarray(frequencies) % size  # whole, so nothing is lost
    angles = turns * (sign * 2 * math.pi / size)
    return xp.stack([xp.cos(angles), xp.sin(angles)], -1).astype(dtype)


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
