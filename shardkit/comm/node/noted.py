"""Calls of the compiled verbs (loops.py), as a channel makes them and with all their notes.

    Loops         calls that are noted elsewhere: slices of any lengths, until they end
    NotedLoops    one call of compiled code does all that a verb does: its record, the meeting, the
                  sum, its end; around a small message Python takes longer than the message

What is not plain, of a group in checked mode, or timed, NotedLoops refuse before anything is sent,
and the group makes the call (verbs.py). A call that lasts longer than some spins and naps comes
back to Python, which names it to the watchdog and goes on.
"""

import ctypes
from functools import cache, lru_cache, partial

import numpy

from ...array.cpu.signatures import BYTES, READ_ONLY_BYTES
from ...array.machine_code import MACHINE_CODE
from ..channel import NotedCalls
from ..operations import COMPILED_VERBS, ReductionOperation
from ..watch.frames import OF_VERB
from ..watch.progress import UnderWay
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
    UNNOTED,
)

SUM_OF_RANKS = ReductionOperation.SUM
PATIENCE = 100  # returns of a loop, a quarter of a second: then it only sleeps
PATIENT_NAPS = 20  # between two looks of such a loop at MPI
OPERATIONS = {
    ReductionOperation.SUM: SUM,
    ReductionOperation.PRODUCT: at.PRODUCT,
    ReductionOperation.MIN: at.MIN,
    ReductionOperation.MAX: at.MAX,
}
_SUMS = OPERATIONS | {ReductionOperation.AVERAGE: SUM}  # scaled afterwards
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


def load(*verbs: str) -> None:
    """Load the code of these verbs, before a call begins and others wait in it."""
    for verb in verbs:
        loop_of(COMPILED_VERBS.index(verb))


class Loops:
    """The loops of one group, whose calls are noted elsewhere.

    table      what they know of the group
    messages   channel of the same ranks; lets MPI make progress while this rank waits
    """

    def __init__(self, table, messages):
        self.table, self._messages = table, messages
        self._places = None  # of the slices of the current call: its loop has their address

    def adds(self, dtype, op) -> bool:
        """Return True if such reductions are done here."""
        return op in _SUMS and dtype in KINDS

    def finish(self, verb: int, arrays, option, stage: int, counts=None) -> None:
        """Run a verb to its end; between two tries MPI makes progress.

        Sums are added as a tree. The slice of reduce_scatter may be the own one of the other array.
        stage   where to go on with what has begun
        counts  of slices; None: they are equal
        """
        loop = self._loop(verb, arrays, option, counts)
        if stage == START:
            stage = loop(START)
        if stage is NotImplemented:
            name = COMPILED_VERBS[verb]
            raise TypeError(f"{name} in the memory of a node got arrays that it cannot take")
        if stage != DONE:
            self._resume(loop, stage)

    def _resume(self, loop, stage: int) -> None:
        """Go on from this stage to the end, asleep in the kernel if that takes long."""
        num_returns = 0
        try:
            while stage != DONE:
                num_returns += 1
                if num_returns == PATIENCE:
                    self.table[[at.YIELDS, at.NAPS]] = 0, PATIENT_NAPS
                self._messages.probe()
                stage = loop(stage)
        finally:
            self.table[[at.YIELDS, at.NAPS]] = at.YIELD_TURNS, at.NAP_TURNS

    def _loop(self, verb, arrays, option, counts):
        """Return the loop of a call: function (stage) -> stage."""
        if verb == BROADCAST:
            arrays = (self._writeable(*arrays),)
        places = self._places_of(arrays, counts) if len(arrays) == 2 else NO_PLACES
        kind = KINDS.get(arrays[0].dtype, 0) if arrays else 0
        option = _SUMS.get(option, option)
        return bound(verb, arrays, self.table, option, kind, UNNOTED, places=places, in_place=1)

    def _writeable(self, array):
        """Return the bytes of an array that a root only reads, as what a loop takes."""
        if array.flags.writeable:
            return array
        address = self._messages.memory.address(array)
        memory = (ctypes.c_char * array.nbytes).from_address(address)
        return numpy.ndarray(array.nbytes, numpy.uint8, memory)

    def _places_of(self, arrays, counts) -> int:
        """Return the address of the places of consecutive slices, in bytes, as loops take them."""
        if counts is None:
            counts = (min(array.size for array in arrays),) * self._messages.size
        self._places = _places(tuple(counts), arrays[0].itemsize)
        return self._places.ctypes.data


@lru_cache
def _places(counts: tuple[int, ...], unit: int):
    """Return starts and counts of consecutive pieces, times `unit`, as the loops take them."""
    ends = numpy.cumsum(numpy.array(counts, numpy.int64) * unit)
    sizes = numpy.diff(ends, prepend=0)
    return numpy.concatenate((ends - sizes, sizes))


class NotedLoops(NotedCalls):
    """The verbs of one group, until close().

    group    its Verbs: names, progress, traffic
    loops    its Loops, which end in Python what takes long
    """

    def __init__(self, group, loops: Loops):
        self._key, self._ranks = group.group_key, group.world_ranks
        self._progress, self._traffic = group.progress, group.traffic
        self._loops, self._table = loops, loops.table
        self._site = group.progress.names.site
        self._write_table()

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

    def barrier(self) -> bool:
        stage = loop_of(BARRIER)(self._table, self._site(OF_VERB), START)
        return stage == DONE or self._go_on(BARRIER, (), None, stage)

    def all_reduce(self, array, op) -> bool:
        site = self._site(OF_VERB)
        operation = SUM if op is SUM_OF_RANKS else OPERATIONS.get(op)
        if type(array) is not numpy.ndarray or array.ndim != 1 or operation is None:
            return False
        kind = KINDS.get(array.dtype)
        if kind is None:
            return False
        stage = loop_of(ALL_REDUCE)(array, self._table, operation, kind, site, START)
        return stage == DONE or self._go_on(ALL_REDUCE, (array,), op, stage)

    def broadcast(self, array, root) -> bool:
        site = self._site(OF_VERB)
        if type(array) is not numpy.ndarray or array.ndim != 1 or type(root) is not int:
            return False
        kind = KINDS.get(array.dtype)
        if kind is None:
            return False
        stage = loop_of(BROADCAST)(array, root, self._table, kind, site, START)
        return stage == DONE or self._go_on(BROADCAST, (array,), root, stage)

    def all_gather(self, send, receive) -> bool:
        site = self._site(OF_VERB)
        kind = kind_of(send, receive)
        if kind is None:
            return False
        stage = loop_of(ALL_GATHER)(send, receive, NO_PLACES, self._table, kind, site, START)
        return stage == DONE or self._go_on(ALL_GATHER, (send, receive), None, stage)

    def reduce_scatter(self, send, receive, op, in_place: bool) -> bool:
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
        if verb not in COMPILED_VERBS:
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
        with UnderWay(self._progress):
            self._loops.finish(verb, arrays, option, stage)
        return True


def kind_of(one, other) -> int | None:
    """Return the place in DTYPES of two 1-D arrays of one dtype; None for others."""
    if type(one) is type(other) is numpy.ndarray and one.ndim == other.ndim == 1:
        dtype = one.dtype
        if dtype is other.dtype:
            return KINDS.get(dtype)
    return None
