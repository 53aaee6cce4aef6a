"""The short road of verbs: arrays that are plain go to compiled code with nothing between.

Around a small message Python takes longer than the message. So one call into loops.py does what a
verb does: its record, the meeting, the sum, its end. What is not plain, of a group in checked mode,
or timed, is refused before anything is sent, and takes the other road (verbs.py). A call that lasts
longer than some spins and naps comes back to Python, which names it to the watchdog and goes on.
"""

from functools import cache, partial

import numpy

from ...array.cpu.signatures import BYTES, READ_ONLY_BYTES
from ...array.machine_code import MACHINE_CODE
from ..checks import is_plain
from ..operations import COMPILED_VERBS, ReductionOperation
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


class QuickVerbs:
    """The verbs of one group. Each returns False if it refuses; else the call has been made.

    group     its Verbs: names, progress, traffic
    channel   its SharedMemoryChannel, which has opened
    table     what its loops know
    """

    def __init__(self, group, channel, table):
        self._group, self._channel, self._table = group, channel, table
        self._progress = group.progress
        self._site = group.progress.names.site
        self._write_table()

    def _write_table(self):
        table, names = self._table, self._progress.names
        tally = self._progress.tallies[self._group.group_key]
        table[at.PLACE] = names.place.ctypes.data
        table[at.TALLY] = tally.obj.ctypes.data
        table[at.TRAFFIC] = self._group.traffic.of_loops.ctypes.data
        table[at.GROUP_NAME] = names.group(self._group.group_key, self._group.world_ranks)
        for verb, name in enumerate(COMPILED_VERBS):
            table[at.VERB_NAMES + verb] = names.number(name)
        for number, char in enumerate(DTYPES):
            table[at.DTYPE_NAMES + number] = names.dtype(numpy.dtype(char))
        table[at.IS_OPEN] = 1

    def close(self) -> None:
        """Refuse all from now on, also calls that were prepared."""
        self._table[at.IS_OPEN] = 0

    # ---- verbs, as in verbs.py: each is called by the verb of its name ---------------------------

    def barrier(self) -> bool:
        site = self._site(3)
        stage = loop_of(BARRIER)(self._table, site, START)
        return stage == DONE or self._go_on(BARRIER, (), stage)

    def all_reduce(self, array, op) -> bool:
        site = self._site(3)
        operation = SUM if op is SUM_OF_RANKS else OPERATIONS.get(op)
        if type(array) is not numpy.ndarray or array.ndim != 1 or operation is None:
            return False
        kind = KINDS.get(array.dtype)
        if kind is None:
            return False
        stage = loop_of(ALL_REDUCE)(array, self._table, operation, kind, site, START)
        return stage == DONE or self._go_on(ALL_REDUCE, (array, op), stage)

    def broadcast(self, array, root) -> bool:
        site = self._site(3)
        if type(array) is not numpy.ndarray or array.ndim != 1 or type(root) is not int:
            return False
        kind = KINDS.get(array.dtype)
        if kind is None:
            return False
        stage = loop_of(BROADCAST)(array, root, self._table, kind, site, START)
        return stage == DONE or self._go_on(BROADCAST, (array, root), stage)

    def all_gather(self, send, receive) -> bool:
        site = self._site(3)
        kind = kind_of(send, receive)
        if kind is None:
            return False
        stage = loop_of(ALL_GATHER)(send, receive, NO_PLACES, self._table, kind, site, START)
        return stage == DONE or self._go_on(ALL_GATHER, (send, receive), stage)

    def reduce_scatter(self, send, receive, op, in_place: bool) -> bool:
        site = self._site(3)
        operation = SUM if op is SUM_OF_RANKS else OPERATIONS.get(op)
        kind = kind_of(send, receive)
        if operation is None or kind is None:
            return False
        may_be_in_place = 1 if in_place else 0
        stage = loop_of(REDUCE_SCATTER)(
            send, receive, NO_PLACES, self._table, operation, kind, may_be_in_place, site, START
        )
        return stage == DONE or self._go_on(REDUCE_SCATTER, (send, receive, op), stage)

    def _go_on(self, verb, arguments, stage) -> bool:
        """End a call that takes long, in Python; False if it was refused."""
        if stage == REFUSED or stage is NotImplemented:  # not contiguous, or read-only
            return False
        self._progress.take_over(
            COMPILED_VERBS[verb], self._group.group_key, self._group.world_ranks
        )
        try:
            self._channel.finish(COMPILED_VERBS[verb], arguments, stage)
        except BaseException:
            self._progress.fail()
            raise
        self._progress.end()
        return True

    # ---- prepared calls --------------------------------------------------------------------------

    def prepared(self, verb: str, arrays, site: int, *, op=None, root=0):
        """Return a call of compiled code, and what goes on with the stage that it returns.

        None if the short road does not take it. Arguments have been checked.
        """
        number, operation = COMPILED_VERBS.index(verb), OPERATIONS.get(op)
        if not all(map(is_plain, arrays)) or (op is not None and operation is None):
            return None
        flat = [array.reshape(-1) for array in arrays]
        kind = KINDS.get(flat[0].dtype) if flat else None
        if flat and (kind is None or any(array.dtype != flat[0].dtype for array in flat)):
            return None
        before, after, rest = {
            BARRIER: ((), (), ()),
            ALL_REDUCE: ((), (operation, kind), (op,)),
            REDUCE_SCATTER: ((NO_PLACES,), (operation, kind, 0), (op,)),
            ALL_GATHER: ((NO_PLACES,), (kind,), ()),
            BROADCAST: ((root,), (kind,), (root,)),
        }[number]
        loop = loop_of(number)
        run = partial(loop, *flat, *before, self._table, *after, site, START)
        return run, partial(self._go_on, number, (*flat, *rest))


def kind_of(one, other) -> int | None:
    """Return the place in DTYPES of two 1-D arrays of one dtype; None for others."""
    if type(one) is type(other) is numpy.ndarray and one.ndim == other.ndim == 1:
        dtype = one.dtype
        if dtype is other.dtype:
            return KINDS.get(dtype)
    return None
