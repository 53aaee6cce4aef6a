"""Recurrent layers of sequences that ranks share: in turn.

    rank 0   x 0 1 2 3  --steps-->  h 3  --->  rank 1   x 4 5 6 7  --steps-->  h 7  --->  rank 2 ...

Each rank waits for the states before its first step, so the ranks of a layer compute one after the
other: what is kept for the backward falls with their number, and the time does not. The direction
from the end goes from the last rank to the first. Gradients of states go back the same way.

    rank 0   samples 0-15  16-31               Samples are independent: of a large micro-batch some
    rank 1                 0-15   16-31        follow others, and a rank computes the next ones
    rank 2                        0-15  16-31  while those behind it have the first.

With m pieces n ranks take (n - 1 + m) / (n m) of the time of one.
"""

from functools import partial
from typing import NoReturn

from ...array import fresh
from ...array.arena import empty
from ...array.backend import xp_of
from ...comm.backend import CommunicationBackend
from ...errors import ShardingError
from ...layout.cuts import even_span
from ...nn.autograd import Tensor, record
from ...nn.layers.recurrent import Recurrent
from ...nn.module import ModuleList
from ...nn.ops.shape import concatenate, getitem, transpose
from ..conjugate import all_reduce
from .axis import CutLayer, DomainAxis
from .others import CutDropout
from .rows import acknowledge

STATES_TAG, GRADIENTS_TAG = 4, 5
LEAST_SAMPLES = 16  # of a piece: products of fewer rows cost up to twice as much for each
PIECES = 2  # for each rank, at most: of more, each is a smaller gain


class CutRecurrent(CutLayer):
    """An LSTM, GRU or RNN: x [batch, own, features] -> outputs [batch, own, .] local, and NoStates.

    Errors: ShardingError if states before the first step are given.
    """

    _whole: Recurrent

    def __init__(self, axis: DomainAxis, whole: Recurrent):
        super().__init__(axis, whole)
        self.dropouts = ModuleList(CutDropout(axis, each, 0) for each in whole.dropouts)

    def forward(self, x, hx=None):
        path, whole = self.path_in_model, self._whole
        if hx is not None:
            raise ShardingError(
                f"{path}, a {type(whole).__name__} of a sequence that ranks share, was given the "
                "states before its first step; wanted none"
            )
        self.axis.length(x, path)
        dropouts = [partial(_of_steps, each) for each in self.dropouts]
        y, _ = whole.run(x, None, dropouts, self._in_turn)
        return y, NoStates(f"{path}, a {type(whole).__name__}")

    def _in_turn(self, compute, x, start, weights, is_reversed):
        """Return the states of own steps [T, B, H], and what is after the last of each piece."""
        num_samples, num_ranks = x.shape[1], self.axis.group.world_size
        num_pieces = min(PIECES * num_ranks, num_samples // LEAST_SAMPLES)
        if num_ranks == 1 or num_pieces < 2:
            return self._piece(compute, x, start, weights, is_reversed)
        made = []
        for number in range(num_pieces):
            samples = slice(*even_span(num_samples, num_pieces, number))
            own = getitem(x, (slice(None), samples))
            starts = tuple([getitem(each, samples) for each in start])
            made.append(self._piece(compute, own, starts, weights, is_reversed))
        states, last = zip(*made)
        return concatenate(states, 1), last

    def _piece(self, compute, x, start, weights, is_reversed):
        """Return the states of own steps of some samples, and those after the last of these."""
        group = self.axis.group
        ranks = range(group.world_size)
        step = -1 if is_reversed else 1
        before, after = group.rank - step, group.rank + step
        is_learned = any(each.requires_grad for each in (x, *weights) if each is not None)
        if before in ranks:
            start = _taken(start, group, before, is_learned)
        states, last = compute(x, start, weights)
        if after in ranks:
            states = _handed_on(states, last, group, after)
        return states, last


def _of_steps(dropout, x):
    """Return x [own, batch, .] dropped, by a layer that takes [batch, own, .]."""
    return transpose(dropout(transpose(x, 0, 1)), 0, 1)


def _taken(like, group: CommunicationBackend, rank: int, is_learned: bool):
    """Return states like these that come from a rank; their gradients go back to it."""
    shape = len(like), *like[0].shape
    came = _received(shape, like[0].array, group, rank, STATES_TAG)
    source = Tensor(fresh.zeros(1, came.dtype, xp_of(came)), requires_grad=is_learned)

    def backward(gradient, wanted):
        _send(fresh.contiguous(gradient), group, rank, GRADIENTS_TAG)
        return (None,)

    states = record(came, (source,), backward)
    return tuple([getitem(states, number) for number in range(len(like))])


def _handed_on(states: Tensor, last, group: CommunicationBackend, rank: int) -> Tensor:
    """Return the states of own steps, of which a rank gets the last; it sends their gradients."""
    sent = xp_of(states.array).stack([each.array for each in last])
    _send(sent, group, rank, STATES_TAG)
    shape = sent.shape

    def backward(gradient, wanted):
        return (gradient, *_received(shape, gradient, group, rank, GRADIENTS_TAG))

    return record(states.array, (states, *last), backward, view_of=states)


def _send(array, group, rank, tag):
    group.isend(array.reshape(-1), rank, tag).wait()
    acknowledge(group, (), (rank,))


def _received(shape, like, group, rank, tag):
    array = empty(shape, like.dtype, xp_of(like))
    group.irecv(array.reshape(-1), rank, tag).wait()
    acknowledge(group, (rank,), ())
    return array


class NoStates:
    """What stands for the states after the last step: any use is refused."""

    def __init__(self, layer: str):
        self._layer = layer

    def _refuse(self, *_) -> NoReturn:
        raise ShardingError(
            f"{self._layer} of a sequence that ranks share does not return its states after the "
            "last step, which one rank has; use its outputs, or leave domain at 1"
        )

    __getattr__ = __getitem__ = __iter__ = __add__ = __mul__ = __bool__ = _refuse


class CutLSTMHead(CutLayer):
    """An LSTMHead that reads the last step, which the last rank has: its answer on all ranks."""

    leaves_parts = False

    def forward(self, x):
        self.axis.length(x, self.path_in_model)
        group = self.axis.group
        is_last = group.rank == group.world_size - 1
        own = getitem(x, (slice(None), slice(-1, None)))
        return self._whole.forward(all_reduce(own * float(is_last), group))
