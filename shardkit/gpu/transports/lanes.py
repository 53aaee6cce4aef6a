"""Messages between two ranks through NCCL: one lane for each row of messages in one direction.

    lane 2    rank 0  activations of stage 0 -->  rank 1        each lane has a communicator of two
    lane 3    rank 0  <-- gradients of stage 1    rank 1        ranks, and a stream at either end

NCCL has no tags: the messages of a lane arrive in the order in which they were sent, and both ends
must name them in one order. Lanes do not wait for each other: a receive that is posted ahead holds
back its own stream. After messages that were given up on both sides a lane is made anew, so that
those to come match. A message that belongs to no lane is staged.
Source: NCCL user guide, "Point-to-point communication"; "Using multiple NCCL communicators
concurrently".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...comm.arguments import port_on
from ...comm.operations import CompleteHandle, Handle
from ...comm.transport import Lane, MessageLanes
from ...comm.under_way import handle_of
from ...comm.watch.progress import UnderWay
from .calls import NcclCalls, nccl_errors
from .device import CollectiveStream


@dataclass(frozen=True)
class _End:
    """One end of a lane."""

    communicator: Any
    stream: CollectiveStream


class NcclLanes(MessageLanes):
    """One rank's ends. Making one, and open(), is collective over the group."""

    def __init__(self, group, module, axis: str):
        self._group = group
        self._module = module
        self._axis = axis
        self._lanes: list[Lane] = []
        self._ends: dict[int, _End] = {}
        self._calls = NcclCalls.of(group, module.NcclError, CollectiveStream().select_gpu)

    def open(self, lanes: Sequence[Lane]) -> None:
        for lane in sorted(set(lanes) - set(self._lanes)):
            self._lanes.append(lane)
            self._connect(lane)

    def _connect(self, lane: Lane) -> None:
        """Make the ends of a lane; its ranks meet in a message."""
        ranks = lane.source, lane.destination
        everyones = self._group.all_gather_object(
            self._module.get_unique_id() if self._group.rank == lane.source else None
        )
        if self._group.rank in ranks:
            with self._group.verb("connect NCCL"), self._errors("connect"):
                communicator = self._module.NcclCommunicator(
                    2, everyones[lane.source], ranks.index(self._group.rank)
                )
            self._calls.open(communicator)
            self._ends[lane.number] = _End(communicator, CollectiveStream())
        else:
            with self._group.verb("connect NCCL"):  # all ranks count as many calls
                pass

    def renew(self) -> None:
        self._group.barrier()  # no rank sends any more
        for end in self._ends.values():
            self._calls.give_up(end.communicator)
        self._ends.clear()
        for lane in self._lanes:
            self._connect(lane)

    def has(self, number: int) -> bool:
        return number in self._ends

    # ---- messages --------------------------------------------------------------------------------

    def isend(self, array, destination, lane):
        port = port_on(self._group, "array", array)
        self._group.traffic.add("send", port.num_bytes)
        return self._begin("isend", port, destination, lane)

    def irecv(self, array, source, lane):
        port = port_on(self._group, "array", array, writes=True)
        return self._begin("irecv", port, source, lane)

    def _begin(self, verb: str, port, peer: int, lane: int) -> Handle:
        group = self._group
        group.progress.begin_message(verb, group.group_key, (group.world_ranks[peer],))
        with UnderWay(group.progress), self._errors(verb):
            if not port.num_bytes:
                return CompleteHandle()
            end = self._ends[lane]
            end.stream.follow(port)
            communicator = end.communicator
            call = communicator.send if verb == "isend" else communicator.recv
            other = 1 - communicator.rank_id()
            call(port.address, port.num_bytes, self._module.NCCL_UINT8, other, end.stream.address)
            after = end.stream.end()
            self._calls.note(port, self._axis, after)
            return handle_of(group, end.stream.handle(after, (port,)))

    def _errors(self, verb: str):
        return nccl_errors(self._module, self._group.group_key, verb)

    def close(self) -> None:
        """Close the lanes. Collective over the group."""
        with self._errors("close"):
            for end in self._ends.values():
                self._calls.close(end.communicator)
        self._ends.clear()
