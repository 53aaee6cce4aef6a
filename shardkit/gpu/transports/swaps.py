"""Collectives made of one thing: all ranks swap pieces of GPU memory.

    all_to_all         one swap
    all_gather         one swap: own slice to everybody, a slice from everybody
    reduce_scatter     for each window of the slices: a swap, and the owner adds as the tree over
                       ranks (ordered.py); where it can, within each node first (levels.py)
    all_reduce         a reduce_scatter in place, and an all_gather

Sums are added on the GPU, so their bits are those of the host, and half floats are added as
float32.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, contextmanager

from ...comm.checks import shares_of, starts_of
from ...comm.operations import CompleteHandle, Handle, ReductionOperation
from ...comm.staging import Pieces
from ...comm.transport import port_of
from ...comm.wire import HALF_FLOATS
from .levels import NodeSwaps, spans_at

SUM = ReductionOperation.SUM


class SwapTransport:
    """One rank's end. Every method is collective over the group.

    A transport has takes(), and _work, _swap, _flat and _handle, of which what they do to GPU
    memory is in the order in which they are called.
    hosts   the node of each rank of the group; None: all are on one
    """

    def __init__(self, group, hosts: Sequence[str] | None = None):
        self._group = group
        self._nodes = NodeSwaps(group.rank, group.world_size, hosts, self._swap)

    def takes(self, verb: str, num_bytes: int, dtype, op) -> bool:
        """Return True if it carries such a call; what it does not is staged."""
        raise NotImplementedError

    def adds_in_tree_order(self, num_bytes, dtype):
        return self.takes("all_reduce", num_bytes, dtype, SUM)

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
        ports = [port for port in map(port_of, parts) if port is not None]
        with self._work(verb, *ports):
            getattr(self, verb)(*parts)
        return self._handle(*ports)

    def begin(self, verb, *parts):
        return self.make(verb, *parts), None

    # ---- collectives, within _work and before _handle --------------------------------------------

    def all_to_all(self, outgoing, incoming):
        self._swap(spans(outgoing), spans(incoming))

    def all_gather(self, own, whole):
        self._gather(self._flat(own.port), self._flat(whole.port), whole.counts)

    def reduce_scatter(self, whole, own, op):
        self._nodes.add(self._flat(whole.port), whole.counts, self._flat(own.port))

    def all_reduce(self, port, op):
        flat = self._flat(port)
        counts = shares_of(flat.size, self._group.world_size)
        start = starts_of(counts)[self._group.rank]
        own = flat[start : start + counts[self._group.rank]]
        self._nodes.add(flat, counts, own)
        self._gather(own, flat, counts)

    def _gather(self, own, whole, counts):
        """Gather the slices `own` of all ranks in `whole`, of these counts."""
        self._nodes.gather(own, whole, counts)


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
    return spans_at(part.port.address, part.starts, part.counts, part.port.dtype.itemsize)
