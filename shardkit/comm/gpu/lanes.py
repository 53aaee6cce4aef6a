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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...errors import CommunicationError
from ..operations import CompleteHandle, Handle
from ..transport import Lane
from .calls import NcclCalls
from .device import CollectiveStream


@dataclass(frozen=True)
class _End:
    """One end of a lane."""

    communicator: Any
    stream: CollectiveStream


class NcclLanes:
    """One rank's ends. Making one, and open(), is collective over the group."""

    def __init__(self, group, module, axis: str):
        self._group, self._module, self._axis = group, module, axis
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

    # ---- messages --------------------------------------------------------------------------------

    def has(self, number: int) -> bool:
        return number in self._ends

    def isend(self, port, destination, lane):
        end = self._ends[lane]
        with self._on(end, "isend", port):
            if port.num_bytes:
                end.communicator.send(port.address, *self._sized(port), 1, end.stream.address)
        return self._handle(end, port), None

    def irecv(self, port, source, lane):
        end = self._ends[lane]
        with self._on(end, "irecv", port):
            if port.num_bytes:
                end.communicator.recv(port.address, *self._sized(port), 0, end.stream.address)
        return self._handle(end, port), None

    def _sized(self, port):
        return port.num_bytes, self._module.NCCL_UINT8

    def _handle(self, end: _End, port) -> Handle:
        if not port.num_bytes:
            return CompleteHandle()
        after = end.stream.end()
        self._calls.note(port, self._axis, after)
        return end.stream.handle(after, (port,))

    @contextmanager
    def _on(self, end: _End, verb: str, port) -> Iterator[None]:
        end.stream.follow(port)
        with self._errors(verb):
            yield

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except self._module.NcclError as error:
            raise CommunicationError(
                f"{verb} on group {self._group.group_key}: NCCL says: {error}; NCCL_DEBUG=WARN in "
                "the environment makes it say more"
            ) from error

    def close(self) -> None:
        """Close the lanes. Collective over the group."""
        with self._errors("close"):
            for end in self._ends.values():
                self._calls.close(end.communicator)
        self._ends.clear()
