"""The verbs of an MPI group: through its lane or its levels, where there are any, and what they do
not take through MPI.

A lane takes arrays of every size: it needs as long as an MPI library for the smallest, and a
twentieth where ranks share cores. But it loads Numba, so it opens with the first large array or
after some calls with small ones: a program that only says hello need not wait for that. Levels take
large arrays only, since they need several messages. Where the one road ends and the other begins is
fixed, not measured when a program starts: they add in different orders, and a second run is to have
the bits of the first.
"""

import numpy

from ..mpi.verbs import MPIVerbs
from ..operations import ReductionOperation

SUM = ReductionOperation.SUM
CALLS_BEFORE_LANE = 100


class NodeVerbs(MPIVerbs):
    """MPIVerbs with a short cut.

    _lane        of this group; None if its ranks do not all see each other's memory
    _levels      of this group; None if it is on one node, or its nodes are not alike
    small_bytes  arrays of up to so many bytes open no lane at once, and go through no levels; the
                 same on all ranks
    """

    small_bytes = 8192

    def __init__(self, mpi, rank: int, world_size: int):
        super().__init__(mpi, rank, world_size)
        self._lane = self._levels = None
        self._num_calls_before_lane = CALLS_BEFORE_LANE

    @property
    def shares_memory(self) -> bool:
        return self._lane is not None

    @property
    def levels(self):
        return self._levels

    def adds_in_tree_order(self, array) -> bool:
        if not isinstance(array, numpy.ndarray):
            return super().adds_in_tree_order(array)
        return self._adding(self._road_of_size(array.nbytes), array, SUM) is not None

    def _adding(self, road, array, op):
        """The road, if it reduces such an array; then it adds in the order of the tree."""
        return road if road is not None and road.adds(array.dtype, op) else None

    def _road_of_size(self, num_bytes: int):
        """The lane, if it is open; else what takes large arrays, if it is one."""
        if self._lane is not None and (
            self._num_calls_before_lane <= 0 or num_bytes > self.small_bytes
        ):
            return self._lane
        return self._levels if num_bytes > self.small_bytes else None

    def _road(self, num_bytes: int):
        """The same for a call that is made now. All ranks make the same ones, so a lane opens for
        all of them at once.
        """
        self._num_calls_before_lane -= 1 if num_bytes <= self.small_bytes else CALLS_BEFORE_LANE
        return self._road_of_size(num_bytes)

    def _barrier(self):
        self._compare_early("_barrier")  # before a road is chosen: ranks that differ would take two
        road = self._road(0)
        if road is None or road is not self._lane:
            return super()._barrier()
        road.barrier()

    def _all_reduce(self, array, op):
        self._compare_early("_all_reduce", array, op)
        road = self._adding(self._road(array.nbytes), array, op)
        if road is None:
            return super()._all_reduce(array, op)
        road.all_reduce(array, op)

    def _reduce_scatter(self, send, receive, counts, op):
        self._compare_early("_reduce_scatter", send, receive, counts, op)
        road = self._adding(self._road(send.nbytes), send, op)
        if road is None:
            return super()._reduce_scatter(send, receive, counts, op)
        road.reduce_scatter(send, receive, counts, op)

    def _all_gather(self, send, receive, counts):
        self._compare_early("_all_gather", send, receive, counts)
        road = self._road(receive.nbytes)
        if road is None:
            return super()._all_gather(send, receive, counts)
        road.all_gather(send, receive, counts)

    def _broadcast(self, array, root):
        self._compare_early("_broadcast", array, root)
        road = self._road(array.nbytes)
        if road is None or road is not self._lane:
            return super()._broadcast(array, root)
        road.broadcast(array, root)

    def _probe(self):
        """Let MPI make progress."""
        with self._errors():
            self._comm.Iprobe()
