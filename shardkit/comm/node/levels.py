"""A group on several nodes, with as many of its ranks on each: memory of a node, then messages.

    ranks    0 1 | 2 3 | 4 5      near: the ranks of one node, in its memory     (0 1) (2 3) (4 5)
                                  far:  those at the same place of every node    (0 2 4) (1 3 5)

    reduce-scatter   near: each rank adds what all ranks at its place get;  far: each adds its own
    all-reduce       near: reduce-scatter;  far: reduce-scatter, all-gather;  near: all-gather
    all-gather       far: the slices of all ranks at its place;  near: all slices

A sum leaves its node once, and not once per rank. Where a node has a power of two of the ranks, the
tree over all ranks (see ordered.py) adds each node first, so the bits are those of that tree.
"""

from functools import partial

from ...array.arena import empty
from ..channel import ArrayMemory, ShortCall, WrappedChannel, bytes_of
from ..checks import pieces_of, shares_of, starts_of
from ..collectives.ordered import add_slices
from ..collectives.turns import to_all, to_owner, to_owner_to_all
from ..operations import ReductionOperation
from .between import COMBINE, FEW_NODES, NodeSums
from .channel import CALLS_BEFORE_OPENING, SMALL_BYTES
from .noted import load

SUM = ReductionOperation.SUM
MIN, MAX = ReductionOperation.MIN, ReductionOperation.MAX


class LevelsChannel(WrappedChannel):
    """One rank's end: the levels, around the messages of all ranks.

    messages    the channel inside, which does what levels do not
    near, far   as of Levels
    small_bytes as of SharedMemoryChannel: the first small calls go through messages, so that a
                short program need not load Numba
    """

    def __init__(self, messages, near, far):
        super().__init__(messages)
        self.memory = ArrayMemory(near.memory.heap, address=messages.memory.address)
        self.levels = levels = Levels(near, far, SMALL_BYTES)
        self.small_bytes = SMALL_BYTES
        self._num_calls_left = CALLS_BEFORE_OPENING
        self._ways = {
            "barrier": levels.meet,
            "all_reduce": levels.sum,
            "reduce_scatter": levels.sum_slices,
            "all_gather": levels.gather,
        }

    def close(self):
        self.levels.close()
        super().close()

    def plan(self, verb, *arguments):
        if verb not in self._ways:
            return self.inside.plan(verb, *arguments)
        if self._suits(bytes_of(arguments)) or self._num_calls_left <= 1:
            load("barrier", "reduce_scatter", "all_gather")
        way = partial(self._take, verb, arguments)
        return ShortCall(way, self.inside, verb, arguments)

    def adds_in_tree_order(self, num_bytes, dtype):
        return self._suits(num_bytes) and self.levels.adds(dtype, SUM)

    def _suits(self, num_bytes: int) -> bool:
        """Return True if levels take a call that carries so much. The same on all ranks."""
        is_open = self._num_calls_left <= 0 and self.levels.far.size <= FEW_NODES
        return num_bytes > self.small_bytes or is_open

    def _take(self, verb: str, arguments) -> bool:
        """Make a call; False, and nothing was done, if it goes through messages."""
        num_bytes = bytes_of(arguments)
        if verb == "all_gather":  # nothing to add: MPI's own is quicker where it is small
            is_taken = num_bytes > self.small_bytes
        else:
            is_taken = self._suits(num_bytes)
            self._num_calls_left -= 0 if is_taken else 1
        if is_taken and verb in ("all_reduce", "reduce_scatter"):
            array, op = arguments[0], arguments[-1]
            is_taken = self.levels.adds(array.dtype, op)
        if is_taken:
            self._ways[verb](*arguments)
        return is_taken


class Levels:
    """What the ranks of several nodes do together, first within each and then between them.

    near, far     the memory of this rank's node, and messages between one rank per node
    small_bytes   as of NodeSums
    """

    def __init__(self, near, far, small_bytes: int):
        self.near, self.far = near, far
        self._place, self._here = near.rank, near.size
        self._nodes = NodeSums(far, small_bytes)

    def close(self) -> None:
        """Close both. Collective."""
        self.near.close()
        self.far.close()

    def adds(self, dtype, op) -> bool:
        """Return True if such reductions are done here; sums are the tree over all ranks."""
        is_in_order = op in (MIN, MAX) or self._here & (self._here - 1) == 0
        return op in COMBINE and is_in_order and self.near.loops.adds(dtype, op)

    # ---- collectives, with the arguments of a channel's ------------------------------------------

    def meet(self) -> None:
        """Wait for all of this node, and then for all at this place of every node."""
        self.near.run("barrier")
        self.far.run("barrier")

    def sum_slices(self, send, receive, counts, op) -> None:
        """Leave this rank's slice of the sum in `receive`, which may be its own of `send`."""
        sums, own = self._sums_of_node(send, counts, op)
        self._nodes.add(pieces_of(sums, own), receive, op)

    def sum(self, array, op) -> None:
        """Leave the sum in the array."""
        mine, here = self._sum_at_place(array, op)
        if self._nodes.add_all_of(mine):
            self._nodes.add([mine] * self.far.size, mine, op)
        else:
            there = shares_of(mine.size, self.far.size)
            own = pieces_of(mine, there)[self.far.rank]
            self._nodes.add(pieces_of(mine, there), own, op)
            self.far.run("all_gather", own, mine, there)
        self.near.run("all_gather", mine, array, here)

    def gather(self, send, receive, counts) -> None:
        """Leave the slices of all ranks in `receive`."""
        own, nodes = counts[self._place :: self._here], self.far.size
        places = starts_of(counts)[self._place :: self._here]
        self.far.run("all_to_all", send, receive, [send.size] * nodes, own, [0] * nodes, places)
        self._to_neighbors(receive, counts)

    # ---- async (collectives/asynchronous.py): turns between nodes, and the end within a node -----

    def begin_sum(self, array, out, counts, scratch, tag):
        """Return (turns, last) of the sum in `array`, where that is `out`, or of a slice of it."""
        if out is not array:
            sums, own = self._sums_of_node(array, counts, SUM)
            return to_owner(self.far, pieces_of(sums, own), out, scratch, tag, add_slices), None
        mine, here = self._sum_at_place(array, SUM)
        if self._nodes.add_all_of(mine):
            turns = to_owner(self.far, [mine] * self.far.size, mine, scratch, tag, add_slices)
        else:
            there = shares_of(mine.size, self.far.size)
            turns = to_owner_to_all(self.far, pieces_of(mine, there), scratch, tag, add_slices)
        return turns, lambda: self.near.run("all_gather", mine, array, here)

    def begin_all_gather(self, receive, counts, tag):
        """Return (turns, last); this rank's slice is in its place already."""
        return (
            to_all(self.far, pieces_of(receive, counts)[self._place :: self._here], tag),
            lambda: self._to_neighbors(receive, counts),
        )

    # ---- parts of them ---------------------------------------------------------------------------

    def _sums_of_node(self, send, counts, op):
        """Return the node's sums of the slices of all ranks at this place, and their counts.

        The sums lie one after the other.
        """
        own, starts = counts[self._place :: self._here], starts_of(counts)
        sums = empty(sum(own), send.dtype)
        for node, out in enumerate(pieces_of(sums, own)):
            first = node * self._here
            there = counts[first : first + self._here]
            self.near.run(
                "reduce_scatter", send[starts[first] : starts[first] + sum(there)], out, there, op
            )
        return sums, own

    def _sum_at_place(self, array, op):
        """Add the node's sum of this place's share of `array`, in it.

        Return the share, and the counts of the shares of the node's ranks.
        """
        here = shares_of(array.size, self._here)
        mine = pieces_of(array, here)[self._place]
        self.near.run("reduce_scatter", array, mine, here, op)
        return mine, here

    def _to_neighbors(self, receive, counts) -> None:
        """Exchange the slices of all ranks at this place with the ranks of this node."""
        starts, slices = starts_of(counts), pieces_of(receive, counts)
        for first in range(0, len(counts), self._here):
            there = counts[first : first + self._here]
            self.near.run(
                "all_gather",
                slices[first + self._place],
                receive[starts[first] : starts[first] + sum(there)],
                there,
            )
