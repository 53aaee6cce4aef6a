"""UNet: a grid is halved and doubled again, and each level sees what it was (arXiv 1505.04597).

    x [batch, in, *grid] -> enter ----------------------------- concatenate -> leave -> project -> y
                            |                                        |
                            halve -> down.0 -------- concatenate -> up.0
                                     |                    |
                                     halve -> down.1 -> double

The grid has one, two or three dimensions. Skips cross the whole network, so it has no blocks():
FSDP gathers each layer as it is called, and a pipeline cannot cut it.
"""

from typing import Any

from ...annotations import DTypeLike, Shape
from ...arguments import require
from ...errors import ConfigurationError, ShapeError
from ..autograd import Tensor
from ..context import current_context
from ..layers.basic import input_tensor
from ..layers.convolution import CONVOLUTIONS, TRANSPOSED
from ..layers.normalization import GroupNorm
from ..module import Module, ModuleList
from ..on_parts import partwise
from ..ops.activation import relu
from ..ops.shape import concatenate
from .model import MAX_POOLS, ReadyModel


@partwise
class Level(Module):
    """Two convolutions of 3, each with a group norm and relu: channels in -> channels out.

    halves   maxima of 2 come first
    """

    def __init__(self, dims, in_channels, out_channels, groups, *, dtype, halves: bool = False):
        self.halve = MAX_POOLS[dims - 1](2) if halves else None
        convolve = CONVOLUTIONS[dims - 1]
        self.first = convolve(in_channels, out_channels, 3, padding=1, bias=False, dtype=dtype)
        self.first_norm = GroupNorm(groups, out_channels, dtype=dtype)
        self.second = convolve(out_channels, out_channels, 3, padding=1, bias=False, dtype=dtype)
        self.second_norm = GroupNorm(groups, out_channels, dtype=dtype)

    def forward(self, x):
        x = x if self.halve is None else self.halve(x)
        x = relu(self.first_norm(self.first(x)))
        return relu(self.second_norm(self.second(x)))


@partwise
class Doubling(Module):
    """x [batch, 2 channels, *grid], skip [batch, channels, *2 grid] -> a result like the skip."""

    def __init__(self, dims: int, channels: int, groups: int, *, dtype):
        self.double = TRANSPOSED[dims - 1](2 * channels, channels, 2, stride=2, dtype=dtype)
        self.level = Level(dims, 2 * channels, channels, groups, dtype=dtype)

    def forward(self, x, skip):
        return self.level(concatenate([skip, self.double(x)], 1))


@partwise
class UNet(ReadyModel):
    """x [batch, in_channels, *grid] -> [batch, out_channels, *grid].

    The loss is the mean squared error; metrics: RMSE, MAE. Norms are not in the paper, and the
    convolutions keep the grid.

    Parameters
    ----------
    in_channels, out_channels
        Of x, and of the output.
    dims
        Dimensions of the grid, 1 to 3.
    width
        Channels of the first level; each level below has twice as many.
    depth
        How often the grid is halved; its sizes are multiples of 2^depth.
    groups
        Of the norms; they divide the width.
    seed, dtype
        Of the initial weights: an integer, and a name such as "float32".

    Raises
    ------
    ShapeError
        On another x.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        dims: int = 2,
        width: int = 32,
        depth: int = 3,
        groups: int = 8,
        seed: int = 0,
        dtype: DTypeLike = "float32",
    ) -> None:
        sizes = {"in_channels": in_channels, "out_channels": out_channels}
        sizes |= {"width": width, "depth": depth, "groups": groups}
        dtype = self._checked("UNet", seed, dtype, **sizes)
        require(dims in (1, 2, 3), "UNet with dims", dims, "1, 2 or 3")
        if width % groups:
            raise ConfigurationError(
                f"UNet with groups = {groups}, width = {width}; wanted a divisor of the width"
            )
        self._in_channels, self._out_channels = in_channels, out_channels
        self._dims, self._depth = dims, depth
        widths = [width * 2**level for level in range(depth + 1)]
        self.enter = Level(dims, in_channels, width, groups, dtype=dtype)
        self.down = ModuleList(
            Level(dims, above, below, groups, dtype=dtype, halves=True)
            for above, below in zip(widths, widths[1:])
        )
        self.up = ModuleList(
            Doubling(dims, channels, groups, dtype=dtype) for channels in widths[:-1]
        )
        self.project = CONVOLUTIONS[dims - 1](width, out_channels, 1, dtype=dtype)
        self._finish_for_numbers(seed)

    def check_input(self, x: Any) -> None:
        step = 1 if current_context().is_cut else 2**self._depth
        is_grid = x.ndim == self._dims + 2 and x.shape[1] == self._in_channels
        if not is_grid or any(size % step or size == 0 for size in x.shape[2:]):
            raise ShapeError(
                f"UNet of x {tuple(x.shape)}; wanted [batch, {self._in_channels}, *grid] with "
                f"{self._dims} dimensions of a grid, each a multiple of 2^depth = {step}"
            )

    def forward(self, x: Tensor) -> Tensor:
        self.check_input(x)
        x = self.enter(input_tensor(x, self.enter.first.weight.dtype))
        skips = []
        for level in self.down:
            skips.append(x)
            x = level(x)
        for doubling in reversed(list(self.up)):
            x = doubling(x, skips.pop())
        return self.project(x)

    def output_shape(self, input_shape: Shape) -> Shape | None:
        return (input_shape[0], self._out_channels, *input_shape[2:])
