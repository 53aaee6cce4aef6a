"""The short road of verbs: arrays that are plain go to compiled code with nothing between.

Around a small message Python takes longer than the message. So one call into noted.py does what a
verb does: its record, the meeting, the sum, its end. What is not plain, of a group in checked mode,
or timed, is refused before anything is sent, and takes the other road (verbs.py). A call that lasts
longer than some spins and naps comes back to Python, which names it to the watchdog and goes on.
"""

from functools import cache, partial
from sys import _getframe
from typing import Any

import numpy

from ...array.machine_code import MACHINE_CODE
from ..checks import is_plain
from ..operations import COMPILED_VERBS, ReductionOperation
from . import mailbox as at
from .mailbox import (
    ALL_GATHER,
    ALL_REDUCE,
    ANY_CHAR,
    BARRIER,
    BROADCAST,
    DONE,
    DTYPES,
    REDUCE_SCATTER,
    REFUSED,
    SUM,
)

SUM_OF_RANKS = ReductionOperation.SUM
OPERATIONS = {
    ReductionOperation.SUM: SUM,
    ReductionOperation.PRODUCT: at.PRODUCT,
    ReductionOperation.MIN: at.MIN,
    ReductionOperation.MAX: at.MAX,
}
# of each verb: arrays that it takes, integers before its table and after it
_ARRAYS = {ALL_REDUCE: 1, REDUCE_SCATTER: 2, ALL_GATHER: 2, BROADCAST: 1}
_BEFORE = {BROADCAST: 1}
NUMBER, TABLE = "int64", "int64[1]"  # parts of signatures (array/cpu/signatures.py)
_AFTER = {BARRIER: 1, ALL_REDUCE: 2, REDUCE_SCATTER: 3, ALL_GATHER: 1, BROADCAST: 1}


@cache
def loop_of(verb: int, char: str):
    """Return the compiled verb for flat arrays of this dtype; for others: NotImplemented."""
    with MACHINE_CODE.loading(COMPILED_VERBS[verb]):
        from . import noted

    before, after = ([NUMBER] * kinds.get(verb, 0) for kinds in (_BEFORE, _AFTER))
    arrays = [_array_of(char)] * _ARRAYS.get(verb, 0)
    return getattr(noted, COMPILED_VERBS[verb]).entry_for((*arrays, *before, TABLE, *after))


@cache
def load_roads(verb: int, char: str) -> None:
    """Load the loops of a verb in heaps and in slots: a call that takes long goes on in them."""
    with MACHINE_CODE.loading(COMPILED_VERBS[verb]):
        from . import loops

    one, table, array = NUMBER, TABLE, _array_of(char)
    gather, add = (one,) * 4 + (table,) * 3 + (one,), (table, one, one, one)
    signatures: dict[int, dict[Any, tuple]] = {
        BARRIER: {loops.meet: (table, one)},
        BROADCAST: {loops.broadcast_in_slots: (one, one, one, table, one)},
        ALL_GATHER: dict.fromkeys((loops.all_gather_in_heaps, loops.all_gather_in_slots), gather),
        ALL_REDUCE: dict.fromkeys(
            (loops.all_reduce_in_heaps, loops.all_reduce_in_slots), (array, *add)
        ),
        REDUCE_SCATTER: {
            loops.reduce_scatter_in_heaps: (array, array, one, *add),
            loops.reduce_scatter_in_slots: (array, array, table, table, *add),
        },
    }
    for loop, signature in signatures[verb].items():
        loop.entry_for(signature)


def _array_of(char: str) -> str:
    """Return a flat array of this dtype, as a part of a signature."""
    return f"{numpy.dtype(char).name}[1]"


class Loops(dict):
    """The compiled verb for each dtype, by NumPy's character; None if there is none.

    Loops look at the byte order themselves.
    """

    def __init__(self, verb: int):
        super().__init__()
        self._verb = verb

    def __missing__(self, char: str):
        loop = self[char] = loop_of(self._verb, char) if char in DTYPES else None
        if loop is not None:
            load_roads(self._verb, char)
        return loop


class QuickVerbs:
    """The verbs of one group. Each returns False if it refuses; else the call has been made.

    group     its Verbs: names, progress, traffic
    channel   its SharedMemoryChannel, which has opened
    table     what its loops know
    """

    def __init__(self, group, channel, table):
        self._group, self._channel, self._table = group, channel, table
        self._progress = group.progress
        self._sites, self._site = group.progress.names.sites, group.progress.names.site
        self._loops = [Loops(verb) for verb in range(len(COMPILED_VERBS))]
        self._sums, self._scatters, self._gathers = self._loops[ALL_REDUCE : ALL_GATHER + 1]
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
    # Each looks up who called that verb by itself, which saves a call.

    def barrier(self) -> bool:
        frame = _getframe().f_back.f_back
        site = self._sites.get((id(frame.f_code), frame.f_lasti)) or self._site()
        stage = self._loops[BARRIER][ANY_CHAR](self._table, site)
        return stage == DONE or self._go_on(BARRIER, (), stage)

    def all_reduce(self, array, op) -> bool:
        frame = _getframe().f_back.f_back
        site = self._sites.get((id(frame.f_code), frame.f_lasti)) or self._site()
        operation = SUM if op is SUM_OF_RANKS else OPERATIONS.get(op)
        if type(array) is not numpy.ndarray or array.ndim != 1 or operation is None:
            return False
        try:
            loop = self._sums[array.dtype.char]
            stage = loop(array, self._table, operation, site)
        except TypeError:  # no such loop
            return False
        return stage == DONE or self._go_on(ALL_REDUCE, (array, op), stage)

    def broadcast(self, array, root) -> bool:
        frame = _getframe().f_back.f_back
        site = self._sites.get((id(frame.f_code), frame.f_lasti)) or self._site()
        if type(array) is not numpy.ndarray or array.ndim != 1 or type(root) is not int:
            return False
        try:
            stage = self._loops[BROADCAST][array.dtype.char](array, root, self._table, site)
        except TypeError:
            return False
        return stage == DONE or self._go_on(BROADCAST, (array, root), stage)

    def all_gather(self, send, receive) -> bool:
        frame = _getframe().f_back.f_back
        site = self._sites.get((id(frame.f_code), frame.f_lasti)) or self._site()
        if not are_flat(send, receive):
            return False
        try:
            stage = self._gathers[send.dtype.char](send, receive, self._table, site)
        except TypeError:
            return False
        return stage == DONE or self._go_on(ALL_GATHER, (send, receive), stage)

    def reduce_scatter(self, send, receive, op, in_place: bool) -> bool:
        frame = _getframe().f_back.f_back
        site = self._sites.get((id(frame.f_code), frame.f_lasti)) or self._site()
        operation = SUM if op is SUM_OF_RANKS else OPERATIONS.get(op)
        if operation is None or not are_flat(send, receive):
            return False
        try:
            loop = self._scatters[send.dtype.char]
            stage = loop(send, receive, self._table, operation, 1 if in_place else 0, site)
        except TypeError:
            return False
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
        loop = self._loops[number][flat[0].dtype.char if flat else ANY_CHAR]
        if loop is None:
            return None
        before = (root,) if number == BROADCAST else ()
        middle = {ALL_REDUCE: (operation,), REDUCE_SCATTER: (operation, 0)}.get(number, ())
        rest = {ALL_REDUCE: (op,), REDUCE_SCATTER: (op,), BROADCAST: (root,)}.get(number, ())
        run = partial(loop, *flat, *before, self._table, *middle, site)
        return run, partial(self._go_on, number, (*flat, *rest))


def are_flat(one, other) -> bool:
    """Return True for two 1-D arrays."""
    return type(one) is type(other) is numpy.ndarray and one.ndim == other.ndim == 1
