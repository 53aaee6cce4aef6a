"""What the planner asks of a model: its blocks, how large each is, and what of it can be cut.

    Shape          the contract
      ModelShape   a GPT (model.py)
      MLPShape     an MLP on rows of a table (mlp.py)
      GridShape    a model of grids that was run on small ones (grid.py)

The arrays that a block keeps (activations.py) and the seconds that it takes (operations.py) go by
the kind of shape too: `tables` and `seconds` there have one function for each kind.
"""

from abc import ABC, abstractmethod
from dataclasses import fields
from functools import singledispatch
from typing import NamedTuple


def hashed_once(kind):
    """Let the values of a frozen dataclass keep their hash: caches look them up all the time."""
    names = [each.name for each in fields(kind)]

    def keeping(self):
        kept = vars(self)
        if "_hash" not in kept:
            kept["_hash"] = hash(tuple(getattr(self, name) for name in names))
        return kept["_hash"]

    kind.__hash__ = keeping
    return kind


class Share(NamedTuple):
    """What a rank has of the samples of a micro-batch, which ranks may share.

    items    of all its samples together, as many rows of a grid as its points are
    samples  whole ones, or parts of them
    edges    sides of the parts where a rank in the middle meets others; of a grid in rows
    """

    items: float
    samples: int = 1
    edges: float = 0


class Shape(ABC):
    """A model by its sizes, without any array; hashable, since caches look it up all the time.

    sequence_length   items of a sample: tokens of a sequence, 1 for a row of a table
    message_elements  of an item, on its way from a stage to the next: the most between two blocks
    tied              the last block uses a parameter of the first
    shared_elements   of that parameter
    is_uniform        all blocks but the first and the last are alike
    is_compared       planned steps of such models were compared with measured ones
    words             what samples and items are called: ("sequences", "tokens")
    """

    sequence_length: int
    message_elements: int
    tied: bool = False
    shared_elements: int = 0
    is_uniform: bool = True
    is_compared: bool = True
    words: tuple[str, str]

    @property
    @abstractmethod
    def blocks(self) -> tuple[str, ...]:
        """The kinds of the blocks, in order; blocks of one kind are alike."""

    @abstractmethod
    def block_elements(self, block: str, tensor: int = 1) -> int:
        """Return the number of parameters of a block on one tensor rank."""

    @abstractmethod
    def multiplied_elements(self, block: str, tensor: int = 1) -> int:
        """Return the elements of the matrices that a block multiplies with on one tensor rank."""

    @abstractmethod
    def input_elements(self, block: str) -> int:
        """Return the elements of an item that a block takes, where it is computed again."""

    @abstractmethod
    def is_recomputed(self, block: str, splits_backward: bool) -> bool:
        """Return whether full recomputation runs this block again in the backward.

        splits_backward   of the software: shardkit's own
        """

    @property
    @abstractmethod
    def num_flops_per_item(self) -> int:
        """Operations of forward and backward for a token, or a row."""

    @abstractmethod
    def why_not_cut(self, tensor: int, is_sequence_parallel: bool) -> str | None:
        """Return why the model is not cut over this many tensor ranks; None if it is."""

    def why_not_shared(self, cut: tuple[int, ...]) -> str | None:
        """Return why samples are not shared by so many domain ranks along each dim; None if they
        are.
        """
        if len(cut) > 1:
            return f"{self.words[1]} are shared along one dim, not by {by(cut)} domain ranks"
        if self.sequence_length < cut[0]:
            return f"{self.sequence_length} {self.words[1]} of a sample on {cut[0]} domain ranks"
        return None

    def unit_elements(self, unit: tuple[str, ...], tensor: int) -> tuple[int, ...]:
        """Return the parameters that are gathered together of a unit of these blocks."""
        return (sum(self.block_elements(block, tensor) for block in unit),)

    def ring_elements(self, tensor: int, domain: int) -> float:
        """Return the elements of a block of keys and values of a sample that domain ranks send on;
        0 if none goes round.
        """
        return 0.0

    @property
    def parameter_count(self) -> int:
        return sum(self.block_elements(block) for block in self.blocks)


@singledispatch
def cuts_of(shape: Shape, domain: int) -> list[tuple[int, ...]]:
    """Return the ways to consider in which so many ranks share samples: how many along each dim."""
    return [(domain,)]


@singledispatch
def share_of(shape: Shape, samples: int, cut: tuple[int, ...]) -> Share:
    """Return the largest share of so many samples that a rank has, by the ranks along each dim."""
    items = -(-shape.sequence_length // cut[0])
    return Share(samples * items, samples, samples * min(cut[0] - 1, 2))


def by(cut: tuple[int, ...]) -> str:
    """Return the numbers of ranks along each dim as "2 x 3"."""
    return " x ".join(map(str, cut))


def division(what: str, parts: str, count: int, by: int) -> str:
    """Return the arithmetic of a division with a remainder."""
    return f"{what} = {parts} x {count // by} + {count % by}"
