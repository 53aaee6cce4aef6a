"""Collectives whose arguments are known: checked once, called again and again.

    total = backend.prepare.all_reduce(gradients)   # checks the arguments; nothing is sent
    for batch in batches:
        ...
        total()                                     # the all-reduce of what `gradients` holds now

On ranks that see each other's memory such a call is one call into compiled code (node/quick.py);
elsewhere it is the verb itself. It counts as a call of the verb: in the order that all ranks must
keep, in traffic, in the ledger (as called where it was prepared), for the watchdog.
Source: persistent collectives, MPI_Allreduce_init of MPI 4.
"""

from functools import partial

from . import checks
from .operations import ReductionOperation

SUM = ReductionOperation.SUM
_UNBOUND = -1  # no stage of a compiled verb: the call must be made by the verb


class PreparedCall:
    """A collective of a group on arrays that stay where they are. Calling it is collective.

    Errors of a call: those of the verb; CommunicationError after shutdown().
    """

    def __init__(self, group, verb: str, call, arrays=(), **options):
        self._group = group
        self._call = call  # function (): the verb itself
        self._site = group.progress.names.site()
        self._bind = lambda quick: quick.prepared(verb, arrays, self._site, **options)
        self._run, self._go_on = _unbound, None

    def __call__(self) -> None:
        stage = self._run()
        if stage:
            self._rest(stage)

    def _rest(self, stage: int) -> None:
        """Go on with a call that takes long; make the whole call where it was refused."""
        if self._go_on is not None and self._go_on(stage):
            return
        self._call()
        quick = self._group.quick
        bound = None if quick is None else self._bind(quick)
        self._run, self._go_on = bound or (_unbound, None)


class PreparedVerbs:
    """The collectives of a group, each for arrays that are given once. No communication.

    Errors: those of the verb that are seen without the other ranks.
    """

    def __init__(self, group):
        self._group = group

    def barrier(self) -> PreparedCall:
        """Return barrier(), prepared."""
        return PreparedCall(self._group, "barrier", self._group.barrier)

    def all_reduce(self, array, op: ReductionOperation = SUM) -> PreparedCall:
        """Return all_reduce() of this array, prepared."""
        group = self._group
        group.arguments.reduction("array", array, op, writes=True)
        call = partial(group.all_reduce, array, op)
        return PreparedCall(group, "all_reduce", call, (array,), op=op)

    def broadcast(self, array, root: int = 0) -> PreparedCall:
        """Return broadcast() of this array, prepared."""
        group = self._group
        root = checks.check_rank("root", root, group.world_size)
        group.arguments.port("array", array, writes=group.rank != root)
        call = partial(group.broadcast, array, root)
        return PreparedCall(group, "broadcast", call, (array,), root=root)

    def all_gather(self, send, receive) -> PreparedCall:
        """Return all_gather() of equal slices, prepared."""
        group = self._group
        group.arguments.all_gather(send, receive, None)
        call = partial(group.all_gather, send, receive)
        return PreparedCall(group, "all_gather", call, (send, receive))

    def reduce_scatter(self, send, receive, op: ReductionOperation = SUM) -> PreparedCall:
        """Return reduce_scatter() to equal slices, prepared."""
        group = self._group
        group.arguments.reduce_scatter(send, receive, None, op, False)
        call = partial(group.reduce_scatter, send, receive, op=op)
        return PreparedCall(group, "reduce_scatter", call, (send, receive), op=op)


def _unbound() -> int:
    return _UNBOUND
