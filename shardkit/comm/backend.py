"""The contract of communication: the verbs that ranks use to exchange arrays, whatever carries
them.

    what you have                verb                what every rank has afterwards (3 ranks; a, b, c: slices)
    [a0 b0 c0] on each rank      all_reduce          [A B C], A = a0 + a1 + a2
                                 reduce_scatter      A on rank 0, B on rank 1, C on rank 2
    a, b, c: one slice each      all_gather          [a b c] everywhere
                                 gather              [a b c] on the root
    [a b c] on the root          broadcast           [a b c] everywhere
                                 scatter             a on rank 0, b on rank 1, c on rank 2
    [a0 b0 c0] on each rank      all_to_all          [a0 a1 a2] on rank 0, [b0 b1 b2] on rank 1, ...

A public verb checks its arguments, opens a port on each array (GPU memory and half floats go
through host scratch, see staging.py, unless the group has another road for GPU arrays, see
roads.py), counts the bytes, and calls the protected verb of the same name, which sees flat host
arrays only. Plain arrays have a shorter road to it (plain.py). A new backend implements the
protected verbs and inherits everything else.

Arrays are C-contiguous and of any shape; counts and displacements are in elements. Uneven and zero
counts are legal everywhere. `counts`, `root` and `op` must be the same on all ranks.
"""

import sys
from abc import ABC, abstractmethod
from functools import partial
from math import inf
from operator import index
from pathlib import Path

from ..array.backend import is_device_array
from . import checks
from .arguments import Arguments, unstage, with_starts
from .gpu.roads import Roads
from .gpu.staging import Staging
from .objects import ObjectVerbs
from .operations import Handle, ReductionOperation, SeveralHandles, Traffic, together
from .plain import PlainVerbs
from .ports import NoPort
from .watch.ledger import LEDGER_NAME, Ledger
from .watch.progress import Progress

SUM = ReductionOperation.SUM


class CommunicationBackend(Arguments, PlainVerbs, Roads, ObjectVerbs, ABC):
    """One rank's end of a group of ranks.

    timeout       seconds that a rank may wait for the others in one verb; may be set at any time,
                  here or on a group from split()
    seconds_left  function () -> seconds until the batch system kills the job, for this rank's
                  watchdog; may be set
    Errors of every verb: CommunicationError before initialize() or after shutdown(); ValueError on
    arguments that are wrong on this rank alone, raised before anything is sent.
    """

    def __init__(self, rank: int, world_size: int, world_ranks=None):
        self._rank, self._world_size = rank, world_size
        self.seconds_left = lambda: inf
        self.world_ranks = tuple(
            range(world_size) if world_ranks is None else world_ranks
        )  # of the first backend
        self.local_rank = rank  # among the ranks of its node; threads share one
        self.group_key = "world"  # the same on all ranks of a group, different between groups
        self.traffic = Traffic()
        self.staging = Staging()
        self.progress = Progress()

    # ---- the group -------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Position in this group, 0 to world_size - 1."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of ranks in this group."""
        return self._world_size

    @property
    def timeout(self) -> float:
        """Seconds that a call may take; the same for a backend and all groups split from it."""
        return self.progress.timeout

    @timeout.setter
    def timeout(self, seconds: float):
        self.progress.timeout = checks.check_timeout(seconds)

    @property
    def communicator(self):
        """The mpi4py communicator that carries the verbs, for libraries that talk MPI themselves;
        None if there is none.
        """
        return None

    @property
    @abstractmethod
    def is_initialized(self) -> bool:
        """True between initialize() and shutdown()."""

    @abstractmethod
    def initialize(self) -> None:
        """Make the verbs usable; a second call does nothing. Collective."""

    @abstractmethod
    def shutdown(self) -> None:
        """Free what initialize() or split() made; a second call does nothing. Collective."""

    def close(self) -> None:
        """The same as shutdown(), the usual word for a group that split() made. Collective."""
        self.shutdown()

    @abstractmethod
    def abort(self, message: str, code: int = 1) -> None:
        """Print the message and end all ranks of the job, wherever they are. Does not return
        normally.
        """

    @abstractmethod
    def exchange_within(self, note, seconds: float | None) -> list | None:
        """The notes (small objects) of all ranks of the world, or None if not all of them call this
        within the time.

        For ranks that fail or leave: it does not disturb a collective that is under way. None: no
        time limit.
        """

    def keep_ledger(self, folder) -> None:
        """From now on note every call of this rank in a file there (ledger.py); on a backend that
        initialize() made.

        folder   one that all ranks see, if there is one: then `shardkit inspect hang FOLDER` tells
                 of all ranks
        Errors: OSError.
        """
        self._check_alive("keep_ledger")
        self.progress.ledger = Ledger(
            Path(folder) / LEDGER_NAME.format(self.rank), self.rank, self.world_size
        )

    def say(self, message: str) -> None:
        """A message on standard error, in one write, so that the words of several ranks do not
        mix.
        """
        sys.stdout.flush()
        sys.stderr.write(f"shardkit: {message}\n")
        sys.stderr.flush()

    def split(self, color: int | None, key: int = 0) -> "CommunicationBackend | None":
        """The group of the ranks that gave the same color, ordered by (key, rank); None for color
        None.

        Collective over this backend. The group is initialized; close() it on all its ranks.
        """
        with self._verb("split"):
            if color is not None and index(color) < 0:
                raise ValueError(
                    f"color {color} is negative; wanted 0 or more, or None to stay out"
                )
            group = self._split(color, index(key))
            if group is not None:
                group.staging, group.progress, group.local_rank = (
                    self.staging,
                    self.progress,
                    self.local_rank,
                )
                group.group_key = (
                    f"{self.group_key}/{self.progress.num_calls[self.group_key]}.{color}"
                )
        return group

    def memory(self):
        """Where arrays should be that travel over this group: a heap with empty(shape, dtype);
        None: anywhere will do.
        """
        return None

    @property
    def shares_memory(self) -> bool:
        """True if all ranks see each other's memory: whoever needs an array copies it itself, and
        nothing moves meanwhile.
        """
        return False

    @property
    def levels(self):
        """Levels of this group, if its ranks are on several nodes that share memory each
        (shared/levels.py); else None.
        """
        return None

    def common(self, size: int, dtype):
        """An array [size] that all ranks of the group see, contents undefined. Collective.

        None on all of them if they do not share memory, or it is full.
        """
        return None

    def adds_in_tree_order(self, array) -> bool:
        """True if all_reduce and reduce_scatter of such an array add as the tree over ranks of
        ordered.py. By size and dtype.
        """
        return is_device_array(array) and self._device_sums_are_trees(array)

    # ---- collectives -----------------------------------------------------------------------------

    def barrier(self) -> None:
        """Return once every rank has called it. Collective."""
        with self._verb("barrier"):
            self._barrier()

    def all_reduce(self, array, op: ReductionOperation = SUM) -> None:
        """The reduction over all ranks, in `array`, on every rank. Collective, in place.

        array   any shape, the same on all ranks. Half floats are summed as float32.
        """
        if self._plain_all_reduce(array, op):
            return
        with self._verb("all_reduce"):
            port = self._reduction_port("array", array, op, writes=True)

            def run(host):
                self._all_reduce(host, op)
                self._scale(host, op)

            self._in_place("all_reduce", port, run, op, op=op)
            self._count_all_reduce(port.size * port.wire.itemsize)

    def broadcast(self, array, root: int = 0) -> None:
        """The root's elements, in `array`, on every rank. Collective, in place."""
        with self._verb("broadcast"):
            root = checks.check_rank("root", root, self.world_size)
            port = self._port("array", array, writes=self.rank != root)
            self._in_place(
                "broadcast",
                port,
                lambda host: self._broadcast(host, root),
                root,
                loads=self.rank == root,
                stores=self.rank != root,
            )
            self._count_if("broadcast", self.rank == root, (self.world_size - 1) * port.num_bytes)

    def all_gather(self, send, receive, counts=None) -> None:
        """The slices of all ranks, in rank order, in `receive`. Collective.

        send      this rank's slice, counts[rank] elements; may be a view of its own place in
                  `receive` (nothing is copied)
        receive   sum of counts elements
        counts    elements per rank; None: equal
        """
        if counts is None and self._plain_all_gather(send, receive):
            return
        with self._verb("all_gather"):
            own, whole = self._all_gather_parts(send, receive, counts)
            self._exchange(
                "all_gather",
                own,
                whole,
                lambda s, r, _, part: self._all_gather(s, r, part.counts),
                max(whole.counts),
                num_bytes=whole.port.num_bytes,
            )
            self._count_all_gather(own.port.num_bytes)

    def reduce_scatter(
        self, send, receive, counts=None, op: ReductionOperation = SUM, *, in_place: bool = False
    ) -> None:
        """The reduction over all ranks of this rank's slice of `send`, in `receive`. Collective;
        `send` is unchanged.

        send      sum of counts elements
        receive   counts[rank] elements, not overlapping `send`. Half floats are summed as float32.
        in_place  `receive` may be this rank's own slice of `send`; only if adds_in_tree_order
        """
        if counts is None and self._plain_reduce_scatter(send, receive, op, in_place):
            return
        with self._verb("reduce_scatter"):
            whole, own = self._reduce_scatter_parts(
                send, receive, counts, op, in_place and self.adds_in_tree_order(send)
            )

            def run(s, r, part, _):
                self._reduce_scatter(s, r, part.counts, op)
                self._scale(r, op)

            self._exchange(
                "reduce_scatter",
                whole,
                own,
                run,
                max(whole.counts),
                op,
                num_bytes=whole.port.num_bytes,
                op=op,
            )
            self._count_pieces("reduce_scatter", whole)

    def scatter(self, send, receive, root: int = 0, counts=None) -> None:
        """This rank's slice of the root's `send`, in `receive`. Collective.

        send      on the root: sum of counts elements; ignored elsewhere (pass None)
        receive   counts[rank] elements; on the root it may be its own place in `send`
        """
        with self._verb("scatter"):
            root = checks.check_rank("root", root, self.world_size)
            own = self._port("receive", receive, writes=True)
            whole = self._port("send", send) if self.rank == root else NoPort(own)
            whole, own = self._rooted_parts("send", whole, "receive", own, root, counts)
            self._exchange(
                "scatter",
                whole,
                own,
                lambda s, r, part, _: self._scatter(s, r, root, part.counts),
                max(whole.counts),
            )
            self._count_if("scatter", self.rank == root, whole.port.num_bytes - own.port.num_bytes)

    def gather(self, send, receive, root: int = 0, counts=None) -> None:
        """The slices of all ranks, in rank order, in the root's `receive`. Collective.

        send      counts[rank] elements; on the root it may be its own place in `receive`
        receive   on the root: sum of counts elements; ignored elsewhere (pass None)
        """
        with self._verb("gather"):
            root = checks.check_rank("root", root, self.world_size)
            own = self._port("send", send)
            whole = (
                self._port("receive", receive, writes=True) if self.rank == root else NoPort(own)
            )
            whole, own = self._rooted_parts("receive", whole, "send", own, root, counts)
            self._exchange(
                "gather",
                own,
                whole,
                lambda s, r, _, part: self._gather(s, r, root, part.counts),
                max(whole.counts),
            )
            self._count_if("gather", self.rank != root, own.port.num_bytes)

    def all_to_all(
        self,
        send,
        receive,
        send_counts=None,
        receive_counts=None,
        send_displacements=None,
        receive_displacements=None,
    ) -> None:
        """Piece k of `send` goes to rank k; piece k of `receive` comes from rank k. Collective; no
        overlap of the two.

        Counts None: equal parts. Displacements (elements, one per rank) let the pieces lie anywhere
        in a larger buffer, so that nothing need be packed; None: one piece after the other,
        covering the array.
        """
        with self._verb("all_to_all"):
            outgoing, incoming = self._all_to_all_parts(
                send,
                receive,
                send_counts,
                receive_counts,
                send_displacements,
                receive_displacements,
            )
            self._exchange(
                "all_to_all",
                outgoing,
                incoming,
                with_starts(self._all_to_all),
                partial(self._longest_anywhere, outgoing, incoming),
            )
            self._count_pieces("all_to_all", outgoing)

    # ---- between two ranks -----------------------------------------------------------------------

    def send(self, array, destination: int, tag: int = 0) -> None:
        """Send the elements; may block until the receiver takes them, so never send first on both
        sides.
        """
        with self._message_verb("send", "destination", destination, tag) as (destination, tag):
            port = self._port("array", array)
            self._in_place(
                "send",
                port,
                lambda host: self._send(host, destination, tag),
                destination,
                tag,
                stores=False,
            )
            self._count_if("send", destination != self.rank, port.num_bytes)

    def receive(self, array, source: int, tag: int = 0) -> None:
        """The next message of this source and tag, in `array`, which must have its size; blocks
        until it is here.
        """
        with self._message_verb("receive", "source", source, tag) as (source, tag):
            port = self._port("array", array, writes=True)
            self._in_place(
                "receive",
                port,
                lambda host: self._receive(host, source, tag),
                source,
                tag,
                loads=False,
            )

    def isend(self, array, destination: int, tag: int = 0) -> Handle:
        """Begin a send; the array must not change before wait()."""
        with self._message_verb("isend", "destination", destination, tag) as (destination, tag):
            port = self._port("array", array)
            self._count_if("send", destination != self.rank, port.num_bytes)
            road = self._road_of("send", port.num_bytes, port)
            if road is not None:
                return self._handle(road.send(port, destination, tag))
            parts = self.staging.messages(port, self.staging.whole(port, load=True))
            return self._handle(together([self._isend(part, destination, tag) for part in parts]))

    def irecv(self, array, source: int, tag: int = 0) -> Handle:
        """Post a receive; the array holds the message after wait()."""
        with self._message_verb("irecv", "source", source, tag) as (source, tag):
            port = self._port("array", array, writes=True)
            road = self._road_of("receive", port.num_bytes, port)
            if road is not None:
                return self._handle(road.receive(port, source, tag))
            host = self.staging.whole(port, load=False)
            parts = self.staging.messages(port, host)
            return self._handle(
                together([self._irecv(part, source, tag) for part in parts]),
                lambda: unstage(port, host),
            )

    # ---- non-blocking collectives ----------------------------------------------------------------

    def iall_reduce(self, array, op: ReductionOperation = SUM) -> Handle:
        """Begin an all_reduce. All ranks begin their collectives in the same order."""
        with self._verb("iall_reduce"):
            port = self._reduction_port("array", array, op, writes=True)
            self._count_all_reduce(port.size * port.wire.itemsize)
            road = self._road_of("iall_reduce", port.num_bytes, port, op=op)
            if road is not None:
                return self._handle(road.all_reduce(port, op))
            host = self.staging.whole(port, load=True)

            def finish():
                self._scale(host, op)
                unstage(port, host)

            return self._handle(self._iall_reduce(host, op), finish)

    def iall_gather(self, send, receive, counts=None) -> Handle:
        """Begin an all_gather."""
        with self._verb("iall_gather"):
            own, whole = self._all_gather_parts(send, receive, counts)
            self._count_all_gather(own.port.num_bytes)
            road = self._road_of("iall_gather", whole.port.num_bytes, own.port, whole.port)
            if road is not None:
                return self._handle(road.all_gather(own, whole))
            source, target = (
                self.staging.whole(own.port, load=True),
                self.staging.whole(whole.port, load=False),
            )
            return self._handle(
                self._iall_gather(source, target, whole.counts), lambda: unstage(whole.port, target)
            )

    def ireduce_scatter(self, send, receive, counts=None, op: ReductionOperation = SUM) -> Handle:
        """Begin a reduce_scatter."""
        with self._verb("ireduce_scatter"):
            whole, own = self._reduce_scatter_parts(send, receive, counts, op)
            self._count_pieces("reduce_scatter", whole)
            road = self._road_of(
                "ireduce_scatter", whole.port.num_bytes, whole.port, own.port, op=op
            )
            if road is not None:
                return self._handle(road.reduce_scatter(whole, own, op))
            source, target = (
                self.staging.whole(whole.port, load=True),
                self.staging.whole(own.port, load=False),
            )

            def finish():
                self._scale(target, op)
                unstage(own.port, target)

            return self._handle(self._ireduce_scatter(source, target, whole.counts, op), finish)

    # ---- what a backend implements, on flat host arrays: _split, and the verbs above with a leading underscore -----
    # AVERAGE is a SUM for them, and scaled afterwards; `send` of _all_gather and _gather, `receive`
    # of _scatter may be the own slice of the other.

    @abstractmethod
    def _split(self, color, key): ...

    @abstractmethod
    def _barrier(self): ...

    @abstractmethod
    def _all_reduce(self, array, op): ...

    @abstractmethod
    def _broadcast(self, array, root): ...

    @abstractmethod
    def _all_gather(self, send, receive, counts): ...

    @abstractmethod
    def _reduce_scatter(self, send, receive, counts, op): ...

    @abstractmethod
    def _scatter(self, send, receive, root, counts): ...

    @abstractmethod
    def _gather(self, send, receive, root, counts): ...

    @abstractmethod
    def _all_to_all(
        self, send, receive, send_counts, receive_counts, send_starts, receive_starts
    ): ...

    @abstractmethod
    def _send(self, array, destination, tag): ...

    @abstractmethod
    def _receive(self, array, source, tag): ...

    @abstractmethod
    def _isend(self, array, destination, tag): ...

    @abstractmethod
    def _irecv(self, array, source, tag): ...

    def _begin_exchange(self, outgoing, incoming, tag):
        """Messages to and from several ranks, as one handle; lists of (rank, array)."""
        return SeveralHandles(
            [self._irecv(array, rank, tag) for rank, array in incoming]
            + [self._isend(array, rank, tag) for rank, array in outgoing]
        )

    @abstractmethod
    def _iall_reduce(self, array, op): ...

    @abstractmethod
    def _iall_gather(self, send, receive, counts): ...

    @abstractmethod
    def _ireduce_scatter(self, send, receive, counts, op): ...
