"""ZB-V: two stages per rank in the shape of a V, and weight gradients wherever a rank would idle.

    3 ranks, 6 stages      rank 0   0         5      the last stage sits beside the first: its gradient is there as soon
                           rank 1     1     4        as its loss is, and each rank gets a second stage to work on while
                           rank 2       2 3          it waits for the first; 2 -> 3 needs no message

The order is not copied from a table. A list scheduler plays the step second by second, F, B and W
one second each: every rank takes the first action of its wish list that can run, and W, which
nobody waits for, comes last on the list. So the order is right for any number of micro-batches.
From as many micro-batches as ranks on, a step takes 6m + p-1 seconds on up to 4 ranks and at most
p/2 more on 5 to 8, however many micro-batches: the steady state has no bubble (the tests measure
this). 2 ranks, 4 micro-batches:

    rank 0   0F0 0F1 0F2 3F0 3B0 3W0 3F1 0B0 3B1 3W1 0W0 0B1 0F3 3F2 3B2 3W2 0W1 0B2 0W2 3F3 3B3 3W3   . 0B3 0W3
    rank 1     . 1F0 2F0 1F1 2F1 2B0 1B0 2W0 1F2 2B1 1B1 2W1 2F2 1W0 1F3 2B2 1B2 2W2 2F3 1W1 1W2 2B3
               1B3 2W3 1W3

Memory is the constraint: a rank keeps at most 2 * ranks activations of its half-length stages, as
much as rank 0 of 1F1B.
Source: Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), the schedule V-ZB.
"""

from collections.abc import Collection, Iterator

from ..errors import ScheduleError
from .actions import Action, Kind, Program
from .orders import check_counts


def v_shape(stage: int, ranks: int) -> int:
    """The rank that runs a stage: down the ranks with the first half, up again with the second."""
    return min(stage, 2 * ranks - 1 - stage)


def zero_bubble_v(stages: int, micro_batches: int, ranks: int) -> Program:
    """Stages r and 2 * ranks - 1 - r on rank r, scheduled as the top of this file says. stages must
    be 2 * ranks.
    """
    check_counts(stages, micro_batches, ranks)
    if stages != 2 * ranks:
        raise ScheduleError(
            f"{stages} stages on {ranks} ranks are no V; every rank runs two, so take {2 * ranks} stages"
        )
    workers = [_Worker(rank, stages - 1, micro_batches) for rank in range(ranks)]
    done: set[Action] = set()
    while len(done) < 3 * stages * micro_batches:
        chosen = [action for worker in workers for action in worker.choose(done)]
        assert chosen, "the reserved place in memory lets the oldest micro-batch always go on"
        done.update(chosen)  # only now: what ends this second can be used in the next
    return {worker.rank: tuple(worker.program) for worker in workers}


class _Worker:
    """One rank: what it has done, and what it would like to do next."""

    def __init__(self, rank: int, last_stage: int, micro_batches: int):
        self.rank = rank
        self.last_stage = last_stage
        self.micro_batches = micro_batches
        self.down, self.up = (
            rank,
            last_stage - rank,
        )  # its stages, in the first and in the second half of the model
        self.limit = last_stage + 1  # activations it may keep
        self.count = {
            (kind, stage): 0
            for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT)
            for stage in (self.down, self.up)
        }
        self.program: list[Action] = []

    def choose(self, done: Collection[Action]) -> list[Action]:
        """The first wish that can run, now taken; nothing if the rank idles this second."""
        for action in self._wishes():
            if self._has_room(action) and all(need in done for need in self._needs(action)):
                self.count[action.kind, action.stage] += 1
                self.program.append(action)
                return [action]
        return []

    def _wishes(self) -> Iterator[Action]:
        """B of the older micro-batch first, since all ranks above wait for it; then F, what is
        nearer to its B first.
        """
        backwards = sorted((self.up, self.down), key=lambda stage: self.count[Kind.BACKWARD, stage])
        wishes = [(Kind.BACKWARD, stage) for stage in backwards]
        wishes += [
            (kind, stage) for kind in (Kind.FORWARD, Kind.WEIGHT) for stage in (self.up, self.down)
        ]
        for kind, stage in wishes:
            if self.count[kind, stage] < self.micro_batches:
                yield Action(kind, stage, None, self.count[kind, stage])

    def _needs(self, action: Action) -> Iterator[Action]:
        kind, stage, m = action.kind, action.stage, action.micro_batch
        if kind is Kind.WEIGHT:
            yield Action(Kind.BACKWARD, stage, None, m)
        if kind is Kind.BACKWARD:
            yield Action(Kind.FORWARD, stage, None, m)
        if kind is Kind.FORWARD and stage > 0:
            yield Action(Kind.FORWARD, stage - 1, None, m)
        if kind is Kind.BACKWARD and stage < self.last_stage:
            yield Action(Kind.BACKWARD, stage + 1, None, m)

    def _has_room(self, action: Action) -> bool:
        """One place is reserved for the way up, so that no rank fills with micro-batches on their
        way down and waits for ever.
        """
        if action.kind is not Kind.FORWARD:
            return True
        down, up = self._live(self.down), self._live(self.up)
        return down + up < self.limit and (action.stage == self.up or down < self.limit - 1)

    def _live(self, stage: int) -> int:
        return self.count[Kind.FORWARD, stage] - self.count[Kind.WEIGHT, stage]
