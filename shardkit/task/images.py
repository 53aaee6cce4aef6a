"""Models of images as tasks: `shardkit train --task=resnet --data.path=images.h5 ...`.

    task     a row of x           y                       sk.models
    resnet   (channels, *grid)    a class, or numbers     ResNet
    vit      (channels, *grid)    a class, or numbers     ViT
    unet     (channels, *grid)    a field on the grid     UNet

A grid has one to three dimensions: a signal, an image, a volume.
"""

from dataclasses import dataclass
from functools import partial
from math import prod

from ..errors import ConfigurationError
from ..nn.models.resnet import NORMS, ResNet
from ..nn.models.unet import UNet
from ..nn.models.vit import ViT
from ..settings import fixed
from .architectures import SIZES, built, defaults_of, flops
from .form import Arrays, check_on_grid
from .table import TableTask
from .table_files import KINDS, TableData

_ON_GRIDS = "(channels, x), (channels, x, y) or (channels, x, y, z)"
_OF_IMAGES = Arrays((2, 3, 4), _ON_GRIDS)
_TO_FIELDS = Arrays((2, 3, 4), _ON_GRIDS, kinds=("regression",))


@dataclass(frozen=True, kw_only=True)
class ImageData(TableData):
    """The images of a run, and their classes or numbers."""

    kind: str = fixed(
        "its scaling and the order of its rows follow from it",
        "multiclass",
        "what is predicted",
        among=KINDS,
    )


@dataclass(frozen=True, kw_only=True)
class ResNetSizes:
    """The ResNet of a run."""

    layers: tuple[int, ...] = fixed(SIZES, (2, 2, 2, 2), "blocks of each stage", minimum=1)
    width: int = fixed(SIZES, 64, "channels of the first stage", minimum=1)
    bottleneck: bool = fixed(SIZES, False, "blocks of three convolutions, of 1, 3 and 1")
    small_images: bool = fixed(SIZES, False, "a stem of stride 1, for images of 32 x 32")
    norm: str = fixed(SIZES, "batch", "what normalizes channels", among=NORMS)


class ResNetTask(TableTask):
    """`resnet`: a class, or numbers, for each image."""

    rows = _OF_IMAGES
    sections = {"model": ResNetSizes, "data": ImageData}
    defaults = defaults_of("resnet", sequences=64, micro_batch=16)

    def make_model(self):
        return built(self, ResNet, dims=len(self.described.x_shape) - 1)

    def num_flops_per_sample(self, model):
        grid = self.described.x_shape[1:]
        first = 0 if self.settings.model.small_images else 2  # halvings before the first stage

        def places(name):
            part, number, *_ = name.split(".")
            if part == "head":
                return 1
            level = first // 2 if part == "stem" else first + int(number)
            return prod(grid) >> level * len(grid)

        return flops(model, places)


@dataclass(frozen=True, kw_only=True)
class ViTSizes:
    """The vision transformer of a run."""

    patch: tuple[int, ...] = fixed(
        SIZES, (4,), "pixels of a patch, one number or one for each dimension", minimum=1
    )
    width: int = fixed(SIZES, 192, "width of the blocks", minimum=1)
    depth: int = fixed(SIZES, 12, "transformer blocks", minimum=1)
    heads: int = fixed(SIZES, 3, "heads of attention", minimum=1)
    dropout: float = fixed(
        "its weights were trained with it", 0.0, "after each branch", minimum=0.0, below=1.0
    )


class ViTTask(TableTask):
    """`vit`: a class, or numbers, for each image."""

    rows = _OF_IMAGES
    sections = {"model": ViTSizes, "data": ImageData}
    defaults = defaults_of("vit", sequences=64, micro_batch=16)

    def make_model(self):
        grid = self.described.x_shape[1:]
        return built(self, partial(ViT, grid, self._patch()))

    def _patch(self) -> tuple[int, ...]:
        patch = self.settings.model.patch
        return patch * (len(self.described.x_shape) - 1) if len(patch) == 1 else patch

    def num_flops_per_sample(self, model):
        patches = prod(self.described.x_shape[1:]) // prod(self._patch())
        return flops(model, lambda name: 1 if name.startswith("head") else patches)


@dataclass(frozen=True, kw_only=True)
class UNetSizes:
    """The UNet of a run."""

    width: int = fixed(SIZES, 32, "channels of the first level", minimum=1)
    depth: int = fixed(SIZES, 3, "how often the grid is halved", minimum=1)
    groups: int = fixed(SIZES, 8, "of the norms; they divide the width", minimum=1)


class UNetTask(TableTask):
    """`unet`: a field on the grid for each image."""

    rows = _TO_FIELDS
    sections = {"model": UNetSizes, "data": TableData}
    defaults = defaults_of("unet", sequences=32, micro_batch=8)

    def make_model(self):
        x, y, model = self.described.x_shape, self.described.y_shape, self.settings.model
        step = 2**model.depth
        check_on_grid(x, y, self.settings.data)
        if any(size % step for size in x[1:]):
            raise ConfigurationError(
                f"model.depth = {model.depth} on a grid of {x[1:]}; wanted sizes that {step} "
                "divides, or less depth"
            )
        return built(self, UNet, dims=len(x) - 1)

    def num_flops_per_sample(self, model):
        grid = self.described.x_shape[1:]

        def places(name):
            part, number, *_ = name.split(".")
            level = {"down": 1, "up": 0}.get(part)
            level = 0 if level is None else level + int(number)
            return prod(grid) >> level * len(grid)

        return flops(model, places)
