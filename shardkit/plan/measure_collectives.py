"""What `shardkit bench hardware` measures between the ranks of a node: the collectives that a step
calls, and messages.

A collective takes as long as its slowest rank, in the quickest of a few tries. Messages go around a
ring of ranks between pieces of work, as in a pipeline: where ranks share cores, the one that waits
for a message also waits for a core.

    without   | piece | piece | piece |
    with      | piece |message| piece |message| piece |message|
"""

import time
from collections.abc import Callable
from statistics import median

import numpy

from ..array import products
from ..comm.backend import CommunicationBackend
from ..comm.collectives.ordered import ordered_all_reduce, ordered_reduce_scatter
from ..comm.mpi.comparing import COMPARED_CALLS
from .collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, SEND

LARGE_BYTES = 4 << 20
_MESSAGE_BYTES = 128 << 10  # a small one that both sides agree on first, as those of a pipeline are
_TRIES = 15
# A piece of work is longer than the system leaves a core to one rank.
_PIECES, _PIECE_PRODUCTS, _PIECE_EDGE = 5, 16, 256


def collectives(backend: CommunicationBackend, hosts: list[str]) -> list[dict]:
    """Measure each operation on each number of ranks of the first node. Collective.

    hosts   of all ranks
    """
    return [row for size in group_sizes(hosts) for row in _of_size(backend, size)]


def group_sizes(hosts: list[str]) -> list[int]:
    """Return the numbers of ranks above 1 to measure on the first node; none if its ranks are not
    neighbors.
    """
    here = hosts.count(hosts[0]) if hosts == sorted(hosts, key=hosts.index) else 0
    return sorted({size for size in (2, 3, 4, 8, 16, 32, 64, here) if 1 < size <= here})


def link_of(measured: list[dict], stream: float) -> dict:
    """Return the link between two ranks by their messages; a single rank uses its memory speed."""
    row = next((row for row in measured if row["operation"] == SEND), None)
    if row is None:
        return {"bytes_per_second": float(stream), "latency_seconds": 0.0}
    return {"bytes_per_second": row["bytes_per_second"], "latency_seconds": row["latency_seconds"]}


def _of_size(backend: CommunicationBackend, size: int) -> list[dict]:
    """Measure all operations on groups of `size` ranks that work at the same time, as in a step.

    Collective.
    """
    group = backend.split(backend.rank // size, backend.rank)
    assert group is not None  # every rank has a color
    _settle(group)
    rows = []
    for operation, make in _OPERATIONS.items():
        empty, full = (
            min(_slowest(backend, group, make(group, num_bytes), size))
            for num_bytes in (8 * size, LARGE_BYTES)
        )
        rows.append(row_of(operation, size, empty, full, 8 * size))
    some, full = (
        _message_seconds(backend, group, num_bytes, size)
        for num_bytes in (_MESSAGE_BYTES, LARGE_BYTES)
    )
    rows.append(row_of(SEND, size, some, full, _MESSAGE_BYTES))
    group.close()
    return rows


def row_of(operation: str, size: int, some: float, full: float, some_bytes: int) -> dict:
    """Return the row of an operation that took these seconds with some bytes and with many; if
    noise hides the difference, bytes are all that many took their time for.
    """
    of_byte = full / LARGE_BYTES
    if full > some:
        of_byte = (full - some) / (LARGE_BYTES - some_bytes)
    return {
        "operation": operation,
        "ranks": size,
        "latency_seconds": max(some - some_bytes * of_byte, 1e-9),
        "bytes_per_second": 1 / of_byte,
    }


def _settle(group: CommunicationBackend) -> None:
    """Make the calls that are unlike those of a long run. Collective over the group.

    The first of each group are compared between its ranks, and the first long array opens the
    memory that they share.
    """
    act = _all_reduce(group, LARGE_BYTES)
    for _ in range(COMPARED_CALLS):
        act()


def _message_seconds(
    backend: CommunicationBackend, group: CommunicationBackend, num_bytes: int, size: int
) -> float:
    """Return by how many seconds a piece of work and a message take longer than the work.

    Collective over the backend.
    """
    rows = numpy.ones((3, _PIECE_EDGE, _PIECE_EDGE), "float32")
    pass_on = _around(group, num_bytes)

    def work() -> None:
        for _ in range(_PIECE_PRODUCTS):
            products.matmul(rows[0], rows[1].T, out=rows[2])

    def run(*acts: Callable[[], object]) -> None:
        for _ in range(_PIECES):
            for act in acts:
                act()

    plain = _slowest(backend, group, lambda: run(work), size)
    both = _slowest(backend, group, lambda: run(work, pass_on), size)
    return max((median(both) - median(plain)) / _PIECES, 1e-9)


def _slowest(
    backend: CommunicationBackend,
    group: CommunicationBackend,
    act: Callable[[], object],
    size: int,
) -> list[float]:
    """Return the seconds of the slowest rank of a whole group in each try.

    Collective over the backend.
    """
    seconds = []
    act()
    for _ in range(_TRIES):
        backend.barrier()
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    mine = numpy.array(seconds if group.world_size == size else [0.0] * len(seconds))
    everyones = numpy.empty((backend.world_size, mine.size))
    backend.all_gather(mine, everyones)
    return everyones.max(0).tolist()


def _all_reduce(group: CommunicationBackend, num_bytes: int) -> Callable[[], object]:
    whole = numpy.ones(num_bytes // 4, "float32")
    return lambda: ordered_all_reduce(group, whole)


def _all_gather(group: CommunicationBackend, num_bytes: int) -> Callable[[], object]:
    own = numpy.ones(num_bytes // 4 // group.world_size, "float32")
    whole = numpy.ones(own.size * group.world_size, "float32")
    return lambda: group.all_gather(own, whole)


def _reduce_scatter(group: CommunicationBackend, num_bytes: int) -> Callable[[], object]:
    own = numpy.ones(num_bytes // 4 // group.world_size, "float32")
    whole = numpy.ones(own.size * group.world_size, "float32")
    return lambda: ordered_reduce_scatter(group, whole, own)


def _around(group: CommunicationBackend, num_bytes: int) -> Callable[[], object]:
    """Send an array of this size to the next rank of a ring, and receive that of the one before."""
    array = numpy.ones(num_bytes // 4, "float32")
    incoming = numpy.empty_like(array)
    before, after = ((group.rank + step) % group.world_size for step in (-1, 1))

    def act() -> None:
        handles = [group.irecv(incoming, before, 0), group.isend(array, after, 0)]
        for handle in handles:
            handle.wait()

    return act


_OPERATIONS = {
    ALL_REDUCE: _all_reduce,
    ALL_GATHER: _all_gather,
    REDUCE_SCATTER: _reduce_scatter,
}
