"""The verbs of an MPI group: large arrays through its lane or its levels, where there are any, all else through MPI.

An MPI library needs about as long as a lane for a small message, which is little beside what Python needs to ask for it; and a
program that sends only small ones need not wait for Numba. Where the one road ends and the other begins is fixed, not measured
when a program starts: the roads add in different orders, and a second run is to have the bits of the first.
"""
import numpy

from ..mpi_verbs import MPIVerbs
from ..operations import ReductionOperation

SUM = ReductionOperation.SUM


class NodeVerbs(MPIVerbs):
    """MPIVerbs with a short cut.

    _lane        of this group; None if its ranks do not all see each other's memory
    _levels      of this group; None if it is on one node, or its nodes are not alike
    small_bytes  arrays of up to so many bytes go through MPI; the same on all ranks
    """

    small_bytes = 8192

    def __init__(self, mpi, rank: int, world_size: int):
        super().__init__(mpi, rank, world_size)
        self._lane = self._levels = None

    @property
    def shares_memory(self) -> bool:
        return self._lane is not None

    @property
    def levels(self):
        return self._levels

    def adds_in_tree_order(self, array) -> bool:
        return super().adds_in_tree_order(array) or isinstance(array, numpy.ndarray) and array.nbytes > self.small_bytes and (
            self._lane is not None and self._lane.adds(array.dtype)
            or self._levels is not None and self._levels.adds(array.dtype))

    def _all_reduce(self, array, op):
        if not self.adds_in_tree_order(array) or self._lane is None and op is not SUM:
            return super()._all_reduce(array, op)
        with self._errors():
            if self._lane is not None:
                self._lane.all_reduce(array, op)
            else:
                self._levels.all_reduce(array)

    def _reduce_scatter(self, send, receive, counts, op):
        if not self.adds_in_tree_order(send) or self._lane is None and op is not SUM:
            return super()._reduce_scatter(send, receive, counts, op)
        with self._errors():
            if self._lane is not None:
                self._lane.reduce_scatter(send, receive, counts, op)
            else:
                self._levels.reduce_scatter(send, receive, counts)

    def _all_gather(self, send, receive, counts):
        road = self._lane if self._lane is not None else self._levels
        if road is None or receive.nbytes <= self.small_bytes:
            return super()._all_gather(send, receive, counts)
        with self._errors():
            road.all_gather(send, receive, counts)

    def _broadcast(self, array, root):
        if self._lane is None or array.nbytes <= self.small_bytes:
            return super()._broadcast(array, root)
        with self._errors():
            self._lane.broadcast(array, root)
