"""Bytes on each device: parameters, gradients and optimizer state by policy, parameters that are
gathered for a moment, and activations.

    memory = memory_of(layout, shape, SHARDKIT)         of the fullest pipeline rank
    memory.total, memory.activations

For shardkit the parts are those that its allocator accounts for, with padding and pools: see the
units in parallel/data/unit.py and the sums in parallel/data/gradients.py. For other programs
they follow the formulas of the ZeRO paper (arXiv 1910.02054) and of arXiv 2205.05198.
"""

from dataclasses import dataclass
from functools import lru_cache

from ..layout.flat import FlatLayout
from ..layout.policy import POLICIES, SHARD, WHOLE
from ..schedule.actions import Kind
from ..schedule.catalog import ORDERS, order_named
from .activations import BlockBytes, block_bytes, boundary_bytes, held_share
from .layouts import RunLayout
from .shape import Shape, Share
from .software import Software
from .stages import (
    StageUnits,
    marked_blocks,
    order_ranks,
    recomputed_of_stages,
    stage_units,
    stages_of_rank,
)

# a shard is a multiple of this many elements; the tests compare it with parallel/data/unit.py
NORM_BLOCK = 256


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one device, by their use.

    gathered     whole parameters that a policy keeps for a moment
    in_flight    whole gradients until they are reduced, where the policy does not keep them anyway
    activations  of all micro-batches that are alive, and the working memory of the backward
    buffers      of messages, and what the program holds in reserve
    """

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    gathered: float = 0.0
    in_flight: float = 0.0
    activations: float = 0.0
    buffers: float = 0.0

    @property
    def total(self) -> float:
        return self.state + self.gathered + self.in_flight + self.activations + self.buffers

    @property
    def state(self) -> float:
        """Bytes that last from step to step."""
        return self.parameters + self.gradients + self.optimizer


@lru_cache(maxsize=200_000)
def memory_of(
    layout: RunLayout, shape: Shape, software: Software, sharing: int = 1
) -> MemoryEstimate:
    """Return the memory of the pipeline rank that needs the most.

    layout    one that why_not() does not refuse
    sharing   ranks of a node that see each other's memory: Cluster.sharing
    """
    ranks = range(layout.pipeline)
    if layout.pipeline > 4 and shape.is_uniform:  # the ranks between keep less than the second
        ranks = (0, 1, layout.pipeline - 1)
    return max(
        (rank_memory(layout, shape, software, rank, sharing) for rank in ranks),
        key=lambda memory: memory.total,
    )


def rank_memory(
    layout: RunLayout, shape: Shape, software: Software, rank: int, sharing: int = 1
) -> MemoryEstimate:
    """Return the memory of this pipeline rank."""
    place = layout.schedule, layout.pipeline, layout.virtual, layout.tensor, rank
    elements, borrowed = _rank_elements(*place, shape, software)
    state = _padded_state if software.sums_in_tree else _formula_state
    parts = state(elements, layout, rank, software, borrowed)
    policy = POLICIES[layout.policy]
    if not software.gathers(layout.sharing, layout.tensor, sharing):
        parts["gathered"] = 0.0
        if policy.state is SHARD and policy.parameters is WHOLE:  # the ranks have them together
            parts["parameters"] /= layout.sharing
    elif software.rounds_when_gathered and policy.parameters is SHARD:
        parts["parameters"] = 0.0
    return MemoryEstimate(
        **parts,
        activations=_activations(layout, shape, software, rank),
        buffers=_buffers(layout, shape, software) + software.reserve_bytes,
    )


@lru_cache(maxsize=4096)
def _rank_elements(
    schedule: str,
    pipeline: int,
    virtual: int,
    tensor: int,
    rank: int,
    shape: Shape,
    software: Software,
) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Return the parameters of the units of each stage of a rank, and those of a unit that its tied
    head borrows.

    A tied head on another rank than the embedding has a replica of that before it.
    """
    all_stages = stage_units(shape, software, pipeline * virtual, tensor)
    stages = [all_stages[stage] for stage in stages_of_rank(schedule, pipeline, virtual, rank)]
    elements = [_elements(stage, shape, tensor) for stage in stages]
    if shape.tied and order_ranks(schedule, pipeline, virtual)[0] != rank:
        replica = _elements(all_stages[0][:1], shape, tensor)
        elements = [
            (*replica, *own) if any("head" in unit for unit in stage) else own
            for stage, own in zip(stages, elements)
        ]
    borrowed = shape.block_elements("embedding", tensor) if _borrows(shape, stages) else 0
    return tuple(elements), borrowed


@lru_cache(maxsize=65536)
def _elements(units: StageUnits, shape: Shape, tensor: int) -> tuple[int, ...]:
    return tuple(part for unit in units for part in shape.unit_elements(unit, tensor))


def _borrows(shape: Shape, stages: list[StageUnits]) -> bool:
    """Return whether a tied head uses the parameters of another unit of this rank."""
    units = [unit for stage in stages for unit in stage]
    return shape.tied and any("head" in unit and "embedding" not in unit for unit in units)


# ---- parameters, gradients, optimizer state ------------------------------------------------------


def _formula_state(
    stages: tuple, layout: RunLayout, rank: int, software: Software, borrowed: int
) -> dict[str, float]:
    """Follow the formulas of the ZeRO paper; under full sharding two layers are whole at a time,
    with the second on its way.
    """
    elements = [unit for stage in stages for unit in stage]
    policy = POLICIES[layout.policy]
    sizes = (software.parameter_bytes, software.gradient_bytes, software.state_bytes)
    parts = policy.parts_per_rank(sum(elements), layout.sharing, sizes)
    largest = sorted(elements)[-2:]
    return {
        **dict(zip(("parameters", "gradients", "optimizer"), parts)),
        "gathered": sum(largest) * software.parameter_bytes if policy.parameters is SHARD else 0.0,
        "in_flight": sum(largest) * software.gradient_bytes if policy.gradients is SHARD else 0.0,
    }


def _padded_state(
    stages: tuple, layout: RunLayout, rank: int, software: Software, borrowed: int
) -> dict[str, float]:
    """Follow parallel/data/unit.py: equal shards with padding at the end, whole buffers from pools.

    borrowed   elements of the unit that a tied head on this rank borrows: it is gathered beside the
               head's, and has a second sum of gradients where it is on this rank in its own right
    """
    policy = POLICIES[layout.policy].on(layout.sharing, rounds=software.rounds_when_gathered)
    sizes = tuple(
        tuple(padded_shard(count, layout.sharing) * layout.sharing for count in stage)
        for stage in stages
    )
    wholes = [unit for stage in sizes for unit in stage]
    shards = [whole // layout.sharing for whole in wholes]
    kept = [
        sum(shards if is_cut else wholes)
        for is_cut in (policy.parameters is SHARD, policy.state is SHARD)
    ]
    gradients = sum(shards) if policy.gradients is SHARD else 0
    gathered = max(wholes) + (wholes[-1] if borrowed else 0)
    if borrowed and rank == 0:
        padded = padded_shard(borrowed, layout.sharing) * layout.sharing
        sizes = (*sizes[:-1], (*sizes[-1], padded))
    return {
        "parameters": kept[0] * software.parameter_bytes,
        "optimizer": kept[1] * software.state_bytes,
        "gradients": gradients * software.gradient_bytes,
        "gathered": gathered * software.parameter_bytes if policy.parameters is SHARD else 0.0,
        "in_flight": whole_gradients(sizes, layout, rank, policy.gradients is WHOLE)
        * software.gradient_bytes,
    }


@lru_cache(maxsize=65536)
def padded_shard(elements: int, data: int) -> int:
    """Return the elements of one rank's shard of a unit."""
    return FlatLayout.of({"unit": (elements,)}, num_shards=data, alignment=NORM_BLOCK).shard


def whole_gradients(
    stages: tuple[tuple[int, ...], ...], layout: RunLayout, rank: int, keeps_whole: bool
) -> int:
    """Return the most elements of whole gradients that are alive, with micro-batches summed as a
    tree.

    After i micro-batches a unit holds one partial sum for each 1 among the binary digits of i, and
    one more while the next is computed (parallel/data/gradients.py).
    stages       elements of the units of each stage of this rank, in the order of the model
    keeps_whole  until the end of the step; else a unit's sum is freed once it is reduced
    """
    is_unit_by_unit = layout.pipeline == 1 and (
        ORDERS[layout.schedule].forwards_first or layout.micro_batches == 1
    )
    if is_unit_by_unit:  # lowering.expand: a unit computes all micro-batches before the next begins
        stages = tuple((unit,) for stage in stages for unit in stage)
        turns = [
            (at, number)
            for at in reversed(range(len(stages)))
            for number in range(layout.micro_batches)
        ]
    else:
        turns = _weight_turns(
            layout.schedule, layout.pipeline, layout.virtual, layout.micro_batches, rank
        )
    held = peak = 0
    for at, number in turns:
        for size in reversed(stages[at]):
            peak = max(peak, held + size)
            held += size * ((number + 1).bit_count() - number.bit_count())
            if number == layout.micro_batches - 1:  # finish() leaves one sum of the unit, or none
                held -= size * (layout.micro_batches.bit_count() - keeps_whole)
    return peak


@lru_cache(maxsize=4096)
def _weight_turns(
    schedule: str, pipeline: int, virtual: int, micro_batches: int, rank: int
) -> tuple[tuple[int, int], ...]:
    """Return (stage of this rank, micro-batch) of each weight gradient, in order.

    In large pipelines all stages run in step.
    """
    if virtual > 1 and pipeline * virtual * micro_batches <= 256:
        mine = stages_of_rank(schedule, pipeline, virtual, rank)
        order = order_named(schedule)(pipeline, micro_batches, virtual)[rank]
        return tuple(
            (mine.index(action.stage), action.micro_batch)
            for action in order
            if action.kind is Kind.WEIGHT
        )
    return tuple((at, number) for number in range(micro_batches) for at in reversed(range(virtual)))


# ---- activations ---------------------------------------------------------------------------------


def _activations(layout: RunLayout, shape: Shape, software: Software, rank: int) -> float:
    """Return what all live micro-batches keep, and the most working memory of a backward."""
    kept, working = _mean_kept_and_working(
        layout.schedule,
        layout.pipeline,
        layout.virtual,
        layout.tensor,
        rank,
        layout.share(shape),
        layout.recomputation,
        layout.recomputed,
        layout.is_sequence_parallel,
        shape,
        software,
    )
    alive = ORDERS[layout.schedule].most_alive(
        layout.pipeline, layout.virtual, layout.micro_batches, rank
    )
    share = held_share(shape, software, layout.share(shape))
    return share * (alive * kept + working)


@lru_cache(maxsize=65536)
def _mean_kept_and_working(
    schedule: str,
    pipeline: int,
    virtual: int,
    tensor: int,
    rank: int,
    share: Share,
    recomputation: str,
    recomputed: int | None,
    is_sequence_parallel: bool,
    shape: Shape,
    software: Software,
) -> tuple[float, float]:
    """Return the bytes that a stage of this rank keeps of a micro-batch, as a mean of its stages,
    and the most working memory of one.
    """
    units = stage_units(shape, software, pipeline * virtual, tensor)
    again = recomputed_of_stages(units, schedule, virtual, recomputed, shape, software)
    sizes = [
        _stage_bytes(
            units[stage],
            share,
            tensor,
            recomputation,
            is_sequence_parallel,
            shape,
            software,
            again[stage],
        )
        for stage in stages_of_rank(schedule, pipeline, virtual, rank)
    ]
    kept = [stage.kept for stage in sizes]
    if ORDERS[schedule].delays_weights:  # they wait, and with them the arrays that they need
        kept = [max(stage.kept, stage.deferred) for stage in sizes]
    return sum(kept) / len(kept), max(stage.working for stage in sizes)


@lru_cache(maxsize=65536)
def _stage_bytes(
    units: StageUnits,
    share: Share,
    tensor: int,
    recomputation: str,
    is_sequence_parallel: bool,
    shape: Shape,
    software: Software,
    again: int,
) -> BlockBytes:
    """Return the bytes of a stage, whose first `again` blocks are run again.

    The blocks of a unit run their backward together, the units one after another.
    """
    once = "none" if recomputation == "full" else recomputation

    def bytes_of(block, is_again):
        chosen = recomputation if is_again else once
        how = tensor, chosen, is_sequence_parallel
        return block_bytes(shape, software, block, share, *how)

    of_units = [
        [bytes_of(*marked) for marked in unit]
        for unit in marked_blocks(units, again, shape, software)
    ]
    return BlockBytes(
        sum(block.kept for unit in of_units for block in unit),
        sum(block.deferred for unit in of_units for block in unit),
        max(sum(block.working for block in unit) for unit in of_units),
    )


def _buffers(layout: RunLayout, shape: Shape, software: Software) -> float:
    """Return the bytes of one message each way: between stages, and in a ring of keys."""
    between = boundary_bytes(shape, software, layout) if layout.pipeline > 1 else 0.0
    around = shape.ring_elements(layout.tensor, layout.domain) * layout.micro_batch
    return 2 * (between + around * software.activation_bytes)
