"""Collectives made of one thing: all ranks swap pieces of GPU memory.

    all_to_all         one swap
    all_gather         one swap: own slice to everybody, a slice from everybody
    reduce_scatter     for each window of the slices: a swap, and the owner adds as the tree over
                       ranks (ordered.py)
    all_reduce         a reduce_scatter in place, and an all_gather

Sums are added on the GPU, so their bits are those of the host, and half floats are added as
float32.

Where a group has several nodes of as many ranks, a power of two, the tree over ranks adds each node
first. So the ranks of a node add what all ranks at their place get, and then those at one place of
all nodes add these sums: between nodes go no more bytes than in a ring.

    ranks 0 1 | 2 3     near: 0 and 1 add what 0 and 2 get (rank 0), what 1 and 3 get (rank 1)
                        far:  0 and 2 add their sums, 1 and 3 add theirs
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import numpy

from ...array.arena import empty
from ...array.backend import xp_of
from ..checks import pieces_of, shares_of, starts_of
from ..collectives.ordered import reduce_to_owners
from ..node.levels import ranks_per_node
from ..operations import CompleteHandle, Handle, ReductionOperation
from ..staging import Pieces
from ..wire import HALF_FLOATS

SUM = ReductionOperation.SUM
WIDE = numpy.dtype("float32")  # in which half floats are added
SCRATCH_ELEMENTS = 1 << 22  # on the GPU, for slices that are to be added


class SwapTransport:
    """One rank's end. Every method is collective over the group.

    A transport has _work, _swap, _flat and _handle; what they do to GPU memory is in the order in
    which they are called.
    hosts   the node of each rank of the group; None: all are on one
    """

    def __init__(self, group, hosts: Sequence[str] | None = None):
        self._group = group
        size, here = group.world_size, ranks_per_node(hosts or [""])
        is_in_order = here is not None and here & (here - 1) == 0
        self._here = here if here is not None and is_in_order else size
        first = group.rank // self._here * self._here
        self._near = range(first, first + self._here)  # the ranks of this node
        self._far = range(group.rank % self._here, size, self._here)  # those at this place

    def adds_in_tree_order(self, num_bytes, dtype):
        return self._is_tree(dtype, SUM)

    def _is_tree(self, dtype, op) -> bool:
        """Return True if such values are added here, as the tree over ranks."""
        return op is SUM and (dtype.kind in "iuf" or dtype.name in HALF_FLOATS)

    def _work(self, verb: str, *ports) -> AbstractContextManager:
        """Return the context manager around a verb, which follows the arrays' kernels."""
        raise NotImplementedError

    def _swap(self, outgoing: list[tuple[int, int]], incoming: list[tuple[int, int]]) -> None:
        """Give the ones, get the others; the own pieces are of one size.

        outgoing, incoming   (address, bytes) for each rank
        """
        raise NotImplementedError

    def _flat(self, port):
        """Return the port's array as CuPy's, [size], a view."""
        raise NotImplementedError

    def _handle(self, *ports) -> Handle:
        """Return the handle of all that was done with these ports."""
        raise NotImplementedError

    def make(self, verb, *parts):
        return getattr(self, verb)(*parts)

    def begin(self, verb, *parts):
        return self.make(verb, *parts), None

    def all_to_all(self, outgoing, incoming):
        with self._work("all_to_all", outgoing.port, incoming.port):
            self._swap(spans(outgoing), spans(incoming))
        return self._handle(outgoing.port, incoming.port)

    def all_gather(self, own, whole):
        with self._work("all_gather", own.port, whole.port):
            self._gather(
                own.port.address, whole.port.address, whole.counts, whole.port.dtype.itemsize
            )
        return self._handle(own.port, whole.port)

    def reduce_scatter(self, whole, own, op):
        with self._work("reduce_scatter", whole.port, own.port):
            self._add(self._flat(whole.port), whole.counts, self._flat(own.port))
        return self._handle(whole.port, own.port)

    def all_reduce(self, port, op):
        with self._work("all_reduce", port):
            flat = self._flat(port)
            counts = shares_of(flat.size, self._group.world_size)
            start = starts_of(counts)[self._group.rank]
            own = flat[start : start + counts[self._group.rank]]
            self._add(flat, counts, own)
            self._gather(address_of(own), address_of(flat), counts, flat.dtype.itemsize)
        return self._handle(port)

    def _gather(self, source: int, target: int, counts, itemsize):
        """Gather slices from the addresses `source` of all ranks at `target`."""
        sizes = [count * itemsize for count in counts]
        pieces = [(target + start, size) for start, size in zip(starts_of(sizes), sizes)]
        own = source, sizes[self._group.rank]
        self._swap_among(self._far, [own] * len(self._far), [pieces[rank] for rank in self._far])
        if len(self._near) > 1:
            for place in self._far:  # of each node, what came to this rank and to its neighbors
                first = place // self._here * self._here
                there = pieces[first : first + self._here]
                self._swap_among(self._near, [pieces[place]] * self._here, there)

    def _add(self, flat, counts, out):
        """Leave the sum over ranks of this rank's slice of `flat` in `out`."""
        if self._here == self._group.world_size:
            return self._add_among(self._near, flat, counts, out)
        own, starts = counts[self._far.start :: self._here], starts_of(counts)
        is_half = flat.dtype.name in HALF_FLOATS
        sums = empty(sum(own), WIDE if is_half else flat.dtype, xp_of(flat))
        for node, of_node in enumerate(pieces_of(sums, own)):
            first = node * self._here
            there = counts[first : first + self._here]
            span = flat[starts[first] : starts[first] + sum(there)]
            self._add_among(self._near, span, there, of_node)
        self._add_among(self._far, sums, own, out)

    def _add_among(self, ranks: range, flat, counts, out):
        """Add over these ranks; counts: of the slices of each."""
        swap = partial(self._swap_arrays, ranks)
        reduce_to_owners(swap, ranks.index(self._group.rank), flat, counts, out, SCRATCH_ELEMENTS)

    def _swap_arrays(self, ranks, send, receive, send_counts, receive_counts, send_starts):
        """Do the all_to_all of a channel of these ranks on CuPy arrays."""
        self._swap_among(
            ranks,
            _spans(address_of(send), send_starts, send_counts, send.dtype.itemsize),
            _spans(
                address_of(receive),
                starts_of(receive_counts),
                receive_counts,
                receive.dtype.itemsize,
            ),
        )

    def _swap_among(self, ranks: range, outgoing: list, incoming: list) -> None:
        """Swap with these ranks alone; (address, bytes) for each of them."""
        nothing = [(0, 0)] * self._group.world_size
        all_outgoing, all_incoming = nothing, [*nothing]
        for rank, sent, received in zip(ranks, outgoing, incoming):
            all_outgoing[rank], all_incoming[rank] = sent, received
        self._swap(all_outgoing, all_incoming)


class HostSwapTransport(SwapTransport):
    """A transport whose swaps the host waits for.

    Kernels that add are done before the next swap, and all when the verb returns.
    """

    _VERBS = ("all_to_all", "all_gather", "all_reduce", "reduce_scatter")

    def __init__(self, group, hosts: Sequence[str] | None = None):
        super().__init__(group, hosts)
        self._copies = group.staging.copies

    @contextmanager
    def _work(self, verb, *ports):
        for port in ports:
            port.settle()
        yield
        self._copies.finish_kernels()

    def _swap(self, outgoing, incoming):
        self._copies.finish_kernels()
        own, target = outgoing[self._group.rank], incoming[self._group.rank][0]
        if own[0] != target:
            self._copies.begin_within(target, *own)
        self._swap_others(outgoing, incoming)
        self._copies.copied().wait()

    def _swap_others(self, outgoing, incoming) -> None:
        """Swap with the others; their pieces are there when it returns."""
        raise NotImplementedError

    def _flat(self, port):
        return self._copies.flat(port)

    def _handle(self, *ports):
        return CompleteHandle()


def spans(part: Pieces) -> list[tuple[int, int]]:
    """Return (address, bytes) of each piece."""
    return _spans(part.port.address, part.starts, part.counts, part.port.dtype.itemsize)


def _spans(address, starts, counts, itemsize):
    return [(address + start * itemsize, count * itemsize) for start, count in zip(starts, counts)]


def address_of(array) -> int:
    """Return the address of the first byte of a CuPy array."""
    return array.__cuda_array_interface__["data"][0]
