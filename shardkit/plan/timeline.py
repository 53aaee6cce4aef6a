"""How long a pipeline takes, by the schedules that the runtime executes.

    simulated   the program itself, lowered, in schedule.simulate: for a picture, and for the tests
    replayed    the same orders and the same seconds with plain lists: for the layouts that a search
                considers closely
    estimated   a closed form: for all the others

The tests hold a replay equal to the simulation. Far more micro-batches than ranks repeat
themselves: a replay of the first few is continued along a straight line.
"""

from dataclasses import dataclass
from functools import lru_cache

from ..schedule import Kind, Timeline, lower, order_named, simulate

_FORWARD, _BACKWARD, _WEIGHT = range(3)
_NUMBER = {Kind.FORWARD: _FORWARD, Kind.BACKWARD: _BACKWARD, Kind.WEIGHT: _WEIGHT}
_MOST_ACTIONS = 32768  # of a replay; beyond, the closed form has to do


@dataclass(frozen=True)
class StageSeconds:
    """Of each stage and one micro-batch: forward, gradient of the input, gradients of weights."""

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
    """The timeline of the program of one unit per stage."""
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
    """When the last rank is done. Where a replay would take seconds, the closed form."""
    few = micro_batches % pipeline + (4 if pipeline <= 8 else 1) * pipeline
    if (
        3 * pipeline * virtual * min(micro_batches, few + pipeline) > _MOST_ACTIONS
        or schedule == "zb-v"
        and pipeline > 8
    ):
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
    forward, backward, weight = seconds.forward, seconds.backward, seconds.weight
    last, clock, at = len(forward) - 1, [0.0] * pipeline, [0] * pipeline
    forward_done = [[None] * micro_batches for _ in forward]
    backward_done = [[None] * micro_batches for _ in forward]
    is_over = False
    while not is_over:
        is_over = True
        for rank, program in enumerate(programs):
            now, position, stop = clock[rank], at[rank], len(program)
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
            clock[rank], at[rank] = now, position
            is_over = is_over and position == stop
    return max(clock)


@lru_cache(maxsize=256)
def _programs(schedule: str, pipeline: int, virtual: int, micro_batches: int):
    """The order as (kind, stage, micro-batch) of each rank, and {stage: rank}."""
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
    """About when the last rank is done: the busiest rank's work, and the way to the last stage and
    back.

    With equal stages it is exact for gpipe, 1f1b, and interleaved where the ranks divide the
    micro-batches, if messages take no longer than weight gradients.
    """
    rank_of, stages = order_ranks(schedule, pipeline, virtual), range(pipeline * virtual)
    work = [0.0] * pipeline
    for stage in stages:
        work[rank_of[stage]] += seconds.total(stage)
    busiest = max(work)
    ways = pipeline - 1
    forward, backward, weight = (
        sum(of) / len(stages) for of in (seconds.forward, seconds.backward, seconds.weight)
    )
    if schedule == "zb-h1":
        idle = ways * max(forward + backward - weight, 0.0)
    elif schedule == "zb-v":
        idle = ways * max(forward + backward - weight, 0.0) / 2
    else:
        idle = ways * (forward + backward)
    if schedule == "gpipe":
        busiest = max(seconds.forward) + max(
            b + w for b, w in zip(seconds.backward, seconds.weight)
        )
    return micro_batches * busiest + idle + 2 * ways * transfer_seconds


@lru_cache(maxsize=4096)
def order_ranks(schedule: str, pipeline: int, virtual: int) -> tuple[int, ...]:
    """The rank of each stage."""
    rank_of = order_named(schedule).rank_of
    return tuple(rank_of(stage, pipeline) for stage in range(pipeline * virtual))
