"""How parameters and gradients of units move over the data axis: at once, or begun while the units
still compute.

gather   all-gather of the ranks' own parts               sum   reduce-scatter, or all-reduce if the policy shards nothing

begin_gather, begin_sum    post the messages            the runtime calls pump() between two actions
end                        waits for what is left       of those that were begun
"""

from dataclasses import dataclass

from ...array.device import BufferPool
from ...comm import CommunicationBackend
from ...comm.collectives.asynchronous import (
    NUM_TAGS,
    AsyncCollective,
    begin_all_gather,
    begin_ordered_all_reduce,
    begin_ordered_reduce_scatter,
)
from ...comm.collectives.compressed import compressed_all_reduce, compressed_reduce_scatter
from ...comm.collectives.ordered import ordered_all_reduce, ordered_reduce_scatter

_NUM_RUNS, _NUM_TURNS = (
    4,
    4095,
)  # 4 x 4095 x NUM_TAGS is below 32767, the largest tag that every MPI has


@dataclass(frozen=True, eq=False)
class _UnderWay:
    """What was begun, and the buffer of the pool that it needs until its end, if any."""

    begun: AsyncCollective
    scratch: object = None


class Movement:
    """The collectives of all units of one model.

    group          the data axis
    gradients      where whole gradients come from
    deterministic  sums are the tree over ranks; else the MPI library's own
    wire_dtype     "float16": gradients travel as half floats; None: as they are
    """

    def __init__(
        self,
        group: CommunicationBackend,
        gradients: BufferPool,
        *,
        deterministic: bool = True,
        wire_dtype: str | None = None,
    ):
        self.group, self.is_deterministic = group, deterministic
        self._gradients, self._wire_dtype = gradients, wire_dtype
        self._under_way: list[_UnderWay] = []
        self._lost: list[_UnderWay] = []  # of runs that failed: MPI may still write to their arrays
        self._run = self._number = 0  # of the program, and of what it has begun

    # ---- at once ---------------------------------------------------------------------------------

    def sum(self, total, out):
        """Sum `total` [size] over ranks, in it; `out` is the part of it that is to be right here:
        all, or this rank's own.
        """
        reduce_scatter, all_reduce = self._sums()
        if out is total:
            all_reduce(self.group, total)
        else:
            reduce_scatter(self.group, total, out)

    def _sums(self):
        if self._wire_dtype:
            return compressed_reduce_scatter, compressed_all_reduce
        if self.is_deterministic:
            return ordered_reduce_scatter, ordered_all_reduce
        return self._reduce_scatter, CommunicationBackend.all_reduce

    def _reduce_scatter(self, group, total, out):
        apart = self._gradients.take(out.size)
        group.reduce_scatter(total, apart)
        out[:] = apart
        self._gradients.give(apart)

    # ---- begun and ended -------------------------------------------------------------------------

    def begin_run(self) -> None:
        """A program begins. Messages of one that failed never match those of this one."""
        self._run, self._number = (self._run + 1) % _NUM_RUNS, 0

    def begin_gather(self, own, whole) -> _UnderWay:
        """Begin to make `whole` [size] from the `own` [shard] of all ranks."""
        return self._note(_UnderWay(begin_all_gather(self.group, own, whole, self._next_tag())))

    def begin_sum(self, total, out) -> _UnderWay:
        """Begin what sum() does; for deterministic sums that travel as they are, whose bits are the
        same then.
        """
        scratch, tag = self._gradients.take(total.size), self._next_tag()
        if out is total:
            return self._note(
                _UnderWay(begin_ordered_all_reduce(self.group, total, scratch, tag), scratch)
            )
        return self._note(
            _UnderWay(begin_ordered_reduce_scatter(self.group, total, out, scratch, tag), scratch)
        )

    def end(self, what: _UnderWay) -> None:
        """Return when it is complete. All ranks end what they began in the same order."""
        what.begun.end()
        self._under_way.remove(what)
        if what.scratch is not None:
            self._gradients.give(what.scratch)

    def pump(self) -> None:
        """Let what is under way move. Never blocks."""
        for what in self._under_way:
            what.begun.pump()

    def give_up(self) -> None:
        """The program has failed, on all ranks."""
        self._lost += self._under_way
        self._under_way.clear()

    def _note(self, what):
        self._under_way.append(what)
        return what

    def _next_tag(self) -> int:
        self._number = (self._number + 1) % _NUM_TURNS
        return (self._number * _NUM_RUNS + self._run) * NUM_TAGS
