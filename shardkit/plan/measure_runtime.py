"""What `shardkit bench hardware` measures of whole training steps on one rank each.

unit        what the runtime adds to a unit and micro-batch: its actions, its bookkeeping. Steps
            on tiny inputs, of many micro-batches and of one, beside the bare model
crowding    steps of a small GPT on 1, 2, 3, 4, 8, ... ranks at the same time, that exchange
            nothing: how much slower each is for the others, and how much later the last is

cores  | rank 0 . . . . . | rank 2 . . . . . . .|     4 ranks at work on 2 cores
       | rank 1 . . . . . . .| rank 3 . . . . . |
                                            | lag |
"""

import time
from collections.abc import Callable
from statistics import median

import numpy

from ..comm.backend import CommunicationBackend
from ..nn.loss import CrossEntropy
from ..nn.models.gpt import GPT
from ..optim.rules import AdamW
from ..parallel.model.strategies import DDPModel
from ..parallel.settings import ShardingConfiguration

_TINY_LAYERS = 4
_TINY_UNITS = _TINY_LAYERS + 2  # with embedding and head
_MICRO_BATCHES = 9
_TURNS = 25  # of the tiny steps
_ROUNDS = 15  # of the steps of all numbers of ranks, which take turns
_NAP_SECONDS = 0.01  # of a rank that waits, far more than it takes to look whether all have come


def unit_seconds(own: CommunicationBackend) -> float:
    """Return the seconds that the runtime adds to a unit and micro-batch, forward and backward.

    own   a backend of this rank alone
    """
    few, many, bare = _tiny_step(own, 1), _tiny_step(own, _MICRO_BATCHES), _bare_step()
    added = []
    for _ in range(_TURNS):  # in turn, so that all meet the same noise
        of_few, of_many, of_bare = map(_processor_seconds, (few, many, bare))
        added.append((of_many - of_few) / (_MICRO_BATCHES - 1) - of_bare)
    return max(median(added), 0.0) / _TINY_UNITS


def _tiny_gpt() -> GPT:
    return GPT(32, 8, width=16, layers=_TINY_LAYERS, heads=2)


def _tiny_step(own: CommunicationBackend, micro_batches: int) -> Callable[[], object]:
    settings = ShardingConfiguration(
        own, optimizer=AdamW(), micro_batches=micro_batches, minimum_parameter_group_size=1
    )
    model = DDPModel(_tiny_gpt(), settings)
    tokens = numpy.zeros((micro_batches, 8), "int64")
    return lambda: model.train(tokens, tokens)


def _bare_step() -> Callable[[], object]:
    model = _tiny_gpt().finish(0)
    loss = CrossEntropy()
    tokens = numpy.zeros((1, 8), "int64")
    return lambda: loss.total(model(tokens), tokens).backward()


def crowding_rows(
    backend: CommunicationBackend, own: CommunicationBackend, sizes: list[int], cores: int
) -> list[dict]:
    """Return the tables [[crowding]], for each number of ranks of the first node. Collective.

    own     a backend of this rank alone
    sizes   numbers of ranks, ascending; the last is that of all ranks of the node
    cores   of the node
    """
    mine = _steps_at_once(backend, own, sizes)
    everyones = numpy.empty((backend.world_size, *mine.shape))
    backend.all_gather(mine, everyones)
    busy, lag = [], []
    for at, size in enumerate(sizes):
        clock, processor = numpy.moveaxis(everyones[:size, :, at], -1, 0)  # [ranks, rounds] each
        busy.append(median(processor.mean(0)))
        evenly = processor.sum(0) / min(cores, size)
        lag.append(max(median(clock.max(0) / evenly - 1), 0.0))
    return [
        {"ranks": size, "slowdown": float(of_size / busy[-1]), "lag": float(late)}
        for size, of_size, late in zip(sizes, busy, lag)
    ]


def _steps_at_once(
    backend: CommunicationBackend, own: CommunicationBackend, sizes: list[int]
) -> numpy.ndarray:
    """Return the seconds of this rank's steps, by the clock and of the processor, [rounds, sizes,
    2]. Collective.
    """
    settings = ShardingConfiguration(own, optimizer=AdamW(), max_gradient_norm=1.0)
    model = DDPModel(GPT(256, 128, width=256, layers=2, heads=4), settings)
    tokens = numpy.zeros((2, 128), "int64")
    seconds = numpy.zeros((1 + _ROUNDS, len(sizes), 2))
    for of_round in seconds:
        for at, size in enumerate(sizes):
            backend.barrier()
            if backend.rank < size:
                began, processor_began = time.perf_counter(), time.thread_time()
                model.train(tokens, tokens)
                of_round[at] = time.perf_counter() - began, time.thread_time() - processor_began
            _meet_asleep(backend)
    model.close()
    return seconds[1:]


def _meet_asleep(backend: CommunicationBackend) -> None:
    """Wait until all ranks have come; those that wait leave the cores to the others."""
    handle = backend.iall_reduce(numpy.zeros(1))
    while not handle.test():
        time.sleep(_NAP_SECONDS)
    handle.wait()


def _processor_seconds(act: Callable[[], object]) -> float:
    began = time.thread_time()
    act()
    return time.thread_time() - began
