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

from ...errors import OutOfMemoryError
from .. import arguments
from ..checks import equal_counts, pieces_of, ring_bytes, shares_of
from ..operations import ReductionOperation
from ..under_way import check_alive, waiting_for
from ..watch.progress import UnderWay
from .ordered import add_slices
from .turns import to_all, to_owner, to_owner_to_all

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
        part, parts = arguments.all_gather(group, own, whole, None)
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


def begin_ordered_sum(group, buffer, out, scratch, tag: int) -> AsyncCollective:
    """Begin the sum of ordered_all_reduce, or of ordered_reduce_scatter, on the host.

    All ranks of the group begin and end it.
    buffer    [any length], float32 or wider; [world_size * shard] to be scattered
    out       `buffer` itself, or an array for this rank's slice alone, which may be its own of it
    scratch   [buffer.size] of the same dtype, until the end
    tag       as for begin_all_gather
    """
    is_slice = out is not buffer
    verb = "reduce_scatter" if is_slice else "all_reduce"
    with _beginning(group, f"begin_{verb}"):
        if is_slice:
            counts = equal_counts("counts", buffer.size, group.world_size)
            group.traffic.add(verb, buffer.nbytes - out.nbytes)
        else:
            counts = shares_of(buffer.size, group.world_size)
            group.traffic.add(verb, ring_bytes(group, buffer.nbytes))
        levels = group.channel.levels
        if levels is not None and levels.adds(buffer.dtype, ReductionOperation.SUM):
            return AsyncCollective(group, *levels.begin_sum(buffer, out, counts, scratch, tag))
        parts = pieces_of(buffer, counts)
        if is_slice:
            return AsyncCollective(
                group, to_owner(group.channel, parts, out, scratch, tag, add_slices)
            )
        return AsyncCollective(
            group, to_owner_to_all(group.channel, parts, scratch, tag, add_slices)
        )


def _beginning(group, name: str) -> UnderWay:
    """Note the beginning; return the context manager to do it in."""
    check_alive(group, name)
    group.progress.begin_message(name, group.group_key, group.world_ranks)
    return UnderWay(group.progress)
