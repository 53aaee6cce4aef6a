"""The verbs that ranks use to exchange arrays, whatever carries them.

    what you have                verb             what every rank has afterwards (a, b, c: slices)
    [a0 b0 c0] on each rank      all_reduce       [A B C], A = a0 + a1 + a2
                                 reduce_scatter   A on rank 0, B on rank 1, C on rank 2
    a, b, c: one slice each      all_gather       [a b c] everywhere
                                 gather           [a b c] on the root
    [a b c] on the root          broadcast        [a b c] everywhere
                                 scatter          a on rank 0, b on rank 1, c on rank 2
    [a0 b0 c0] on each rank      all_to_all       [a0 a1 a2] on rank 0, [b0 b1 b2] on rank 1, ...

A verb notes the call (watch/progress.py, watch/ledger.py), checks its arguments (arguments.py),
lets a transport move the arrays (transport.py), and counts the bytes. The five verbs that training
calls most hand plain arrays straight to the channel: around a small message the rest takes longer
than the message.

Arrays are C-contiguous and of any shape; counts and displacements are in elements. Uneven and zero
counts are legal everywhere. `counts`, `root` and `op` must be the same on all ranks.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy

from ..annotations import Array, DTypeLike
from ..array.backend import is_device_array
from . import checks
from .alone import AloneTransport
from .arguments import Arguments
from .checks import is_carried, is_plain, is_slice, pieces_of_plain
from .operations import Handle, ReductionOperation, Traffic
from .prepared import PreparedVerbs
from .transport import GpuTransport, StagedTransport
from .under_way import check_alive, handle_of
from .watch.progress import Progress, UnderWay

SUM = ReductionOperation.SUM
_NOTHING = SimpleNamespace(dtype=None, size=-1, nbytes=0)  # what a barrier carries


class Verbs:
    """One rank's end of a group of ranks, as far as arrays go; CommunicationBackend is the rest.

    Parameters
    ----------
    rank
        Position in this group.
    world_ranks
        Of this group's ranks, in the first backend.
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
    arguments
        Opens ports on arrays.
    prepare
        The collectives that are called again and again (prepared.py).

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
        self.quick = None  # the short road of plain arrays, if the channel has one
        self.prepare = PreparedVerbs(self)
        self.arguments = Arguments(self)
        self.gpu_transport: GpuTransport | None = None
        if self.world_size == 1:
            self.gpu_transport = AloneTransport(self)
        self._staged = StagedTransport(self)
        self.under_way = UnderWay(progress)

    # ---- around every verb -----------------------------------------------------------------------

    def verb(self, name: str, dtype: DTypeLike | None = None, count: int = -1) -> UnderWay:
        """Note a collective call; return the context manager to do it in.

        Parameters
        ----------
        dtype, count
            What it carries, in elements, if that is known.
        """
        if self.channel is None:
            check_alive(self, name)
        self.progress.begin_collective(name, self.group_key, self.world_ranks, dtype, count)
        return self.under_way

    def _carry(self, name: str, whole, verb, *arguments) -> None:
        """Do a verb of the channel whose arguments are checked, with nothing between.

        whole   the array whose dtype and size the ledger names
        """
        self.channel.load(name, whole.nbytes, whole.dtype)
        self.progress.begin_collective(
            name, self.group_key, self.world_ranks, whole.dtype, whole.size
        )
        try:
            verb(*arguments)
        except BaseException:
            self.progress.fail()
            raise
        self.progress.end()

    def _message(self, name, what, peer, tag):
        """Note a message; return the context manager that gives the checked peer and tag."""
        check_alive(self, name)
        peer = checks.check_rank(what, peer, self.world_size)
        tag = checks.check_tag(tag)
        self.progress.begin_message(name, self.group_key, (self.world_ranks[peer],))
        return UnderWay(self.progress, (peer, tag))

    def _transport(self, verb, num_bytes, port, other=None, op=None):
        """Return the transport that takes this call."""
        if port.is_on_device and (other is None or other.is_on_device):
            gpu = self.gpu_transport
            if gpu is not None and gpu.takes(verb, num_bytes, port.dtype, op):
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

    # ---- collectives -----------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until every rank has called it. Collective."""
        if self.quick is not None and self.quick.barrier():
            return
        check_alive(self, "barrier")
        self._carry("barrier", _NOTHING, self.channel.barrier)

    def all_reduce(self, array: Array, op: ReductionOperation = SUM) -> None:
        """Leave the reduction over all ranks in `array`, on every rank. Collective, in place.

        Parameters
        ----------
        array
            Any shape, the same on all ranks. Half floats are summed as float32.
        """
        if self.quick is not None and self.quick.all_reduce(array, op):
            return
        channel, n = self.channel, self.world_size
        if is_plain(array) and is_carried(op) and channel is not None:
            flat = array if array.ndim == 1 else array.reshape(-1)
            channel.load("all_reduce", array.nbytes, array.dtype)
            with self.verb("all_reduce", array.dtype, array.size):
                channel.all_reduce(flat, op)
                self.traffic.add("all_reduce", 2 * (n - 1) * array.nbytes // n)
            return
        with self.verb("all_reduce"):
            port = self.arguments.reduction("array", array, op, writes=True)
            self._transport("all_reduce", port.num_bytes, port, op=op).all_reduce(port, op).wait()
            self.traffic.add_ring("all_reduce", self.world_size, port.size * port.wire.itemsize)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Leave the root's elements in `array`, on every rank. Collective, in place."""
        if self.quick is not None and self.quick.broadcast(array, root):
            return
        channel, n = self.channel, self.world_size
        if is_plain(array) and type(root) is int and 0 <= root < n and channel is not None:
            flat = array if array.ndim == 1 else array.reshape(-1)
            self._carry("broadcast", array, channel.broadcast, flat, root)
            self.traffic.add("broadcast", (n - 1) * array.nbytes * (self.rank == root))
            return
        with self.verb("broadcast"):
            root = checks.check_rank("root", root, self.world_size)
            is_root = self.rank == root
            port = self.arguments.port("array", array, writes=not is_root)
            self._transport("broadcast", port.num_bytes, port).broadcast(port, root).wait()
            self.traffic.add("broadcast", (self.world_size - 1) * port.num_bytes * is_root)

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
        quick = self.quick if counts is None else None
        if quick is not None and quick.all_gather(send, receive):
            return
        channel, n = self.channel, self.world_size
        if counts is None and is_plain(send) and is_plain(receive) and channel is not None:
            if is_slice(send, receive, n, self.rank, channel.address):
                own = send if send.ndim == 1 else send.reshape(-1)
                whole = receive if receive.ndim == 1 else receive.reshape(-1)
                self._carry("all_gather", whole, channel.all_gather, own, whole, [own.size] * n)
                self.traffic.add("all_gather", (n - 1) * send.nbytes)
                return
        with self.verb("all_gather"):
            part, total = self.arguments.all_gather(send, receive, counts)
            num_bytes = total.port.num_bytes
            transport = self._transport("all_gather", num_bytes, part.port, total.port)
            transport.all_gather(part, total).wait()
            self.traffic.add("all_gather", (self.world_size - 1) * part.port.num_bytes)

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
        quick = self.quick if counts is None else None
        if quick is not None and quick.reduce_scatter(send, receive, op, in_place):
            return
        in_place = in_place and self.adds_in_tree_order(send)
        channel, n = self.channel, self.world_size
        plain = counts is None and is_plain(send) and is_plain(receive) and is_carried(op)
        if plain and channel is not None:
            if is_slice(receive, send, n, self.rank if in_place else None, channel.address):
                whole = send if send.ndim == 1 else send.reshape(-1)
                own = receive if receive.ndim == 1 else receive.reshape(-1)
                counts = [own.size] * n
                self._carry("reduce_scatter", own, channel.reduce_scatter, whole, own, counts, op)
                self.traffic.add("reduce_scatter", send.nbytes - receive.nbytes)
                return
        with self.verb("reduce_scatter"):
            total, part = self.arguments.reduce_scatter(send, receive, counts, op, in_place)
            num_bytes = total.port.num_bytes
            transport = self._transport("reduce_scatter", num_bytes, total.port, part.port, op)
            transport.reduce_scatter(total, part, op).wait()
            self.traffic.add_pieces("reduce_scatter", total, self.rank)

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
        with self.verb("scatter"):
            root = checks.check_rank("root", root, self.world_size)
            whole, own = self.arguments.scatter(send, receive, root, counts)
            transport = self._transport("scatter", 0, whole.port, own.port)
            transport.scatter(whole, own, root).wait()
            is_root = self.rank == root
            rest = whole.port.num_bytes - own.port.num_bytes
            self.traffic.add("scatter", rest if is_root else 0)

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
        with self.verb("gather"):
            root = checks.check_rank("root", root, self.world_size)
            whole, own = self.arguments.gather(send, receive, root, counts)
            self._transport("gather", 0, own.port, whole.port).gather(own, whole, root).wait()
            self.traffic.add("gather", 0 if self.rank == root else own.port.num_bytes)

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
        pieces = pieces_of_plain(send, receive, *counts, self.world_size, self.rank)
        if pieces is not None and self.channel is not None:
            source = send if send.ndim == 1 else send.reshape(-1)
            target = receive if receive.ndim == 1 else receive.reshape(-1)
            self._carry("all_to_all", target, self.channel.all_to_all, source, target, *pieces)
            self.traffic.add("all_to_all", (sum(pieces[0]) - pieces[0][self.rank]) * send.itemsize)
            return
        with self.verb("all_to_all"):
            outgoing, incoming = self.arguments.all_to_all(send, receive, *counts)
            transport = self._transport("all_to_all", 0, outgoing.port, incoming.port)
            transport.all_to_all(outgoing, incoming).wait()
            self.traffic.add_pieces("all_to_all", outgoing, self.rank)

    # ---- between two ranks -----------------------------------------------------------------------

    def send(self, array: Array, destination: int, tag: int = 0) -> None:
        """Send the elements; may block until the receiver takes them.

        So never send first on both sides.
        """
        with self._message("send", "destination", destination, tag) as (destination, tag):
            port = self.arguments.port("array", array)
            transport = self._transport("send", port.num_bytes, port)
            transport.send(port, destination, tag).wait()
            self.traffic.add("send", port.num_bytes if destination != self.rank else 0)

    def receive(self, array: Array, source: int, tag: int = 0) -> None:
        """Receive the next message of this source and tag in `array`, which must have its size."""
        with self._message("receive", "source", source, tag) as (source, tag):
            port = self.arguments.port("array", array, writes=True)
            self._transport("receive", port.num_bytes, port).receive(port, source, tag).wait()

    def isend(self, array: Array, destination: int, tag: int = 0) -> Handle:
        """Begin a send; the array must not change before wait()."""
        with self._message("isend", "destination", destination, tag) as (destination, tag):
            port = self.arguments.port("array", array)
            self.traffic.add("send", port.num_bytes if destination != self.rank else 0)
            transport = self._transport("send", port.num_bytes, port)
            return handle_of(self, *transport.isend(port, destination, tag))

    def irecv(self, array: Array, source: int, tag: int = 0) -> Handle:
        """Post a receive; the array holds the message after wait()."""
        with self._message("irecv", "source", source, tag) as (source, tag):
            port = self.arguments.port("array", array, writes=True)
            transport = self._transport("receive", port.num_bytes, port)
            return handle_of(self, *transport.irecv(port, source, tag))

    # ---- non-blocking collectives ----------------------------------------------------------------

    def iall_reduce(self, array: Array, op: ReductionOperation = SUM) -> Handle:
        """Begin an all_reduce. All ranks begin their collectives in the same order."""
        with self.verb("iall_reduce"):
            port = self.arguments.reduction("array", array, op, writes=True)
            self.traffic.add_ring("all_reduce", self.world_size, port.size * port.wire.itemsize)
            transport = self._transport("iall_reduce", port.num_bytes, port, op=op)
            return handle_of(self, *transport.iall_reduce(port, op))

    def iall_gather(
        self, send: Array, receive: Array, counts: Sequence[int] | None = None
    ) -> Handle:
        """Begin an all_gather."""
        with self.verb("iall_gather"):
            own, whole = self.arguments.all_gather(send, receive, counts)
            self.traffic.add("all_gather", (self.world_size - 1) * own.port.num_bytes)
            num_bytes = whole.port.num_bytes
            transport = self._transport("iall_gather", num_bytes, own.port, whole.port)
            return handle_of(self, *transport.iall_gather(own, whole))

    def ireduce_scatter(
        self,
        send: Array,
        receive: Array,
        counts: Sequence[int] | None = None,
        op: ReductionOperation = SUM,
    ) -> Handle:
        """Begin a reduce_scatter."""
        with self.verb("ireduce_scatter"):
            whole, own = self.arguments.reduce_scatter(send, receive, counts, op)
            self.traffic.add_pieces("reduce_scatter", whole, self.rank)
            num_bytes = whole.port.num_bytes
            transport = self._transport("ireduce_scatter", num_bytes, whole.port, own.port, op)
            return handle_of(self, *transport.ireduce_scatter(whole, own, op))
