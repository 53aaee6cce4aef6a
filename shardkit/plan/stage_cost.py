"""Seconds of a stage and micro-batch: its computing, its collectives over data ranks, and what of
those is in the open.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from ..layout.policy import POLICIES, SHARD, Policy
from .collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, RankGroup, collective_seconds
from .hardware import Cluster
from .operations import Setting, block_seconds
from .overlap import exposed_seconds
from .software import Software
from .stages import StageUnits, marked_blocks


@dataclass(frozen=True)
class StageCost:
    """Seconds of a stage and micro-batch.

    gather   all its parameters once, each cast by its owner before if it travels so
    reduce   its gradients once, where each micro-batch does so; else 0
    units    that gather or reduce one after the other
    """

    forward: float
    backward: float
    weight: float
    tensor: float
    gather: float
    reduce: float
    units: int
    elements: int
    messages: int
    gather_bytes: float

    @property
    def compute(self) -> float:
        return self.forward + self.backward + self.weight


@dataclass(frozen=True)
class Exposed:
    """Seconds that a stage and micro-batch adds to its computing: gathers of forward and backward,
    reductions of backward.
    """

    forward: float = 0.0
    backward: float = 0.0
    reduction: float = 0.0


@lru_cache(maxsize=65536)
def stage_cost(
    units: StageUnits, at: Setting, data: RankGroup, sharing: int, policy: str, again: int
) -> StageCost:
    """Sum the blocks of a stage, whose first `again` are run again in the backward.

    sharing   of the data ranks share one copy
    """
    inside, between = data.cut(sharing)
    once = replace(at, recomputation="none") if at.recomputation == "full" else at
    marked = marked_blocks(units, again, at.shape, at.software)
    blocks = [
        block_seconds(block, at if twice else once) for unit in marked for block, twice in unit
    ]
    elements = [sum(at.shape.block_elements(block, at.tensor) for block in unit) for unit in units]
    messages = [
        sum(at.software.messages_per_layer if block == "layer" else 1 for block in unit)
        for unit in units
    ]

    def travel(operation, num_bytes, number, group):
        return data_seconds(at.cluster, at.software, operation, num_bytes, number, group)

    gather = reduce = 0.0
    gathered = _bytes_gathered(units, at)
    kept = POLICIES[policy]
    if kept.parameters is SHARD and at.software.gathers(sharing, data.stride, at.cluster.sharing):
        gather = sum(
            travel(ALL_GATHER, num_bytes, number, inside)
            for num_bytes, number in zip(gathered, messages)
        )
        if at.software.gather_bytes is not None:
            gather += at.cast(sum(elements) / sharing)
    if reduces_each(kept, at.software) and at.software.overlaps_reductions:
        reduce = sum(
            travel(REDUCE_SCATTER, count * at.software.wire_bytes, number, inside)
            + travel(ALL_REDUCE, count * at.software.wire_bytes / sharing, number, between)
            for count, number in zip(elements, messages)
        )

    def total(part):
        return sum(getattr(block, part) for block in blocks)

    return StageCost(
        *(total(part) for part in ("forward", "backward", "weight", "communication")),
        gather,
        reduce,
        len(units),
        sum(elements),
        sum(messages),
        sum(gathered),
    )


def _bytes_gathered(units: StageUnits, at: Setting) -> list[float]:
    """Return the bytes of the parameters of each unit on their way."""
    return [
        sum(
            at.shape.block_elements(block, at.tensor) * at.software.bytes_gathered(block)
            for block in unit
        )
        for unit in units
    ]


def reduces_each(kept: Policy, software: Software) -> bool:
    """Return whether each micro-batch reduces its gradients: there is no room for whole ones."""
    return kept.gradients is SHARD and not software.sums_in_tree


def data_seconds(
    at: Cluster, software: Software, operation: str, num_bytes: float, messages: int, group
) -> float:
    """Return the seconds of collectives over the data ranks of a group, of num_bytes together."""
    one = num_bytes / messages / software.link_share
    return messages * collective_seconds(at, operation, one, group)


def exposed_of(stage: StageCost, software: Software, contention: float) -> Exposed:
    """Return what a micro-batch's gathers and reductions add to the computing of a stage."""
    again = software.backward_gathers * stage.gather
    travel = again + stage.reduce
    if not travel:
        return Exposed()
    forward = stage.gather
    if software.overlaps_gathers:
        forward = exposed_seconds(stage.forward, forward, contention, forward / stage.units)
    beside = travel if software.overlaps_gathers else stage.reduce
    back = exposed_seconds(stage.backward + stage.weight, beside, contention) + travel - beside
    return Exposed(forward, back * again / travel, back * stage.reduce / travel)
