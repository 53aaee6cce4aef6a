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

from collections.abc import Callable

from .operations import ReductionOperation

SUM = ReductionOperation.SUM


class PlannedVerbs:
    """The collectives of a group, each for arrays that are given once. No communication.

    Errors: those of the verb that are seen without the other ranks.
    """

    def __init__(self, group):
        self._group = group

    def _planned(self, verb: str, *arguments):
        return self._group.planned(verb, *arguments, site=self._group.progress.names.site(3))

    def barrier(self) -> Callable[[], None]:
        """Return barrier(), planned."""
        return self._planned("barrier")

    def all_reduce(self, array, op: ReductionOperation = SUM) -> Callable[[], None]:
        """Return all_reduce() of this array, planned."""
        return self._planned("all_reduce", array, op).checked()

    def broadcast(self, array, root: int = 0) -> Callable[[], None]:
        """Return broadcast() of this array, planned."""
        return self._planned("broadcast", array, root).checked()

    def all_gather(self, send, receive) -> Callable[[], None]:
        """Return all_gather() of equal slices, planned."""
        return self._planned("all_gather", send, receive, None).checked()

    def reduce_scatter(self, send, receive, op: ReductionOperation = SUM) -> Callable[[], None]:
        """Return reduce_scatter() to equal slices, planned."""
        return self._planned("reduce_scatter", send, receive, None, op, False).checked()
