"""Roads: which way the arrays of a verb go.

    host arrays                       straight to the backend
    GPU arrays   "staged"             through page-locked host windows (staging.py): always right
                 "mpi"                as they are to an MPI library that takes GPU memory, where a
                                      probe has shown that (gpu_mpi.py)
                 "ipc"                ranks of one node copy out of each other's GPU memory
                                      (gpu_ipc.py)
                 "nccl"               through NCCL, for one GPU per rank (nccl.py)

A group has one road beside the staged one, which takes what the other does not. Which way a call
goes is decided by what all its ranks know: verb, bytes, dtype and operation.
"""

from typing import Protocol

from ..operations import Handle, ReductionOperation
from .alone import AloneRoad


class Road(Protocol):
    """A way for GPU arrays. Ports are DevicePorts, parts are of DevicePorts; every method is
    collective like its verb.
    """

    def takes(self, verb: str, num_bytes: int, dtype, op: ReductionOperation | None) -> bool:
        """True if such a call goes this way; the same on all ranks. num_bytes: of the whole array;
        0 where that may differ.
        """

    def adds_in_tree_order(self, array) -> bool:
        """True if all_reduce and reduce_scatter (SUM) of such an array go this way and add as the
        tree of ordered.py.
        """

    def all_reduce(self, port, op) -> Handle: ...

    def broadcast(self, port, root) -> Handle: ...

    def all_gather(self, own, whole) -> Handle: ...

    def reduce_scatter(self, whole, own, op) -> Handle: ...

    def all_to_all(self, outgoing, incoming) -> Handle: ...

    def send(self, port, destination, tag) -> Handle: ...

    def receive(self, port, source, tag) -> Handle: ...

    def close(self) -> None:
        """Collective over the group."""


class Roads:
    """Mixed into CommunicationBackend: the choice for each call.

    road   of this group, beside the staged one; None: there is no other
    """

    road: Road | None = None

    def _in_place(self, verb, port, run, *given, op=None, loads=True, stores=True):
        """A blocking verb on one array; run(host [n]) if it is staged. given: more arguments of the
        road's method.
        """
        road = self._road_of(verb, port.num_bytes, port, op=op)
        if road is None:
            return self.staging.in_place(port, run, loads=loads, stores=stores)
        getattr(road, verb)(port, *given).wait()

    def _exchange(self, verb, send, receive, run, longest, *given, num_bytes=0, op=None):
        """A blocking verb on two arrays, in parts; longest: as for Staging.exchange, or a function
        that finds it out.
        """
        road = self._road_of(verb, num_bytes, send.port, receive.port, op=op)
        if road is None:
            longest = longest() if callable(longest) else longest
            return self.staging.exchange(
                send, receive, run, num_ranks=self.world_size, longest=longest
            )
        getattr(road, verb)(send, receive, *given).wait()

    def _road_of(self, verb, num_bytes, *ports, op=None) -> Road | None:
        if not all(port.is_on_device for port in ports):
            return None
        road = self._gpu_road()
        return (
            road if road is not None and road.takes(verb, num_bytes, ports[0].dtype, op) else None
        )

    def _gpu_road(self) -> Road | None:
        """The road of this group, now that a GPU array has come."""
        if self.road is None and self.world_size == 1:
            self.road = AloneRoad(self.staging.copies)
        return self.road

    def _device_sums_are_trees(self, array) -> bool:
        """What adds_in_tree_order says about a GPU array."""
        road = self._gpu_road()
        return road is not None and road.adds_in_tree_order(array)

    def close_road(self) -> None:
        """GPU arrays are staged from now on. Collective."""
        if self.road is not None:
            self.road.close()
            self.road = None
