"""The verbs of an MPI group: through its lane or its levels, where there are any, and what they do not take through MPI.

A lane takes arrays of every size: it needs as long as an MPI library for the smallest, and a twentieth where ranks share cores.
But it opens with the first large one, since it loads Numba: a program that only says hello need not wait for that. Levels take
large arrays only, since they need several messages. Where the one road ends and the other begins is fixed, not
measured when a program starts: the roads add in different orders, and a second run is to have the bits of the first.
"""
import numpy

from ..mpi_verbs import MPIVerbs
from ..operations import ReductionOperation

SUM = ReductionOperation.SUM


class NodeVerbs(MPIVerbs):
    """MPIVerbs with a short cut.

    _lane        of this group; None if its ranks do not all see each other's memory
    _levels      of this group; None if it is on one node, or its nodes are not alike
    small_bytes  arrays of up to so many bytes open no lane, and go through no levels; the same on all ranks
    """

    small_bytes = 8192

    def __init__(self, mpi, rank: int, world_size: int):
        super().__init__(mpi, rank, world_size)
        self._lane = self._levels = None
        self._is_lane_open = False

    @property
    def shares_memory(self) -> bool:
        return self._lane is not None

    @property
    def levels(self):
        return self._levels

    def adds_in_tree_order(self, array) -> bool:
        if not isinstance(array, numpy.ndarray):
            return super().adds_in_tree_order(array)
        return self._adding_road(array, SUM) is not None

    def _adding_road(self, array, op):
        """The lane or the levels, if they reduce such an array; they add in the order of the tree."""
        road = self._open_lane(array.nbytes) or self._levels_for(array)
        return road if road is not None and road.adds(array.dtype, op) else None

    def _open_lane(self, num_bytes: int):
        """The lane, from the first call with a large array on, which is the same one on all ranks."""
        if num_bytes > self.small_bytes:
            self._is_lane_open = True
        return self._lane if self._is_lane_open else None

    def _levels_for(self, array):
        """The levels, if the array is large enough for them."""
        return self._levels if array.nbytes > self.small_bytes else None

    def _barrier(self):
        lane = self._open_lane(0)
        if lane is None:
            return super()._barrier()
        lane.barrier()

    def _all_reduce(self, array, op):
        road = self._adding_road(array, op)
        if road is None:
            return super()._all_reduce(array, op)
        road.all_reduce(array, op)

    def _reduce_scatter(self, send, receive, counts, op):
        road = self._adding_road(send, op)
        if road is None:
            return super()._reduce_scatter(send, receive, counts, op)
        road.reduce_scatter(send, receive, counts, op)

    def _all_gather(self, send, receive, counts):
        road = self._open_lane(receive.nbytes) or self._levels_for(receive)
        if road is None:
            return super()._all_gather(send, receive, counts)
        road.all_gather(send, receive, counts)

    def _broadcast(self, array, root):
        lane = self._open_lane(array.nbytes)
        if lane is None:
            return super()._broadcast(array, root)
        lane.broadcast(array, root)

    def _probe(self):
        """Let MPI make progress."""
        with self._errors():
            self._comm.Iprobe()
