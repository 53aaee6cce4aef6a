"""The collectives of units over the data axis: in one call, or asynchronous while units compute.

    data ranks    0 1 2 3 | 4 5 6 7       group: a run of neighbors that share one copy
                  0     -   4             between: the ranks at one place of every run; () where
                                          all data ranks are one run

sum                       reduce-scatter or all-reduce, in one call
spread                    what each rank owns, to those that keep the same
begin_gather, begin_sum   post the messages of a collective and return a handle
pump                      progresses all that is under way; called between two actions
end                       waits for the rest
"""

from dataclasses import dataclass
from functools import partial

from ...array.device import BufferPool
from ...comm.backend import CommunicationBackend
from ...comm.checks import MAX_TAG, pieces_of, shares_of, starts_of
from ...comm.collectives.asynchronous import (
    NUM_TAGS,
    AsyncCollective,
    InTurn,
    begin_all_gather,
    begin_ordered_sum,
)
from ...comm.collectives.compressed import compressed_sum
from ...comm.collectives.ordered import ordered_all_reduce, ordered_reduce_scatter

# tags of programs that failed come back after so many more of them, those of collectives under way
# after so many others
_NUM_FAILURES = 128
_NUM_TURNS = (MAX_TAG - 1) // (_NUM_FAILURES * NUM_TAGS)


@dataclass(frozen=True, eq=False)
class _UnderWay:
    """An asynchronous collective, or several in turn, and the buffer of the pool that they need."""

    collective: AsyncCollective | InTurn
    scratch: object = None


class Movement:
    """The collectives of all units of one model.

    group          the data axis, or the run of it that shares one copy
    between        the ranks at one place of each run, if there are several
    gradients      where whole gradients come from
    deterministic  sums are the tree over ranks; else the MPI library's own
    wire_dtype     "float16": gradients travel as half floats; None: as they are
    """

    def __init__(
        self,
        group: CommunicationBackend,
        gradients: BufferPool,
        *,
        between: tuple[CommunicationBackend, ...] = (),
        deterministic: bool = True,
        wire_dtype: str | None = None,
    ):
        self.group, self.between = group, between
        self.is_deterministic = deterministic
        self._gradients, self._wire_dtype = gradients, wire_dtype
        self._under_way: list[_UnderWay] = []
        self._lost: list[_UnderWay] = []  # of failed runs: MPI may still write to their arrays
        self._number = 0  # of the collective in its program
        self._num_failures = 0  # of programs

    # ---- in one call -----------------------------------------------------------------------------

    def sum(self, total, out):
        """Sum `total` [size] over ranks, in place. Collective.

        out   what must be right on this rank: `total` itself, or an array for this rank's shard
        """
        self._add(self.group, total, out)
        for group in self.between:
            self._add(group, out, out)

    def owned(self, size: int) -> slice:
        """Return which of `size` elements that several groups keep is owned by this one."""
        own = slice(0, size)
        for group in self.between:
            counts = shares_of(size, group.world_size)
            start = starts_of(counts)[group.rank]
            own = slice(start, start + counts[group.rank])
        return own

    def spread(self, kept) -> None:
        """Copy what each rank owns of `kept` [size] to all that keep it. Collective."""
        for group in self.between:
            counts = shares_of(kept.size, group.world_size)
            group.all_gather(pieces_of(kept, counts)[group.rank], kept, counts)

    def _add(self, group, total, out):
        if self._wire_dtype:
            compressed_sum(group, total, out)
        elif out is total:
            ordered_all_reduce(group, total) if self.is_deterministic else group.all_reduce(total)
        elif self.is_deterministic:
            ordered_reduce_scatter(group, total, out)
        else:
            apart = self._gradients.take(out.size)
            group.reduce_scatter(total, apart)
            out[:] = apart
            self._gradients.give(apart)

    # ---- asynchronous ----------------------------------------------------------------------------

    def begin_run(self) -> None:
        """Begin a program, whose messages never match those of one that failed."""
        self._number = 0

    def begin_gather(self, own, whole) -> _UnderWay:
        """Begin to fill `whole` [size] from the `own` [shard] of all ranks."""
        return self._note(_UnderWay(begin_all_gather(self.group, own, whole, self._next_tag())))

    def begin_sum(self, total, out) -> _UnderWay:
        """Begin what sum() does, with the same bits; for deterministic, uncompressed sums only."""
        sizes = [group.world_size for group in self.between]
        # the first shares of an uneven cut are larger than the last
        shares = [n * max(shares_of(out.size, n)) for n in sizes]
        scratch, tag = self._gradients.take(max(total.size, *shares, 0)), self._next_tag()
        first = begin_ordered_sum(self.group, total, out, scratch, tag)
        later = [
            (group, partial(begin_ordered_sum, group, out, out, scratch, tag))
            for group in self.between
        ]
        return self._note(_UnderWay(InTurn(first, later) if later else first, scratch))

    def end(self, what: _UnderWay) -> None:
        """Wait until it is complete. All ranks end their collectives in the same order."""
        what.collective.end()
        self._under_way.remove(what)
        if what.scratch is not None:
            self._gradients.give(what.scratch)

    def pump(self) -> None:
        """Progress all collectives under way. Never blocks."""
        for what in self._under_way:
            what.collective.pump()

    def give_up(self) -> None:
        """Forget the collectives of a program that failed on all ranks, and keep their buffers."""
        self._num_failures += 1
        self._lost += self._under_way
        self._under_way.clear()

    def _note(self, what):
        self._under_way.append(what)
        return what

    def _next_tag(self) -> int:
        self._number = (self._number + 1) % _NUM_TURNS
        return (self._number * _NUM_FAILURES + self._num_failures % _NUM_FAILURES) * NUM_TAGS
