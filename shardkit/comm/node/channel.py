"""The shared-memory channel: the verbs of a group whose ranks are all on one node."""

from functools import cached_property, lru_cache, partial

import numpy

from ..channel import WrappedChannel
from ..operations import COMPILED_VERBS, ReductionOperation
from .mailbox import (
    ALL_REDUCE,
    ANY_CHAR,
    DTYPES,
    FIRST_IN_SLOTS,
    IN_SLOTS_BYTES,
    MAX,
    MIN,
    NOT_SHARED,
    OPERATION_BITS,
    PRODUCT,
    REDUCE_SCATTER,
    SUM,
    VERB_BITS,
)
from .quick import QuickVerbs, load_roads

SMALL_BYTES = 8192
CALLS_BEFORE_OPENING = 100
SUM_OF_RANKS = ReductionOperation.SUM
_ADDING = ("all_reduce", "reduce_scatter")  # their loops differ with the dtype
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
        self._roads_of = {
            "barrier": self._barrier_roads,
            "all_reduce": self._all_reduce_roads,
            "reduce_scatter": self._reduce_scatter_roads,
            "all_gather": self._all_gather_roads,
            "broadcast": self._broadcast_roads,
        }
        self._num_calls_left = calls_before_opening
        self.is_open = calls_before_opening <= 0
        self._codes = {
            (op, numpy.dtype(dtype)): (
                operation,
                operation << VERB_BITS | number << VERB_BITS + OPERATION_BITS,
            )
            for op, operation in _OPERATIONS.items()
            for number, dtype in enumerate(DTYPES)
        }

    @cached_property
    def _loops(self):
        """The module of the loops, which loads Numba: not before one is needed."""
        from . import loops

        return loops

    def close(self):
        self._forget()
        super().close()

    def load(self, verb, num_bytes, dtype=None):
        opens = self._num_calls_left <= 1 or num_bytes * self.size > self.small_bytes
        if verb in self._roads_of and (self.is_open or opens):
            char = ANY_CHAR if dtype is None or verb not in _ADDING else dtype.char
            if char in DTYPES:
                load_roads(COMPILED_VERBS.index(verb), char)

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
        return (op, dtype) in self._codes

    def adds_in_tree_order(self, num_bytes, dtype):
        return (self.is_open or num_bytes > self.small_bytes) and (
            SUM_OF_RANKS,
            dtype,
        ) in self._codes

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
            self._run("barrier", (), 0)
        else:
            self.inside.barrier()

    def all_reduce(self, array, op):
        """Leave the reduction over ranks, added as a tree, in the array."""
        if (self.is_open or self._opens(array.nbytes)) and self.adds(array.dtype, op):
            self._run("all_reduce", (array, op), array.nbytes)
        else:
            self.inside.all_reduce(array, op)

    def reduce_scatter(self, send, receive, counts, op):
        """Leave this rank's slice of the reduction, added as a tree, in `receive`.

        That may be its own slice of `send`.
        """
        if (self.is_open or self._opens(send.nbytes)) and self.adds(send.dtype, op):
            self._run("reduce_scatter", (send, receive, op, tuple(counts)), send.nbytes)
        else:
            self.inside.reduce_scatter(send, receive, counts, op)

    def all_gather(self, send, receive, counts):
        if self.is_open or self._opens(receive.nbytes):
            self._run("all_gather", (send, receive, tuple(counts)), receive.nbytes)
        else:
            self.inside.all_gather(send, receive, counts)

    def broadcast(self, array, root):
        if self.is_open or self._opens(array.nbytes):
            self._run("broadcast", (array, root), 0)
        else:
            self.inside.broadcast(array, root)

    # ---- roads: the loop in heaps, and the loop in slots, as functions (stage) -> stage ----------

    def _roads(self, verb: str, arguments):
        """Return both for a verb; None in place of a road that it has not."""
        return self._roads_of[verb](*arguments)

    def _barrier_roads(self):
        return None, partial(self._loops.meet, self._table)

    def _all_reduce_roads(self, array, op):
        operation, code = self._codes[op, array.dtype]
        arguments = array, self._table, operation, code | ALL_REDUCE
        return (
            partial(self._loops.all_reduce_in_heaps, *arguments),
            partial(self._loops.all_reduce_in_slots, *arguments),
        )

    def _reduce_scatter_roads(self, send, receive, op, counts=None):
        operation, code = self._codes[op, send.dtype]
        starts, counts = _places(counts or (receive.size,) * self.size, 1)
        last = self._table, operation, code | REDUCE_SCATTER
        start = int(starts[self.rank])
        return (
            partial(self._loops.reduce_scatter_in_heaps, send, receive, start, *last),
            partial(self._loops.reduce_scatter_in_slots, send, receive, starts, counts, *last),
        )

    def _all_gather_roads(self, send, receive, counts=None):
        arguments = (
            self.address(send),
            send.nbytes,
            self.address(receive),
            receive.nbytes,
            *_places(counts or (send.size,) * self.size, receive.itemsize),
            self._table,
        )
        return (
            partial(self._loops.all_gather_in_heaps, *arguments),
            partial(self._loops.all_gather_in_slots, *arguments),
        )

    def _broadcast_roads(self, array, root):
        place = self.address(array), array.nbytes
        return None, partial(self._loops.broadcast_in_slots, *place, root, self._table)

    def _run(self, verb, arguments, num_bytes) -> None:
        """Run a verb to its end."""
        in_heaps, in_slots = self._roads(verb, arguments)
        stage = NOT_SHARED if num_bytes <= IN_SLOTS_BYTES else in_heaps(0)
        self._finish(in_heaps, in_slots, stage)

    def finish(self, verb: str, arguments, stage: int) -> None:
        """Go on with a verb that quick.py began, at a stage as noted.py returns it."""
        self._finish(*self._roads(verb, arguments), stage)

    def _finish(self, in_heaps, in_slots, stage) -> None:
        """Run a verb to its end; between two tries MPI makes progress."""
        while 0 < stage <= FIRST_IN_SLOTS:
            self.inside.probe()
            stage = in_heaps(stage)
        if stage == NOT_SHARED:  # an array is in no heap, and nothing was done
            stage = in_slots(0)
        else:
            stage -= FIRST_IN_SLOTS
        while stage > 0:
            self.inside.probe()
            stage = in_slots(stage)


@lru_cache
def _places(counts: tuple[int, ...], unit: int):
    """Return starts and counts of consecutive pieces, times `unit`, as the loops take them."""
    counts = numpy.array(counts, numpy.int64) * unit
    return numpy.cumsum(counts) - counts, counts
