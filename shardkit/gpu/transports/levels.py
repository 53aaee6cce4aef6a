"""Swaps of pieces of GPU memory among some ranks of a group, and sums made of them.

Where a group has several nodes of as many ranks, a power of two, the tree over ranks adds each node
first. So the ranks of a node add what all ranks at their place get, and then those at one place of
all nodes add these sums: between nodes go no more bytes than in a ring.

    ranks 0 1 | 2 3     near: 0 and 1 add what 0 and 2 get (rank 0), what 1 and 3 get (rank 1)
                        far:  0 and 2 add their sums, 1 and 3 add theirs
                              of more than 16 nodes, in rounds (collectives/rounds.py)

Slices are gathered the other way: first between nodes, then within each.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from ...array.arena import empty
from ...array.backend import xp_of
from ...comm.checks import pieces_of, ranks_per_node, starts_of
from ...comm.collectives.ordered import add_slices, reduce_to_owners
from ...comm.collectives.rounds import DIRECT
from ...comm.collectives.turns import WIDE, each_window_to_owner, to_all
from ...comm.wire import HALF_FLOATS

SCRATCH_ELEMENTS = 1 << 22  # on the GPU, for slices that are to be added


class NodeSwaps:
    """One rank's part. Every method is collective over the group.

    hosts   the node of each rank of the group; None: all are on one
    swap    function (outgoing, incoming) of (address, bytes) for each rank of the group
    """

    def __init__(self, rank: int, size: int, hosts: Sequence[str] | None, swap: Callable):
        here = ranks_per_node(hosts or [""])
        if here is None or here & (here - 1):  # not the tree over all ranks
            here = size
        first = rank // here * here
        self._rank, self._size = rank, size
        self._near = range(first, first + here)  # the ranks of this node
        self._far = range(rank % here, size, here)  # those at this place of every node
        self._swap = swap
        self._has_nodes = hosts is not None  # else memory of one carries what it can

    def gather(self, own, whole, counts) -> None:
        """Gather the slices `own` of all ranks in `whole`, of these counts."""
        pieces = pieces_of(whole, counts)
        self._gather_among(self._far, own, [pieces[rank] for rank in self._far])
        for rank in self._far if len(self._near) > 1 else ():
            there = pieces[self._near_of(rank)]  # of its node: what came from it goes to neighbors
            self._gather_among(self._near, pieces[rank], there)

    def _gather_among(self, ranks: range, own, pieces: list) -> None:
        """Gather over these ranks; pieces: where what each has goes."""
        if self._goes_in_rounds(ranks):
            lane = _Lane(ranks.index(self._rank), ranks, self._among)
            if own.size and address_of(own) != address_of(pieces[lane.rank]):
                pieces[lane.rank][...] = own
            _run(to_all(lane, pieces, 0))
        else:
            outgoing = [span_of(own)] * len(pieces)
            self._among(ranks, outgoing, [*map(span_of, pieces)])

    def add(self, flat, counts, out) -> None:
        """Leave the sum over ranks of this rank's slice of `flat` in `out`."""
        if len(self._far) == 1:
            return self._add_among(self._near, flat, counts, out)
        own = counts[self._far.start :: self._far.step]
        dtype = WIDE if flat.dtype.name in HALF_FLOATS else flat.dtype
        sums = empty(sum(own), dtype, xp_of(flat))
        starts = [*starts_of(own), sums.size]
        pieces = pieces_of(flat, counts)
        largest = max(*counts, 1) * len(self._near)
        at_once = max(1, SCRATCH_ELEMENTS // largest)
        for first in range(0, len(own), at_once):
            end = min(first + at_once, len(own))
            packed, sizes = self._by_place(pieces, range(first, end))
            of_nodes = sums[starts[first] : starts[end]]
            self._add_among(self._near, packed.astype(dtype, copy=False), sizes, of_nodes)
        self._add_among(self._far, sums, own, out)

    def _by_place(self, pieces: list, nodes: range):
        """Return pieces of these nodes' ranks, all at one place of a node side by side; and the
        elements of each place.
        """
        here = len(self._near)
        of_nodes = pieces[nodes.start * here : nodes.stop * here]
        places = [of_nodes[place::here] for place in range(here)]
        sizes = [sum(map(len, there)) for there in places]
        return xp_of(*pieces).concatenate([*chain(*places)]), sizes

    def _near_of(self, rank: int) -> slice:
        """Return the ranks of the node of this one."""
        here = len(self._near)
        first = rank // here * here
        return slice(first, first + here)

    def _add_among(self, ranks: range, flat, counts, out):
        """Add over these ranks; counts: of the slices of each."""
        place = ranks.index(self._rank)
        if self._goes_in_rounds(ranks):
            return self._add_in_rounds(_Lane(place, ranks, self._among), flat, counts, out)
        swap = partial(self._swap_arrays, ranks)
        reduce_to_owners(swap, place, flat, counts, out, SCRATCH_ELEMENTS)

    def _goes_in_rounds(self, ranks: range) -> bool:
        return self._has_nodes and len(ranks) > DIRECT

    def _add_in_rounds(self, lane: "_Lane", flat, counts, out):
        """Add as the rounds of rounds.py: a swap each, with a few ranks."""
        parts = pieces_of(flat, counts)
        window = max(1, SCRATCH_ELEMENTS // lane.size)
        room = empty(lane.size * min(window, max(counts)), flat.dtype, xp_of(flat))
        for turns in each_window_to_owner(lane, parts, out, window, [room], 0, add_slices):
            _run(turns)

    def _swap_arrays(self, ranks, send, receive, send_counts, receive_counts, send_starts):
        """Do the all_to_all of a channel of these ranks on CuPy arrays."""
        outgoing = spans_of(send, send_starts, send_counts)
        incoming = spans_of(receive, starts_of(receive_counts), receive_counts)
        self._among(ranks, outgoing, incoming)

    def _among(self, ranks: range, outgoing: list, incoming: list) -> None:
        """Swap with these ranks alone; (address, bytes) for each of them."""
        sent = [(0, 0)] * self._size
        received = [(0, 0)] * self._size
        for place, rank in enumerate(ranks):
            sent[rank] = outgoing[place]
            received[rank] = incoming[place]
        self._swap(sent, received)


@dataclass(frozen=True)
class _Lane:
    """Stands in the place of a channel of some ranks: an exchange is a swap."""

    rank: int
    ranks: range
    among: Callable

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    def exchange(self, outgoing, incoming, tag):
        """Give arrays to some of these ranks, and get others; [(rank, array [n])]."""
        self.among(self.ranks, self._spans(outgoing), self._spans(incoming))

    def _spans(self, pieces) -> list[tuple[int, int]]:
        found = [(0, 0)] * self.size
        for rank, array in pieces:
            found[rank] = span_of(array)
        return found


def _run(turns: Iterator) -> None:
    """Take all turns: a swap is done, or in the order of the stream."""
    for _ in turns:
        pass


def span_of(array) -> tuple[int, int]:
    """Return (address, bytes) of a CuPy array."""
    return address_of(array), array.nbytes


def spans_of(array, starts, counts) -> list[tuple[int, int]]:
    """Return (address, bytes) of pieces of a CuPy array."""
    return spans_at(address_of(array), starts, counts, array.dtype.itemsize)


def spans_at(address: int, starts, counts, itemsize: int) -> list[tuple[int, int]]:
    """Return (address, bytes) of pieces of the elements that begin there."""
    return [(address + start * itemsize, count * itemsize) for start, count in zip(starts, counts)]


def address_of(array) -> int:
    """Return the address of the first byte of a CuPy array."""
    return array.__cuda_array_interface__["data"][0]
