"""Activations and their gradients on the way between pipeline ranks.

    rank of stage s                               rank of stage s + 1
    SEND_F   isend(activation)      ------>       RECV_F   waits for an irecv posted before
    RECV_B                          <------       SEND_B   isend(gradient)
    WAIT_F   the activation may be dropped        WAIT_B   the gradient may be dropped

A send never blocks; its array is kept until its WAIT. One receive is always posted ahead, so that a
message lands while this rank computes. The shape of an activation is not known to the receiver: it
goes ahead of the first activation for each shape of the micro-batch, and is remembered on both
sides. A gradient has the shape of the activation that it belongs to.
"""

from collections import deque
from typing import NamedTuple

import numpy

from ...array import fresh
from ...array.device import Device
from ...comm.backend import CommunicationBackend
from ...errors import ShapeError
from ...schedule.actions import RECEIVES, Action, Kind

_NUM_TAGS, _NUM_RUNS = 8191, 4  # their product is below 32767, the largest tag that every MPI has
_HEADER = 8  # int64: number of dims, then the dims


class _Message(NamedTuple):
    """What a rank receives: the activation that goes into a stage, or the gradient of what came out
    of it.
    """

    kind: Kind  # RECV_F or RECV_B
    stage: int
    micro_batch: int

    @property
    def crossing(self) -> int:
        """The stage behind the boundary that it crosses."""
        return self.stage if self.kind is Kind.RECV_F else self.stage + 1


class Transfers:
    """The messages of one pipeline rank.

    group    the pipeline axis
    rank_of  {stage: rank in the group}
    device   of activations
    dtype    of activations
    """

    def __init__(
        self, group: CommunicationBackend, rank_of: dict[int, int], device: Device, dtype: str
    ):
        self._group = group
        self._rank_of = rank_of
        self._device = device
        self._dtype = dtype
        self._arrival = None  # makes arrays for what comes in this run
        # (stage, shape of the micro-batch) -> shape of its input
        self._shapes: dict[tuple, tuple[int, ...]] = {}
        self._on_the_way: dict[tuple, tuple] = {}  # (kind, stage, micro-batch) -> (handles, arrays)
        self._coming: deque[_Message] = deque()  # of this run, not posted yet
        self._posted: dict[_Message, tuple] = {}  # -> (handle, array)
        self._lost: list = []  # of runs that failed: MPI may still write to these arrays
        self._batch_shapes: list[tuple[int, ...]] = []  # of the micro-batches of this run
        self._run = 0

    def begin(
        self, actions: tuple[Action, ...], batch_shapes: list[tuple[int, ...]], arrival
    ) -> None:
        """Begin a program: post its first receive.

        Messages of a run that failed never match those of this one.

        arrival   (message, shape, dtype) -> an array for what it brings
        """
        self._arrival = arrival
        self._run = (self._run + 1) % _NUM_RUNS
        self._batch_shapes = batch_shapes
        self._coming.extend(
            _Message(a.kind, a.stage, a.micro_batch) for a in actions if a.kind in RECEIVES
        )
        self._post_ahead()

    # ---- sending ---------------------------------------------------------------------------------

    def send_activation(self, stage: int, micro_batch: int, array) -> None:
        """Post the activation of `stage` to the next stage. Errors: ShapeError if its shape changes
        between micro-batches.
        """
        to = self._rank_of[stage + 1]
        handles = []
        arrays = []
        key = stage + 1, self._batch_shapes[micro_batch]
        if self._shapes.get(key, array.shape) != array.shape:
            raise ShapeError(
                f"stage {stage} made an activation of shape {array.shape} from a micro-batch of "
                f"shape {key[1]}, but {self._shapes[key]} before; wanted a shape that depends on "
                "that of the micro-batch alone"
            )
        if key not in self._shapes:
            self._shapes[key] = array.shape
            header = numpy.zeros(_HEADER, numpy.int64)
            header[: array.ndim + 1] = (array.ndim, *array.shape)
            handles.append(self._group.isend(header, to, self._tag(stage + 1, micro_batch, 2)))
            arrays.append(header)
        self._post(
            "F",
            stage,
            micro_batch,
            array,
            to,
            self._tag(stage + 1, micro_batch, 0),
            handles,
            arrays,
        )

    def send_gradient(self, stage: int, micro_batch: int, array) -> None:
        """Post the gradient of the input of `stage` to the stage before."""
        self._post(
            "B",
            stage,
            micro_batch,
            array,
            self._rank_of[stage - 1],
            self._tag(stage, micro_batch, 1),
            [],
            [],
        )

    def _post(self, kind, stage, micro_batch, array, to, tag, handles, arrays):
        array = fresh.contiguous(array)
        handles.append(self._group.isend(array, to, tag))
        self._on_the_way[kind, stage, micro_batch] = (handles, [*arrays, array])

    def wait(self, kind: str, stage: int, micro_batch: int) -> None:
        """Return when the array of that send may be dropped; kind is "F" or "B"."""
        for handle in self._on_the_way.pop((kind, stage, micro_batch))[0]:
            handle.wait()

    # ---- receiving -------------------------------------------------------------------------------

    def receive(self, action: Action):
        """Return the array that this RECV waits for.

        It is the input of its stage, or the gradient of its stage's output.
        """
        message = _Message(action.kind, action.stage, action.micro_batch)
        if message not in self._posted:  # the first of its shape, unknown until now
            self._receive_shape(message)
            self._post_ahead()
        handle, array = self._posted[message]
        handle.wait()
        del self._posted[message]
        self._post_ahead()
        return array

    def _post_ahead(self):
        """Post the next receive of the program, unless one is posted or its shape is still to
        come.
        """
        if self._posted or not self._coming or self._shape_of(self._coming[0]) is None:
            return
        message = self._coming.popleft()
        array = self._arrival(message, self._shape_of(message), self._dtype)
        what = 0 if message.kind is Kind.RECV_F else 1
        tag = self._tag(message.crossing, message.micro_batch, what)
        self._posted[message] = self._group.irecv(array, self._source(message), tag), array

    def _receive_shape(self, message):
        if self._shape_of(message) is not None:  # of a gradient: its activation has been sent since
            return
        header = numpy.zeros(_HEADER, numpy.int64)
        self._group.receive(
            header, self._source(message), self._tag(message.crossing, message.micro_batch, 2)
        )
        self._shapes[self._key(message)] = tuple(map(int, header[1 : header[0] + 1]))

    def _shape_of(self, message):
        return self._shapes.get(self._key(message))

    def _key(self, message):
        return message.crossing, self._batch_shapes[message.micro_batch]

    def _source(self, message) -> int:
        return self._rank_of[
            message.stage - 1 if message.kind is Kind.RECV_F else message.stage + 1
        ]

    def zeros(self, kind: Kind, stage: int, micro_batch: int):
        """Return what this message would carry, filled with zero; None if its shape is not known
        yet.

        For RECV_F that is the input of `stage`, for RECV_B the gradient of its output.
        """
        shape = self._shape_of(_Message(kind, stage, micro_batch))
        return None if shape is None else fresh.zeros(shape, self._dtype, self._device.xp)

    # ---- tied weights ----------------------------------------------------------------------------

    def add_over(self, ranks: tuple[int, ...], array, tag: int) -> None:
        """Sum `array` in place over these pipeline ranks, in their order. Collective over them."""
        terms = {
            rank: fresh.copy(array) if rank == self._group.rank else fresh.empty_like(array)
            for rank in ranks
        }
        others = [rank for rank in ranks if rank != self._group.rank]
        handles = [self._group.irecv(terms[rank], rank, tag) for rank in others]
        handles += [self._group.isend(terms[self._group.rank], rank, tag) for rank in others]
        for handle in handles:
            handle.wait()
        array[...] = terms[ranks[0]]
        for rank in ranks[1:]:
            array += terms[rank]

    def _tag(self, crossing: int, micro_batch: int, what: int) -> int:
        """Return a tag that differs between messages that can be under way between two ranks."""
        return (3 * (crossing * 101 + micro_batch) + what) % _NUM_TAGS * _NUM_RUNS + self._run

    def end(self) -> None:
        """End a program that has been executed."""
        assert not (self._coming or self._posted or self._on_the_way), (
            "a program left messages behind"
        )

    def give_up(self) -> None:
        """Give up a program that failed on all ranks.

        Arrays that MPI may still read or write are kept, and shapes are exchanged anew.
        """
        self._lost += [*self._on_the_way.values(), *self._posted.values()]
        self._on_the_way.clear()
        self._posted.clear()
        self._coming.clear()
        self._shapes.clear()
