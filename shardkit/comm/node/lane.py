"""A lane: the verbs of a group whose ranks are all on one node, without messages."""

from functools import cached_property, lru_cache

import numpy

from ..operations import ReductionOperation
from .desk import ALL_REDUCE, DONE, MAX, MIN, PRODUCT, RANK, REDUCE_SCATTER, SUM

NUMBERS = "fdilB"  # dtypes that are added here, each compiled by itself: NumPy's characters
SLOT_ROAD_BYTES = 2048  # up to here copying to a slot costs less than meeting a second time
_OPERATIONS = {
    ReductionOperation.SUM: SUM,
    ReductionOperation.AVERAGE: SUM,
    ReductionOperation.PRODUCT: PRODUCT,
    ReductionOperation.MIN: MIN,
    ReductionOperation.MAX: MAX,
}
_VERB_BITS, _OPERATION_BITS = 4, 4
_NUMBERS = frozenset(map(numpy.dtype, NUMBERS))


class Lane:
    """One rank's end. Every method is collective over the group; arrays are flat, on the host.

    table    what the loops know of the group
    probe    function () that lets MPI make progress while this rank waits
    address  function (array) -> of its first byte in this process
    forget   function () that is called when the lane is closed; collective, since neighbors may
             still look at the desk
    """

    def __init__(self, table, probe, address, forget):
        self._table, self._probe, self._address, self._forget = table, probe, address, forget
        self._codes = {
            (op, dtype): (
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

    def close(self) -> None:
        """No more verbs come. Collective."""
        self._forget()

    def barrier(self) -> None:
        """Return when all have come."""
        self._run(self._loops.meet, self._table)

    def adds(self, dtype, op) -> bool:
        """True if such reductions are done here."""
        return dtype in _NUMBERS and op in _OPERATIONS

    def all_reduce(self, array, op) -> None:
        """The reduction over ranks as a tree, in place."""
        operation, code = self._codes[op, array.dtype.char]
        arguments = array, self._table, operation, code | ALL_REDUCE
        if array.nbytes <= SLOT_ROAD_BYTES or not self._run(
            self._loops.all_reduce_in_heaps, *arguments
        ):
            self._run(self._loops.all_reduce_in_slots, *arguments)

    def reduce_scatter(self, send, receive, counts, op) -> None:
        """This rank's slice of the reduction as a tree, in `receive`, which may be its own slice of
        `send`.
        """
        operation, code = self._codes[op, send.dtype.char]
        code |= REDUCE_SCATTER
        starts, counts = _places(tuple(counts), 1)
        if send.nbytes > SLOT_ROAD_BYTES:
            start = int(starts[self._table[RANK]])
            if self._run(
                self._loops.reduce_scatter_in_heaps,
                send,
                receive,
                start,
                self._table,
                operation,
                code,
            ):
                return
        self._run(
            self._loops.reduce_scatter_in_slots,
            send,
            receive,
            starts,
            counts,
            self._table,
            operation,
            code,
        )

    def all_gather(self, send, receive, counts) -> None:
        """All slices in `receive`."""
        starts, counts = _places(tuple(counts), receive.itemsize)
        arguments = (
            self._address(send),
            send.nbytes,
            self._address(receive),
            receive.nbytes,
            starts,
            counts,
            self._table,
        )
        if receive.nbytes <= SLOT_ROAD_BYTES or not self._run(
            self._loops.all_gather_in_heaps, *arguments
        ):
            self._run(self._loops.all_gather_in_slots, *arguments)

    def broadcast(self, array, root: int) -> None:
        """The root's elements on all ranks."""
        self._run(self._loops.broadcast_in_slots, array.view("uint8"), root, self._table)

    def _run(self, loop, *arguments) -> bool:
        """Run a loop to its end; between two tries MPI makes progress. False: an array is in no
        heap, and nothing was done.
        """
        stage = loop(*arguments, 0)
        while stage > 0:
            self._probe()
            stage = loop(*arguments, stage)
        return stage == DONE


@lru_cache
def _places(counts: tuple[int, ...], unit: int):
    """Starts and counts of pieces that lie one after the other, times `unit`, as the loops want
    them.
    """
    counts = numpy.array(counts, numpy.int64) * unit
    return numpy.cumsum(counts) - counts, counts
