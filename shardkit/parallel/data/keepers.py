"""Keepers: how much of a unit's flat array a data rank keeps, and how the rest reaches it.

               kept on each rank              gather                     reduce
    Whole      all elements                   all-gather in place        all-reduce, or in place
                                                                         reduce-scatter
    Shard      its span                       all-gather to a buffer     reduce-scatter
                                              that release gives back
    Window     its span, in memory that all   wait until all ranks       (others keep gradients)
               ranks of the group share       have written

What blocks read is what is trained, or half floats in a keeper beside it: each rank rounds what it
has of the master weights (RoundedWhole, RoundedShard), and gathers the rest there.

A group is the data axis, or a run of it: then as many groups keep the same (movement.py). They add
their gradients after reduce, so that each takes the same step by itself; each element is owned in
one of them, which writes it to checkpoints, and spread() copies it to the others.

KEEPERS maps the entries of layout.policy.POLICIES to the first two. Keepers.of picks those of a
policy once, when a model is built: a unit calls its keepers, and nothing asks for the policy again.
Where each rank updates its span, and all ranks of the group can see one memory, a Window takes the
place of Whole or Shard for parameters: they lie there once, and nothing is sent to gather them.
Another way to keep arrays (replicas of shards, an average of weights) is another class here.
What differs between keepers is a method of theirs: a unit calls it, and asks none what it is.
A `site` has the layout, the data axis and the memory of the unit (site.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ...array import halves
from ...layout.piece import Piece
from ...layout.policy import SHARD, WHOLE, Policy


class Freshness(IntEnum):
    """What blocks would read."""

    STALE = 0  # nothing, or other values than those that ranks own
    CURRENT = 1  # what all ranks own


def nothing(own) -> None:
    """Fill nothing: what a rank has lies in its shard already."""


class Keeper:
    """What a unit asks of a keeper of its parameters. The answers here are those of an array that
    lasts, of which this rank keeps its span.

    whole          [layout.size], what blocks read; None while there is nothing
    after_spread   what blocks would read after all ranks have what their owners wrote
    """

    after_spread = Freshness.STALE

    @staticmethod
    def pieces(site) -> list[Piece]:
        """Return the named boxes of what is kept: the span."""
        return site.span_pieces

    @staticmethod
    def replicas(site) -> tuple:
        """Return the groups over which it is the same on all ranks."""
        return site.movement.between

    @property
    def room(self) -> int:
        """How many elements gather() takes memory for."""
        return 0

    def begin_gather(self, fill: Callable = nothing) -> None:
        """Post the messages of gather(), if they can go ahead; it comes next. Collective over the
        group.

        fill   writes what this rank has into its shard of `whole` first
        """

    def take(self):
        """Return the array that gather() fills."""

    def gather(self, fill: Callable = nothing) -> None:
        """Make `whole` what all ranks of the group have. Collective over it."""

    def settle(self, gather: Callable[[], None]) -> None:
        """Gather what stays gathered between two uses."""
        gather()

    def release(self, unbind: Callable[[], None]) -> None:
        """Give `whole` back, after unbind(), if it is gathered for use only."""

    def give_up(self) -> None:
        """Drop memory to which messages of a failed program may still write."""

    # of memory that several ranks read

    def begin_reading(self) -> None:
        """Note that ranks read `whole` from now on."""

    def end_reading(self) -> None:
        """Note that all ranks have come to where they read it no more."""

    def wait_for_readers(self) -> None:
        """Wait until no rank reads it, so that owners may write. Collective over the group."""


class Whole(Keeper):
    """All elements, on every rank.

    array   [layout.size]; None while there is none
    """

    is_released_after_use = False
    updates_all = True
    after_spread = Freshness.CURRENT

    def __init__(self, site, array=None):
        self._site, self.array = site, array

    @classmethod
    def of_state(cls, site) -> "Whole":
        """Keep an array of the optimizer state."""
        return cls(site, site.zeros(site.layout.size, "optimizer state"))

    @classmethod
    def of_parameters(cls, site, dtype, *, is_rounded: bool) -> "Whole":
        """Keep parameters in the array that blocks read."""
        return cls(site, site.zeros(site.layout.size, "parameters", dtype))

    # what a rank updates that keeps its optimizer state so

    @staticmethod
    def updated(site) -> slice:
        """Return the elements of the layout that this rank updates: all."""
        return slice(0, site.layout.length)

    @staticmethod
    def reduced(site, total):
        """Return the part of `total` whose sum over ranks this rank needs: all of it."""
        return total

    @staticmethod
    def complete(site, whole) -> None:
        """Do nothing: each rank has filled all of `whole`."""

    @staticmethod
    def after_step(source) -> Freshness:
        """Return what blocks would read after each rank has updated all that it keeps.

        source   what gathers it: see Keepers.keep_parameters
        """
        return source.after_spread

    # what a rank has

    @staticmethod
    def pieces(site) -> list[Piece]:
        """Return the named boxes of what is kept: all."""
        return site.all_pieces

    @staticmethod
    def replicas(site) -> tuple:
        """Return the groups over which it is the same on all ranks."""
        return (site.movement.group, *site.movement.between)

    # views

    @property
    def whole(self):
        """The array that blocks read."""
        return self.array

    @property
    def shard(self):
        """[layout.shard], this rank's part of what the group gathers, padding included."""
        return self.array[self._site.shard]

    @property
    def kept(self):
        """[layout.length], without padding."""
        return self.array[: self._site.layout.length]

    def part(self, elements: slice):
        """Return these elements of the layout, a view."""
        return self.array[elements]

    # parameters and optimizer state

    def take(self):
        """Return the array that gather() fills."""
        return self.array

    def gather(self, fill: Callable = nothing) -> None:
        """Copy from each rank its part. Collective over the group."""
        fill(self.shard)
        self._site.movement.group.all_gather(self.shard, self.array)

    def spread(self) -> None:
        """Make all ranks follow the owners. Collective over the data axis."""
        self._site.movement.spread(self.array[self._site.span])
        self._site.movement.group.all_gather(self.shard, self.array)

    def everyones(self):
        """Return [layout.length] of all ranks."""
        return self.kept


class Shard(Keeper):
    """This rank's span; parameters are gathered for use and released after it.

    array   [layout.shard]; None: the span is rounded into its place in `whole`
    whole   [layout.size], from begin_gather() or gather() to release(); else None
    """

    is_released_after_use = True
    updates_all = False

    def __init__(self, site, array=None):
        self._site, self.array = site, array
        self.whole: Any = None
        self._gathering = None  # the handle of begin_gather(), until gather()

    @classmethod
    def of_state(cls, site) -> "Shard":
        """Keep an array of the optimizer state."""
        return cls(site, site.zeros(site.layout.shard, "optimizer state"))

    @classmethod
    def of_parameters(cls, site, dtype, *, is_rounded: bool) -> "Shard":
        """Keep parameters. is_rounded   the values of this rank are kept elsewhere"""
        return cls(site, None if is_rounded else site.zeros(site.layout.shard, "parameters", dtype))

    @staticmethod
    def updated(site) -> slice:
        """Return the elements of the layout that this rank updates: its span."""
        return site.span

    @staticmethod
    def reduced(site, total):
        """Return the part of `total` whose sum over ranks this rank needs: its shard."""
        return total[site.shard]

    @staticmethod
    def complete(site, whole) -> None:
        """Fill `whole` with what each rank has filled of it. Collective over the group."""
        site.movement.group.all_gather(whole[site.shard], whole)

    @staticmethod
    def after_step(source) -> Freshness:
        """Return what blocks would read after each rank has updated its span."""
        return Freshness.STALE

    @property
    def shard(self):
        """[layout.shard], this rank's part of what the group gathers, padding included."""
        return self.array if self.array is not None else self.whole[self._site.shard]

    @property
    def room(self) -> int:
        """The elements of a gathered buffer."""
        return self._site.layout.size

    @property
    def kept(self):
        """[elements of the span], without padding."""
        span = self._site.span
        return self.array[: span.stop - span.start]

    def part(self, elements: slice):
        """Return these elements of the layout, which lie within the span, a view."""
        first = self._site.span.start
        return self.array[elements.start - first : elements.stop - first]

    def take(self):
        """Return the buffer that gather() fills, from the pool."""
        if self.whole is None:
            self.whole = self._site.pools.whole_parameters.take(self._site.layout.size)
        return self.whole

    def begin_gather(self, fill: Callable = nothing) -> None:
        """Post the messages of gather(), which comes next. Collective over the group."""
        whole = self.take()
        fill(self.shard)
        self._gathering = self._site.movement.begin_gather(self.shard, whole)

    def gather(self, fill: Callable = nothing) -> None:
        """Fill `whole` with what all ranks of the group keep. Collective over it."""
        whole = self.take()
        if self._gathering is None:
            fill(self.shard)
            self._site.movement.group.all_gather(self.shard, whole)
        else:
            self._site.movement.end(self._gathering)
            self._gathering = None

    def settle(self, gather: Callable[[], None]) -> None:
        """Do nothing: it is gathered when it is used."""

    def release(self, unbind: Callable[[], None]) -> None:
        """Give `whole` back to the pool."""
        unbind()
        self._site.pools.whole_parameters.give(self.whole)
        self.whole = None

    def give_up(self) -> None:
        """Drop a buffer to which the messages of a failed program may still write."""
        if self._gathering is not None:
            self._gathering = self.whole = None

    def spread(self) -> None:
        """Make other groups follow the owners. Collective over the data axis."""
        self._site.movement.spread(self.kept)

    def everyones(self):
        """Return [layout.length] of all ranks; collective over the group unless gathered."""
        whole = self.whole
        if whole is None:
            layout = self._site.layout
            whole = self._site.pools.device.empty(
                layout.size, layout.dtype, purpose="gathered parameters"
            )
            self._site.movement.group.all_gather(self.array, whole)
        return whole[: self._site.layout.length]


class Window(Keeper):
    """Parameters that lie once in memory that all ranks of the group share.

    whole   [layout.size], where each rank keeps, and alone writes, its shard
    lasts   blocks may read them between two uses too, as in a Whole
    """

    def __init__(self, site, whole, *, lasts: bool):
        self._site, self.whole, self._lasts = site, whole, lasts
        self.shard = whole[site.shard]
        self.kept = whole[site.span]
        self._is_read = False  # another rank may read what this one owns
        site.pools.device.accounts.watch(self.shard, "parameters").fill(0)

    @classmethod
    def opened(cls, site, dtype, *, lasts: bool) -> "Window | None":
        """Return a window of the group; None if it shares no memory. Collective over the group."""
        is_on_cpu = site.pools.device.kind == "cpu"
        memory = site.movement.group.common(site.layout.size, dtype) if is_on_cpu else None
        return None if memory is None else cls(site, memory, lasts=lasts)

    def part(self, elements: slice):
        """Return these elements of the layout, a view."""
        return self.whole[elements]

    def take(self):
        """Return the shared array."""
        return self.whole

    def gather(self, fill: Callable = nothing) -> None:
        """Wait until every rank has written its part. Collective over the group."""
        fill(self.shard)
        self._site.movement.group.barrier()

    def settle(self, gather: Callable[[], None]) -> None:
        """Gather it if it lasts."""
        if self._lasts:
            gather()

    def release(self, unbind: Callable[[], None]) -> None:
        """Keep the memory, which is there once for all ranks; but nobody reads it by mistake."""
        if not self._lasts:
            unbind()

    def begin_reading(self) -> None:
        """Note that other ranks read what this one has."""
        self._is_read = True

    def end_reading(self) -> None:
        """Note that they do not any more."""
        self._is_read = False

    def wait_for_readers(self) -> None:
        """Wait until no other rank reads what this one has. Collective over the group."""
        if self._is_read:
            self._site.movement.group.barrier()
            self._is_read = False

    def spread(self) -> None:
        """Make other groups follow the owners; in this one every rank reads what was written.

        Collective over the data axis.
        """
        self._site.movement.spread(self.kept)

    def everyones(self):
        """Return [layout.length] of all ranks."""
        return self.whole[: self._site.layout.length]


class RoundedWhole:
    """Fills what blocks read with half floats, of master weights of which this rank has all. No
    communication.
    """

    after_spread = Freshness.STALE

    def __init__(self, masters: Whole, lent: Keeper):
        self._masters, self._lent = masters, lent

    def begin_gather(self) -> None:
        """Do nothing: rounding sends no message."""

    def gather(self) -> None:
        """Round all."""
        whole = self._lent.take()
        halves.rounded(self._masters.array, whole.dtype, whole)


class RoundedShard:
    """Fills it where this rank has its shard of the master weights: half as many bytes travel."""

    after_spread = Freshness.STALE

    def __init__(self, masters: Shard, lent: Keeper):
        self._masters, self._lent = masters, lent

    def begin_gather(self) -> None:
        """Round the shard, and post the messages of gather(). Collective over the group."""
        self._lent.begin_gather(self._round)

    def gather(self) -> None:
        """Round the shard, and gather half floats. Collective over the group."""
        self._lent.gather(self._round)

    def _round(self, own):
        halves.rounded(self._masters.array, own.dtype, own)


KEEPERS = {WHOLE: Whole, SHARD: Shard}
_ROUNDED: dict[type, Any] = {Whole: RoundedWhole, Shard: RoundedShard}  # of master weights


@dataclass(frozen=True)
class Keepers:
    """The keepers of a policy: of parameters, gradients, and each array of optimizer state."""

    parameters: type[Whole] | type[Shard]
    gradients: type[Whole] | type[Shard]
    state: type[Whole] | type[Shard]

    @classmethod
    def of(cls, policy: Policy, num_ranks: int, *, rounds: bool) -> "Keepers":
        """Return those of a policy where `num_ranks` share a copy; `rounds` as in Policy.on."""
        policy = policy.on(num_ranks, rounds=rounds)
        return cls(KEEPERS[policy.parameters], KEEPERS[policy.gradients], KEEPERS[policy.state])

    def keep_parameters(self, site) -> tuple:
        """Return the keeper of what this rank trains of a unit's parameters, that of what blocks
        read, and what gathers from the one into the other: that keeper itself, or what rounds.

        Collective over the data axis. Master weights of half floats are kept like the optimizer
        state, and counted with it.
        """
        dtype = site.pools.compute_dtype
        is_rounded = dtype != site.layout.dtype
        lent: Whole | Shard | Window | None = None
        if Shard in (self.parameters, self.state):  # each rank writes its span alone
            lent = Window.opened(site, dtype, lasts=not self.parameters.is_released_after_use)
        if lent is None:
            lent = self.parameters.of_parameters(site, dtype, is_rounded=is_rounded)
        if not is_rounded:
            return lent, lent, lent
        masters = self.state.of_state(site)
        return masters, lent, _ROUNDED[self.state](masters, lent)
