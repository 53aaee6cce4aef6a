"""A model of grids, by what its blocks had on small ones (trace.py): UNet, FNO, ResNet.

An item is a row of the grid: its points along all other dims. Ranks of the domain axis share rows,
and keep and send what layers read of others' besides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import zip_longest
from math import prod
from operator import truediv

from ..layout.cuts import divisors
from .activations import Row, held_share, tables
from .collectives import SEND, RankGroup, collective_seconds
from .operations import BlockSeconds, Setting, accumulation_seconds, seconds
from .shape import Shape, Share, by, cuts_of, hashed_once, share_of
from .software import Software
from .trace import PASSES, Traced, TracedBlock

_ITEM_BYTES = 4  # of what was traced


@hashed_once
@dataclass(frozen=True)
class GridShape(Shape):
    """A model of grids.

    name       of the model
    traced     its blocks
    elements   parameters of each block
    parts      parameters of what a model of one block gathers by itself; () if it has several
    grid       of a sample
    """

    name: str
    traced: Traced
    elements: tuple[int, ...]
    parts: tuple[int, ...]
    grid: tuple[int, ...]

    is_uniform = False
    is_compared = False
    words = "samples", "rows of a grid"

    @property
    def sequence_length(self) -> int:  # type: ignore[override]
        return self.grid[0]

    @property
    def row_points(self) -> int:
        """Points of a row."""
        return prod(self.grid[1:])

    @cached_property
    def _by_name(self) -> dict[str, tuple[TracedBlock, int]]:
        pairs = zip(self.traced.blocks, self.elements)
        return {block.name: (block, count) for block, count in pairs}

    def block(self, name: str) -> TracedBlock:
        return self._by_name[name][0]

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    @cached_property
    def message_elements(self) -> int:  # type: ignore[override]
        return max((self.input_elements(name) for name in self.blocks[1:]), default=0)

    def block_elements(self, block, tensor=1):
        return self._by_name[block][1]

    def unit_elements(self, unit, tensor):
        return self.parts or super().unit_elements(unit, tensor)

    def multiplied_elements(self, block, tensor=1):
        """Return the multiplications of a sample in the forward, which balance stages."""
        return round(self._of_sample(block).forward_flops / 2)

    def input_elements(self, block):
        return round(self._of_sample(block).entered / _ITEM_BYTES / self.sequence_length)

    def _of_sample(self, block):
        return self.block(block).at(prod(self.grid), 0, 1)

    def is_recomputed(self, block, splits_backward):
        return True

    @cached_property
    def num_flops_per_item(self) -> int:
        of_blocks = [self._of_sample(name) for name in self.blocks]
        flops = sum(getattr(each, f"{name}_flops") for each in of_blocks for name in PASSES)
        return round(flops / self.sequence_length)

    def why_not_cut(self, tensor, is_sequence_parallel):
        if tensor == 1:
            return None
        return f"a {self.name} has no layers that tensor ranks share in a plan"

    def why_not_shared(self, cut):
        refusal = self.traced.refusal or (self.traced.grid_refusal if len(cut) > 1 else "")
        if refusal:
            return refusal
        if len(cut) > len(self.grid):
            return f"{by(cut)} domain ranks cut more dims than a grid of {by(self.grid)} has"
        halved = self.traced.halved
        for words, length, ranks in zip(("rows", "columns", "layers"), self.grid, cut):
            if length // halved < ranks:
                return (
                    f"{length} {words} of a grid are {length // halved:g} deep in the {self.name}, "
                    f"fewer than {ranks} domain ranks: a part would be empty"
                )
        return None


@cuts_of.register
def _(shape: GridShape, domain: int) -> list[tuple[int, ...]]:
    """Return the cut of the first dim, and of more dims each time that with the shortest sides."""
    found: list[tuple[int, ...]] = [(domain,)]
    for num_dims in range(2, len(shape.grid) + 1):
        cuts = [cut for cut in _cuts(domain, num_dims) if cut[-1] > 1]
        allowed = [cut for cut in cuts if shape.why_not_shared(cut) is None]
        found += sorted(allowed, key=lambda cut: share_of(shape, 1, cut).edges)[:1]
    return found


@share_of.register
def _(shape: GridShape, samples: int, cut: tuple[int, ...]) -> Share:
    pairs = [*zip_longest(shape.grid, cut, fillvalue=1)]
    lengths = [-(-length // ranks) for length, ranks in pairs]
    rows = samples * prod(lengths) / shape.row_points
    sides = [min(ranks - 1, 2) for _, ranks in pairs]  # along each dim
    return Share(rows, samples, rows * sum(map(truediv, sides, lengths)))


def _cuts(domain: int, num_dims: int) -> list[tuple[int, ...]]:
    """Return so many numbers whose product is `domain`, in all ways."""
    if num_dims == 1:
        return [(domain,)]
    return [
        (first, *rest)
        for first in divisors(domain)
        for rest in _cuts(domain // first, num_dims - 1)
    ]


@tables.register
def _(shape: GridShape, software: Software) -> dict:
    """Return the rows of each block: for a row of the grid, for a sample, for an edge."""

    def rows(block: TracedBlock, name: str) -> list[Row]:
        kinds = {
            "inside": (block.per_point, shape.row_points),
            "edge": (block.per_edge, shape.row_points),
            "sample": (block.per_sample, 1),
            "call": (block.per_call, 1),
        }
        return [
            Row(getattr(figures, name) * times / _ITEM_BYTES, where)
            for where, (figures, times) in kinds.items()
        ]

    return {
        name: tuple(rows(shape.block(name), what) for what in ("kept", "deferred", "working"))
        for name in shape.blocks
    }


@held_share.register
@lru_cache(maxsize=256)
def _(shape: GridShape, software: Software, share: Share) -> float:
    points = share.items * shape.row_points
    return shape.traced.held_share(points, share.samples, software.arena_share)


@seconds.register
def _(shape: GridShape, block: str, at: Setting) -> BlockSeconds:
    """Return the seconds of products, of passes over memory, and of messages between ranks that
    share samples.
    """
    each = shape.block(block)
    points = at.share.items * shape.row_points
    edges = at.share.edges * shape.row_points
    figures = each.at(points, edges, at.micro_batch)
    forward, backward, weight = _computing(at, figures, each.counts)
    ahead, back, last = _travel(at, figures, each.counts)
    again = forward + ahead if at.recomputation == "full" else 0.0
    weight += accumulation_seconds(at, block)
    return BlockSeconds(forward + ahead, backward + back + again, weight + last)


def _computing(at: Setting, figures, counts: Sequence) -> list[float]:
    """Return the seconds of each pass without messages."""
    found = []
    for name, count in zip(PASSES, counts):
        flops, moved = [getattr(figures, f"{name}_{what}") for what in ("flops", "moved")]
        computing = at.products(flops, count.products) if flops else 0.0
        passes = at.elements(moved / _ITEM_BYTES)
        found.append(computing + passes + at.calls(count.calls + count.products))
    return found


def _travel(at: Setting, figures, counts: Sequence) -> list[float]:
    """Return the seconds of the messages of each pass, which ranks are taken to wait for: those of
    each dim that is cut.
    """
    found = []
    for name, count in zip(PASSES, counts):
        number = count.halos * sum(ranks > 1 for ranks in at.cut)
        number += count.others * (at.domain > 1)
        scale = at.software.activation_bytes / _ITEM_BYTES / max(number, 1)
        num_bytes = getattr(figures, f"{name}_sent") * scale
        group = RankGroup(at.domain, at.tensor)
        one = collective_seconds(at.cluster, SEND, num_bytes, group) if number else 0.0
        found.append(number * one)
    return found
