"""A group on several nodes, with as many of its ranks on each: memory of a node, then messages.

    ranks    0 1 | 2 3 | 4 5      near: the ranks of one node, in its memory     (0 1) (2 3) (4 5)
                                  far:  those at the same place of every node    (0 2 4) (1 3 5)

    reduce-scatter   near: each rank adds what all ranks at its place get;  far: each adds its own
    all-reduce       near: reduce-scatter;  far: reduce-scatter, all-gather;  near: all-gather
    all-gather       far: the slices of all ranks at its place;  near: all slices

A sum leaves its node once, and not once per rank. Where a node has a power of two of the ranks, the
tree over all ranks (see ordered.py) adds each node first, so the bits are those of that tree. Small
arrays go through messages: levels need several.
"""

from itertools import groupby

from ...array.arena import empty
from ..channel import WrappedChannel
from ..checks import pieces_of, shares_of, starts_of
from ..collectives.asynchronous import to_all, to_owner, to_owner_to_all
from ..collectives.ordered import reduce_to_owners
from ..operations import ReductionOperation
from .channel import SMALL_BYTES

SUM, AVERAGE = ReductionOperation.SUM, ReductionOperation.AVERAGE


def ranks_per_node(homes) -> int | None:
    """Return how many ranks of a group each of its nodes has, if levels suit it, else None.

    One node after the other, with equally many ranks.
    homes   of all ranks of the group: a name of the node; None where a rank sees only its own
    """
    lengths = [len(list(ranks)) for _, ranks in groupby(homes)]
    suits = (
        None not in homes
        and 1 < len(lengths) == len(set(homes))
        and len(set(lengths)) == 1
        and lengths[0] > 1
    )
    return lengths[0] if suits else None


class LevelsChannel(WrappedChannel):
    """One rank's end.

    messages    the channel inside, which does what is small
    near, far   the memory of this rank's node, and messages between one rank per node
    small_bytes arrays of up to so many bytes go through messages; the same on all ranks
    """

    def __init__(self, messages, near, far, *, small_bytes: int = SMALL_BYTES):
        super().__init__(messages)
        self.near = near
        self.far = far
        self.small_bytes = small_bytes
        self.heap, self.levels = near.heap, self
        self._place, self._here = near.rank, near.size

    def close(self):
        self.near.close()
        self.far.close()
        super().close()

    def adds(self, dtype, op) -> bool:
        """Return True if such reductions are done here: sums, as the tree over all ranks."""
        return (
            op in (SUM, AVERAGE)
            and self._here & (self._here - 1) == 0
            and self.near.adds(dtype, op)
        )

    def adds_in_tree_order(self, num_bytes, dtype):
        return num_bytes > self.small_bytes and self.adds(dtype, SUM)

    def reduce_scatter(self, send, receive, counts, op):
        """Leave this rank's slice of the sum in `receive`, which may be its own of `send`."""
        if send.nbytes <= self.small_bytes or not self.adds(send.dtype, op):
            return self.inside.reduce_scatter(send, receive, counts, op)
        partial, own = self._sums_of_node(send, counts)
        self._add_nodes(partial, own, receive)

    def all_reduce(self, array, op):
        if array.nbytes <= self.small_bytes or not self.adds(array.dtype, op):
            return self.inside.all_reduce(array, op)
        mine, here = self._sum_at_place(array)
        there = shares_of(mine.size, self.far.size)
        own = pieces_of(mine, there)[self.far.rank]
        self._add_nodes(mine, there, own)
        self.far.all_gather(own, mine, there)
        self.near.all_gather(mine, array, here)

    def all_gather(self, send, receive, counts):
        if receive.nbytes <= self.small_bytes:
            return self.inside.all_gather(send, receive, counts)
        own, nodes = counts[self._place :: self._here], self.far.size
        places = starts_of(counts)[self._place :: self._here]
        self.far.all_to_all(send, receive, [send.size] * nodes, own, [0] * nodes, places)
        self._to_neighbors(receive, counts)

    # ---- async (collectives/asynchronous.py): turns between nodes, and the end within a node -----

    def begin_reduce_scatter(self, send, receive, counts, scratch, tag):
        """Return the turns."""
        partial, own = self._sums_of_node(send, counts)
        return to_owner(self.far, pieces_of(partial, own), receive, scratch, tag)

    def begin_all_reduce(self, array, scratch, tag):
        """Return (turns, last)."""
        mine, here = self._sum_at_place(array)
        there = shares_of(mine.size, self.far.size)
        return (
            to_owner_to_all(self.far, pieces_of(mine, there), scratch, tag),
            lambda: self.near.all_gather(mine, array, here),
        )

    def begin_all_gather(self, receive, counts, tag):
        """Return (turns, last); this rank's slice is in its place already."""
        return (
            to_all(self.far, pieces_of(receive, counts)[self._place :: self._here], tag),
            lambda: self._to_neighbors(receive, counts),
        )

    # ---- parts of them ---------------------------------------------------------------------------

    def _sums_of_node(self, send, counts):
        """Return the node's sums of the slices of all ranks at this place, and their counts.

        The sums lie one after the other.
        """
        own, starts = counts[self._place :: self._here], starts_of(counts)
        partial = empty(sum(own), send.dtype)
        for node, out in enumerate(pieces_of(partial, own)):
            first = node * self._here
            there = counts[first : first + self._here]
            self.near.reduce_scatter(
                send[starts[first] : starts[first] + sum(there)], out, there, SUM
            )
        return partial, own

    def _sum_at_place(self, array):
        """Add the node's sum of this place's share of `array`, in it.

        Return the share, and the counts of the shares of the node's ranks.
        """
        here = shares_of(array.size, self._here)
        mine = pieces_of(array, here)[self._place]
        self.near.reduce_scatter(array, mine, here, SUM)
        return mine, here

    def _to_neighbors(self, receive, counts) -> None:
        """Exchange the slices of all ranks at this place with the ranks of this node."""
        starts, slices = starts_of(counts), pieces_of(receive, counts)
        for first in range(0, len(counts), self._here):
            there = counts[first : first + self._here]
            self.near.all_gather(
                slices[first + self._place],
                receive[starts[first] : starts[first] + sum(there)],
                there,
            )

    def _add_nodes(self, partial, counts, out) -> None:
        """Leave the sum over nodes of this rank's slice of `partial` in `out`.

        `out` may be that slice.
        """
        reduce_to_owners(self._between_nodes, self.far.rank, partial, counts, out)

    def _between_nodes(self, send, receive, send_counts, receive_counts, send_starts) -> None:
        self.far.all_to_all(
            send, receive, send_counts, receive_counts, send_starts, starts_of(receive_counts)
        )
