"""How long a pipeline takes, by the schedules that the runtime executes.

    simulated   the lowered program in schedule.simulate: for a diagram, and for the tests
    replayed    the same orders and seconds with plain lists: for the layouts that a search
                considers closely
    estimated   a closed form: for all the others

The tests hold a replay equal to the simulation. A schedule of far more micro-batches than ranks
repeats itself, so a replay of the first few is continued along a straight line.
"""

from dataclasses import dataclass
from functools import lru_cache

from ..schedule.actions import Kind
from ..schedule.catalog import order_named
from ..schedule.lowering import lower
from ..schedule.simulate import Timeline, simulate
from .stages import order_ranks

_FORWARD, _BACKWARD, _WEIGHT = range(3)
_NUMBER = {Kind.FORWARD: _FORWARD, Kind.BACKWARD: _BACKWARD, Kind.WEIGHT: _WEIGHT}
_MOST_ACTIONS = 32768  # of a replay; above that the closed form is used


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of each stage for one micro-batch: forward, input gradient, weight gradients."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]

    def total(self, stage: int) -> float:
        return self.forward[stage] + self.backward[stage] + self.weight[stage]


def simulated(
    schedule: str,
    pipeline: int,
    virtual: int,
    micro_batches: int,
    seconds: StageSeconds,
    transfer_seconds: float = 0.0,
) -> Timeline:
    """Return the timeline of the program of one unit per stage."""
    order = order_named(schedule)(pipeline, micro_batches, virtual)
    program = lower(order, dict.fromkeys(range(pipeline * virtual), 1))
    of_kind = {
        Kind.FORWARD: seconds.forward,
        Kind.BACKWARD: seconds.backward,
        Kind.WEIGHT: seconds.weight,
    }
    return simulate(
        program,
        lambda action: of_kind[action.kind][action.stage] if action.kind in of_kind else 0.0,
        transfer_seconds=transfer_seconds,
    )


def replayed(
    schedule: str,
    pipeline: int,
    virtual: int,
    micro_batches: int,
    seconds: StageSeconds,
    transfer_seconds: float = 0.0,
) -> float:
    """Return when the last rank finishes; by the closed form where a replay would take seconds."""
    few = micro_batches % pipeline + (4 if pipeline <= 8 else 1) * pipeline
    actions = 3 * pipeline * virtual * min(micro_batches, few + pipeline)
    quick_ranks = order_named(schedule).quick_ranks
    if actions > _MOST_ACTIONS or quick_ranks is not None and pipeline > quick_ranks:
        return estimated(schedule, pipeline, virtual, micro_batches, seconds, transfer_seconds)
    if micro_batches <= few + pipeline:
        return _replay(schedule, pipeline, virtual, micro_batches, seconds, transfer_seconds)
    first, then = (
        _replay(schedule, pipeline, virtual, number, seconds, transfer_seconds)
        for number in (few, few + pipeline)
    )
    return then + (then - first) / pipeline * (micro_batches - few - pipeline)


def _replay(schedule, pipeline, virtual, micro_batches, seconds, transfer_seconds) -> float:
    programs, rank_of = _programs(schedule, pipeline, virtual, micro_batches)
    forward = seconds.forward
    backward = seconds.backward
    weight = seconds.weight
    last = len(forward) - 1
    clock = [0.0] * pipeline
    at = [0] * pipeline
    forward_done = [[None] * micro_batches for _ in forward]
    backward_done = [[None] * micro_batches for _ in forward]
    is_over = False
    while not is_over:
        is_over = True
        for rank, program in enumerate(programs):
            now = clock[rank]
            position = at[rank]
            stop = len(program)
            while position < stop:
                kind, stage, number = program[position]
                if kind == _WEIGHT:
                    now += weight[stage]
                elif kind == _FORWARD:
                    if stage:
                        ready = forward_done[stage - 1][number]
                        if ready is None:
                            break
                        now = max(now, ready + transfer_seconds * (rank_of[stage - 1] != rank))
                    now += forward[stage]
                    forward_done[stage][number] = now
                else:
                    if stage < last:
                        ready = backward_done[stage + 1][number]
                        if ready is None:
                            break
                        now = max(now, ready + transfer_seconds * (rank_of[stage + 1] != rank))
                    now += backward[stage]
                    backward_done[stage][number] = now
                position += 1
            clock[rank] = now
            at[rank] = position
            is_over = is_over and position == stop
    return max(clock)


@lru_cache(maxsize=256)
def _programs(schedule: str, pipeline: int, virtual: int, micro_batches: int):
    """Return the order as (kind, stage, micro-batch) of each rank, and {stage: rank}."""
    order = order_named(schedule)(pipeline, micro_batches, virtual)
    programs = [
        tuple((_NUMBER[action.kind], action.stage, action.micro_batch) for action in order[rank])
        for rank in range(pipeline)
    ]
    return programs, {
        stage: rank for rank, program in enumerate(programs) for _, stage, _ in program
    }


def estimated(
    schedule: str,
    pipeline: int,
    virtual: int,
    micro_batches: int,
    seconds: StageSeconds,
    transfer_seconds: float = 0.0,
) -> float:
    """Estimate when the last rank finishes: the busiest rank's work, and the way to the last stage
    and back.

    With equal stages it is exact for gpipe, 1f1b, and interleaved where the ranks divide the
    micro-batches, if messages take no longer than weight gradients.
    """
    order = order_named(schedule)
    rank_of = order_ranks(schedule, pipeline, virtual)
    work = [0.0] * pipeline
    for stage, rank in enumerate(rank_of):
        work[rank] += seconds.total(stage)
    busiest = max(work)
    if order.forwards_first:
        back = (b + w for b, w in zip(seconds.backward, seconds.weight))
        busiest = max(seconds.forward) + max(back)
    by_kind = (seconds.forward, seconds.backward, seconds.weight)
    idle = order.idle_seconds(*(sum(of) / len(rank_of) for of in by_kind))
    ways = pipeline - 1
    return micro_batches * busiest + ways * idle + 2 * ways * transfer_seconds
