"""The shared-memory channel: the verbs of a group whose ranks are all on one node."""

from functools import cached_property, lru_cache

import numpy

from ..channel import WrappedChannel
from ..operations import ReductionOperation
from .mailbox import ALL_REDUCE, DONE, MAX, MIN, PRODUCT, REDUCE_SCATTER, SUM

NUMBERS = "fdilB"  # dtypes that are added here, each compiled by itself: NumPy's characters
SLOT_BYTES_AT_MOST = 2048  # up to here copying to a slot costs less than meeting a second time
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
_VERB_BITS, _OPERATION_BITS = 4, 4


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
        self._num_calls_left = calls_before_opening
        self._is_open = calls_before_opening <= 0
        self._codes = {
            (op, numpy.dtype(dtype)): (
                operation,
                operation << _VERB_BITS | number << _VERB_BITS + _OPERATION_BITS,
            )
            for op, operation in _OPERATIONS.items()
            for number, dtype in enumerate(NUMBERS)
        }

    @cached_property
    def _loops(self):
        """The module of the loops, which loads Numba: not before one is needed."""
        from . import loops

        return loops

    def close(self):
        self._forget()
        super().close()

    def _opens(self, num_bytes: int) -> bool:
        """Return True if the memory takes a call that is made now, of a group's first ones.

        All ranks make the same calls, so it opens for all of them in the same one.
        """
        self._num_calls_left -= 1 if num_bytes <= self.small_bytes else CALLS_BEFORE_OPENING
        self._is_open = self._num_calls_left <= 0
        return self._is_open

    def adds(self, dtype, op) -> bool:
        """Return True if such reductions are done here."""
        return (op, dtype) in self._codes

    def adds_in_tree_order(self, num_bytes, dtype):
        return (self._is_open or num_bytes > self.small_bytes) and (
            SUM_OF_RANKS,
            dtype,
        ) in self._codes

    def common(self, size, dtype):
        ranks = self.inside.members.world_ranks
        return self._node.common(self.communicator, ranks, size, dtype)

    def barrier(self):
        if self._is_open or self._opens(0):
            self._run(self._loops.meet, self._table)
        else:
            self.inside.barrier()

    def all_reduce(self, array, op):
        """Leave the reduction over ranks, added as a tree, in the array."""
        code = self._codes.get((op, array.dtype))
        if not (self._is_open or self._opens(array.nbytes)) or code is None:
            return self.inside.all_reduce(array, op)
        arguments = array, self._table, code[0], code[1] | ALL_REDUCE
        if array.nbytes <= SLOT_BYTES_AT_MOST or not self._run(
            self._loops.all_reduce_in_heaps, *arguments
        ):
            self._run(self._loops.all_reduce_in_slots, *arguments)

    def reduce_scatter(self, send, receive, counts, op):
        """Leave this rank's slice of the reduction, added as a tree, in `receive`.

        That may be its own slice of `send`.
        """
        code = self._codes.get((op, send.dtype))
        if not (self._is_open or self._opens(send.nbytes)) or code is None:
            return self.inside.reduce_scatter(send, receive, counts, op)
        operation, code = code[0], code[1] | REDUCE_SCATTER
        starts, counts = _places(tuple(counts), 1)
        if send.nbytes > SLOT_BYTES_AT_MOST:
            start = int(starts[self.rank])
            arguments = send, receive, start, self._table, operation, code
            if self._run(self._loops.reduce_scatter_in_heaps, *arguments):
                return
        arguments = send, receive, starts, counts, self._table, operation, code
        self._run(self._loops.reduce_scatter_in_slots, *arguments)

    def all_gather(self, send, receive, counts):
        if not (self._is_open or self._opens(receive.nbytes)):
            return self.inside.all_gather(send, receive, counts)
        starts, counts = _places(tuple(counts), receive.itemsize)
        arguments = (
            self.address(send),
            send.nbytes,
            self.address(receive),
            receive.nbytes,
            starts,
            counts,
            self._table,
        )
        if receive.nbytes <= SLOT_BYTES_AT_MOST or not self._run(
            self._loops.all_gather_in_heaps, *arguments
        ):
            self._run(self._loops.all_gather_in_slots, *arguments)

    def broadcast(self, array, root):
        if self._is_open or self._opens(array.nbytes):
            self._run(self._loops.broadcast_in_slots, array.view("uint8"), root, self._table)
        else:
            self.inside.broadcast(array, root)

    def _run(self, loop, *arguments) -> bool:
        """Run a loop to its end; between two tries MPI makes progress.

        Return False if an array is in no heap, and nothing was done.
        """
        stage = loop(*arguments, 0)
        while stage > 0:
            self.inside.probe()
            stage = loop(*arguments, stage)
        return stage == DONE


@lru_cache
def _places(counts: tuple[int, ...], unit: int):
    """Return starts and counts of consecutive pieces, times `unit`, as the loops take them."""
    counts = numpy.array(counts, numpy.int64) * unit
    return numpy.cumsum(counts) - counts, counts
