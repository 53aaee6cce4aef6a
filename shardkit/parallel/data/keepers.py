"""Keepers: how much of a unit's flat array a data rank keeps, and how the rest reaches it.

               kept on each rank              gather                     reduce
    Whole      all elements                   all-gather in place        all-reduce, or in place
                                                                         reduce-scatter
    Shard      its span                       all-gather to a buffer     reduce-scatter
                                              that release gives back
    Window     its span, in memory that all   wait until all ranks       (others keep gradients)
               ranks of the group share       have written
    Rounded    master weights, in a Whole     round to half floats,      (a keeper of float32 does)
               or a Shard                     then as their keeper

A group is the data axis, or a run of it: then as many groups keep the same (movement.py). They add
their gradients after reduce, so that each takes the same step by itself; each element is owned in
one of them, which writes it to checkpoints, and spread() copies it to the others.

KEEPERS maps the entries of layout.policy.POLICIES to the first two. Keepers.of picks those of a
policy once, when a model is built: a unit calls its keepers, and nothing asks for the policy again.
Where each rank updates its span, and all ranks of the group can see one memory, a Window takes the
place of Whole or Shard for parameters: they lie there once, and nothing is sent to gather them.
Another way to keep arrays (replicas of shards, an average of weights) is another class here.
A `site` has the layout, the data axis and the memory of the unit (site.py).
"""

from dataclasses import dataclass

from ...array import halves
from ...layout.policy import SHARD, WHOLE, Policy


class Whole:
    """All elements, on every rank.

    array   [layout.size]; None while there is no gradient
    """

    is_whole = True
    is_released_after_use = is_common = gathers_by_messages = is_on_its_way = False

    def __init__(self, site, array=None):
        self._site, self.array = site, array

    @classmethod
    def of_state(cls, site) -> "Whole":
        """Keep an array of the optimizer state."""
        return cls(site, site.zeros(site.layout.size, "optimizer state"))

    @classmethod
    def of_gradients(cls, site) -> "Whole":
        """Keep no gradient yet: the buffer that it is summed in is kept."""
        return cls(site)

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

    def gather(self) -> None:
        """Copy from each rank its part. Collective over the group."""
        self._site.movement.group.all_gather(self.shard, self.array)

    def spread(self) -> None:
        """Make all ranks follow the owners. Collective over the data axis."""
        self._site.movement.spread(self.array[self._site.span])
        self.gather()

    def everyones(self):
        """Return [layout.length] of all ranks."""
        return self.kept

    def release(self) -> None:
        """Do nothing: the array lasts."""

    def give_up(self) -> None:
        """Do nothing: no message is on its way to this array."""

    # gradients

    def open(self) -> None:
        """Take a buffer for a gradient that is not summed here."""
        self.array = self._site.pools.whole_gradients.take(self._site.layout.size)

    def destination(self, part):
        """Return where the sum over ranks of `part` of the first total goes: its own place."""
        return part

    def keep(self, total) -> None:
        """Take over the first total, whose sum is complete."""
        self.array = total

    def drop(self) -> None:
        """Give the buffer of the gradient back."""
        self._site.pools.whole_gradients.give(self.array)
        self.array = None


class Shard:
    """This rank's span; parameters are gathered for use and released after it.

    array   [layout.shard]; None: the span is rounded into its place in `whole`
    whole   [layout.size], from begin_gather() or gather() to release(); else None
    """

    is_whole = is_common = False
    is_released_after_use = gathers_by_messages = True

    def __init__(self, site, array=None):
        self._site, self.array = site, array
        self.whole = None
        self._gathering = None  # the handle of begin_gather(), until gather()

    @classmethod
    def of_state(cls, site) -> "Shard":
        """Keep an array of the optimizer state."""
        return cls(site, site.zeros(site.layout.shard, "optimizer state"))

    @classmethod
    def of_gradients(cls, site) -> "Shard":
        """Keep the reduced gradient."""
        return cls(site, site.zeros(site.layout.shard, "gradients"))

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

    @property
    def shard(self):
        """[layout.shard], this rank's part of what the group gathers, padding included."""
        return self.array if self.array is not None else self.whole[self._site.shard]

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

    def begin_gather(self) -> None:
        """Post the messages of gather(), which comes next. Collective over the group."""
        whole = self.take()
        self._gathering = self._site.movement.begin_gather(self.shard, whole)

    @property
    def is_on_its_way(self) -> bool:
        """True from begin_gather() to gather()."""
        return self._gathering is not None

    def gather(self) -> None:
        """Fill `whole` with what all ranks of the group keep. Collective over it."""
        whole = self.take()
        if self._gathering is None:
            self._site.movement.group.all_gather(self.shard, whole)
        else:
            self._site.movement.end(self._gathering)
            self._gathering = None

    def release(self) -> None:
        """Give `whole` back to the pool."""
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

    def open(self) -> None:
        """Do nothing: the array of a gradient lasts."""

    def destination(self, part):
        """Return where the sum over ranks of `part` of the first total goes: here."""
        return self.array

    def keep(self, total) -> None:
        """Give the first total, of which this shard has the sum, back to the pool."""
        self._site.pools.whole_gradients.give(total)

    def drop(self) -> None:
        """Do nothing: the array of a gradient lasts."""


class Window:
    """Parameters that lie once in memory that all ranks of the group share.

    whole   [layout.size], where each rank keeps, and alone writes, its shard
    lasts   blocks may read them between two uses too, as in a Whole
    """

    is_whole = gathers_by_messages = is_on_its_way = False
    is_common = True

    def __init__(self, site, whole, *, lasts: bool):
        self._site, self.whole = site, whole
        self.is_released_after_use = not lasts
        self.array = self.shard = whole[site.shard]
        self.kept = whole[site.span]
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

    def gather(self) -> None:
        """Wait until every rank has written its part. Collective over the group."""
        self._site.movement.group.barrier()

    def release(self) -> None:
        """Do nothing: the memory is there once for all ranks."""

    def give_up(self) -> None:
        """Do nothing: no message is on its way to this array."""

    def spread(self) -> None:
        """Make other groups follow the owners; in this one every rank reads what was written.

        Collective over the data axis.
        """
        self._site.movement.spread(self.kept)

    def everyones(self):
        """Return [layout.length] of all ranks."""
        return self.whole[: self._site.layout.length]


class Rounded:
    """Half floats that blocks read, in one keeper, of master weights in another.

    Master weights are kept like the optimizer state, and counted with it. A rank that has all of
    them rounds all, without a message; else each rank rounds its shard, and half the bytes travel.
    """

    def __init__(self, lent: Whole | Shard | Window, masters: Whole | Shard):
        self._lent, self.masters = lent, masters
        self.is_whole, self.is_common = masters.is_whole, lent.is_common
        self.is_released_after_use = lent.is_released_after_use
        self.gathers_by_messages = lent.gathers_by_messages and not masters.is_whole
        self.array = masters.array
        self.shard = masters.shard
        self.kept = masters.kept
        self.part = masters.part
        self.everyones = masters.everyones
        self.spread = masters.spread
        self.release, self.give_up = lent.release, lent.give_up

    @property
    def whole(self):
        """[layout.size] half floats that blocks read; None while released."""
        return self._lent.whole

    def begin_gather(self) -> None:
        """Post the messages of gather(), which comes next. Collective over the data axis."""
        self._round_own()
        self._lent.begin_gather()

    def gather(self) -> None:
        """Fill `whole`. Collective over the data axis unless this rank has all master weights."""
        if self.masters.is_whole:
            whole = self._lent.take()
            halves.rounded(self.masters.array, whole.dtype, whole)
            return
        if not self._lent.is_on_its_way:
            self._round_own()
        self._lent.gather()

    def _round_own(self):
        self._lent.take()
        own = self._lent.shard
        halves.rounded(self.masters.shard, own.dtype, own)


KEEPERS = {WHOLE: Whole, SHARD: Shard}


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

    def keep_parameters(self, site) -> Whole | Shard | Window | Rounded:
        """Return the keeper of a unit's parameters. Collective over the data axis."""
        dtype = site.pools.compute_dtype
        is_rounded = dtype != site.layout.dtype
        kept: Whole | Shard | Window | None = None
        if Shard in (self.parameters, self.state):  # each rank writes its span alone
            kept = Window.opened(site, dtype, lasts=self.parameters is Whole)
        if kept is None:
            kept = self.parameters.of_parameters(site, dtype, is_rounded=is_rounded)
        return Rounded(kept, self.state.of_state(site)) if is_rounded else kept
