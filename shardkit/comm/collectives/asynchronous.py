"""Collectives that begin now and end later, so that messages travel while this rank computes.

    begin           pump, pump ...                                  end
    all messages    the library moves bytes; once all have come     waits for what is left
    are posted      the owner adds them, and posts the sums

An MPI library moves bytes inside of its calls only, and its own non-blocking collectives take many
small turns, each of which waits for the next call. So all messages of a turn are posted together
here, and a rank that computes calls pump() now and then. Sums are the tree of ordered.py: the same
bits as those of the blocking collective. Ranks need not reach the second turn of several sums in
the same order, since each has tags of its own.

Where the ranks of a node share memory (node/levels.py), what happens within a node is done by all
its ranks together when the collective begins or ends; only what goes between nodes is under way.
"""

import time
from itertools import chain

from ...array.arena import empty
from ...errors import OutOfMemoryError
from ..checks import PIECE_TAG, equal_counts, pieces_of, ring_bytes, shares_of
from ..operations import ReductionOperation
from ..under_way import check_alive, waiting_for
from ..watch.progress import UnderWay
from .rounds import each_window_to_owner, to_all, to_owner, to_owner_to_all

NUM_TAGS = 2  # of each collective: its own and the next one


class AsyncCollective:
    """A collective under way on this rank: its async handle.

    Its arrays must not be touched until end() has returned.
    turns   generator of handles: each turn begins when the one before is complete
    last    collective within the node that ends it, or None
    """

    def __init__(self, group, turns, last=None):
        self._group = group
        self._turns = turns
        self._last = last
        self._call = group.progress.current
        self._handle = self._next_turn()

    def pump(self) -> None:
        """Let messages move, and begin the next turn if one is complete. Never blocks."""
        began = time.monotonic()
        while self._handle is not None and self._handle.test():
            self._handle = self._next_turn()
        self._group.progress.add_seconds(self._group.group_key, time.monotonic() - began)

    def end(self) -> None:
        """Wait until it is complete; a second call returns immediately.

        All ranks end their collectives in the order in which they began them.
        """
        with waiting_for(self._group, self._call):
            while self._handle is not None:
                self._handle.wait()
                self._handle = self._next_turn()
            if self._last is not None:
                self._last()
                self._last = None

    @property
    def is_done(self) -> bool:
        """True if nothing is left to wait for: end() would return immediately."""
        return self._handle is None and self._last is None

    def _next_turn(self):
        try:
            return next(self._turns, None)
        except MemoryError as error:  # others wait for the message
            raise OutOfMemoryError(
                f"{self._call}: no memory to add what has come ({error})"
            ) from error


class InTurn:
    """Collectives of which each begins when the one before is complete on this rank.

    first   under way
    later   [(group, function that begins one over it)]; those of a group on nodes that share memory
            begin in end(), since all its ranks begin them together
    """

    def __init__(self, first: AsyncCollective, later: list[tuple]):
        self._current, self._later = first, list(later)

    def pump(self) -> None:
        """Let messages move, and begin the next collective if one is complete. Never blocks."""
        self._current.pump()
        while self._later and self._current.is_done and self._later[0][0].channel.levels is None:
            self._begin_next()
            self._current.pump()

    def end(self) -> None:
        """Wait until all are complete; as AsyncCollective.end()."""
        self._current.end()
        while self._later:
            self._begin_next()
            self._current.end()

    def _begin_next(self):
        _, begin = self._later.pop(0)
        self._current = begin()


def begin_all_gather(group, own, whole, tag: int) -> AsyncCollective:
    """Begin to gather the slices of all ranks, in rank order, in `whole`, both on the host.

    All ranks of the group begin and end it.
    own     [shard]; may be its own place in `whole`
    whole   [world_size * shard]
    tag     this and the next one are not used by anything else that is under way on the group
    """
    with _beginning(group, "begin_all_gather"):
        part, parts = group.arguments.all_gather(own, whole, None)
        group.traffic.add("all_gather", (group.world_size - 1) * part.port.num_bytes)
        own = part.port.host
        whole = parts.port.host
        counts = parts.counts
        slices = pieces_of(whole, counts)
        if own.ctypes.data != slices[group.rank].ctypes.data:
            slices[group.rank][...] = own
        if group.channel.levels is not None:
            return AsyncCollective(
                group, *group.channel.levels.begin_all_gather(whole, counts, tag)
            )
        return AsyncCollective(group, to_all(group.channel, slices, tag))


def begin_ordered_reduce_scatter(group, buffer, out, scratch, tag: int) -> AsyncCollective:
    """Begin the sum of ordered_reduce_scatter, of float32 or wider on the host.

    All ranks of the group begin and end it.
    buffer    [world_size * shard], unchanged unless `out` is a view of this rank's own slice of it,
              which it may be
    scratch   [buffer.size] of the same dtype, until the end
    tag       as for begin_all_gather
    """
    with _beginning(group, "begin_reduce_scatter"):
        counts = equal_counts("counts", buffer.size, group.world_size)
        group.traffic.add("reduce_scatter", buffer.nbytes - out.nbytes)
        if _adds_in_levels(group, buffer):
            turns = group.channel.levels.begin_reduce_scatter(buffer, out, counts, scratch, tag)
        else:
            turns = to_owner(group.channel, pieces_of(buffer, counts), out, scratch, tag)
        return AsyncCollective(group, turns)


def begin_ordered_all_reduce(group, buffer, scratch, tag: int) -> AsyncCollective:
    """Begin the sum of ordered_all_reduce; arguments as for begin_ordered_reduce_scatter."""
    with _beginning(group, "begin_all_reduce"):
        group.traffic.add("all_reduce", ring_bytes(group, buffer.nbytes))
        if _adds_in_levels(group, buffer):
            return AsyncCollective(
                group, *group.channel.levels.begin_all_reduce(buffer, scratch, tag)
            )
        parts = pieces_of(buffer, shares_of(buffer.size, group.world_size))
        return AsyncCollective(group, to_owner_to_all(group.channel, parts, scratch, tag))


def reduce_in_rounds(group, parts, out, scratch_elements: int, scratch) -> None:
    """Leave the sum over ranks of this one's part in `out`. Collective; arrays on the host.

    parts     one per rank; scratch as of ordered_reduce_scatter. A window of every part at a time.
    """
    window = max(1, scratch_elements // len(parts))
    room = scratch if scratch is not None else empty(len(parts) * window, out.dtype)
    with _beginning(group, "reduce_scatter"):
        group.traffic.add("reduce_scatter", sum(part.nbytes for part in parts) - out.nbytes)
        turns = each_window_to_owner(group.channel, parts, out, window, [room], PIECE_TAG)
        under_way = AsyncCollective(group, chain.from_iterable(turns))
    under_way.end()


def _beginning(group, name: str) -> UnderWay:
    """Note the beginning; return the context manager to do it in."""
    check_alive(group, name)
    group.progress.begin_message(name, group.group_key, group.world_ranks)
    return UnderWay(group.progress)


def _adds_in_levels(group, buffer) -> bool:
    return group.channel.levels is not None and group.channel.levels.adds(
        buffer.dtype, ReductionOperation.SUM
    )
