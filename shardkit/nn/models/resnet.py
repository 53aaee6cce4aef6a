"""ResNet: convolutions whose input is added to what they give (arXiv 1512.03385).

    x [batch, in, *grid] -> stem -> stages.0.0 -> stages.0.1 -> stages.1.0 -> ... -> head -> logits
                                    |
                                    relu(x + norm(conv(relu(norm(conv(x))))))

Each stage after the first halves the grid and doubles the channels. The grid has one, two or three
dimensions.
"""

from collections.abc import Sequence

from ...annotations import DTypeLike, Shape
from ...arguments import is_among, require
from ...errors import ConfigurationError, ShapeError
from ..layers import normalization
from ..layers.basic import Linear, check_sizes, input_tensor
from ..layers.convolution import CONVOLUTIONS
from ..module import Module, ModuleList, numbered
from ..on_parts import partwise
from ..ops.activation import relu
from ..ops.reduction import mean
from .model import MAX_POOLS, ReadyModel

BATCH_NORMS = (normalization.BatchNorm1d, normalization.BatchNorm2d, normalization.BatchNorm3d)
NORMS = ("batch", "group")
GROUPS = 8  # of a group norm
EXPANSION = 4  # of the channels in a bottleneck


@partwise
class NormedConvolution(Module):
    """A convolution without bias, then a norm: x [batch, in, *grid] -> [batch, out, *grid/stride].

    kernel_size   odd; the padding is half of it
    """

    def __init__(self, dims, in_channels, out_channels, kernel_size, stride=1, *, norm, dtype):
        self.conv = CONVOLUTIONS[dims - 1](
            in_channels,
            out_channels,
            kernel_size,
            stride,
            kernel_size // 2,
            bias=False,
            dtype=dtype,
        )
        self.norm = (
            BATCH_NORMS[dims - 1](out_channels, dtype=dtype)
            if norm == "batch"
            else normalization.GroupNorm(GROUPS, out_channels, dtype=dtype)
        )

    def forward(self, x):
        return self.norm(self.conv(x))


@partwise
class ResidualBlock(Module):
    """relu(shortcut(x) + convolutions(x)), with relu between the convolutions.

    kernels   of the convolutions; the first of size 3 has the stride
    """

    def __init__(self, dims, in_channels, inner, out_channels, kernels, stride, *, norm, dtype):
        more = {"norm": norm, "dtype": dtype}
        widths = [in_channels, *[inner] * (len(kernels) - 1), out_channels]
        strides = [stride if index == kernels.index(3) else 1 for index in range(len(kernels))]
        self.convolutions = ModuleList(
            NormedConvolution(dims, before, after, kernel, step, **more)
            for before, after, kernel, step in zip(widths, widths[1:], kernels, strides)
        )
        changes = stride > 1 or in_channels != out_channels
        self.shortcut = (
            NormedConvolution(dims, in_channels, out_channels, 1, stride, **more)
            if changes
            else None
        )

    def forward(self, x):
        y = x
        for index, convolve in enumerate(self.convolutions):
            y = convolve(relu(y) if index else y)
        return relu((x if self.shortcut is None else self.shortcut(x)) + y)


def stage_of(dims, in_channels, inner, out_channels, *, count, stride, kernels, **more):
    """Return a ModuleList of `count` blocks, the first of which has the stride."""
    return ModuleList(
        ResidualBlock(
            dims,
            out_channels if index else in_channels,
            inner,
            out_channels,
            kernels,
            1 if index else stride,
            **more,
        )
        for index in range(count)
    )


@partwise
class Stem(Module):
    """The first convolution: of 7 with stride 2 and a maximum pool, or of 3 for small images."""

    def __init__(self, dims: int, in_channels: int, width: int, *, is_small, norm, dtype):
        self.dims = dims
        self.in_channels = in_channels
        self.is_small = is_small
        form = (3, 1) if is_small else (7, 2)
        self.map = NormedConvolution(dims, in_channels, width, *form, norm=norm, dtype=dtype)
        self.pool = None if is_small else MAX_POOLS[dims - 1](3, stride=2, padding=1)

    def check_input(self, x):
        if x.ndim != self.dims + 2 or x.shape[1] != self.in_channels:
            raise ShapeError(
                f"ResNet of x {x.shape}; wanted [batch, {self.in_channels}, *grid] with "
                f"{self.dims} dimensions of a grid"
            )

    def forward(self, x):
        self.check_input(x)
        x = relu(self.map(input_tensor(x, self.map.conv.weight.dtype)))
        return x if self.pool is None else self.pool(x)


class GridMean(Module):
    """x [batch, channels, *grid] -> [batch, channels], the mean over the grid."""

    def forward(self, x):
        return mean(x, tuple(range(2, x.ndim)))


class ResNetHead(Module):
    """x [batch, channels, *grid] -> logits [batch, classes], from the mean over the grid."""

    def __init__(self, channels: int, classes: int, *, dtype):
        self.mean = GridMean()
        self.map = Linear(channels, classes, dtype=dtype)

    def forward(self, x):
        return self.map(self.mean(x))


class ResNet(ReadyModel):
    """x [batch, in_channels, *grid] -> logits [batch, classes].

    y [batch] are class numbers; the loss is the cross-entropy per sample in nats. Metrics:
    accuracy, macro F1.

    Parameters
    ----------
    in_channels
        Of x.
    classes
        How many there are.
    layers
        Blocks of each stage: (2, 2, 2, 2) is ResNet-18, (3, 4, 6, 3) with bottleneck=True
        ResNet-50.
    dims
        Dimensions of the grid, 1 to 3.
    width
        Channels of the first stage.
    bottleneck
        Blocks of three convolutions, of 1, 3 and 1, whose output has 4 times the channels.
    small_images
        The stem is a convolution of 3 with stride 1, as for images of 32 x 32.
    norm
        "batch"; or "group", of 8 groups, with which a sample does not depend on its batch.
    seed, dtype
        Of the initial weights: an integer, and a name such as "float32".
    """

    def __init__(
        self,
        in_channels: int = 3,
        classes: int = 1000,
        layers: Sequence[int] = (2, 2, 2, 2),
        *,
        dims: int = 2,
        width: int = 64,
        bottleneck: bool = False,
        small_images: bool = False,
        norm: str = "batch",
        seed: int = 0,
        dtype: DTypeLike = "float32",
    ) -> None:
        sizes = {"in_channels": in_channels, "classes": classes}
        dtype = self._checked("ResNet", seed, dtype, **sizes, width=width)
        layers = list(layers)
        check_sizes("ResNet", **{f"layers[{index}]": count for index, count in enumerate(layers)})
        require(bool(layers), "ResNet with layers", layers, "a number of blocks for each stage")
        require(dims in (1, 2, 3), "ResNet with dims", dims, "1, 2 or 3")
        require(is_among(norm, NORMS), "ResNet with norm", norm, f"one of {', '.join(NORMS)}")
        if norm == "group" and width % GROUPS:
            raise ConfigurationError(
                f'ResNet with norm = "group" and width = {width}; wanted a multiple of {GROUPS}'
            )
        more = {"norm": norm, "dtype": dtype}
        self._classes = classes
        self.stem = Stem(dims, in_channels, width, is_small=small_images, **more)
        channels = [
            width * 2**stage * (EXPANSION if bottleneck else 1) for stage in range(len(layers))
        ]
        self.stages = ModuleList(
            stage_of(
                dims,
                before,
                width * 2**stage,
                after,
                count=count,
                stride=2 if stage else 1,
                kernels=(1, 3, 1) if bottleneck else (3, 3),
                **more,
            )
            for stage, (before, after, count) in enumerate(
                zip([width, *channels], channels, layers)
            )
        )
        self.head = ResNetHead(channels[-1], classes, dtype=dtype)
        self._finish_for_classes(seed, classes)

    def blocks(self) -> list[tuple[str, Module]]:
        stages = [
            pair
            for stage, blocks in enumerate(self.stages)
            for pair in numbered(f"stages.{stage}", blocks)
        ]
        return [("stem", self.stem), *stages, ("head", self.head)]

    def output_shape(self, input_shape: Shape) -> Shape | None:
        return (input_shape[0], self._classes)
