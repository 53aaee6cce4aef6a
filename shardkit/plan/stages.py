"""Which blocks are in which stage, and on which pipeline rank: the planner's view of
parallel/pipeline/stages.py.

stage_units(shape, SHARDKIT, 2, tensor=1)    ((("embedding",), ("layer",)), (("layer",), ("head",)))
                                               stage 0: two units            stage 1
"""

from functools import lru_cache
from itertools import accumulate

from ..layout.cuts import balanced_stages, even_runs, merged_blocks
from ..schedule.catalog import ORDERS
from .shape import Shape
from .software import Software

UnitBlocks = tuple[str, ...]  # the kinds of the blocks of a unit
StageUnits = tuple[UnitBlocks, ...]


@lru_cache(maxsize=4096)
def stage_units(
    shape: Shape, software: Software, num_stages: int, tensor: int
) -> tuple[StageUnits, ...] | None:
    """Return the units of each stage; None if there are fewer units than stages."""
    if software.cuts_evenly:
        return _evenly(shape, num_stages)
    blocks = shape.blocks
    runs = merged_blocks(
        [shape.block_elements(block, tensor) for block in blocks], software.merges_below
    )
    if len(runs) < num_stages:
        return None
    units = [blocks[run.start : run.stop] for run in runs]
    costs = [sum(shape.multiplied_elements(block, tensor) for block in unit) for unit in units]
    return tuple(
        tuple(units[number] for number in stage) for stage in balanced_stages(costs, num_stages)
    )


def _evenly(shape: Shape, num_stages: int) -> tuple[StageUnits, ...] | None:
    """Return stages of equally many layers, with the embedding in the first and the head in the
    last. Where the layers do not divide, the two ends count as a layer each, and the first stages
    get one more: 126 layers on 8 stages are 15, 16 six times, and 15.

    Source of the ends: Llama 3 (arXiv 2407.21783), section 3.3.2, whose first and last of 128
    stages have no layer.
    """
    if shape.layers % num_stages == 0:
        counts = [shape.layers // num_stages] * num_stages
    elif shape.layers + 2 >= num_stages:
        counts = [stop - start for start, stop in even_runs(shape.layers + 2, num_stages)]
        counts[0] -= 1
        counts[-1] -= 1
    else:
        return None
    stages = [[("layer",)] * count for count in counts]
    stages[0].insert(0, ("embedding",))
    stages[-1].append(("head",))
    return tuple(map(tuple, stages))


def blocks_per_stage(
    shape: Shape, software: Software, num_stages: int, tensor: int
) -> tuple[int, ...]:
    """Return how many blocks each stage of stage_units() has: the setting that makes this cut."""
    stages = stage_units(shape, software, num_stages, tensor)
    return tuple(sum(map(len, units)) for units in stages)


@lru_cache(maxsize=4096)
def recomputed_of_stages(
    stages: tuple[StageUnits, ...],
    schedule: str,
    virtual: int,
    most: int | None,
    shape: Shape,
    software: Software,
) -> tuple[int, ...]:
    """Return how many blocks of each stage full recomputation runs again.

    most   of a pipeline rank, whose first stages come first; None: all
    """
    counts = [sum(map(sum, _may_run_again(stage, shape, software))) for stage in stages]
    if most is None:
        return tuple(counts)
    pipeline = len(stages) // virtual
    left = dict.fromkeys(range(pipeline), most)
    taken = []
    for rank, count in zip(order_ranks(schedule, pipeline, virtual), counts):
        taken.append(min(count, left[rank]))
        left[rank] -= taken[-1]
    return tuple(taken)


def marked_blocks(
    stage: StageUnits, again: int, shape: Shape, software: Software
) -> list[list[tuple[str, bool]]]:
    """Return (block, whether it is among the `again` first that are run again) of each unit."""
    marked = []
    for unit, may in zip(stage, _may_run_again(stage, shape, software)):
        marked.append(
            [
                (block, may_it and again > before)
                for block, may_it, before in zip(unit, may, accumulate(may, initial=0))
            ]
        )
        again -= sum(may)
    return marked


def _may_run_again(stage: StageUnits, shape: Shape, software: Software) -> list[list[bool]]:
    return [
        [shape.is_recomputed(block, software.splits_backward) for block in unit] for unit in stage
    ]


@lru_cache(maxsize=4096)
def stages_of_rank(schedule: str, pipeline: int, virtual: int, rank: int) -> tuple[int, ...]:
    """Return the stages that a pipeline rank runs, ascending."""
    ranks = order_ranks(schedule, pipeline, virtual)
    return tuple(stage for stage, of_stage in enumerate(ranks) if of_stage == rank)


@lru_cache(maxsize=4096)
def order_ranks(schedule: str, pipeline: int, virtual: int) -> tuple[int, ...]:
    """Return the rank of each stage."""
    rank_of = ORDERS[schedule].rank_of
    return tuple(rank_of(stage, pipeline) for stage in range(pipeline * virtual))
