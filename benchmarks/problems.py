"""The models of science that are raced: what each is made with, and the batch of a step.

Each has a second size, which nothing is tuned for. The first are those of the results page.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy


@dataclass(frozen=True)
class Problem:
    """A model of sk.models, and the shapes of its global batch.

    arguments   of the model, and of its twin in PyTorch
    x, y        shapes; y: a number of classes instead, of one class for each sample
    """

    name: str
    model: str
    arguments: dict
    x: tuple
    y: tuple | int
    graph: tuple | None = field(default=None)  # (nodes, edges), of a model that has edges

    # In AdamW's first steps the sign of a small gradient decides: what is rounded differently grows
    # threefold from step to step, more with batch norm. PyTorch's own forms agree no better.
    compared_losses = 2

    @property
    def tokens(self) -> int:
        """Samples of one step."""
        return self.x[0]

    def to_json(self) -> str:
        return json.dumps({"problem": self.name})

    def made_by(self, models: Callable):
        """Return the model that models(its name) makes, unsharded, seed 0."""
        return models(self.model)(**self.arguments, **self._edges())

    def _edges(self) -> dict:
        if self.graph is None:
            return {}
        nodes, edges = self.graph
        ends = numpy.random.default_rng(0).integers(0, nodes, (2, edges))
        return {"senders": ends[0], "receivers": ends[1]}

    def our_model(self):
        import shardkit as sk

        return self.made_by(lambda name: getattr(sk.models, name))

    def step_batch(self, number: int):
        """Return the global batch of a step, which depends on its number alone."""
        rng = numpy.random.default_rng(number)
        x = rng.standard_normal(self.x, dtype="float32")
        if isinstance(self.y, int):
            return x, rng.integers(0, self.y, len(x))
        return x, rng.standard_normal(self.y, dtype="float32")


def _resnet(name, batch, side, width):
    arguments = {"in_channels": 3, "classes": 10, "width": width, "small_images": True}
    return Problem(name, "ResNet", arguments, (batch, 3, side, side), 10)


def _unet(name, batch, grid, width):
    arguments = {"in_channels": 2, "out_channels": 1, "dims": len(grid), "width": width}
    x, y = [(batch, channels, *grid) for channels in (2, 1)]
    return Problem(name, "UNet", arguments, x, y)


def _fno(name, batch, grid, width, modes):
    arguments = {"in_channels": 2, "out_channels": 1, "modes": modes, "width": width}
    x, y = [(batch, channels, *grid) for channels in (2, 1)]
    return Problem(name, "FNO", arguments, x, y)


def _lstm(name, batch, steps, width):
    arguments = {"features": 16, "out_features": 4, "width": width}
    return Problem(name, "LSTM", arguments, (batch, steps, 16), (batch, 4))


def _vit(name, batch, side, width, depth):
    arguments = {"image_size": side, "patch_size": 4, "classes": 10, "width": width}
    arguments |= {"depth": depth, "heads": 3}
    return Problem(name, "ViT", arguments, (batch, 3, side, side), 10)


def _graphs(name, batch, nodes, edges, width):
    arguments = {"features": 8, "out_features": 2, "width": width, "steps": 3}
    x, y = [(batch, nodes, features) for features in (8, 2)]
    return Problem(name, "MessagePassing", arguments, x, y, (nodes, edges))


def _mlp(name, batch, sizes):
    shapes = (batch, sizes[0]), (batch, sizes[-1])
    return Problem(name, "MLP", {"sizes": sizes, "activation": "silu"}, *shapes)


PROBLEMS = {
    problem.name: problem
    for problem in (
        _resnet("ResNet-18 of 32, 16 x 32 x 32", 16, 32, 32),
        _resnet("ResNet-18 of 48, 8 x 40 x 40", 8, 40, 48),
        _unet("UNet 2-D of 24, 4 x 96 x 96", 4, (96, 96), 24),
        _unet("UNet 2-D of 32, 2 x 80 x 112", 2, (80, 112), 32),
        _unet("UNet 3-D of 16, 2 x 32 x 32 x 32", 2, (32, 32, 32), 16),
        _unet("UNet 3-D of 8, 2 x 24 x 40 x 40", 2, (24, 40, 40), 8),
        _fno("FNO 2-D of 32, 8 x 64 x 64", 8, (64, 64), 32, (12, 12)),
        _fno("FNO 2-D of 48, 4 x 80 x 80", 4, (80, 80), 48, (16, 16)),
        _fno("FNO 3-D of 24, 2 x 24 x 24 x 24", 2, (24, 24, 24), 24, (6, 6, 6)),
        _fno("FNO 3-D of 16, 2 x 32 x 20 x 20", 2, (32, 20, 20), 16, (8, 8, 8)),
        _lstm("LSTM 2 x 128, 32 x 128 steps", 32, 128, 128),
        _lstm("LSTM 2 x 96, 24 x 80 steps", 24, 80, 96),
        _vit("ViT 192 x 6, 16 x 32 x 32", 16, 32, 192, 6),
        _vit("ViT 144 x 8, 12 x 40 x 40", 12, 40, 144, 8),
        _graphs("Message passing of 64, 4 x 2250 edges", 4, 375, 2250, 64),
        _graphs("Message passing of 96, 2 x 6000 edges", 2, 700, 6000, 96),
        _mlp("MLP of 4 x 256, 512 rows", 512, (32, 256, 256, 256, 8)),
        _mlp("MLP of 3 x 384, 320 rows", 320, (24, 384, 384, 4)),
    )
}
SECOND = frozenset(list(PROBLEMS)[1::2])
# whose samples domain.py cuts over ranks: for time, memory, and messages
CUT = {
    problem.name: problem
    for problem in (
        _unet("UNet 3-D of 16, 1 x 96 x 96 x 96", 1, (96, 96, 96), 16),
        _unet("UNet 3-D of 8, 1 x 128 x 128 x 128", 1, (128, 128, 128), 8),
        _unet("UNet 3-D of 8, 1 x 32 x 32 x 32", 1, (32, 32, 32), 8),
    )
}
