"""How many micro-batches are alive on a pipeline rank: between the forward of a stage and its
weight gradient.

    1f1b, 4 ranks, 8 micro-batches     rank 0 keeps 4, rank 1 keeps 3, rank 2 keeps 2, rank 3 keeps
                                       1

`replayed` counts in the schedule itself. `most_alive` is what the search asks: the same numbers
from the rule behind each schedule, which is never less (and a few more for interleaved, where the
ranks do not divide the micro-batches).
"""

from functools import lru_cache

from ..schedule import Kind, Program, order_named


def replayed(order: Program, rank: int) -> dict[int, int]:
    """{stage: micro-batches alive} when the rank keeps the most of them, all its stages counted
    together.
    """
    alive: dict[int, int] = {}
    fullest: dict[int, int] = {}
    for action in order[rank]:
        if action.kind is Kind.FORWARD:
            alive[action.stage] = alive.get(action.stage, 0) + 1
            if sum(alive.values()) > sum(fullest.values()):
                fullest = dict(alive)
        elif action.kind is Kind.WEIGHT:
            alive[action.stage] -= 1
    return fullest


@lru_cache(maxsize=65536)
def most_alive(schedule: str, pipeline: int, virtual: int, micro_batches: int, rank: int) -> int:
    """The most pairs of stage and micro-batch that are alive at once on a pipeline rank."""
    if schedule == "gpipe":
        return micro_batches
    if schedule == "1f1b" or schedule == "interleaved" and virtual == 1:
        return min(micro_batches, pipeline - rank)
    if schedule == "zb-h1":
        return min(micro_batches, pipeline)
    if schedule == "interleaved":
        return min(
            2 * (pipeline - 1 - rank) + (virtual - 1) * pipeline + 1, virtual * micro_batches
        )
    return _zero_bubble_v(pipeline, micro_batches)[rank]


@lru_cache(maxsize=1024)
def _zero_bubble_v(pipeline: int, micro_batches: int) -> tuple[int, ...]:
    """A replay where it is quick, else the limit that the schedule keeps: two activations of half a
    stage for each rank.
    """
    if pipeline * micro_batches > 128:
        return (2 * pipeline,) * pipeline
    program = order_named("zb-v")(pipeline, micro_batches)
    return tuple(sum(replayed(program, rank).values()) for rank in range(pipeline))
