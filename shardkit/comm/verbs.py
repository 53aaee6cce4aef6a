"""The verbs that ranks use to exchange arrays, whatever carries them.

    what you have                verb             what every rank has afterwards (a, b, c: slices)
    [a0 b0 c0] on each rank      all_reduce       [A B C], A = a0 + a1 + a2
                                 reduce_scatter   A on rank 0, B on rank 1, C on rank 2
    a, b, c: one slice each      all_gather       [a b c] everywhere
                                 gather           [a b c] on the root
    [a b c] on the root          broadcast        [a b c] everywhere
                                 scatter          a on rank 0, b on rank 1, c on rank 2
    [a0 b0 c0] on each rank      all_to_all       [a0 a1 a2] on rank 0, [b0 b1 b2] on rank 1, ...

A collective is planned, then called or begun:

    plan    plain arrays: the channel plans the call, with all that it needs; nothing is sent
            others (half floats to be summed, GPU arrays, averages): only noted
    call    noted (watch/progress.py), made, counted; others through ports (collective.py) and a
            transport (transport.py), window by window
    begin   the same to be awaited; always through a transport

Where the channel makes a verb with its notes (`noted`), that comes first: around a small message
all else takes longer than the message.

Arrays are C-contiguous and of any shape; counts and displacements are in elements. Uneven and zero
counts are legal everywhere. `counts`, `root` and `op` must be the same on all ranks.
"""

from collections.abc import Sequence
from typing import Any

import numpy

from ..annotations import Array, DTypeLike
from ..array.backend import is_device_array
from . import arguments, checks
from .alone import AloneTransport
from .channel import NotedCalls
from .collective import COLLECTIVES
from .operations import Handle, Operation, ReductionOperation, Traffic
from .plans import PlannedVerbs
from .ranks import compact
from .transport import GpuTransport, MessageLanes, StagedTransport, port_of
from .under_way import check_alive, handle_of
from .watch.frames import OF_VERB
from .watch.progress import Progress, UnderWay

SUM = ReductionOperation.SUM
_MAY_DIFFER = ("scatter", "gather", "all_to_all")  # in bytes, from rank to rank


class Verbs:
    """One rank's end of a group of ranks, as far as arrays go; CommunicationBackend is the rest.

    Parameters
    ----------
    rank
        Position in this group.
    world_ranks
        Of this group's ranks, in the first backend; more than a few are kept as a pattern.
    group_key
        The same on all ranks of a group, different between groups.

    Attributes
    ----------
    world_size
        Number of ranks of this group.
    channel
        What carries the verbs; None before initialize() and after shutdown().
    gpu_transport
        Of GPU arrays beside the staged one; None: there is no other.
    noted
        The verbs that the channel makes with their notes.
    prepare
        The collectives that are called again and again (plans.py).

    Notes
    -----
    Errors of every verb: CommunicationError before initialize() or after shutdown(); ValueError on
    arguments that are wrong on this rank alone, raised before anything is sent.
    """

    def __init__(
        self,
        rank: int,
        world_ranks: Sequence[int],
        group_key: str,
        *,
        staging: Any,
        progress: Progress,
    ) -> None:
        self.rank, self.world_size = rank, len(world_ranks)
        self.world_ranks, self.group_key = compact(world_ranks), group_key
        self.staging, self.progress = staging, progress
        self.traffic = Traffic()
        self.channel: Any = None  # a Channel
        self.noted = NotedCalls()
        self.prepare = PlannedVerbs(self)
        self.gpu_transport: GpuTransport | MessageLanes | None = None
        if self.world_size == 1:
            self.gpu_transport = AloneTransport(self)
        self._staged = StagedTransport(self)
        self.under_way = UnderWay(progress)

    # ---- around every verb -----------------------------------------------------------------------

    def verb(
        self, name: str, dtype: DTypeLike | None = None, count: int = -1, site: int | None = None
    ) -> UnderWay:
        """Note a collective call; return the context manager to do it in.

        Parameters
        ----------
        dtype, count
            What it carries, in elements, if that is known.
        site
            Number of the place that called it; None: the nearest caller outside of this room.
        """
        if self.channel is None:
            check_alive(self, name)
        self.progress.begin_collective(name, self.group_key, self.world_ranks, dtype, count, site)
        return self.under_way

    def _message(self, name, what, peer, tag):
        """Note a message; return the context manager that gives the checked peer and tag."""
        check_alive(self, name)
        peer = checks.check_rank(what, peer, self.world_size)
        tag = checks.check_tag(tag)
        self.progress.begin_message(name, self.group_key, (self.world_ranks[peer],))
        return UnderWay(self.progress, (peer, tag))

    def use_gpu_transport(self, transport: GpuTransport | MessageLanes | None) -> None:
        """Carry GPU arrays this way from now on. On all ranks, between two calls.

        Parameters
        ----------
        transport
            Takes some verbs; the others are staged. None: the one that is used is closed, and all
            are staged; a rank alone keeps its own.
        """
        if transport is None and self.gpu_transport is not None:
            if self.world_size == 1:
                return
            self.gpu_transport.close()
        self.gpu_transport = transport

    def renew_noted(self, channel: Any) -> None:
        """Ask the channel again for the verbs that it makes with their notes.

        Parameters
        ----------
        channel
            Nothing is done if it does not carry the verbs of this group now.
        """
        if channel is self.channel:
            self.noted = channel.noted_calls(self)

    def transport(self, verb: str, parts: Sequence[Any]) -> Any:
        """Return the transport that takes this call.

        Parameters
        ----------
        parts
            Its arguments: ports, or pieces of ports, and others.
        """
        gpu = self.gpu_transport
        if gpu is None or not port_of(parts[0]).is_on_device:
            return self._staged
        ports = [port for port in map(port_of, parts) if port is not None]
        if all(port.is_on_device for port in ports):
            op = parts[-1] if isinstance(parts[-1], ReductionOperation) else None
            num_bytes = 0 if verb in _MAY_DIFFER else max(port.num_bytes for port in ports)
            if gpu.takes(verb, num_bytes, ports[0].dtype, op):
                return gpu
        return self._staged

    def adds_in_tree_order(self, array: Array) -> bool:
        """Return True if all_reduce and reduce_scatter add such an array as the tree of ordered.py.

        By size and dtype, the same on all ranks.
        """
        if isinstance(array, numpy.ndarray):
            carrier = self.channel
        else:
            carrier = self.gpu_transport if is_device_array(array) else None
        return carrier is not None and carrier.adds_in_tree_order(array.nbytes, array.dtype)

    def make(self, verb: str, *arguments: Any, planned: Any = None) -> None:
        """Plan a collective, unless that is done, and call it.

        Parameters
        ----------
        arguments
            All that the verb takes.
        planned
            The PlannedCall that is made; None: a verb, whose caller is looked for.
        """
        if self.channel is None:
            check_alive(self, verb)
        progress = self.progress
        site = progress.site(OF_VERB) if planned is None else planned.site
        plain = checks.PLAIN[verb](self, *arguments)  # an array may be read-only now
        if plain is None:
            return self._make_through_ports(verb, arguments, site)
        passed, whole, sent = plain
        plan = self.channel.plan if planned is None else planned.plan
        call = plan(verb, *passed)
        progress.begin_collective(
            verb, self.group_key, self.world_ranks, whole.dtype, whole.size, site
        )
        try:
            call()
        except BaseException:
            progress.fail()
            raise
        progress.end()
        if sent is not None:
            self.traffic.add(verb, sent)

    def _make_through_ports(self, verb: str, arguments: tuple, site: int) -> None:
        """Make a call that a transport carries."""
        collective = COLLECTIVES[verb]
        with self.verb(verb, site=site):
            parts = collective.ports(self, *checks.meant(arguments))
            self.transport(verb, parts).make(verb, *parts).wait()
            self.traffic.add(verb, collective.sent(self, *parts))

    def _begin(self, verb: str, *arguments) -> Handle:
        """Begin a collective. All ranks begin their collectives in the same order."""
        name, collective = f"i{verb}", COLLECTIVES[verb]
        with self.verb(name, site=self.progress.site(OF_VERB)):
            parts = collective.ports(self, *checks.meant(arguments))
            self.traffic.add(verb, collective.sent(self, *parts))
            return handle_of(self, *self.transport(name, parts).begin(verb, *parts))

    # ---- collectives -----------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until every rank has called it. Collective."""
        if not self.noted.barrier():
            self.make("barrier")

    def all_reduce(self, array: Array, op: Operation = SUM) -> None:
        """Leave the reduction over all ranks in `array`, on every rank. Collective, in place.

        Parameters
        ----------
        array
            Any shape, the same on all ranks. Half floats are summed as float32.
        op
            A ReductionOperation, or its name: "sum", "product", "min", "max", "average".
        """
        if not self.noted.all_reduce(array, op):
            self.make("all_reduce", array, op)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Leave the root's elements in `array`, on every rank. Collective, in place."""
        if not self.noted.broadcast(array, root):
            self.make("broadcast", array, root)

    def all_gather(self, send: Array, receive: Array, counts: Sequence[int] | None = None) -> None:
        """Leave the slices of all ranks, in rank order, in `receive`. Collective.

        Parameters
        ----------
        send
            This rank's slice, counts[rank] elements; may be a view of its own place in `receive`
            (nothing is copied).
        receive
            Sum of counts elements.
        counts
            Elements per rank; None: equal.
        """
        if counts is not None or not self.noted.all_gather(send, receive):
            self.make("all_gather", send, receive, counts)

    def reduce_scatter(
        self,
        send: Array,
        receive: Array,
        counts: Sequence[int] | None = None,
        op: Operation = SUM,
        *,
        in_place: bool = False,
    ) -> None:
        """Leave the reduction over all ranks of this rank's slice of `send` in `receive`.

        Collective; `send` is unchanged.

        Parameters
        ----------
        send
            Sum of counts elements.
        receive
            counts[rank] elements, not overlapping `send`. Half floats are summed as float32.
        in_place
            `receive` may be this rank's own slice of `send`; only if adds_in_tree_order.
        """
        if counts is not None or not self.noted.reduce_scatter(send, receive, op, in_place):
            self.make("reduce_scatter", send, receive, counts, op, in_place)

    def scatter(
        self, send: Array, receive: Array, root: int = 0, counts: Sequence[int] | None = None
    ) -> None:
        """Leave this rank's slice of the root's `send` in `receive`. Collective.

        Parameters
        ----------
        send
            On the root: sum of counts elements; ignored elsewhere (pass None).
        receive
            counts[rank] elements; on the root it may be its own place in `send`.
        """
        self.make("scatter", send, receive, root, counts)

    def gather(
        self, send: Array, receive: Array, root: int = 0, counts: Sequence[int] | None = None
    ) -> None:
        """Leave the slices of all ranks, in rank order, in the root's `receive`. Collective.

        Parameters
        ----------
        send
            counts[rank] elements; on the root it may be its own place in `receive`.
        receive
            On the root: sum of counts elements; ignored elsewhere (pass None).
        """
        self.make("gather", send, receive, root, counts)

    def all_to_all(
        self,
        send: Array,
        receive: Array,
        send_counts: Sequence[int] | None = None,
        receive_counts: Sequence[int] | None = None,
        send_displacements: Sequence[int] | None = None,
        receive_displacements: Sequence[int] | None = None,
    ) -> None:
        """Send piece k of `send` to rank k; piece k of `receive` comes from rank k. Collective.

        Counts None: equal parts. Displacements (elements, one per rank) let the pieces lie anywhere
        in a larger buffer, so that nothing need be packed; None: one piece after the other,
        covering the array. The two arrays do not overlap.
        """
        counts = send_counts, receive_counts, send_displacements, receive_displacements
        self.make("all_to_all", send, receive, *counts)

    # ---- between two ranks -----------------------------------------------------------------------

    def send(self, array: Array, destination: int, tag: int = 0) -> None:
        """Send the elements; may block until the receiver takes them.

        So never send first on both sides.
        """
        with self._message("send", "destination", destination, tag) as (destination, tag):
            port = arguments.port_on(self, "array", array)
            transport = self.transport("send", [port])
            transport.send(port, destination, tag).wait()
            self.traffic.add("send", port.num_bytes if destination != self.rank else 0)

    def receive(self, array: Array, source: int, tag: int = 0) -> None:
        """Receive the next message of this source and tag in `array`, which must have its size."""
        with self._message("receive", "source", source, tag) as (source, tag):
            port = arguments.port_on(self, "array", array, writes=True)
            self.transport("receive", [port]).receive(port, source, tag).wait()

    def isend(self, array: Array, destination: int, tag: int = 0) -> Handle:
        """Begin a send; the array must not change before wait()."""
        with self._message("isend", "destination", destination, tag) as (destination, tag):
            port = arguments.port_on(self, "array", array)
            self.traffic.add("send", port.num_bytes if destination != self.rank else 0)
            transport = self.transport("send", [port])
            return handle_of(self, *transport.isend(port, destination, tag))

    def irecv(self, array: Array, source: int, tag: int = 0) -> Handle:
        """Post a receive; the array holds the message after wait()."""
        with self._message("irecv", "source", source, tag) as (source, tag):
            port = arguments.port_on(self, "array", array, writes=True)
            transport = self.transport("receive", [port])
            return handle_of(self, *transport.irecv(port, source, tag))

    # ---- non-blocking collectives ----------------------------------------------------------------

    def iall_reduce(self, array: Array, op: Operation = SUM) -> Handle:
        """Begin an all_reduce. All ranks begin their collectives in the same order."""
        return self._begin("all_reduce", array, op)

    def iall_gather(
        self, send: Array, receive: Array, counts: Sequence[int] | None = None
    ) -> Handle:
        """Begin an all_gather."""
        return self._begin("all_gather", send, receive, counts)

    def ireduce_scatter(
        self, send: Array, receive: Array, counts: Sequence[int] | None = None, op: Operation = SUM
    ) -> Handle:
        """Begin a reduce_scatter."""
        return self._begin("reduce_scatter", send, receive, counts, op, False)
