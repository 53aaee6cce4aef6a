"""Transports: ways of checked arrays (ports, and parts of ports) to other ranks.

    host arrays                       through the group's channel
    GPU arrays   "staged"             through page-locked host windows (staging.py): always right
                 "mpi"                as they are to an MPI library that takes GPU memory, where a
                                      probe has shown that (gpu/mpi.py)
                 "ipc"                ranks of one node copy out of each other's GPU memory
                                      (gpu/ipc.py)
                 "nccl"               through NCCL, for one GPU per rank (gpu/transports/nccl.py)

A group has at most one transport beside the staged one, which takes what the other does not. Which
of them a call takes is decided by what all ranks know: verb, bytes, dtype and operation.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy

from .operations import CompleteHandle, Handle, ReductionOperation, together
from .staging import Pieces

_COMPLETE = CompleteHandle()
_LONGEST = ReductionOperation.MAX


class GpuTransport(Protocol):
    """A way for GPU arrays. Ports are DevicePorts; every method is collective like its verb.

    Messages that takes() accepts are methods with the names and arguments of StagedTransport's.
    """

    def takes(self, verb: str, num_bytes: int, dtype, op: ReductionOperation | None) -> bool:
        """Return True if such a call goes this way; the same on all ranks.

        num_bytes   of the whole array; 0 where that may differ
        """

    def adds_in_tree_order(self, num_bytes: int, dtype) -> bool:
        """Return True if sums of such an array are added here as the tree of ordered.py."""

    def make(self, verb: str, *parts) -> Handle:
        """Make a collective that takes() accepts; return the handle of what a GPU still does.

        parts   as of COLLECTIVES (collective.py)
        """

    def begin(self, verb: str, *parts) -> tuple:
        """Begin a collective: what takes() accepted with an i before its name.

        Return its handle, and what to do once it is complete, or None.
        """

    def close(self) -> None:
        """Free what it holds. Collective over the group."""


@dataclass(frozen=True, order=True)
class Lane:
    """A row of messages in one direction, which both ends name in one order.

    number   the same at both ends, and its own in the group
    """

    number: int
    source: int
    destination: int


class MessageLanes(metaclass=ABCMeta):
    """In the place of a GpuTransport: messages in lanes, and no verb, which are staged."""

    @abstractmethod
    def open(self, lanes: Sequence[Lane]) -> None:
        """Open those that are not open yet. Collective over the group, which names all of them."""

    @abstractmethod
    def has(self, number: int) -> bool:
        """Return True if the lane of this number is open."""

    @abstractmethod
    def renew(self) -> None:
        """Let what is under way never arrive, and begin anew. Collective over the group."""

    @abstractmethod
    def isend(self, array, destination: int, lane: int) -> Handle:
        """Begin a send in an open lane; the array must not change before wait()."""

    @abstractmethod
    def irecv(self, array, source: int, lane: int) -> Handle:
        """Post a receive in an open lane; the array holds the message after wait()."""

    @abstractmethod
    def close(self) -> None:
        """Free what they hold. Collective over the group."""

    def takes(self, verb: str, num_bytes: int, dtype, op) -> bool:
        """Return False, for every verb."""
        return False

    def adds_in_tree_order(self, num_bytes: int, dtype) -> bool:
        """Return False: nothing is added."""
        return False


def lanes_of(group) -> MessageLanes | None:
    """Return what carries messages of GPU arrays in this group in lanes; None: nothing does."""
    transport = group.gpu_transport
    return transport if isinstance(transport, MessageLanes) else None


# From what a window has, host arrays and pieces on either side, and a root or an operation, to the
# arguments of the channel's verb.
_ARGUMENTS: dict[str, Callable[..., tuple]] = {
    "all_gather": lambda send, receive, out, into: (send, receive, into.counts),
    "reduce_scatter": lambda send, receive, out, into, op: (send, receive, out.counts, op),
    "scatter": lambda send, receive, out, into, root: (send, receive, root, out.counts),
    "gather": lambda send, receive, out, into, root: (send, receive, root, into.counts),
    "all_to_all": lambda send, receive, out, into: (
        (send, receive, out.counts, into.counts, out.starts, into.starts)
    ),
}


class StagedTransport:
    """Every verb through the group's channel: directly, or window by window through host scratch.

    group   whose channel, staging and size count
    """

    def __init__(self, group):
        self._group = group

    # ---- done when they return -------------------------------------------------------------------

    def make(self, verb, *parts) -> Handle:
        if verb in _ARGUMENTS:
            self._exchange(verb, *parts)
        else:
            self._in_place(verb, *parts)
        return _COMPLETE

    def _in_place(self, verb, port, option):
        """Make an all_reduce or a broadcast; option: an operation or a root."""
        channel = self._group.channel
        is_root = option == channel.rank

        def run(host):
            channel.run(verb, host, option)
            self._scale(host, option)

        is_sum = verb == "all_reduce"
        self._group.staging.in_place(
            port, run, loads=is_sum or is_root, stores=is_sum or not is_root
        )

    def _exchange(self, verb, outgoing, incoming, *option):
        """Make another collective: on the arrays, or window by window; option: as above."""
        group = self._group
        source, target = outgoing.port.host, incoming.port.host

        def run(send, receive, out, into):
            group.channel.run(verb, *_ARGUMENTS[verb](send, receive, out, into, *option))
            self._scale(receive, *option)

        if source is not None and target is not None:
            return run(source, target, outgoing, incoming)
        longest = max(outgoing.counts + incoming.counts)
        if verb == "all_to_all":  # the longest of any rank: all go through as many windows
            agreed = numpy.array([longest], numpy.int64)
            group.channel.run("all_reduce", agreed, _LONGEST)
            longest = int(agreed[0])
        group.staging.exchange(outgoing, incoming, run, num_ranks=group.world_size, longest=longest)

    def _scale(self, host, option=None) -> None:
        """Turn a sum into the average, if that is what was asked for."""
        if option is ReductionOperation.AVERAGE:
            numpy.divide(host, self._group.world_size, out=host)

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
        outgoing, incoming, *op = parts
        source = staging.whole(outgoing.port, load=True)
        target = staging.whole(incoming.port, load=False)
        arguments = _ARGUMENTS[verb](source, target, outgoing, incoming, *op)
        return self._begun(verb, arguments, incoming.port, target, *op)

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
