"""Transport through an MPI library that takes GPU memory: its calls get GPU addresses.

Whether a library can is not certain, so a probe (probe.py) comes
first: it finds for each verb up to how many bytes it works. Messages move; sums are added on the
GPU by their owners (swaps.py), so no reduction of the library sees GPU memory, least of all a
non-blocking one. Everything larger, and every other verb, is staged.
"""

import platform

from ...comm.checks import MAX_TAG, PIECE_TAG
from ...comm.mpi.requests import RequestsHandle, meet_asleep, wait_all
from .probe import Verdict, agreed_verdict
from .swaps import HostSwapTransport

MESSAGE_BYTES = 1 << 30  # a longer one goes in several: counts are C ints
_PROBED_AS = {
    "send": "send",
    "receive": "send",
    "broadcast": "broadcast",
    "all_gather": "all_gather",
    "all_to_all": "all_to_all",
}
assert PIECE_TAG > MAX_TAG


def open_gpu_mpi(world, groups) -> None:
    """Give these groups the transport through MPI as far as the probe allows. Collective.

    Over the world. Where it allows nothing, rank 0 prints why, and GPU arrays are staged.
    """
    verdict = agreed_verdict(world)
    if not verdict.takes_anything and world.rank == 0:
        world.say(
            f'gpu_transport "mpi": {verdict.reason}; GPU arrays are staged through host memory'
        )
    if verdict.takes_anything:
        for group in groups:
            if group.world_size > 1:
                group.use_gpu_transport(MPITransport(group, verdict))


class MPITransport(HostSwapTransport):
    """One rank's end.

    group     of MPI ranks
    verdict   the same on all ranks
    """

    def __init__(self, group, verdict: Verdict):
        super().__init__(group, group.all_gather_object(platform.node()))
        self._messages, self._verdict = group.messages, verdict

    def takes(self, verb, num_bytes, dtype, op):
        if verb == "all_to_all":  # ranks need not know each other's sizes
            return self._verdict.takes_all("all_to_all")
        if verb in ("all_reduce", "reduce_scatter"):
            return (
                self._is_tree(dtype, op)
                and self._verdict.takes_all("all_to_all")
                and self._verdict.takes_all("all_gather")
            )
        return verb in _PROBED_AS and self._verdict.takes(_PROBED_AS[verb], num_bytes)

    def _swap_others(self, outgoing, incoming):
        me, size = self._group.rank, self._group.world_size
        comm, buffer = self._messages.communicator, self._messages.mpi.buffer
        others = [(me + step) % size for step in range(1, size)]
        with self._messages.errors:
            meet_asleep(self._messages)
            requests = [
                comm.Irecv(part, rank, PIECE_TAG)
                for rank in reversed(others)
                for part in _buffers_at(buffer, *incoming[rank])
            ]
            requests += [
                comm.Isend(part, rank, PIECE_TAG)
                for rank in others
                for part in _buffers_at(buffer, *outgoing[rank])
            ]
            wait_all(self._messages, requests)

    def broadcast(self, port, root):
        with self._messages.errors:
            meet_asleep(self._messages)
            for part in _buffers_at(self._messages.mpi.buffer, port.address, port.num_bytes):
                self._messages.communicator.Bcast(part, root)

    def send(self, port, destination, tag):
        port.settle()
        with self._messages.errors:
            parts = self._buffers(port)
            return RequestsHandle(
                self._messages,
                [self._messages.communicator.Isend(part, destination, tag) for part in parts],
                [],
                port,
            )

    def receive(self, port, source, tag):
        port.settle()
        with self._messages.errors:
            parts = self._buffers(port)
            requests = [self._messages.communicator.Irecv(part, source, tag) for part in parts]
            expected = [(source, part) for part in parts]
            return RequestsHandle(self._messages, requests, expected, port)

    def isend(self, port, destination, tag):
        return self.send(port, destination, tag), None

    def irecv(self, port, source, tag):
        return self.receive(port, source, tag), None

    def _buffers(self, port):
        """Return the buffers of a message; an empty array is a message too."""
        buffer = self._messages.mpi.buffer
        return _buffers_at(buffer, port.address, port.num_bytes) or [buffer.allocate(0)]

    def close(self):
        """Do nothing: nothing is held."""


def _buffers_at(buffer, address: int, num_bytes: int) -> list:
    """Return what mpi4py takes for these bytes, which it must not look at; buffer: its type."""
    return [
        buffer.fromaddress(address + start, min(MESSAGE_BYTES, num_bytes - start))
        for start in range(0, num_bytes, MESSAGE_BYTES)
    ]
