"""Transports: ways of checked arrays (ports, and parts of ports) to other ranks.

    host arrays                       through the group's channel
    GPU arrays   "staged"             through page-locked host windows (staging.py): always right
                 "mpi"                as they are to an MPI library that takes GPU memory, where a
                                      probe has shown that (gpu/mpi.py)
                 "ipc"                ranks of one node copy out of each other's GPU memory
                                      (gpu/ipc.py)
                 "nccl"               through NCCL, for one GPU per rank (gpu/nccl.py)

A group has at most one transport beside the staged one, which takes what the other does not. Which
of them a call takes is decided by what all ranks know: verb, bytes, dtype and operation.
"""

from typing import Protocol

import numpy

from .operations import CompleteHandle, Handle, ReductionOperation, together
from .staging import Pieces

_COMPLETE = CompleteHandle()
_LONGEST = ReductionOperation.MAX


class GpuTransport(Protocol):
    """A way for GPU arrays. Ports are DevicePorts; every method is collective like its verb.

    Each verb that takes() accepts is a method with the name and the arguments of StagedTransport's.
    """

    def takes(self, verb: str, num_bytes: int, dtype, op: ReductionOperation | None) -> bool:
        """Return True if such a call goes this way; the same on all ranks.

        num_bytes   of the whole array; 0 where that may differ
        """

    def adds_in_tree_order(self, array) -> bool:
        """Return True if sums of such an array are added here as the tree of ordered.py."""

    def begin(self, verb: str, *parts) -> tuple:
        """Begin a collective: what takes() accepted with an i before its name.

        Return its handle, and what to do once it is complete, or None.
        """

    def close(self) -> None:
        """Free what it holds. Collective over the group."""


class StagedTransport:
    """Every verb through the group's channel: directly, or window by window through host scratch.

    group   whose channel, staging and size count
    """

    def __init__(self, group):
        self._group = group

    # ---- done when they return -------------------------------------------------------------------

    def all_reduce(self, port, op) -> Handle:
        channel = self._group.channel

        def run(host):
            channel.run("all_reduce", host, op)
            self._scale(host, op)

        self._group.staging.in_place(port, run)
        return _COMPLETE

    def broadcast(self, port, root) -> Handle:
        channel = self._group.channel
        is_root = channel.rank == root
        self._group.staging.in_place(
            port,
            lambda host: channel.run("broadcast", host, root),
            loads=is_root,
            stores=not is_root,
        )
        return _COMPLETE

    def all_gather(self, own: Pieces, whole: Pieces) -> Handle:
        channel = self._group.channel

        def run(send, receive, _, part):
            channel.run("all_gather", send, receive, part.counts)

        return self._exchange(own, whole, run, max(whole.counts))

    def reduce_scatter(self, whole: Pieces, own: Pieces, op) -> Handle:
        channel = self._group.channel

        def run(send, receive, part, _):
            channel.run("reduce_scatter", send, receive, part.counts, op)
            self._scale(receive, op)

        return self._exchange(whole, own, run, max(whole.counts))

    def scatter(self, whole: Pieces, own: Pieces, root) -> Handle:
        channel = self._group.channel

        def run(send, receive, part, _):
            channel.run("scatter", send, receive, root, part.counts)

        return self._exchange(whole, own, run, max(whole.counts))

    def gather(self, own: Pieces, whole: Pieces, root) -> Handle:
        channel = self._group.channel

        def run(send, receive, _, part):
            channel.run("gather", send, receive, root, part.counts)

        return self._exchange(own, whole, run, max(whole.counts))

    def all_to_all(self, outgoing: Pieces, incoming: Pieces) -> Handle:
        channel = self._group.channel

        def run(send, receive, out, into):
            channel.run(
                "all_to_all", send, receive, out.counts, into.counts, out.starts, into.starts
            )

        source, target = outgoing.port.host, incoming.port.host
        if source is not None and target is not None:
            run(source, target, outgoing, incoming)
            return _COMPLETE
        return self._exchange(outgoing, incoming, run, self._longest_anywhere(outgoing, incoming))

    def send(self, port, destination, tag) -> Handle:
        channel = self._group.channel
        self._group.staging.in_place(
            port, lambda host: channel.isend(host, destination, tag).wait(), stores=False
        )
        return _COMPLETE

    def receive(self, port, source, tag) -> Handle:
        channel = self._group.channel
        self._group.staging.in_place(
            port, lambda host: channel.irecv(host, source, tag).wait(), loads=False
        )
        return _COMPLETE

    def _exchange(self, send, receive, run, longest):
        self._group.staging.exchange(
            send, receive, run, num_ranks=self._group.world_size, longest=longest
        )
        return _COMPLETE

    def _longest_anywhere(self, outgoing, incoming) -> int:
        """Return the longest piece of any rank: all go through the same number of windows."""
        agreed = numpy.array([max(outgoing.counts + incoming.counts)], numpy.int64)
        self._group.channel.run("all_reduce", agreed, _LONGEST)
        return int(agreed[0])

    def _scale(self, host, op) -> None:
        """Turn a sum into the average, if that is what was asked for."""
        if op is ReductionOperation.AVERAGE:
            numpy.divide(host, self._group.world_size, out=host)

    # ---- non-blocking: return (the channel's handle, what to do once it is complete or None) -----

    def isend(self, port, destination, tag):
        staging, channel = self._group.staging, self._group.channel
        parts = staging.messages(port, staging.whole(port, load=True))
        return together([channel.isend(part, destination, tag) for part in parts]), None

    def irecv(self, port, source, tag):
        staging, channel = self._group.staging, self._group.channel
        host = staging.whole(port, load=False)
        parts = [channel.irecv(part, source, tag) for part in staging.messages(port, host)]
        return together(parts), lambda: unstage(port, host)

    def begin(self, verb, *parts):
        staging = self._group.staging
        if verb == "all_reduce":
            port, op = parts
            host = staging.whole(port, load=True)
            return self._begun(verb, (host, op), port, host, op)
        first, second, *op = parts
        source = staging.whole(first.port, load=True)
        target = staging.whole(second.port, load=False)
        counts = (first if verb == "reduce_scatter" else second).counts
        return self._begun(verb, (source, target, counts, *op), second.port, target, *op)

    def _begun(self, verb, arguments, port, target, op=None):
        def finish():
            self._scale(target, op)
            unstage(port, target)

        return self._group.channel.plan(verb, *arguments).begin(), finish


def port_of(part):
    """Return the port of an argument of a transport; None: it is a rank or an operation."""
    if isinstance(part, Pieces):
        return part.port
    return None if isinstance(part, (int, ReductionOperation)) else part


def unstage(port, host) -> None:
    """Bring back what a non-blocking verb left in its scratch; nothing to do for a host array."""
    if port.host is None:
        port.begin_store([(0, host)])()
