"""Activations and their gradients on the way between pipeline ranks.

    rank of stage s                               rank of stage s + 1
    SEND_F   isend(activation)      ------>       RECV_F   waits for an irecv posted before
    RECV_B                          <------       SEND_B   isend(gradient)
    WAIT_F   the activation may be dropped        WAIT_B   the gradient may be dropped

A send never blocks; its arrays are kept until its WAIT. One receive is always posted ahead, so that
a message lands while this rank computes. An activation is an array or a tree of arrays, and each
leaf is sent as it lies. Its form (form.py) is not known to the receiver: it goes ahead of the first
activation for each shape of the micro-batch, and is remembered on both sides. A gradient has the
form of the activation that it belongs to, without the leaves that are not of floating point.

    header     [number of dims, dims ...] of one array of the usual dtype
               [-1, number of bytes] of anything else; the packed form follows
"""

from collections import deque
from typing import NamedTuple

import numpy

from ...array import fresh
from ...array.device import Device
from ...comm.backend import CommunicationBackend
from ...comm.checks import MAX_TAG
from ...comm.transport import Lane, MessageLanes, lanes_of
from ...errors import ShapeError
from ...schedule.actions import RECEIVES, Action, Kind
from ...tree import LEAF
from .form import Form, parts_of

# messages that can be under way between two ranks have so many tags, and those of programs that
# failed come back after so many more of them
_NUM_FAILURES = 8
_NUM_TAGS = MAX_TAG // _NUM_FAILURES
_HEADER = 8  # int64: number of dims, then the dims
_IS_PACKED = -1  # in place of the number of dims


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
    dtype    of activations that are one array, as a rule
    """

    def __init__(
        self, group: CommunicationBackend, rank_of: dict[int, int], device: Device, dtype: str
    ):
        self._group = group
        self._rank_of = rank_of
        self._device = device
        self._dtype = numpy.dtype(dtype)
        self._num_failures = 0  # of programs: their messages must never match later ones
        self._renewed = 0  # lanes, after so many of them
        lanes = lanes_of(group)
        if lanes is not None:
            lanes.open(_lanes(rank_of))
        self._arrival = None  # makes arrays for what comes in this run
        # (stage, key of the micro-batch) -> form of its input
        self._forms: dict[tuple, Form] = {}
        self._on_the_way: dict[tuple, tuple] = {}  # (kind, stage, micro-batch) -> (handles, arrays)
        self._coming: deque[_Message] = deque()  # of this run, not posted yet
        self._posted: dict[_Message, tuple] = {}  # -> (handles, arrays)
        self._lost: list = []  # of runs that failed: MPI may still write to these arrays
        self._batch_keys: list = []  # of the micro-batches of this run

    def begin(self, actions: tuple[Action, ...], batch_keys: list, arrival) -> None:
        """Begin a program: post its first receive.

        Messages of a run that failed never match those of this one.

        batch_keys   key_of(x) of each micro-batch (form.py)
        arrival      (message, shape, dtype) -> an array for a leaf of what it brings
        """
        self._arrival = arrival
        lanes = lanes_of(self._group)
        if self._num_failures > self._renewed and lanes is not None:
            lanes.renew()
        self._renewed = self._num_failures
        self._batch_keys = batch_keys
        self._coming.extend(
            _Message(a.kind, a.stage, a.micro_batch) for a in actions if a.kind in RECEIVES
        )
        self._post_ahead()

    # ---- sending ---------------------------------------------------------------------------------

    def send_activation(self, stage: int, micro_batch: int, activation) -> None:
        """Post the activation of `stage`, an array or a tree of them, to the next stage.

        Errors: ShapeError if its form changes between micro-batches.
        """
        to = self._rank_of[stage + 1]
        form = Form.of(activation)
        key = stage + 1, self._batch_keys[micro_batch]
        known = self._forms.get(key)
        headers = []
        if known is None:
            headers = self._headers(form)
            self._forms[key] = form
        elif known != form:
            raise ShapeError(
                f"stage {stage} made an activation of shape {form} from a micro-batch of shape "
                f"{key[1]}, but {known} before; wanted a shape that depends on that of the "
                "micro-batch alone"
            )
        tag = self._tag(stage + 1, micro_batch, 2)
        handles = [self._group.isend(header, to, tag) for header in headers]
        tag = self._tag(stage + 1, micro_batch, 0)
        lane = _lane(stage + 1, 0)
        self._post("F", stage, micro_batch, activation, to, (tag, lane), handles, headers)

    def _headers(self, form: Form) -> list:
        """Return the messages that tell a receiver the form of what follows."""
        header = numpy.zeros(_HEADER, numpy.int64)
        shape, dtype = form.layout[0] if form.is_array else ((), "object")
        if dtype == self._dtype and len(shape) < _HEADER:  # None would equal float64
            header[: len(shape) + 1] = (len(shape), *shape)
            return [header]
        packed = form.packed()
        header[:2] = _IS_PACKED, packed.size
        return [header, packed]

    def send_gradient(self, stage: int, micro_batch: int, gradient) -> None:
        """Post the gradient of the input of `stage` to the stage before: an array, or a list with
        None for leaves that have none.
        """
        to, tag = self._rank_of[stage - 1], self._tag(stage, micro_batch, 1)
        marks = tag, _lane(stage, 1)
        self._post("B", stage, micro_batch, gradient, to, marks, [], [])

    def _post(self, kind, stage, micro_batch, carried, to, marks, handles, arrays):
        tag, lane = marks
        for part in parts_of(carried):
            array = fresh.placed(fresh.contiguous(part), self._device.xp)  # as the receiver's
            lanes = self._lanes(lane)
            if lanes is None:
                handles.append(self._group.isend(array, to, tag))
            else:
                handles.append(lanes.isend(array, to, lane))
            arrays.append(array)
        self._on_the_way[kind, stage, micro_batch] = (handles, arrays)

    def wait(self, kind: str, stage: int, micro_batch: int) -> None:
        """Wait until the arrays of that send may be dropped; kind is "F" or "B"."""
        for handle in self._on_the_way.pop((kind, stage, micro_batch))[0]:
            handle.wait()

    # ---- receiving -------------------------------------------------------------------------------

    def receive(self, action: Action):
        """Return what this RECV waits for: the input of its stage, or the gradient of its stage's
        output, each as the sender passed it.
        """
        message = _Message(action.kind, action.stage, action.micro_batch)
        if message not in self._posted:  # the first of its form, unknown until now
            self._receive_form(message)
            self._post_ahead()
        handles, arrays = self._posted[message]
        for handle in handles:
            handle.wait()
        del self._posted[message]
        self._post_ahead()
        return self._assembled(message, arrays)

    def _post_ahead(self):
        """Post the next receive of the program, unless one is posted or its form is not known."""
        if self._posted or not self._coming or self._form_of(self._coming[0]) is None:
            return
        message = self._coming.popleft()
        arrays = [self._arrival(message, *leaf) for leaf in self._layout(message)]
        what = 0 if message.kind is Kind.RECV_F else 1
        tag = self._tag(message.crossing, message.micro_batch, what)
        source, lane = self._source(message), _lane(message.crossing, what)
        lanes = self._lanes(lane)
        if lanes is None:
            handles = [self._group.irecv(array, source, tag) for array in arrays]
        else:
            handles = [lanes.irecv(array, source, lane) for array in arrays]
        self._posted[message] = handles, arrays

    def _lanes(self, lane: int) -> MessageLanes | None:
        """Return what carries this lane; None: its messages have tags."""
        lanes = lanes_of(self._group)
        return lanes if lanes is not None and lanes.has(lane) else None

    def _receive_form(self, message):
        if self._form_of(message) is not None:  # of a gradient: its activation has been sent since
            return
        source, tag = self._source(message), self._tag(message.crossing, message.micro_batch, 2)
        header = numpy.zeros(_HEADER, numpy.int64)
        self._group.receive(header, source, tag)
        if header[0] == _IS_PACKED:
            packed = numpy.empty(header[1], numpy.uint8)
            self._group.receive(packed, source, tag)
            form = Form.unpacked(packed)
        else:
            form = Form(LEAF, ((tuple(map(int, header[1 : header[0] + 1])), self._dtype),))
        self._forms[self._key(message)] = form

    def _form_of(self, message) -> Form | None:
        return self._forms.get(self._key(message))

    def _layout(self, message):
        """Return (shape, dtype) of each array that a message brings."""
        form = self._form_of(message)
        return form.layout if message.kind is Kind.RECV_F else form.gradients

    def _assembled(self, message, arrays):
        form = self._form_of(message)
        return form.filled(arrays) if message.kind is Kind.RECV_F else form.gradient_of(arrays)

    def _key(self, message):
        return message.crossing, self._batch_keys[message.micro_batch]

    def _source(self, message) -> int:
        return self._rank_of[
            message.stage - 1 if message.kind is Kind.RECV_F else message.stage + 1
        ]

    def zeros(self, kind: Kind, stage: int, micro_batch: int):
        """Return what this message would carry, filled with zero; None if its form is not known
        yet.

        For RECV_F that is the input of `stage`, for RECV_B the gradient of its output.
        """
        message = _Message(kind, stage, micro_batch)
        if self._form_of(message) is None:
            return None
        arrays = [fresh.zeros(*leaf, self._device.xp) for leaf in self._layout(message)]
        return self._assembled(message, arrays)

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
        number = (3 * (crossing * 101 + micro_batch) + what) % _NUM_TAGS
        return number * _NUM_FAILURES + self._num_failures % _NUM_FAILURES

    def end(self) -> None:
        """End a program that has been executed."""
        assert not (self._coming or self._posted or self._on_the_way), (
            "a program left messages behind"
        )
        for key in [key for key, form in self._forms.items() if form.is_nothing]:
            del self._forms[key]

    def give_up(self) -> None:
        """Give up a program that failed on all ranks.

        Arrays that MPI may still read or write are kept, and forms are exchanged anew.
        """
        self._num_failures += 1
        self._lost += [*self._on_the_way.values(), *self._posted.values()]
        self._on_the_way.clear()
        self._posted.clear()
        self._coming.clear()
        self._forms.clear()


def _lane(crossing: int, what: int) -> int:
    """Return the number of the lane of what crosses a boundary: activations 0, or gradients 1.

    At both ends these go by one order of micro-batches, whatever the schedule (schedule/orders.py).
    """
    return 2 * crossing + what


def _lanes(rank_of: dict[int, int]) -> list[Lane]:
    """Return all lanes of a pipeline; rank_of: {stage: rank in the group}."""
    lanes = []
    for stage in sorted(rank_of)[1:]:
        before, after = rank_of[stage - 1], rank_of[stage]
        if before != after:
            lanes += [Lane(_lane(stage, 0), before, after), Lane(_lane(stage, 1), after, before)]
    return lanes
