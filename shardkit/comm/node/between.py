"""Sums between nodes, by messages of one rank of each.

Between nodes a message takes long to begin, so an all-reduce waits for as few in a row as it can.
On two nodes, and of small arrays on a few, each node sends its sums to all others, and all add
them: one message, where reduce-scatter and all-gather are two. Two nodes send as many bytes either
way.
"""

from functools import partial

import numpy

from ...array.arena import empty
from ..channel import ShortCall, WrappedChannel
from ..checks import PIECE_TAG, pieces_of, shares_of
from ..collectives.ordered import SCRATCH_ELEMENTS, add_slices
from ..collectives.turns import each_ahead, each_window_to_owner
from ..operations import ReductionOperation
from .channel import SMALL_BYTES

FEW_NODES = 8  # on more, MPI's trees of messages are better for small arrays than one to each
COMBINE = {
    ReductionOperation.SUM: add_slices,
    ReductionOperation.AVERAGE: add_slices,  # scaled afterwards
    ReductionOperation.MIN: lambda slices, out: numpy.minimum.reduce(slices, out=out),
    ReductionOperation.MAX: lambda slices, out: numpy.maximum.reduce(slices, out=out),
}


class NodeSums:
    """Reductions over nodes.

    far           messages between one rank per node
    small_bytes   up to which all nodes add all of an array
    """

    def __init__(self, far, small_bytes: int):
        self._far, self._small_bytes = far, small_bytes

    def add_all_of(self, mine) -> bool:
        """Return True if every node adds all sums of its share, and not a part of them."""
        nodes = self._far.size
        return nodes == 2 or (nodes <= FEW_NODES and mine.nbytes <= self._small_bytes)

    def add(self, parts, out, op) -> None:
        """Leave the reduction over nodes of this node's part in `out`, which may be that part.

        parts   what each node gets from this one: views of one array, or the same one for all
        A window at a time, so that the scratch stays small; the next one travels meanwhile.
        """
        window = SCRATCH_ELEMENTS // self._far.size
        largest = max(part.size for part in parts)
        room = self._far.size * min(window, largest)
        scratch = [empty(room, out.dtype) for _ in range(0, largest, window)[:2]]
        each_ahead(
            each_window_to_owner(self._far, parts, out, window, scratch, PIECE_TAG, COMBINE[op])
        )


class RoundsChannel(WrappedChannel):
    """The messages of many ranks that levels do not suit: large sums go in rounds.

    small_bytes   up to which MPI reduces an array
    """

    def __init__(self, messages, small_bytes: int = SMALL_BYTES):
        super().__init__(messages)
        self._sums, self._small_bytes = NodeSums(messages, small_bytes), small_bytes
        self._ways = {"all_reduce": self._add, "reduce_scatter": self._add_slices}

    def plan(self, verb, *arguments):
        if verb not in self._ways or not self._suits(arguments[0], arguments[-1]):
            return self.inside.plan(verb, *arguments)
        return ShortCall(partial(self._ways[verb], *arguments), self.inside, verb, arguments)

    def adds_in_tree_order(self, num_bytes, dtype):
        return num_bytes > self._small_bytes and dtype.kind in "fiu"

    def _suits(self, array, op) -> bool:
        return op in COMBINE and self.adds_in_tree_order(array.nbytes, array.dtype)

    def _add(self, array, op) -> bool:
        counts = shares_of(array.size, self.size)
        parts = pieces_of(array, counts)
        self._add_slices(array, parts[self.rank], counts, op)
        self.inside.run("all_gather", parts[self.rank], array, counts)
        return True

    def _add_slices(self, send, receive, counts, op) -> bool:
        self._sums.add(pieces_of(send, counts), receive, op)
        return True
