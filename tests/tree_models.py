"""Small models whose x, y, activations and predictions are trees, and batches for them.

    x (grid, time, kind) -> Enter -> (state, skip, kind) -> Step, Step, ... -> Leave -> Answer

The skip is made by Enter and used by Leave alone: steps only hand it on.

A form says which container is used everywhere.
"""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops

SAMPLES, WIDTH, KINDS = 12, 5, 4


@dataclass
class Fields:
    first: Any
    second: Any
    third: Any


@dataclass
class Answer:
    """What a dataclass is made of; its __init__ would refuse anything but an array."""

    mean: Any
    parts: Any


Named = namedtuple("Named", "first second third")
FORMS = {  # container: (made of three values, the three values of one)
    "dict": (lambda *v: dict(zip("abc", v)), lambda tree: tree.values()),
    "tuple": (lambda *v: v, tuple),
    "list": (lambda *v: list(v), list),
    "named tuple": (Named, tuple),
    "dataclass": (Fields, lambda tree: vars(tree).values()),
}


class Enter(nn.Module):
    def __init__(self, form, dtype):
        self.pack, self.unpack = FORMS[form]
        self.table = nn.Embedding(KINDS, WIDTH, dtype=dtype)
        self.map = nn.Linear(3, WIDTH, dtype=dtype)

    def forward(self, x):
        grid, time, kind = self.unpack(x)
        state = self.map(grid) * ops.reshape(time, (-1, 1)) + self.table(kind)
        return self.pack(state, [ops.tanh(state), None], kind)


class Step(nn.Module):
    def __init__(self, form, dtype, width=WIDTH):
        self.pack, self.unpack = FORMS[form]
        self.map = nn.Linear(width, width, dtype=dtype)

    def forward(self, x):
        state, skip, kind = self.unpack(x)
        return self.pack(state + ops.tanh(self.map(state)), skip, kind)


class Leave(nn.Module):
    def __init__(self, form, dtype):
        self.unpack = FORMS[form][1]
        self.map = nn.Linear(2 * WIDTH, 2, dtype=dtype)

    def forward(self, x):
        state, (skip, _), _ = self.unpack(x)
        mean = self.map(ops.concatenate([state, skip], 1))
        return Answer(mean, (ops.exp(mean * 0.5), state))


def distance(prediction, y):
    """The mean over the samples of what prediction and y = {mean, parts} differ by."""
    first, last = prediction.parts
    return (
        ops.mean(ops.sum((prediction.mean - nn.Tensor(y["mean"])) ** 2, 1))
        + ops.mean(ops.sum((first - nn.Tensor(y["parts"][0])) ** 2, 1)) * 0.5
        + ops.mean(ops.sum(last * last, 1)) * 0.1
    )


class Trees(nn.Module):
    """Enter, steps and Leave, as a list of blocks or in one forward()."""

    def __init__(self, form="dict", steps=3, dtype="float64", has_blocks=True):
        self.enter = Enter(form, dtype)
        self.steps = nn.ModuleList(Step(form, dtype) for _ in range(steps))
        self.leave = Leave(form, dtype)
        self.has_blocks = has_blocks
        self.loss = distance
        self.finish(3)

    def blocks(self):
        chain = [("enter", self.enter)]
        chain += [(f"steps.{number}", step) for number, step in enumerate(self.steps)]
        return [*chain, ("leave", self.leave)] if self.has_blocks else [("", self)]

    def forward(self, x):
        x = self.enter(x)
        for step in self.steps:
            x = step(x)
        return self.leave(x)


class Part(nn.Module):
    """A part of a UNet as a block: takes and gives (skip, skip, ..., x)."""

    def __init__(self, inner, change):
        self.inner, self._change = inner, change

    def forward(self, x):
        return self._change(self.inner, x)


def _down(level, x):
    return (*x, level(x[-1]))


def _up(doubling, x):
    *skips, skip, x = x
    return (*skips, doubling(x, skip))


class UNetOfBlocks(nn.Module):
    """models.UNet(1, 1, width=2, depth=2, groups=1, dtype="float64") as a list of blocks."""

    def __init__(self):
        unet = sk.models.UNet(1, 1, width=2, depth=2, groups=1, dtype="float64")
        self.enter = Part(unet.enter, lambda level, x: (level(x),))
        self.down = nn.ModuleList(Part(level, _down) for level in unet.down)
        self.up = nn.ModuleList(Part(doubling, _up) for doubling in reversed(list(unet.up)))
        self.project = Part(unet.project, lambda project, x: project(*x))
        self.loss = unet.loss

    def blocks(self):
        down = [(f"down.{number}", part) for number, part in enumerate(self.down)]
        up = [(f"up.{number}", part) for number, part in enumerate(self.up)]
        return [("enter", self.enter), *down, *up, ("project", self.project)]

    @staticmethod
    def name_in_unet(name):
        """Return what the UNet calls the parameter of this name."""
        name = name.replace(".inner", "")
        return name.replace("up.0", "up.x").replace("up.1", "up.0").replace("up.x", "up.1")


def tree_batch(form="dict", step=0, samples=SAMPLES, dtype="float64"):
    """Return the global batch of a step: x, y."""
    rng = numpy.random.default_rng(step)
    x = FORMS[form][0](
        rng.standard_normal((samples, 3)).astype(dtype),
        rng.standard_normal(samples).astype(dtype),
        rng.integers(0, KINDS, samples),
    )
    y = {
        "mean": rng.standard_normal((samples, 2)).astype(dtype),
        "parts": (rng.standard_normal((samples, 2)).astype(dtype),),
    }
    return x, y
