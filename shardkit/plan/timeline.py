"""How long a pipeline takes, by the schedules that the runtime executes.

    simulated   the lowered program in schedule.simulate: for a diagram, and for the tests
    replayed    the same orders and seconds with plain lists: for the layouts that a search
                considers closely
    estimated   a closed form: for all the others

The tests hold a replay equal to the simulation. A schedule of far more micro-batches than ranks
repeats itself, so a replay of the first few is continued along a straight line.
"""

from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class PipelineRun:
    """Micro-batches that go through a pipeline.

    schedule           the name of its order
    pipeline, virtual  ranks, and stages on each
    transfer_seconds   of a message from one rank to the next
    """

    schedule: str
    pipeline: int
    virtual: int
    micro_batches: int
    seconds: StageSeconds
    transfer_seconds: float = 0.0

    def simulated(self) -> Timeline:
        """Return the timeline of the program of one unit per stage."""
        order = order_named(self.schedule)(self.pipeline, self.micro_batches, self.virtual)
        program = lower(order, dict.fromkeys(range(self.pipeline * self.virtual), 1))
        of_kind = {
            Kind.FORWARD: self.seconds.forward,
            Kind.BACKWARD: self.seconds.backward,
            Kind.WEIGHT: self.seconds.weight,
        }
        return simulate(
            program,
            lambda action: of_kind[action.kind][action.stage] if action.kind in of_kind else 0.0,
            transfer_seconds=self.transfer_seconds,
        )

    def replayed(self) -> float:
        """Return when the last rank finishes; by the closed form where a replay takes seconds."""
        pipeline, micro_batches = self.pipeline, self.micro_batches
        few = micro_batches % pipeline + (4 if pipeline <= 8 else 1) * pipeline
        actions = 3 * pipeline * self.virtual * min(micro_batches, few + pipeline)
        quick_ranks = order_named(self.schedule).quick_ranks
        if actions > _MOST_ACTIONS or quick_ranks is not None and pipeline > quick_ranks:
            return self.estimated()
        if micro_batches <= few + pipeline:
            return self.replayed_whole()
        first, then = (
            replace(self, micro_batches=number).replayed_whole() for number in (few, few + pipeline)
        )
        return then + (then - first) / pipeline * (micro_batches - few - pipeline)

    def replayed_whole(self) -> float:
        """Return when the last rank finishes, by a replay of all micro-batches."""
        programs, rank_of = _programs(
            self.schedule, self.pipeline, self.virtual, self.micro_batches
        )
        seconds, transfer_seconds = self.seconds, self.transfer_seconds
        forward, backward, weight = seconds.forward, seconds.backward, seconds.weight
        last = len(forward) - 1
        clock = [0.0] * self.pipeline
        at = [0] * self.pipeline
        forward_done = [[None] * self.micro_batches for _ in forward]
        backward_done = [[None] * self.micro_batches for _ in forward]
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

    def estimated(self) -> float:
        """Estimate when the last rank finishes: the busiest rank's work, and the way to the last
        stage and back.

        With equal stages it is exact for gpipe, 1f1b, and interleaved where the ranks divide the
        micro-batches, if messages take no longer than weight gradients.
        """
        order = order_named(self.schedule)
        rank_of = order_ranks(self.schedule, self.pipeline, self.virtual)
        work = [0.0] * self.pipeline
        for stage, rank in enumerate(rank_of):
            work[rank] += self.seconds.total(stage)
        busiest = max(work)
        if order.forwards_first:
            back = (b + w for b, w in zip(self.seconds.backward, self.seconds.weight))
            busiest = max(self.seconds.forward) + max(back)
        by_kind = (self.seconds.forward, self.seconds.backward, self.seconds.weight)
        idle = order.idle_seconds(*(sum(of) / len(rank_of) for of in by_kind))
        ways = self.pipeline - 1
        return self.micro_batches * busiest + ways * idle + 2 * ways * self.transfer_seconds


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
