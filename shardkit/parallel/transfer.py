"""Activations and their gradients on the way between pipeline ranks.

    rank of stage s                               rank of stage s + 1
    SEND_F   isend(activation)      ------>       RECV_F   an irecv that was posted when the last one ended
    RECV_B                          <------       SEND_B   isend(gradient)
    WAIT_F   the activation may be dropped        WAIT_B   the gradient may be dropped

A send never blocks; its array is kept until its WAIT. The shape of an activation is not known to the receiver: it goes
ahead of the first activation for each shape of the micro-batch, and is remembered on both sides. A gradient has the shape
of the activation that it belongs to.
"""
import numpy

from ..array.backend import Device
from ..comm import CommunicationBackend

_MAX_TAG = 32766        # that every MPI has
_HEADER = 8             # int64: number of dims, then the dims


class Transfers:
    """The messages of one pipeline rank.

    group    the pipeline axis
    rank_of  {stage: rank in the group}
    dtype    of activations
    """

    def __init__(self, group: CommunicationBackend, rank_of: dict[int, int], device: Device, dtype: str):
        self._group, self._rank_of, self._device, self._dtype = group, rank_of, device, dtype
        self._shapes: dict[tuple, tuple[int, ...]] = {}         # (receiving stage, shape of the micro-batch) -> activation
        self._on_the_way: dict[tuple, tuple] = {}               # (kind, stage, micro-batch) -> (handles, arrays)

    def send_activation(self, stage: int, micro_batch: int, array, batch_shape) -> None:
        """Post the activation of `stage` to the next stage."""
        to, handles, arrays = self._rank_of[stage + 1], [], []
        if (stage + 1, batch_shape) not in self._shapes:
            self._shapes[stage + 1, batch_shape] = array.shape
            header = numpy.zeros(_HEADER, numpy.int64)
            header[:array.ndim + 1] = (array.ndim, *array.shape)
            handles.append(self._group.isend(header, to, self._tag(stage + 1, micro_batch, 2)))
            arrays.append(header)
        self._post("F", stage, micro_batch, array, to, self._tag(stage + 1, micro_batch, 0), handles, arrays)

    def send_gradient(self, stage: int, micro_batch: int, array) -> None:
        """Post the gradient of the input of `stage` to the stage before."""
        self._post("B", stage, micro_batch, array, self._rank_of[stage - 1], self._tag(stage, micro_batch, 1), [], [])

    def _post(self, kind, stage, micro_batch, array, to, tag, handles, arrays):
        array = self._device.xp.ascontiguousarray(array)
        handles.append(self._group.isend(array, to, tag))
        self._on_the_way[kind, stage, micro_batch] = (handles, [*arrays, array])

    def wait(self, kind: str, stage: int, micro_batch: int) -> None:
        """Return when the array of that send may be dropped; kind is "F" or "B"."""
        for handle in self._on_the_way.pop((kind, stage, micro_batch))[0]:
            handle.wait()

    def receive_activation(self, stage: int, micro_batch: int, batch_shape):
        """The input of `stage`, from the stage before."""
        source = self._rank_of[stage - 1]
        if (stage, batch_shape) not in self._shapes:
            header = numpy.zeros(_HEADER, numpy.int64)
            self._group.receive(header, source, self._tag(stage, micro_batch, 2))
            self._shapes[stage, batch_shape] = tuple(map(int, header[1:header[0] + 1]))
        return self._receive(self._shapes[stage, batch_shape], source, self._tag(stage, micro_batch, 0))

    def receive_gradient(self, stage: int, micro_batch: int, shape):
        """The gradient of the output of `stage`, from the next stage."""
        return self._receive(shape, self._rank_of[stage + 1], self._tag(stage + 1, micro_batch, 1))

    def _receive(self, shape, source, tag):
        array = self._device.empty(shape, self._dtype, purpose="activations received")
        self._group.receive(array, source, tag)
        return array

    def add_over(self, ranks: tuple[int, ...], array, tag: int) -> None:
        """Sum `array` over these pipeline ranks, in it, in their order. Collective over them."""
        terms = {rank: array.copy() if rank == self._group.rank else self._device.xp.empty_like(array) for rank in ranks}
        others = [rank for rank in ranks if rank != self._group.rank]
        handles = [self._group.irecv(terms[rank], rank, tag) for rank in others]
        handles += [self._group.isend(terms[self._group.rank], rank, tag) for rank in others]
        for handle in handles:
            handle.wait()
        array[...] = terms[ranks[0]]
        for rank in ranks[1:]:
            array += terms[rank]

    @staticmethod
    def _tag(receiving_stage: int, micro_batch: int, what: int) -> int:
        """Different for the messages that can be on the way between two ranks at once."""
        return (3 * (receiving_stage * 101 + micro_batch) + what) % _MAX_TAG

    def forget(self) -> None:
        """After a step that failed: keep no arrays of it."""
        self._on_the_way.clear()
