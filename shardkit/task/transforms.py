"""Augmentation: samples that are changed at random in training, alike on every mesh.

    def change(x, y, draw):
        x, y = transforms.flip((x, y), draw, dim=-1)     # y is a field on the same grid
        return transforms.noise(x, draw, 0.1), y

    rows = transforms.mixup(transforms.Augmented(rows, change))

Arrays [n, ...], or trees of them, change alike, and keep their shapes and dtypes.
"""

from collections.abc import Callable
from typing import Any

import numpy

from ..annotations import Shape
from ..arguments import require
from ..array.dtypes import is_floating
from ..data.draw import Draw
from ..data.samples import SamplesOf, reader_of
from ..tree import map_tree
from .given import as_samples

__all__ = ["Augmented", "crop", "flip", "mask", "mixup", "noise"]


class Augmented(SamplesOf):
    """Samples of another source, changed in training; validation sees them as they are.

    samples   what sk.Training takes: Samples, a pair of arrays (x, y), or a data set
    change    (x, y, draw) -> x, y of a batch of whole samples, with the draw of these
    """

    reads_parts = False

    def __init__(self, samples: Any, change: Callable[..., tuple[Any, Any]]) -> None:
        super().__init__(as_samples(samples))
        self._change = change

    def read(self, numbers: Any, draw: Draw | None = None, part: Any = None) -> tuple[Any, Any]:
        if draw is None:
            return self._read(numbers, None, part)
        x, y = self._read(numbers, draw.named("source"))
        x, y = self._change(x, y, draw)
        return (x, y) if part is None else part.cut(x, y)


def mixup(samples: Any, alpha: float = 0.2) -> Augmented:
    """Return samples of which each is mixed in training with any one of the whole data set.

    samples   as of Augmented; x and y are floating: classes as numpy.eye(10)[y]
    alpha     of the distribution Beta(alpha, alpha) of the share
    Source: mixup (arXiv 1710.09412).
    """
    source = as_samples(samples)
    read = reader_of(source)
    require(source.is_numbered, "samples", samples, "samples by number, not of a stream")

    def change(x, y, draw):
        others = read(draw.integers(len(source)), draw.named("partners"))
        shares = numpy.array([[each.beta(alpha, alpha)] for each in draw.generators()])

        def mixed(one, other):
            share = _along(shares.astype(_floating(one)), one, -1)
            return share * one + (1 - share) * other

        return map_tree(mixed, x, others[0]), map_tree(mixed, y, others[1])

    return Augmented(source, change)


def flip(arrays: Any, draw: Draw, dim: int = -1, probability: float = 0.5) -> Any:
    """Return samples of which some are reversed along a dim."""
    is_chosen = draw.uniform(1) < probability
    return _taken(arrays, dim, lambda places: numpy.where(is_chosen, places[::-1], places))


def crop(arrays: Any, draw: Draw, padding: int, dims: Shape = (-2, -1)) -> Any:
    """Return samples padded with copies of their edges, and cut at a random place to their size."""
    for dim in dims:
        moves = draw.integers(2 * padding + 1, 1) - padding
        arrays = _taken(arrays, dim, lambda places: (places + moves).clip(0, places[-1]))
    return arrays


def noise(arrays: Any, draw: Draw, scale: float) -> Any:
    """Return samples with normal noise of this standard deviation."""

    def noisy(array):
        normal = draw.normal(*array.shape[1:])
        return array + (scale * normal).astype(_floating(array))

    return map_tree(noisy, arrays)


def mask(arrays: Any, draw: Draw, probability: float, fill: float = 0.0) -> Any:
    """Return samples with some of their elements replaced by a value."""

    def masked(array):
        is_chosen = draw.uniform(*array.shape[1:]) < probability
        return numpy.where(is_chosen, array.dtype.type(fill), array)

    return map_tree(masked, arrays)


def _taken(arrays, dim: int, moved: Callable[[Any], Any]):
    """Return samples of elements at other places along a dim; moved: [length] -> [n, length]."""

    def taken(array):
        places = _along(moved(numpy.arange(array.shape[dim])), array, dim)
        return numpy.take_along_axis(array, places, dim)

    return map_tree(taken, arrays)


def _along(values, array, dim: int):
    """Return values of each sample along a dim [n, length], to be broadcast with an array."""
    is_inside = dim % array.ndim > 0 or values.shape[1] == 1
    require(is_inside, "dim", dim, f"one behind that of the samples, of an array {array.shape}")
    shape = [1] * array.ndim
    shape[dim], shape[0] = values.shape[1], len(values)
    return values.reshape(shape)


def _floating(array) -> numpy.dtype:
    wanted = "floating point numbers, as numpy.eye(10)[y] of classes, with a loss that takes them"
    require(is_floating(array.dtype), "dtype", str(array.dtype), wanted)
    return array.dtype
