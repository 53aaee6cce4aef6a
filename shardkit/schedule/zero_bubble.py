"""ZB-V: two stages per rank in the shape of a V, and weight gradients wherever a rank would idle.

    3 ranks, 6 stages    rank 0   0         5    The last stage is beside the first: its gradient
                         rank 1     1     4      is there as soon as its loss is. Each rank has a
                         rank 2       2 3        second stage to work on while it waits for the
                                                 first; 2 -> 3 needs no message.

The order is not copied from a table. A list scheduler runs the step second by second, with F, B and
W one second each: every rank takes the first action of its wish list that can run, and W, which
nobody waits for, comes last on the list. So the order is right for any number of micro-batches.
With at least as many micro-batches as ranks, a step takes 6m + p-1 seconds on up to 4 ranks and at
most p/2 more on 5 to 8, however many micro-batches: the steady state has no bubble (the tests
measure this). 2 ranks, 3 micro-batches:

    rank 0   0F0 0F1 0F2 3F0 3B0 3W0 3F1 0B0 3B1 3W1 0W0 0B1 0W1 3F2 3B2 3W2   . 0B2 0W2
    rank 1     . 1F0 2F0 1F1 2F1 2B0 1B0 2W0 1F2 2B1 1B1 2W1 2F2 1W0 1W1 2B2 1B2 2W2 1W2

Memory is the constraint: a rank keeps at most 2 * ranks activations of its half-length stages, as
many bytes as rank 0 of 1F1B.
Source: Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), the schedule V-ZB.
"""

from collections.abc import Collection, Iterator
from functools import lru_cache

from ..errors import ScheduleError
from .actions import Action, Kind, Program, peak_live
from .catalog import order
from .orders import check_counts

_QUICK_CELLS = 128  # ranks x micro-batches of a program that is made quickly


def v_shape(stage: int, ranks: int) -> int:
    """Return the rank of a stage: down the ranks with the first half, up again with the second."""
    return min(stage, 2 * ranks - 1 - stage)


def _most_alive(ranks: int, virtual: int, micro_batches: int, rank: int) -> int:
    """Count in the program where it is made quickly; else return the limit that it keeps."""
    if ranks * micro_batches > _QUICK_CELLS:
        return 2 * ranks
    return _alive_by_rank(ranks, micro_batches)[rank]


@lru_cache(maxsize=1024)
def _alive_by_rank(ranks: int, micro_batches: int) -> tuple[int, ...]:
    program = zero_bubble_v(2 * ranks, micro_batches, ranks)
    return tuple(peak_live(program[rank]) for rank in range(ranks))


@order(
    "zb-v",
    stages_per_rank=2,
    rank_of=v_shape,
    delays_weights=True,
    live_rule=_most_alive,
    idle_seconds=lambda forward, backward, weight: max(forward + backward - weight, 0.0) / 2,
    quick_ranks=8,
)
def zero_bubble_v(stages: int, micro_batches: int, ranks: int) -> Program:
    """Run stages r and 2 * ranks - 1 - r on rank r, scheduled as the top of this file explains.

    stages must be 2 * ranks.
    """
    check_counts(stages, micro_batches, ranks)
    if stages != 2 * ranks:
        raise ScheduleError(
            f"{stages} stages on {ranks} ranks are no V; every rank runs two, "
            f"so take {2 * ranks} stages"
        )
    workers = [_Worker(rank, stages - 1, micro_batches) for rank in range(ranks)]
    done: set[Action] = set()
    while len(done) < 3 * stages * micro_batches:
        chosen = [action for worker in workers for action in worker.choose(done)]
        assert chosen, "the reserved place in memory lets the oldest micro-batch always go on"
        done.update(chosen)  # only now: what ends this second can be used in the next
    return {worker.rank: tuple(worker.program) for worker in workers}


class _Worker:
    """One rank of the list scheduler: what it has done, and what it would like to do next."""

    def __init__(self, rank: int, last_stage: int, micro_batches: int):
        self.rank = rank
        self.last_stage = last_stage
        self.micro_batches = micro_batches
        self.down = rank  # its stage in the first half of the model
        self.up = last_stage - rank  # and in the second
        self.limit = last_stage + 1  # activations it may keep
        self.count = {
            (kind, stage): 0
            for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT)
            for stage in (self.down, self.up)
        }
        self.program: list[Action] = []

    def choose(self, done: Collection[Action]) -> list[Action]:
        """Take the first wish that can run; return none if the rank idles this second."""
        for action in self._wishes():
            if self._has_room(action) and all(need in done for need in self._needs(action)):
                self.count[action.kind, action.stage] += 1
                self.program.append(action)
                return [action]
        return []

    def _wishes(self) -> Iterator[Action]:
        """Yield B of the older micro-batch first, since all ranks above wait for it; then F, with
        the one nearer to its B first.
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
        kind = action.kind
        stage = action.stage
        m = action.micro_batch
        if kind is Kind.WEIGHT:
            yield Action(Kind.BACKWARD, stage, None, m)
        if kind is Kind.BACKWARD:
            yield Action(Kind.FORWARD, stage, None, m)
        if kind is Kind.FORWARD and stage > 0:
            yield Action(Kind.FORWARD, stage - 1, None, m)
        if kind is Kind.BACKWARD and stage < self.last_stage:
            yield Action(Kind.BACKWARD, stage + 1, None, m)

    def _has_room(self, action: Action) -> bool:
        """Return whether the rank may keep one more activation.

        One place is reserved for the way up, so that no rank fills with micro-batches on their way
        down and waits forever.
        """
        if action.kind is not Kind.FORWARD:
            return True
        down, up = self._live(self.down), self._live(self.up)
        return down + up < self.limit and (action.stage == self.up or down < self.limit - 1)

    def _live(self, stage: int) -> int:
        return self.count[Kind.FORWARD, stage] - self.count[Kind.WEIGHT, stage]
