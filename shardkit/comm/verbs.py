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
            others (half floats to be summed, GPU arrays, averages, counts): only noted
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
from . import checks
from .alone import AloneTransport
from .arguments import Arguments
from .channel import NotedCalls
from .collective import COLLECTIVES
from .operations import Handle, ReductionOperation, Traffic
from .plans import PlannedVerbs
from .transport import GpuTransport, StagedTransport, port_of
from .under_way import check_alive, handle_of
from .watch.progress import Progress, UnderWay

SUM = ReductionOperation.SUM
_UNBOUND = -1  # no stage of a compiled verb: the call must be made in Python
_MAY_DIFFER = ("scatter", "gather", "all_to_all")  # in bytes, from rank to rank


class Verbs:
    """One rank's end of a group of ranks, as far as arrays go; CommunicationBackend is the rest.

    Parameters
    ----------
    rank
        Position in this group, and the number of its ranks.
    world_ranks
        Of this group's ranks, in the first backend.
    group_key
        The same on all ranks of a group, different between groups.

    Attributes
    ----------
    world_size
        Position in this group, and the number of its ranks.
    channel
        What carries the verbs; None before initialize() and after shutdown().
    gpu_transport
        Of GPU arrays beside the staged one; None: there is no other.
    arguments
        Opens ports on arrays.
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
        self.world_ranks, self.group_key = tuple(world_ranks), group_key
        self.staging, self.progress = staging, progress
        self.traffic = Traffic()
        self.channel: Any = None  # a Channel
        self.noted = NotedCalls()
        self.prepare = PlannedVerbs(self)
        self.arguments = Arguments(self)
        self.gpu_transport: GpuTransport | None = None
        if self.world_size == 1:
            self.gpu_transport = AloneTransport(self)
        self._staged = StagedTransport(self)
        self.under_way = UnderWay(progress)

    # ---- around every verb -----------------------------------------------------------------------

    def verb(
        self,
        name: str,
        dtype: DTypeLike | None = None,
        count: int = -1,
        site: int | None = None,
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

    def transport(self, verb: str, parts: Sequence[Any]) -> Any:
        """Return the transport that takes this call.

        Parameters
        ----------
        parts
            Its arguments: ports, or pieces of ports, and others.
        """
        gpu, ports = self.gpu_transport, [p for p in map(port_of, parts) if p is not None]
        if gpu is not None and all(port.is_on_device for port in ports):
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
            channel = self.channel
            return channel is not None and channel.adds_in_tree_order(array.nbytes, array.dtype)
        transport = self.gpu_transport if is_device_array(array) else None
        return transport is not None and transport.adds_in_tree_order(array)

    def planned(self, verb: str, *arguments: Any, site: int | None = None) -> "PlannedCall":
        """Return a collective that can be called. No communication.

        Parameters
        ----------
        verb
            Its name.
        arguments
            All that the verb takes.
        site
            As of verb().
        """
        return PlannedCall(self, verb, arguments, site)

    # ---- collectives -----------------------------------------------------------------------------

    def barrier(self) -> None:
        """Return once every rank has called it. Collective."""
        if not self.noted.barrier():
            self.planned("barrier").make()

    def all_reduce(self, array: Array, op: ReductionOperation = SUM) -> None:
        """Leave the reduction over all ranks in `array`, on every rank. Collective, in place.

        Parameters
        ----------
        array
            Any shape, the same on all ranks. Half floats are summed as float32.
        """
        if not self.noted.all_reduce(array, op):
            self.planned("all_reduce", array, op).make()

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Leave the root's elements in `array`, on every rank. Collective, in place."""
        if not self.noted.broadcast(array, root):
            self.planned("broadcast", array, root).make()

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
            self.planned("all_gather", send, receive, counts).make()

    def reduce_scatter(
        self,
        send: Array,
        receive: Array,
        counts: Sequence[int] | None = None,
        op: ReductionOperation = SUM,
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
            self.planned("reduce_scatter", send, receive, counts, op, in_place).make()

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
        self.planned("scatter", send, receive, root, counts).make()

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
        self.planned("gather", send, receive, root, counts).make()

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
        self.planned("all_to_all", send, receive, *counts).make()

    # ---- between two ranks -----------------------------------------------------------------------

    def send(self, array: Array, destination: int, tag: int = 0) -> None:
        """Send the elements; may block until the receiver takes them.

        So never send first on both sides.
        """
        with self._message("send", "destination", destination, tag) as (destination, tag):
            port = self.arguments.port("array", array)
            transport = self.transport("send", [port])
            transport.send(port, destination, tag).wait()
            self.traffic.add("send", port.num_bytes if destination != self.rank else 0)

    def receive(self, array: Array, source: int, tag: int = 0) -> None:
        """Receive the next message of this source and tag in `array`, which must have its size."""
        with self._message("receive", "source", source, tag) as (source, tag):
            port = self.arguments.port("array", array, writes=True)
            self.transport("receive", [port]).receive(port, source, tag).wait()

    def isend(self, array: Array, destination: int, tag: int = 0) -> Handle:
        """Begin a send; the array must not change before wait()."""
        with self._message("isend", "destination", destination, tag) as (destination, tag):
            port = self.arguments.port("array", array)
            self.traffic.add("send", port.num_bytes if destination != self.rank else 0)
            transport = self.transport("send", [port])
            return handle_of(self, *transport.isend(port, destination, tag))

    def irecv(self, array: Array, source: int, tag: int = 0) -> Handle:
        """Post a receive; the array holds the message after wait()."""
        with self._message("irecv", "source", source, tag) as (source, tag):
            port = self.arguments.port("array", array, writes=True)
            transport = self.transport("receive", [port])
            return handle_of(self, *transport.irecv(port, source, tag))

    # ---- non-blocking collectives ----------------------------------------------------------------

    def iall_reduce(self, array: Array, op: ReductionOperation = SUM) -> Handle:
        """Begin an all_reduce. All ranks begin their collectives in the same order."""
        return self.planned("all_reduce", array, op).begin()

    def iall_gather(
        self, send: Array, receive: Array, counts: Sequence[int] | None = None
    ) -> Handle:
        """Begin an all_gather."""
        return self.planned("all_gather", send, receive, counts).begin()

    def ireduce_scatter(
        self,
        send: Array,
        receive: Array,
        counts: Sequence[int] | None = None,
        op: ReductionOperation = SUM,
    ) -> Handle:
        """Begin a reduce_scatter."""
        return self.planned("reduce_scatter", send, receive, counts, op, False).begin()


class PlannedCall:
    """A collective of a group on arrays that stay where they are. Calling it is collective.

    arguments   those of the group's verb, all of them
    site        number of the place that is recorded as its caller; None: whoever calls it
    Errors of a call: those of the verb; CommunicationError after shutdown().
    """

    def __init__(self, group: "Verbs", verb: str, arguments: tuple, site: int | None = None):
        self._group, self._verb, self._arguments, self._site = group, verb, arguments, site
        self._channel = self._call = None  # of the channel, and for which one it is planned
        self._plain: checks.Plain | None = None
        self._run, self._go_on = _unbound, None

    def checked(self) -> "PlannedCall":
        """Return the plan, if its arguments are right as far as this rank sees."""
        COLLECTIVES[self._verb].ports(self._group, *self._arguments)
        return self

    def __call__(self) -> None:
        stage = self._run()
        if stage:
            self._rest(stage)

    def _rest(self, stage: int) -> None:
        """Go on with a call that takes long; make the whole call where it was refused."""
        if self._go_on is not None and self._go_on(stage):
            return
        self.make()
        self._run, self._go_on = self._bound() or (_unbound, None)

    def _bound(self) -> tuple | None:
        """Return the call as one of compiled code, and what goes on with it, if it can be that."""
        if self._plain is None:
            return None
        return self._group.noted.bind(self._verb, self._plain.arguments, self._site)

    def make(self) -> None:
        """Make the call, noted here."""
        group = self._group
        if group.channel is None:
            check_alive(group, self._verb)
        if self._channel is not group.channel:
            self._plan()
        if self._plain is None:
            return self._make_through_ports()
        whole, progress = self._plain.whole, group.progress
        progress.begin_collective(
            self._verb, group.group_key, group.world_ranks, whole.dtype, whole.size, self._site
        )
        try:
            self._call()
        except BaseException:
            progress.fail()
            raise
        progress.end()
        if self._plain.sent is not None:
            group.traffic.add(self._verb, self._plain.sent)

    def _plan(self) -> None:
        group = self._group
        plain = checks.PLAIN.get(self._verb)
        self._plain = None if plain is None else plain(group, *self._arguments)
        if self._plain is not None:
            self._call = group.channel.plan(self._verb, *self._plain.arguments)
        self._channel = group.channel

    def _make_through_ports(self) -> None:
        group, verb, collective = self._group, self._verb, COLLECTIVES[self._verb]
        with group.verb(verb, site=self._site):
            parts = collective.ports(group, *self._arguments)
            getattr(group.transport(verb, parts), verb)(*parts).wait()
            group.traffic.add(verb, collective.sent(group, *parts))

    def begin(self) -> Handle:
        """Begin the call. All ranks begin their collectives in the same order."""
        group, name, collective = self._group, f"i{self._verb}", COLLECTIVES[self._verb]
        with group.verb(name, site=self._site):
            parts = collective.ports(group, *self._arguments)
            group.traffic.add(self._verb, collective.sent(group, *parts))
            return handle_of(group, *group.transport(name, parts).begin(self._verb, *parts))


def _unbound() -> int:
    return _UNBOUND
