"""FNO: a Fourier neural operator, from functions on a grid to functions on it (arXiv 2010.08895).

    x [batch, in, *grid] -> lift -> layers.0 -> ... -> project -> [batch, out, *grid]
                                    |
                                    gelu(spectral convolution + linear map of channels)

It works on a grid of one, two or three dimensions, and of any size: the parameters are those of
modes.
"""

from collections.abc import Sequence

from ...annotations import Shape
from ..layers.spectral import ChannelLinear, Lifting, SpectralConv, checked_modes
from ..losses import RelativeL2Loss
from ..module import Module, ModuleList, numbered
from ..on_parts import partwise
from ..ops.activation import erf_gelu
from .model import ReadyModel

PROJECTION = 128  # channels before the last map, as in the paper


@partwise
class FourierLayer(Module):
    """A spectral convolution plus a linear map of channels, then GELU but in the last layer."""

    def __init__(self, width: int, modes: tuple, *, has_activation: bool, dtype):
        self.has_activation = has_activation
        self.spectral = SpectralConv(width, width, modes, dtype=dtype)
        self.pointwise = ChannelLinear(width, width, dtype=dtype)

    def forward(self, x):
        y = self.spectral(x) + self.pointwise(x)
        return erf_gelu(y) if self.has_activation else y


@partwise
class Projection(Module):
    """Two linear maps of channels with GELU between them."""

    def __init__(self, width: int, out_channels: int, *, dtype):
        self.up = ChannelLinear(width, PROJECTION, dtype=dtype)
        self.down = ChannelLinear(PROJECTION, out_channels, dtype=dtype)

    def forward(self, x):
        return self.down(erf_gelu(self.up(x)))


class FNO(ReadyModel):
    """x [batch, in_channels, *grid] -> [batch, out_channels, *grid].

    The loss is the relative L2 error of each sample; metrics: RMSE, MAE.

    Parameters
    ----------
    in_channels, out_channels
        Of x, and of the output.
    modes
        Frequencies kept of each grid dimension, one to three numbers: (12,), (12, 12).
    width
        Channels of the layers.
    layers
        Fourier layers, each a block.
    seed, dtype
        Of the initial weights: an integer, and a name such as "float32".
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        modes: Sequence[int],
        *,
        width: int = 32,
        layers: int = 4,
        seed: int = 0,
        dtype: str = "float32",
    ) -> None:
        sizes = {"in_channels": in_channels, "out_channels": out_channels}
        dtype = self._checked("FNO", seed, dtype, **sizes, width=width, layers=layers)
        modes = checked_modes("FNO", modes)
        self._out_channels = out_channels
        self.lift = Lifting(in_channels, width, modes, dtype=dtype)
        self.layers = ModuleList(
            FourierLayer(width, modes, has_activation=index < layers - 1, dtype=dtype)
            for index in range(layers)
        )
        self.project = Projection(width, out_channels, dtype=dtype)
        self._finish_for_numbers(seed, RelativeL2Loss())

    def blocks(self) -> list[tuple[str, Module]]:
        layers = numbered("layers", self.layers)
        return [("lift", self.lift), *layers, ("project", self.project)]

    def output_shape(self, input_shape: Shape) -> Shape | None:
        return (input_shape[0], self._out_channels, *input_shape[2:])
