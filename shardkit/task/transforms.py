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
from ..arguments import is_integer, is_number, require
from ..array.dtypes import is_floating
from ..data.draw import Draw
from ..data.samples import Samples, SamplesOf
from ..tree import map_tree
from .given import as_samples

__all__ = ["Augmented", "crop", "flip", "mask", "mixup", "noise"]

_CHANGE = "a function (x, y, draw) that returns (x, y)"


class Augmented(SamplesOf):
    """Samples of another source, changed in training; validation sees them as they are.

    samples    what sk.Training takes: Samples, a pair of arrays (x, y), or a data set
    change     (x, y, draw) -> x, y of a batch of whole samples, with the draw of these
    partners   change is told a fourth argument: the (x, y) of another sample for each, any one of
               those that are trained on
    """

    reads_parts = False

    def __init__(
        self, samples: Any, change: Callable[..., tuple[Any, Any]], *, partners: bool = False
    ) -> None:
        super().__init__(as_samples(samples))
        require(callable(change), "change", change, _CHANGE)
        wanted = "samples by number, not of a stream"
        require(self.is_numbered or not partners, "samples", samples, wanted)
        self._change, self._partners = change, partners

    def selected(self, ranges: Any) -> Samples:
        source = self.source.selected(ranges)
        return Augmented(source, self._change, partners=self._partners)

    def read(self, numbers: Any, draw: Draw | None = None, part: Any = None) -> tuple[Any, Any]:
        if draw is None:
            return self._read(numbers, None, part)
        told = [*self._read(numbers, draw.named("source")), draw]
        if self._partners:
            told += [self._read(draw.integers(len(self)), draw.named("partners"))]
        changed = self._change(*told)
        is_pair = isinstance(changed, (tuple, list)) and len(changed) == 2
        require(is_pair, "change", type(changed), _CHANGE)
        return tuple(changed) if part is None else part.cut(*changed)


def mixup(samples: Any, alpha: float = 0.2) -> Augmented:
    """Return samples of which each is mixed in training with any one of those trained on.

    samples   as of Augmented; x and y are floating: classes as numpy.eye(10)[y]
    alpha     of the distribution Beta(alpha, alpha) of the share
    Source: mixup (arXiv 1710.09412).
    """
    require(is_number(alpha, above=0), "alpha", alpha, "a finite number above 0")

    def change(x, y, draw, others):
        shares = numpy.array([[each.beta(alpha, alpha)] for each in draw.generators()])

        def mixed(one, other):
            share = _along(shares.astype(_floating(one)), one, -1)
            return share * one + (1 - share) * other

        return map_tree(mixed, x, others[0]), map_tree(mixed, y, others[1])

    return Augmented(samples, change, partners=True)


def flip(arrays: Any, draw: Draw, dim: int = -1, probability: float = 0.5) -> Any:
    """Return samples of which some are reversed along a dim."""
    is_chosen = _chosen(draw, probability, 1)
    return _taken(arrays, dim, lambda places: numpy.where(is_chosen, places[::-1], places))


def crop(arrays: Any, draw: Draw, padding: int, dims: Shape = (-2, -1)) -> Any:
    """Return samples padded with copies of their edges, and cut at a random place to their size."""
    require(is_integer(padding, at_least=0), "padding", padding, "an integer, at least 0")
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
        value = numpy.asarray(fill).astype(array.dtype)
        require(is_floating(value.dtype) or value == fill, "fill", fill, f"one of {array.dtype}")
        return numpy.where(_chosen(draw, probability, *array.shape[1:]), value, array)

    return map_tree(masked, arrays)


def _chosen(draw: Draw, probability: float, *shape: int):
    is_share = is_number(probability, at_least=0) and probability <= 1
    require(is_share, "probability", probability, "a number from 0 to 1")
    return draw.uniform(*shape) < probability


def _taken(arrays, dim: int, moved: Callable[[Any], Any]):
    """Return samples of elements at other places along a dim; moved: [length] -> [n, length]."""

    def taken(array):
        is_inside = is_integer(dim) and 0 < abs(dim) < array.ndim
        require(is_inside, "dim", dim, f"one behind that of the samples, of an array {array.shape}")
        places = _along(moved(numpy.arange(array.shape[dim])), array, dim)
        return numpy.take_along_axis(array, places, dim)

    return map_tree(taken, arrays)


def _along(values, array, dim: int):
    """Return values of each sample along a dim [n, length], to be broadcast with an array."""
    shape = [1] * array.ndim
    shape[dim], shape[0] = values.shape[1], len(values)
    return values.reshape(shape)


def _floating(array) -> numpy.dtype:
    wanted = "floating point numbers, as numpy.eye(10)[y] of classes, for nn.BCEWithLogitsLoss"
    require(is_floating(array.dtype), "dtype", str(array.dtype), wanted)
    return array.dtype
