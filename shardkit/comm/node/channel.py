"""The shared-memory channel: the verbs of a group whose ranks are all on one node."""

import ctypes
from functools import lru_cache, partial

import numpy

from ..channel import ShortCall, WrappedChannel
from ..operations import COMPILED_VERBS, ReductionOperation
from .mailbox import (
    ALL_REDUCE,
    BROADCAST,
    DONE,
    NAP_TURNS,
    NAPS,
    REDUCE_SCATTER,
    START,
    SUM,
    UNNOTED,
    YIELD_TURNS,
    YIELDS,
)
from .noted import KINDS, NO_PLACES, OPERATIONS, PARTS, NotedLoops, bound, loop_of

SMALL_BYTES = 8192
CALLS_BEFORE_OPENING = 100
PATIENCE = 100  # returns of a loop, a quarter of a second: then it only sleeps
PATIENT_NAPS = 20  # between two looks of such a loop at MPI
SUM_OF_RANKS = ReductionOperation.SUM
_SUMS = OPERATIONS | {ReductionOperation.AVERAGE: SUM}  # scaled afterwards


class SharedMemoryChannel(WrappedChannel):
    """Verbs in the memory of a node, around the messages of the same ranks, which do the rest.

    messages     the channel inside; lets MPI make progress while this rank waits
    table        what the loops know of the group
    node         of this rank: its heap, and arrays that ranks have in common
    forget       function () that is called by close(); collective, since neighbors may still look
                 at this rank's mailbox
    small_bytes  arrays of up to so many bytes do not open the memory; the same on all ranks
    calls_before_opening   so many small calls go through messages first

    The loops take arrays of every size: they need as long as an MPI library for the smallest, and a
    twentieth where ranks share cores. But they load Numba, so the memory opens with the first large
    array or after some calls with small ones: a short program need not wait for that. Where the one
    ends and the other begins is fixed, not measured: they add in different orders, and a second run
    has the bits of the first.
    """

    def __init__(
        self,
        messages,
        table,
        node,
        forget,
        *,
        small_bytes: int = SMALL_BYTES,
        calls_before_opening: int = CALLS_BEFORE_OPENING,
    ):
        super().__init__(messages)
        self.small_bytes = small_bytes
        self.shares_memory = True
        self.heap = node.heap
        self._table = table
        self._node = node
        self._forget = forget
        self._noted: NotedLoops | None = None  # of the group whose verbs this channel carries
        self._places = None  # of the slices of the current call: its loop has their address
        self._num_calls_left = calls_before_opening
        self.is_open = calls_before_opening <= 0

    def close(self):
        self._forget()
        super().close()

    def plan(self, verb, *arguments):
        if verb not in PARTS:
            return self.inside.plan(verb, *arguments)
        if self._num_calls_left <= self._weight(bytes_of(arguments)):
            self.load(verb)
        way = partial(self._take, COMPILED_VERBS.index(verb), *PARTS[verb](*arguments))
        return ShortCall(way, self.inside, verb, arguments)

    def load(self, *verbs: str) -> None:
        """Load the code of these verbs, before a call begins and others wait in it."""
        for verb in verbs:
            loop_of(COMPILED_VERBS.index(verb))

    def _weight(self, num_bytes: int) -> int:
        """Return how many of the calls before the memory opens such a one counts for."""
        return 1 if num_bytes <= self.small_bytes else CALLS_BEFORE_OPENING

    def _opens(self, num_bytes: int) -> bool:
        """Return True if the memory takes a call that is made now, of a group's first ones.

        All ranks make the same calls, so it opens for all of them in the same one.
        """
        self._num_calls_left -= self._weight(num_bytes)
        self.is_open = self._num_calls_left <= 0
        if self.is_open and self._noted is not None:
            self._noted.open()
        return self.is_open

    def adds(self, dtype, op) -> bool:
        """Return True if such reductions are done here."""
        return op in _SUMS and dtype in KINDS

    def adds_in_tree_order(self, num_bytes, dtype):
        return (self.is_open or num_bytes > self.small_bytes) and self.adds(dtype, SUM_OF_RANKS)

    def common(self, size, dtype):
        ranks = self.inside.members.world_ranks
        return self._node.common(self.communicator, ranks, size, dtype)

    def noted_calls(self, group):
        self._noted = NotedLoops(group, self.finish, self._table)
        if self.is_open:
            self._noted.open()
        return self._noted

    def _take(self, verb: int, arrays, option, counts) -> bool:
        """Make a call; False, and nothing was done, if it goes through messages."""
        if not (self.is_open or self._opens(bytes_of(arrays))):
            return False
        if verb in (ALL_REDUCE, REDUCE_SCATTER) and not self.adds(arrays[0].dtype, option):
            return False
        self.finish(verb, arrays, option, START, counts)
        return True

    def finish(self, verb: int, arrays, option, stage: int, counts=None) -> None:
        """Run a verb to its end; between two tries MPI makes progress.

        Sums are added as a tree. The slice of reduce_scatter may be the own one of the other array.
        stage   where to go on with what noted.py began
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
                    self._table[[YIELDS, NAPS]] = 0, PATIENT_NAPS
                self.inside.probe()
                stage = loop(stage)
        finally:
            self._table[[YIELDS, NAPS]] = YIELD_TURNS, NAP_TURNS

    def _loop(self, verb, arrays, option, counts):
        """Return the loop of a call, whose caller is noted elsewhere: function (stage) -> stage."""
        if verb == BROADCAST:
            arrays = (self._writeable(*arrays),)
        places = self._places_of(arrays, counts) if len(arrays) == 2 else NO_PLACES
        kind = KINDS.get(arrays[0].dtype, 0) if arrays else 0
        option = _SUMS.get(option, option)
        return bound(verb, arrays, self._table, option, kind, UNNOTED, places=places, in_place=1)

    def _writeable(self, array):
        """Return the bytes of an array that a root only reads, as what a loop takes."""
        if array.flags.writeable:
            return array
        memory = (ctypes.c_char * array.nbytes).from_address(self.address(array))
        return numpy.ndarray(array.nbytes, numpy.uint8, memory)

    def _places_of(self, arrays, counts) -> int:
        """Return the address of the places of consecutive slices, in bytes, as loops take them."""
        counts = (min(array.size for array in arrays),) * self.size if counts is None else counts
        self._places = _places(tuple(counts), arrays[0].itemsize)
        return self._places.ctypes.data


def bytes_of(arguments) -> int:
    """Return the bytes of the largest array among the arguments of a verb; 0 if there is none."""
    return max((a.nbytes for a in arguments if isinstance(a, numpy.ndarray)), default=0)


@lru_cache
def _places(counts: tuple[int, ...], unit: int):
    """Return starts and counts of consecutive pieces, times `unit`, as the loops take them."""
    ends = numpy.cumsum(numpy.array(counts, numpy.int64) * unit)
    sizes = numpy.diff(ends, prepend=0)
    return numpy.concatenate((ends - sizes, sizes))
