"""ViT: a transformer over the patches of an image, a signal or a volume (arXiv 2010.11929).

x [batch, channels, *image] -> embedding -> layers.0 -> ... -> head -> logits [batch, classes]
                               |                               |
                               patches, class token, positions the class token alone
"""

import math

from ...annotations import DTypeLike, PerDim, Shape
from ...arguments import is_integer
from ...errors import ConfigurationError, ShapeError
from ..init import Normal
from ..layers.basic import Dropout, LayerNorm, Linear, check_sizes
from ..layers.patches import cut_into_patches, tokens_of
from ..module import Module, ModuleList, Parameter, numbered
from ..ops.shape import getitem
from ..transformer import WEIGHT_INIT, TransformerBlock, check_heads
from .model import ReadyModel

EPS = 1e-6  # of the norms, as in the paper's code


class PatchEmbedding(Module):
    """x [batch, channels, *image] -> [batch, 1 + patches, width]: the class token, then patches.

    patches       maps a patch, [channels, *patch] in C order, to a vector
    class_token   [1, 1, width]
    positions     [1 + patches, width]
    """

    def __init__(self, image, patch, channels: int, width: int, dropout: float, *, dtype):
        self.image = image
        self.patch = patch
        self.channels = channels
        num_patches = math.prod(size // step for size, step in zip(image, patch))
        self.patches = Linear(channels * math.prod(patch), width, dtype=dtype)
        self.class_token = Parameter((1, 1, width), WEIGHT_INIT, dtype)
        self.positions = Parameter((1 + num_patches, width), WEIGHT_INIT, dtype)
        self.dropout = Dropout(dropout, sample_dim=0)

    def check_input(self, x):
        wanted = (self.channels, *self.image)
        if tuple(x.shape[1:]) != wanted or x.ndim != 1 + len(wanted):
            raise ShapeError(f"ViT of x {x.shape}; wanted [batch, {', '.join(map(str, wanted))}]")

    def forward(self, x):
        self.check_input(x)
        return tokens_of(self, cut_into_patches(self, x), self.positions)


class ViTHead(Module):
    """x [batch, 1 + patches, width] -> logits [batch, classes], from the class token."""

    def __init__(self, width: int, classes: int, *, dtype):
        self.norm = LayerNorm(width, eps=EPS, dtype=dtype)
        self.map = Linear(width, classes, dtype=dtype)

    def forward(self, x):
        return self.map(self.norm(getitem(x, (slice(None), 0))))


class ViT(ReadyModel):
    """x [batch, channels, *image] -> logits [batch, classes].

    Norms stand before attention and feed-forward; GELU is the tanh form, as in the paper's code. y
    [batch] are class numbers; the loss is the cross-entropy per sample in nats. Metrics: accuracy,
    macro F1.

    Parameters
    ----------
    image_size
        Pixels of a square image, or a tuple: of a signal, an image or a volume.
    patch_size
        Pixels of a patch, one number or one for each dimension; they divide the image.
    channels
        Of x.
    classes
        How many there are.
    width, depth, heads
        Of the transformer blocks, whose feed-forward has 4 width units.
    dropout
        Probability, after the embedding and after each attention and feed-forward.
    seed, dtype
        Of the initial weights: an integer, and a name such as "float32".
    """

    def __init__(
        self,
        image_size: PerDim,
        patch_size: PerDim,
        channels: int = 3,
        classes: int = 1000,
        *,
        width: int = 192,
        depth: int = 12,
        heads: int = 3,
        dropout: float = 0.0,
        seed: int = 0,
        dtype: DTypeLike = "float32",
    ) -> None:
        image, patch = _checked_sizes(image_size, patch_size)
        sizes = {"channels": channels, "classes": classes}
        dtype = self._checked("ViT", seed, dtype, **sizes, width=width, depth=depth)
        check_heads(width, heads, heads)
        self._classes = classes
        self.embedding = PatchEmbedding(image, patch, channels, width, dropout, dtype=dtype)
        self.layers = ModuleList(
            TransformerBlock(
                width,
                heads,
                norm_eps=EPS,
                dropout=dropout,
                output_init=Normal(WEIGHT_INIT.std / (2 * depth) ** 0.5),
                dtype=dtype,
                is_causal=False,
            )
            for _ in range(depth)
        )
        self.head = ViTHead(width, classes, dtype=dtype)
        self._finish_for_classes(seed, classes)

    def blocks(self) -> list[tuple[str, Module]]:
        layers = numbered("layers", self.layers)
        return [("embedding", self.embedding), *layers, ("head", self.head)]

    def output_shape(self, input_shape: Shape) -> Shape | None:
        return (input_shape[0], self._classes)


def _checked_sizes(image, patch) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return both as tuples. Errors: ConfigurationError unless patches tile the image."""
    image = (image, image) if is_integer(image) else tuple(image)
    patch = (patch,) * len(image) if is_integer(patch) else tuple(patch)
    if len(patch) != len(image) or not 1 <= len(image) <= 3:
        raise ConfigurationError(
            f"ViT with image_size {image} and patch_size {patch}; wanted one to three dimensions, "
            "as many of both"
        )
    for dim, (size, step) in enumerate(zip(image, patch)):
        check_sizes("ViT", **{f"image_size[{dim}]": size, f"patch_size[{dim}]": step})
        if size % step:
            raise ConfigurationError(
                f"ViT with image_size[{dim}] {size} = {size // step} patches x {step} + "
                f"{size % step}; wanted a multiple of the patch"
            )
    return image, patch
