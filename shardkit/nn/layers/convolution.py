"""Convolutions in one, two and three dimensions, and their transposed forms.

Arguments, names and shapes of parameters are PyTorch's. x is [samples, in_channels, *grid].
"""

from math import prod
from typing import Any

from ...annotations import DTypeLike, PerDim
from ...arguments import is_among, require
from ...errors import ConfigurationError, ShapeError
from ..autograd import Tensor
from ..init import Uniform
from ..module import Module, Parameter
from ..ops import convolution as ops
from ..ops.padding import pad
from .basic import check_sizes
from .families import of_dims

PADDING_MODES = ("zeros", "circular", "reflect", "replicate")


def _parameters(shape, out_channels, has_bias, dtype):
    """Return weight and bias, uniform in +-1/sqrt(elements of one first channel of the weight)."""
    init = Uniform(prod(shape[1:]) ** -0.5)
    return Parameter(shape, init, dtype), Parameter(
        (out_channels,), init, dtype
    ) if has_bias else None


def check_grid(owner, x, channels, num_dims):
    """Raise ShapeError unless x is [samples, channels, *grid] with so many dimensions of a grid."""
    if x.ndim != num_dims + 2 or x.shape[1] != channels:
        raise ShapeError(
            f"{owner} of x {x.shape}; wanted [samples, {channels}, *grid] with {num_dims} "
            "dimensions of a grid"
        )


def _check_channels(owner, in_channels, out_channels, groups):
    """Raise ConfigurationError unless the groups divide both."""
    check_sizes(owner, in_channels=in_channels, out_channels=out_channels, groups=groups)
    if in_channels % groups or out_channels % groups:
        raise ConfigurationError(
            f"{owner} with in_channels = {in_channels}, out_channels = {out_channels}, groups = "
            f"{groups}; wanted groups that divide both"
        )


class ConvNd(Module):
    """The convolution of x [samples, in_channels, *grid] with `weight`, plus `bias`.

    Parameters
    ----------
    in_channels, out_channels
        Of x, and of the output.
    kernel_size, stride, dilation
        An int, or one for each dimension.
    padding
        Of the grid on both sides: an int, one for each dimension, "valid", or "same".
    groups
        Parts of the channels that do not see each other.
    bias
        Whether there is one.
    padding_mode
        What it consists of: "zeros", or elements of x: "circular", "reflect", "replicate".
    dtype
        Of the parameters, such as "float32".

    Raises
    ------
    ConfigurationError
        On anything else.
    ShapeError
        On another x.

    Notes
    -----
    weight [out_channels, in_channels/groups, *kernel_size], bias [out_channels]: initially uniform
    in +-1/sqrt(in_channels/groups * number of taps).
    """

    num_dims: int
    operation: Any  # of ops

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerDim,
        stride: PerDim = 1,
        padding: PerDim = 0,
        dilation: PerDim = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        dtype: DTypeLike = "float32",
    ) -> None:
        name = type(self).__name__
        _check_channels(name, in_channels, out_channels, groups)
        known = f"one of {', '.join(PADDING_MODES)}"
        require(
            is_among(padding_mode, PADDING_MODES), f"{name} with padding_mode", padding_mode, known
        )
        self.in_channels = in_channels
        self.kernel_size = ops.per_dim(name, "kernel_size", kernel_size, self.num_dims)
        self.stride = ops.per_dim(name, "stride", stride, self.num_dims)
        self.dilation = ops.per_dim(name, "dilation", dilation, self.num_dims)
        self.groups = groups
        self.padding_mode = padding_mode
        self.padding = padding
        self.sides = ops.padding_pairs(name, padding, self.kernel_size, self.stride, self.dilation)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight, self.bias = _parameters(shape, out_channels, bias, dtype)

    def check_input(self, x: Any) -> None:
        check_grid(type(self).__name__, x, self.in_channels, self.num_dims)

    def forward(self, x: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            pairs = [side for both in reversed(list(zip(*self.sides))) for side in both]
            x, padding = pad(x, pairs, self.padding_mode), 0
        form = (self.stride, padding, self.dilation, self.groups)
        return type(self).operation(x, self.weight, self.bias, *form)


@of_dims(1, ops.conv1d)
class Conv1d(ConvNd): ...


@of_dims(2, ops.conv2d)
class Conv2d(ConvNd): ...


@of_dims(3, ops.conv3d)
class Conv3d(ConvNd): ...


class ConvTransposeNd(Module):
    """The transposed convolution of x [samples, in_channels, *grid] with `weight`, plus `bias`.

    It is the gradient of a convolution with these arguments by its input. The size of y is (size -
    1) stride - 2 padding + dilation (kernel_size - 1) + output_padding + 1.

    Parameters
    ----------
    in_channels, out_channels
        Of x, and of the output.
    kernel_size, stride, padding, groups, bias, dilation, padding_mode
        As of the convolution.
    output_padding
        Less than stride or dilation; forward(x, output_size) chooses it, so that y has that grid.
    dtype
        Of the parameters, such as "float32".

    Raises
    ------
    ConfigurationError
        On anything else.
    ShapeError
        On another x.

    Notes
    -----
    weight [in_channels, out_channels/groups, *kernel_size], bias [out_channels]: initially uniform
    in +-1/sqrt(out_channels/groups * number of taps).
    """

    num_dims: int
    operation: Any  # of ops

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerDim,
        stride: PerDim = 1,
        padding: PerDim = 0,
        output_padding: PerDim = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: PerDim = 1,
        padding_mode: str = "zeros",
        *,
        dtype: DTypeLike = "float32",
    ) -> None:
        name = type(self).__name__
        _check_channels(name, in_channels, out_channels, groups)
        require(padding_mode == "zeros", f"{name} with padding_mode", padding_mode, '"zeros"')
        self.in_channels = in_channels
        self.kernel_size = ops.per_dim(name, "kernel_size", kernel_size, self.num_dims)
        self.stride = ops.per_dim(name, "stride", stride, self.num_dims)
        self.dilation = ops.per_dim(name, "dilation", dilation, self.num_dims)
        self.groups = groups
        self.padding = ops.per_dim(name, "padding", padding, self.num_dims, at_least=0)
        self.output_padding = ops.per_dim(
            name, "output_padding", output_padding, self.num_dims, at_least=0
        )
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        self.weight, self.bias = _parameters(shape, out_channels, bias, dtype)

    def check_input(self, x: Any) -> None:
        check_grid(type(self).__name__, x, self.in_channels, self.num_dims)

    def forward(self, x: Tensor, output_size: Any = None) -> Tensor:
        more = self.output_padding if output_size is None else self._missing(x, output_size)
        form = (self.stride, self.padding, more, self.groups, self.dilation)
        return type(self).operation(x, self.weight, self.bias, *form)

    def _missing(self, x, output_size):
        """Return the output_padding with which y has this grid. Errors: ShapeError if none does."""
        wanted = tuple(output_size)[-self.num_dims :]
        least = [
            (size - 1) * s - 2 * p + d * (k - 1) + 1
            for size, s, p, d, k in zip(
                x.shape[2:], self.stride, self.padding, self.dilation, self.kernel_size
            )
        ]
        more = [size - low for size, low in zip(wanted, least)]
        if len(wanted) != self.num_dims or any(
            not 0 <= m < max(s, d) for m, s, d in zip(more, self.stride, self.dilation)
        ):
            raise ShapeError(
                f"{type(self).__name__} of x {x.shape} with output_size = {tuple(output_size)}; "
                f"wanted {tuple(least)}, or up to stride - 1 more"
            )
        return tuple(more)


@of_dims(1, ops.conv_transpose1d)
class ConvTranspose1d(ConvTransposeNd): ...


@of_dims(2, ops.conv_transpose2d)
class ConvTranspose2d(ConvTransposeNd): ...


@of_dims(3, ops.conv_transpose3d)
class ConvTranspose3d(ConvTransposeNd): ...


CONVOLUTIONS = (Conv1d, Conv2d, Conv3d)
TRANSPOSED = (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
