"""Seconds of a stage and micro-batch: its computing, its collectives over data ranks, and what of
those is in the open.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from ..layout.policy import POLICIES, SHARD, Policy
from .collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, RankGroup, collective_seconds
from .hardware import Cluster
from .operations import Setting, block_seconds, cast_seconds
from .overlap import exposed_seconds
from .shape import Shape
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


def stage_cost(
    units: StageUnits, at: Setting, data: RankGroup, sharing: int, policy: str, again: int
) -> StageCost:
    """Sum the blocks of a stage, whose first `again` are run again in the backward.

    sharing   of the data ranks share one copy
    """
    travel = _travel_seconds(
        units, at.shape, at.software, at.cluster, at.tensor, data, sharing, policy
    )
    return StageCost(*_compute_seconds(units, at, again), *travel)


@lru_cache(maxsize=65536)
def _compute_seconds(units: StageUnits, at: Setting, again: int) -> tuple[float, ...]:
    """Return the seconds of forward, of backward, of weight gradients, and of collectives of tensor
    ranks among them.
    """
    once = replace(at, recomputation="none") if at.recomputation == "full" else at
    marked = marked_blocks(units, again, at.shape, at.software)
    blocks = [
        block_seconds(block, at if twice else once) for unit in marked for block, twice in unit
    ]
    forward, backward, weight, communication = (
        sum(getattr(block, part) for block in blocks)
        for part in ("forward", "backward", "weight", "communication")
    )
    around = len(units) * at.cluster.device.unit_seconds / 3
    return forward + around, backward + around, weight + around, communication


@lru_cache(maxsize=65536)
def _travel_seconds(
    units: StageUnits,
    shape: Shape,
    software: Software,
    cluster: Cluster,
    tensor: int,
    data: RankGroup,
    sharing: int,
    policy: str,
) -> tuple:
    """Return the fields of StageCost from `gather` on; none of them depends on the micro-batch."""
    inside, between = data.cut(sharing)
    elements = [sum(shape.block_elements(block, tensor) for block in unit) for unit in units]
    messages = [
        sum(software.messages_per_layer if block == "layer" else 1 for block in unit)
        for unit in units
    ]

    def travel(operation, num_bytes, number, group):
        return data_seconds(cluster, software, operation, num_bytes, number, group)

    gather = reduce = 0.0
    gathered = _bytes_gathered(units, shape, software, tensor)
    kept = POLICIES[policy]
    if kept.parameters is SHARD and software.gathers(sharing, data.stride, cluster.sharing):
        gather = sum(
            travel(ALL_GATHER, num_bytes, number, inside)
            for num_bytes, number in zip(gathered, messages)
        )
        if software.gather_bytes is not None:
            gather += cast_seconds(cluster, software, sum(elements) / sharing)
    if reduces_each(kept, software) and software.overlaps_reductions:
        reduce = sum(
            travel(REDUCE_SCATTER, count * software.wire_bytes, number, inside)
            + travel(ALL_REDUCE, count * software.wire_bytes / sharing, number, between)
            for count, number in zip(elements, messages)
        )
    return gather, reduce, len(units), sum(elements), sum(messages), sum(gathered)


def _bytes_gathered(
    units: StageUnits, shape: Shape, software: Software, tensor: int
) -> list[float]:
    """Return the bytes of the parameters of each unit on their way."""
    return [
        sum(shape.block_elements(block, tensor) * software.bytes_gathered(block) for block in unit)
        for unit in units
    ]


def reduces_each(kept: Policy, software: Software) -> bool:
    """Return whether each micro-batch reduces its gradients: there is no room for whole ones."""
    return kept.gradients is SHARD and not software.sums_in_tree


def data_seconds(
    at: Cluster, software: Software, operation: str, num_bytes: float, messages: int, group
) -> float:
    """Return the seconds of collectives over the data ranks of a group, of num_bytes together."""
    share = software.link_share
    nodes = group.size / group.on_node(at)
    if software.ring_nodes and nodes > software.ring_nodes:
        share *= software.ring_nodes / nodes
    one = num_bytes / messages / share
    return messages * collective_seconds(at, operation, one, group)


def exposed_of(stage: StageCost, software: Software, contention: float) -> Exposed:
    """Return what a micro-batch's gathers and reductions add to the computing of a stage."""
    again = software.backward_gathers * stage.gather
    travel = again + stage.reduce
    if not travel:
        return Exposed()
    forward = stage.gather
    if software.overlaps_gathers:
        first = forward / stage.units
        forward = exposed_seconds(stage.forward, forward, contention, first, software.overlap)
    beside = travel if software.overlaps_gathers else stage.reduce
    compute = stage.backward + stage.weight
    back = exposed_seconds(compute, beside, contention, 0.0, software.overlap) + travel - beside
    return Exposed(forward, back * again / travel, back * stage.reduce / travel)
