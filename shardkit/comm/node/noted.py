"""Verbs of a group in the memory of its node, with their notes: each is one call of compiled code.

Around a small message Python takes longer than the message. So one call into loops.py does what a
verb does: its record, the meeting, the sum, its end. What is not plain, of a group in checked mode,
or timed, is refused before anything is sent, and the group makes the call (verbs.py). A call that
lasts longer than some spins and naps comes back to Python, which names it to the watchdog and goes
on.
"""

from functools import cache, partial

import numpy

from ...array.cpu.signatures import BYTES, READ_ONLY_BYTES
from ...array.machine_code import MACHINE_CODE
from ..channel import NotedCalls
from ..operations import COMPILED_VERBS, ReductionOperation
from ..watch.frames import OF_VERB
from . import mailbox as at
from .mailbox import (
    ALL_GATHER,
    ALL_REDUCE,
    BARRIER,
    BROADCAST,
    DONE,
    DTYPES,
    REDUCE_SCATTER,
    REFUSED,
    START,
    SUM,
)

SUM_OF_RANKS = ReductionOperation.SUM
OPERATIONS = {
    ReductionOperation.SUM: SUM,
    ReductionOperation.PRODUCT: at.PRODUCT,
    ReductionOperation.MIN: at.MIN,
    ReductionOperation.MAX: at.MAX,
}
# From the arguments of a channel's verb: its arrays, operation or root, counts.
PARTS = {
    "barrier": lambda: ((), None, None),
    "all_reduce": lambda array, op: ((array,), op, None),
    "reduce_scatter": lambda send, receive, counts, op: ((send, receive), op, counts),
    "all_gather": lambda send, receive, counts: ((send, receive), None, counts),
    "broadcast": lambda array, root: ((array,), root, None),
}
KINDS = {numpy.dtype(char): number for number, char in enumerate(DTYPES)}
NO_PLACES = 0  # of slices: the loop writes those of equal ones
_NUMBER, _TABLE = "int64", "int64[1]"  # parts of signatures (array/cpu/signatures.py)


@cache
def loop_of(verb: int):
    """Return the compiled verb; for arguments of other types it returns NotImplemented."""
    signature = {
        BARRIER: (_TABLE,),
        ALL_REDUCE: (BYTES, _TABLE, _NUMBER, _NUMBER),
        REDUCE_SCATTER: (READ_ONLY_BYTES, BYTES, _NUMBER, _TABLE, _NUMBER, _NUMBER, _NUMBER),
        ALL_GATHER: (READ_ONLY_BYTES, BYTES, _NUMBER, _TABLE, _NUMBER),
        BROADCAST: (BYTES, _NUMBER, _TABLE, _NUMBER),
    }[verb]
    with MACHINE_CODE.loading(COMPILED_VERBS[verb]):
        from . import loops

        return getattr(loops, COMPILED_VERBS[verb]).entry_for((*signature, _NUMBER, _NUMBER))


def bound(verb: int, arrays, table, option, kind: int, site: int, *, places=NO_PLACES, in_place=0):
    """Return the loop of a verb with its arguments: function (stage) -> stage.

    option   number of the operation, or root
    kind     place of the dtype in DTYPES
    places   address of the places of slices
    """
    before, after = {
        BARRIER: ((), ()),
        ALL_REDUCE: ((), (option, kind)),
        REDUCE_SCATTER: ((places,), (option, kind, in_place)),
        ALL_GATHER: ((places,), (kind,)),
        BROADCAST: ((option,), (kind,)),
    }[verb]
    return partial(loop_of(verb), *arrays, *before, table, *after, site)


class NotedLoops(NotedCalls):
    """The verbs of one group, from open() to close().

    group    its Verbs: names, progress, traffic
    finish   function (verb, arrays, option, stage) that ends in Python what takes long
    table    what its loops know
    """

    def __init__(self, group, finish, table):
        self._key, self._ranks = group.group_key, group.world_ranks
        self._progress, self._traffic = group.progress, group.traffic
        self._finish, self._table = finish, table
        self._site = group.progress.names.site

    def open(self) -> None:
        """Make the calls from now on."""
        self._write_table()
        self.barrier, self.all_reduce = self._barrier, self._all_reduce
        self.broadcast, self.all_gather = self._broadcast, self._all_gather
        self.reduce_scatter = self._reduce_scatter

    def _write_table(self):
        table, names = self._table, self._progress.names
        tally = self._progress.tallies[self._key]
        table[at.PLACE] = names.place.ctypes.data
        table[at.TALLY] = tally.obj.ctypes.data
        table[at.TRAFFIC] = self._traffic.of_loops.ctypes.data
        table[at.GROUP_NAME] = names.group(self._key, self._ranks)
        for verb, name in enumerate(COMPILED_VERBS):
            table[at.VERB_NAMES + verb] = names.number(name)
        for number, char in enumerate(DTYPES):
            table[at.DTYPE_NAMES + number] = names.dtype(numpy.dtype(char))
        table[at.IS_OPEN] = 1

    def close(self):
        self._table[at.IS_OPEN] = 0

    # ---- verbs, with arguments as given to the verb of that name, which calls it -----------------

    def _barrier(self) -> bool:
        stage = loop_of(BARRIER)(self._table, self._site(OF_VERB), START)
        return stage == DONE or self._go_on(BARRIER, (), None, stage)

    def _all_reduce(self, array, op) -> bool:
        site = self._site(OF_VERB)
        operation = SUM if op is SUM_OF_RANKS else OPERATIONS.get(op)
        if type(array) is not numpy.ndarray or array.ndim != 1 or operation is None:
            return False
        kind = KINDS.get(array.dtype)
        if kind is None:
            return False
        stage = loop_of(ALL_REDUCE)(array, self._table, operation, kind, site, START)
        return stage == DONE or self._go_on(ALL_REDUCE, (array,), op, stage)

    def _broadcast(self, array, root) -> bool:
        site = self._site(OF_VERB)
        if type(array) is not numpy.ndarray or array.ndim != 1 or type(root) is not int:
            return False
        kind = KINDS.get(array.dtype)
        if kind is None:
            return False
        stage = loop_of(BROADCAST)(array, root, self._table, kind, site, START)
        return stage == DONE or self._go_on(BROADCAST, (array,), root, stage)

    def _all_gather(self, send, receive) -> bool:
        site = self._site(OF_VERB)
        kind = kind_of(send, receive)
        if kind is None:
            return False
        stage = loop_of(ALL_GATHER)(send, receive, NO_PLACES, self._table, kind, site, START)
        return stage == DONE or self._go_on(ALL_GATHER, (send, receive), None, stage)

    def _reduce_scatter(self, send, receive, op, in_place: bool) -> bool:
        site = self._site(OF_VERB)
        operation = SUM if op is SUM_OF_RANKS else OPERATIONS.get(op)
        kind = kind_of(send, receive)
        if operation is None or kind is None:
            return False
        may_be_in_place = 1 if in_place else 0
        stage = loop_of(REDUCE_SCATTER)(
            send, receive, NO_PLACES, self._table, operation, kind, may_be_in_place, site, START
        )
        return stage == DONE or self._go_on(REDUCE_SCATTER, (send, receive), op, stage)

    def bind(self, verb, arguments, site):
        if not self._table[at.IS_OPEN] or verb not in COMPILED_VERBS:
            return None
        number = COMPILED_VERBS.index(verb)
        arrays, option, _ = PARTS[verb](*arguments)
        kind = KINDS.get(arrays[0].dtype) if arrays else 0
        if kind is None:
            return None
        how = OPERATIONS.get(option, option), kind
        run = bound(number, arrays, self._table, *how, site)
        return partial(run, START), partial(self._go_on, number, arrays, option)

    def _go_on(self, verb: int, arrays, option, stage: int) -> bool:
        """End a call that takes long, in Python; False if it was refused."""
        if stage == REFUSED or stage is NotImplemented:  # not contiguous, or read-only
            return False
        self._progress.take_over(COMPILED_VERBS[verb], self._key, self._ranks)
        try:
            self._finish(verb, arrays, option, stage)
        except BaseException:
            self._progress.fail()
            raise
        self._progress.end()
        return True


def kind_of(one, other) -> int | None:
    """Return the place in DTYPES of two 1-D arrays of one dtype; None for others."""
    if type(one) is type(other) is numpy.ndarray and one.ndim == other.ndim == 1:
        dtype = one.dtype
        if dtype is other.dtype:
            return KINDS.get(dtype)
    return None
