"""The shared-memory channel: the verbs of a group whose ranks are all on one node."""

import ctypes
from functools import lru_cache, partial

import numpy

from ..channel import WrappedChannel
from ..operations import COMPILED_VERBS, ReductionOperation
from .mailbox import (
    ALL_GATHER,
    ALL_REDUCE,
    BARRIER,
    BROADCAST,
    DONE,
    MAX,
    MIN,
    PRODUCT,
    REDUCE_SCATTER,
    START,
    SUM,
    UNNOTED,
)
from .quick import KINDS, QuickVerbs, loop_of

SMALL_BYTES = 8192
CALLS_BEFORE_OPENING = 100
SUM_OF_RANKS = ReductionOperation.SUM
_OPERATIONS = {
    ReductionOperation.SUM: SUM,
    ReductionOperation.AVERAGE: SUM,
    ReductionOperation.PRODUCT: PRODUCT,
    ReductionOperation.MIN: MIN,
    ReductionOperation.MAX: MAX,
}


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
        self._group = None  # whose verbs this channel carries, if any
        self._places = None  # of the slices of the current call: its loop has their address
        self._loop_of = {
            "barrier": self._barrier_loop,
            "all_reduce": self._all_reduce_loop,
            "reduce_scatter": self._reduce_scatter_loop,
            "all_gather": self._all_gather_loop,
            "broadcast": self._broadcast_loop,
        }
        self._num_calls_left = calls_before_opening
        self.is_open = calls_before_opening <= 0

    def close(self):
        self._forget()
        super().close()

    def load(self, verb, num_bytes, dtype=None):
        opens = self._num_calls_left <= 1 or num_bytes * self.size > self.small_bytes
        if verb in self._loop_of and (self.is_open or opens):
            loop_of(COMPILED_VERBS.index(verb))

    def _opens(self, num_bytes: int) -> bool:
        """Return True if the memory takes a call that is made now, of a group's first ones.

        All ranks make the same calls, so it opens for all of them in the same one.
        """
        self._num_calls_left -= 1 if num_bytes <= self.small_bytes else CALLS_BEFORE_OPENING
        self.is_open = self._num_calls_left <= 0
        self._serve_quickly()
        return self.is_open

    def adds(self, dtype, op) -> bool:
        """Return True if such reductions are done here."""
        return op in _OPERATIONS and dtype in KINDS

    def adds_in_tree_order(self, num_bytes, dtype):
        return (self.is_open or num_bytes > self.small_bytes) and self.adds(dtype, SUM_OF_RANKS)

    def common(self, size, dtype):
        ranks = self.inside.members.world_ranks
        return self._node.common(self.communicator, ranks, size, dtype)

    def serve(self, group):
        self._group = group
        self._serve_quickly()

    def _serve_quickly(self):
        if self.is_open and self._group is not None:
            self._group.quick = QuickVerbs(self._group, self, self._table)

    def barrier(self):
        if self.is_open or self._opens(0):
            self.finish("barrier", ())
        else:
            self.inside.barrier()

    def all_reduce(self, array, op):
        """Leave the reduction over ranks, added as a tree, in the array."""
        if (self.is_open or self._opens(array.nbytes)) and self.adds(array.dtype, op):
            self.finish("all_reduce", (array, op))
        else:
            self.inside.all_reduce(array, op)

    def reduce_scatter(self, send, receive, counts, op):
        """Leave this rank's slice of the reduction, added as a tree, in `receive`.

        That may be its own slice of `send`.
        """
        if (self.is_open or self._opens(send.nbytes)) and self.adds(send.dtype, op):
            self.finish("reduce_scatter", (send, receive, op, tuple(counts)))
        else:
            self.inside.reduce_scatter(send, receive, counts, op)

    def all_gather(self, send, receive, counts):
        if self.is_open or self._opens(receive.nbytes):
            self.finish("all_gather", (send, receive, tuple(counts)))
        else:
            self.inside.all_gather(send, receive, counts)

    def broadcast(self, array, root):
        if self.is_open or self._opens(array.nbytes):
            self.finish("broadcast", (array, root))
        else:
            self.inside.broadcast(array, root)

    # ---- loops as functions (stage) -> stage -----------------------------------------------------

    def _barrier_loop(self):
        return partial(loop_of(BARRIER), self._table, UNNOTED)

    def _all_reduce_loop(self, array, op):
        how = _OPERATIONS[op], KINDS[array.dtype]
        return partial(loop_of(ALL_REDUCE), array, self._table, *how, UNNOTED)

    def _reduce_scatter_loop(self, send, receive, op, counts=None):
        places = self._places_of(counts or (receive.size,) * self.size, receive.itemsize)
        how = _OPERATIONS[op], KINDS[send.dtype], 1
        return partial(loop_of(REDUCE_SCATTER), send, receive, places, self._table, *how, UNNOTED)

    def _all_gather_loop(self, send, receive, counts=None):
        places = self._places_of(counts or (send.size,) * self.size, receive.itemsize)
        return partial(loop_of(ALL_GATHER), send, receive, places, self._table, 0, UNNOTED)

    def _broadcast_loop(self, array, root):
        if not array.flags.writeable:  # of the root, who only reads it
            memory = (ctypes.c_char * array.nbytes).from_address(self.address(array))
            array = numpy.ndarray(array.nbytes, numpy.uint8, memory)
        return partial(loop_of(BROADCAST), array, root, self._table, 0, UNNOTED)

    def _places_of(self, counts: tuple[int, ...], item_bytes: int) -> int:
        """Return the address of the places of consecutive slices, in bytes, as loops take them."""
        self._places = _places(counts, item_bytes)
        return self._places.ctypes.data

    def finish(self, verb: str, arguments, stage: int = START) -> None:
        """Run a verb to its end; between two tries MPI makes progress.

        stage   where to go on with what quick.py began
        """
        loop = self._loop_of[verb](*arguments)
        if stage == START:
            stage = loop(START)
        while stage != DONE:
            if stage is NotImplemented:
                raise TypeError(f"{verb} in the memory of a node got arrays that it cannot take")
            self.inside.probe()
            stage = loop(stage)


@lru_cache
def _places(counts: tuple[int, ...], unit: int):
    """Return starts and counts of consecutive pieces, times `unit`, as the loops take them."""
    ends = numpy.cumsum(numpy.array(counts, numpy.int64) * unit)
    sizes = numpy.diff(ends, prepend=0)
    return numpy.concatenate((ends - sizes, sizes))
