"""Collectives of a group that are planned once, and called again and again.

    total = backend.prepare.all_reduce(gradients)   # checks the arguments; nothing is sent
    for batch in batches:
        ...
        total()                                     # the all-reduce of what `gradients` holds now

On ranks that see each other's memory such a call is one call into compiled code (node/noted.py). It
counts as a call of the verb: in the order that all ranks must keep, in traffic, in the ledger (as
called where it was planned), for the watchdog.
Source: persistent collectives, MPI_Allreduce_init of MPI 4.
"""

from typing import Any

from .channel import ChannelCall
from .collective import COLLECTIVES
from .operations import ReductionOperation
from .watch.frames import OF_VERB

SUM = ReductionOperation.SUM
_DONE = 0  # as compiled verbs return it; they return NotImplemented on arrays that they do not take
_UNBOUND = -1  # no stage of a compiled verb: the call must be made in Python


class PlannedCall:
    """A collective of a group on arrays that stay where they are. Calling it is collective.

    arguments   those of the group's verb, all of them
    site        number of the place that is recorded as its caller
    Errors of a call: those of the verb; CommunicationError after shutdown().
    """

    def __init__(self, group, verb: str, arguments: tuple, site: int):
        self._group, self._verb, self._arguments, self.site = group, verb, arguments, site
        self._channel = None  # for which one it is planned
        self._passed: tuple | None = None  # the arguments of the channel's verb
        self._call: Any = None  # the channel's
        self._run, self._go_on = _unbound, None

    def checked(self) -> "PlannedCall":
        """Return the call, if its arguments are right as far as this rank sees."""
        COLLECTIVES[self._verb].ports(self._group, *self._arguments)
        return self

    def __call__(self) -> None:
        stage = self._run()
        if stage != _DONE:
            self._rest(stage)

    def _rest(self, stage: int) -> None:
        """Go on with a call that takes long; let the group make one that was refused."""
        if self._go_on is not None and self._go_on(stage):
            return
        group = self._group
        group.make(self._verb, *self._arguments, planned=self)
        bound = None
        if self._passed is not None:
            bound = group.noted.bind(self._verb, self._passed, self.site)
        self._run, self._go_on = bound or (_unbound, None)

    def plan(self, verb: str, *passed) -> ChannelCall:
        """Return the call of the group's channel, planned now unless it was before."""
        channel = self._group.channel
        if channel is not self._channel:
            self._channel, self._passed = channel, passed
            self._call = channel.plan(verb, *passed)
        return self._call


class PlannedVerbs:
    """The collectives of a group, each for arrays that are given once. No communication.

    Errors: those of the verb that are seen without the other ranks.
    """

    def __init__(self, group):
        self._group = group

    def _planned(self, verb: str, *arguments):
        site = self._group.progress.names.site(OF_VERB)
        return PlannedCall(self._group, verb, arguments, site)

    def barrier(self) -> PlannedCall:
        """Return barrier(), planned."""
        return self._planned("barrier")

    def all_reduce(self, array, op: ReductionOperation = SUM) -> PlannedCall:
        """Return all_reduce() of this array, planned."""
        return self._planned("all_reduce", array, op).checked()

    def broadcast(self, array, root: int = 0) -> PlannedCall:
        """Return broadcast() of this array, planned."""
        return self._planned("broadcast", array, root).checked()

    def all_gather(self, send, receive) -> PlannedCall:
        """Return all_gather() of equal slices, planned."""
        return self._planned("all_gather", send, receive, None).checked()

    def reduce_scatter(self, send, receive, op: ReductionOperation = SUM) -> PlannedCall:
        """Return reduce_scatter() to equal slices, planned."""
        return self._planned("reduce_scatter", send, receive, None, op, False).checked()


def _unbound() -> int:
    return _UNBOUND
