"""The verbs of an MPI group on one node: large arrays through its lane, where there is one, all else through MPI.

An MPI library needs about as long as a lane for a small message, which is little beside what Python needs to ask for it; and a
program that sends only small ones need not wait for Numba.
"""
import numpy

from ..mpi_verbs import MPIVerbs


class NodeVerbs(MPIVerbs):
    """MPIVerbs with a short cut.

    _lane        of this group; None if its ranks do not all see each other's memory
    small_bytes  arrays of up to so many bytes go through MPI; the same on all ranks
    """

    small_bytes = 8192

    def __init__(self, mpi, rank: int, world_size: int):
        super().__init__(mpi, rank, world_size)
        self._lane = None

    def adds_in_tree_order(self, array) -> bool:
        return isinstance(array, numpy.ndarray) and self._is_for_lane(array) and self._lane.adds(array.dtype)

    def _is_for_lane(self, array) -> bool:
        return self._lane is not None and array.nbytes > self.small_bytes

    def _all_reduce(self, array, op):
        if not self.adds_in_tree_order(array):
            return super()._all_reduce(array, op)
        with self._errors():
            self._lane.all_reduce(array, op)

    def _reduce_scatter(self, send, receive, counts, op):
        if not self.adds_in_tree_order(send):
            return super()._reduce_scatter(send, receive, counts, op)
        with self._errors():
            self._lane.reduce_scatter(send, receive, counts, op)

    def _all_gather(self, send, receive, counts):
        if not self._is_for_lane(receive):
            return super()._all_gather(send, receive, counts)
        with self._errors():
            self._lane.all_gather(send, receive, counts)

    def _broadcast(self, array, root):
        if not self._is_for_lane(array):
            return super()._broadcast(array, root)
        with self._errors():
            self._lane.broadcast(array, root)
