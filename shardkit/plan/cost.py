"""Seconds of a training step, and what takes them.

stage seconds (operations.py) -> pipeline (timeline.py) -> reduction over data ranks -> optimizer

cost = step_cost(layout, shape, software, cluster)
cost.seconds, cost.parts["bubble"]
"""

from dataclasses import dataclass, field
from functools import lru_cache

from ..layout.policy import POLICIES, SHARD, WHOLE
from ..schedule.catalog import ORDERS
from .activations import boundary_bytes
from .collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, SEND, RankGroup, collective_seconds
from .hardware import Cluster
from .layouts import RunLayout
from .operations import Setting, block_seconds
from .shape import Shape
from .software import Software
from .stages import StageUnits, order_ranks, stage_units
from .timeline import StageSeconds, estimated, replayed

PARTS = {
    "compute": "computing",
    "tensor": "collectives of tensor ranks",
    "gathers": "gathering parameters",
    "transfers": "messages between stages",
    "bubble": "pipeline bubble",
    "reduction": "reducing gradients, spreading parameters",
    "update": "optimizer",
}
_ROUNDING = 1e-12  # of the pipeline's seconds: a shorter rest of its sum is no bubble


@dataclass(frozen=True)
class StepCost:
    """Seconds of one step.

    seconds             of the slowest rank
    parts               {part: seconds} of PARTS for an average rank; they add up to `seconds`
    stages              seconds of each stage for the timeline
    transfer_seconds    of a message for the timeline
    checkpoint_seconds  to write parameters and optimizer state once; 0 if the hardware has no value
    """

    seconds: float
    parts: dict[str, float] = field(compare=False)
    stages: StageSeconds = field(compare=False, repr=False)
    transfer_seconds: float = 0.0
    checkpoint_seconds: float = 0.0


@dataclass(frozen=True)
class _Stage:
    """Seconds of a stage and micro-batch; `gather` gathers all its parameters once."""

    forward: float
    backward: float
    weight: float
    tensor: float
    gather: float
    elements: int
    messages: int


def step_cost(
    layout: RunLayout,
    shape: Shape,
    software: Software,
    cluster: Cluster,
    *,
    is_exact: bool = True,
) -> StepCost:
    """Return the cost of a step; is_exact replays the schedule, else the closed form is used."""
    units = stage_units(shape, software, layout.num_stages, layout.tensor)
    setting = Setting(
        shape,
        software,
        cluster,
        layout.micro_batch,
        layout.tensor,
        layout.recomputation,
        layout.is_sequence_parallel,
    )
    data = RankGroup(layout.data, layout.tensor)
    unlike = {stage: _stage(stage, setting, data, layout.policy) for stage in dict.fromkeys(units)}
    stages = [unlike[stage] for stage in units]
    latency, busy = _transfer(layout, shape, software, cluster)
    once = _gathers_once(layout)
    seconds = _stage_seconds(stages, layout, software, busy, once)
    run = replayed if is_exact else estimated
    pipeline = run(
        layout.schedule, layout.pipeline, layout.virtual, layout.micro_batches, seconds, latency
    )
    pipeline = max(pipeline, _shared_cores(layout, seconds, latency + busy, cluster))
    if once:
        visible = 1 - _hidden(software.overlaps_gathers, stages, layout)
        pipeline += 2 * sum(stage.gather for stage in stages) * visible
    reduction, update = _end_of_step(layout, stages, shape, software, cluster)
    parts = _parts(layout, stages, busy, pipeline, once)
    parts |= {"reduction": reduction, "update": update}
    return StepCost(
        pipeline + reduction + update,
        parts,
        seconds,
        latency,
        _checkpoint_seconds(shape, software, cluster),
    )


@lru_cache(maxsize=65536)
def _stage(units: StageUnits, at: Setting, data: RankGroup, policy: str) -> _Stage:
    """Sum the blocks of a stage."""
    blocks = [block_seconds(block, at) for unit in units for block in unit]
    elements = [sum(at.shape.block_elements(block, at.tensor) for block in unit) for unit in units]
    messages = [
        sum(at.software.messages_per_layer if block == "layer" else 1 for block in unit)
        for unit in units
    ]
    gather = 0.0
    if POLICIES[policy].parameters is SHARD and at.software.gathers(
        data.size, data.stride, at.cluster.sharing
    ):
        gather = sum(
            _in_messages(at, ALL_GATHER, count * at.software.parameter_bytes, number, data)
            for count, number in zip(elements, messages)
        )

    def total(part):
        return sum(getattr(block, part) for block in blocks)

    return _Stage(
        *(total(part) for part in ("forward", "backward", "weight", "communication")),
        gather,
        sum(elements),
        sum(messages),
    )


def _in_messages(
    at: Setting, operation: str, num_bytes: float, messages: int, group: RankGroup
) -> float:
    return messages * collective_seconds(at.cluster, operation, num_bytes / messages, group)


def _transfer(
    layout: RunLayout, shape: Shape, software: Software, cluster: Cluster
) -> tuple[float, float]:
    """Return the seconds of a message while ranks compute, and those that it keeps a rank busy."""
    if layout.pipeline == 1:
        return 0.0, 0.0
    num_bytes = boundary_bytes(shape, software, layout)
    seconds = collective_seconds(
        cluster, SEND, num_bytes, RankGroup(layout.pipeline, layout.data * layout.tensor)
    )
    if software.scatters_transfers and not layout.is_sequence_parallel:
        whole = num_bytes * layout.tensor  # gathered again on the other side
        seconds += collective_seconds(cluster, ALL_GATHER, whole, RankGroup(layout.tensor, 1))
    return (seconds, 0.0) if software.overlaps_transfers else (0.0, seconds)


def _stage_seconds(
    stages: list[_Stage], layout: RunLayout, software: Software, busy: float, gathers_once: bool
) -> StageSeconds:
    """Return the seconds of each action of a stage, with the gathers and messages in the open."""
    last = len(stages) - 1
    forward = []
    backward = []
    weight = []
    for number, stage in enumerate(stages):
        gather = 0.0 if gathers_once else stage.gather
        send_forward = busy if number < last else 0.0
        send_backward = busy if number else 0.0
        b, w = stage.backward, stage.weight
        if not software.splits_backward:
            b, w = b + w, 0.0
        forward.append(_beside(stage.forward, gather, software.overlaps_gathers) + send_forward)
        backward.append(_beside(b, gather, software.overlaps_gathers) + send_backward)
        weight.append(w)
    return StageSeconds(tuple(forward), tuple(backward), tuple(weight))


def _beside(compute: float, gather: float, overlaps: bool) -> float:
    return max(compute, gather) if overlaps else compute + gather


def _gathers_once(layout: RunLayout) -> bool:
    """Return whether each unit is gathered once for all forwards of a step and once for all
    backwards: see lowering.expand.
    """
    return layout.pipeline == 1 and ORDERS[layout.schedule].forwards_first


def _hidden(overlaps: bool, stages: list[_Stage], layout: RunLayout) -> float:
    """Return the fraction of gathers that the compute of all micro-batches hides."""
    gather = 2 * sum(stage.gather for stage in stages)
    compute = layout.micro_batches * sum(
        stage.forward + stage.backward + stage.weight for stage in stages
    )
    return min(compute / gather, 1.0) if overlaps and gather else 0.0


def _shared_cores(
    layout: RunLayout, seconds: StageSeconds, message: float, cluster: Cluster
) -> float:
    """Return the work of all ranks on too few cores, with the messages that a rank waits for; 0 if
    each rank has a core.
    """
    if not cluster.cores or cluster.devices <= cluster.cores:
        return 0.0
    work = (
        layout.micro_batches
        * sum(map(seconds.total, range(len(seconds.forward))))
        * layout.data
        * layout.tensor
    )
    here = min(layout.devices, cluster.devices)
    neighbors = min(layout.pipeline - 1, 2)
    messages = layout.micro_batches * layout.virtual * neighbors
    return work / layout.devices * here / min(cluster.cores, here) + messages * message


def _end_of_step(
    layout: RunLayout, stages: list[_Stage], shape: Shape, software: Software, cluster: Cluster
) -> tuple[float, float]:
    """Return the seconds of reducing gradients and spreading parameters, and those of the
    optimizer, on the rank with the most parameters.
    """
    policy = POLICIES[layout.policy]
    data = RankGroup(layout.data, layout.tensor)
    rank_of = order_ranks(layout.schedule, layout.pipeline, layout.virtual)
    elements = [0] * layout.pipeline
    messages = [0] * layout.pipeline
    for rank, stage in zip(rank_of, stages):
        elements[rank] += stage.elements
        messages[rank] += stage.messages
    most = max(range(layout.pipeline), key=lambda rank: elements[rank])
    count = elements[most]

    def travel(operation, item_bytes):
        num_bytes = count * item_bytes / messages[most]
        return messages[most] * collective_seconds(cluster, operation, num_bytes, data)

    spread = 0.0
    if policy.state is WHOLE:
        reduction = travel(ALL_REDUCE, software.wire_bytes)
    else:
        reduction = travel(REDUCE_SCATTER, software.wire_bytes)
        if policy.parameters is SHARD:
            spread = _meetings(messages[most], software, data, cluster)
        else:
            spread = travel(ALL_GATHER, software.parameter_bytes)
    times = 1 if software.sums_in_tree or policy.gradients is WHOLE else layout.micro_batches
    reduction *= times  # there is no room for whole gradients to wait for the last micro-batch
    if software.overlaps_reductions:  # with the backward of that micro-batch
        of_rank = [stage for rank, stage in zip(rank_of, stages) if rank == most]
        hidden = times * sum(stage.backward + stage.weight for stage in of_rank)
        reduction = max(0.0, reduction - hidden)
    if layout.pipeline > 1 and (shape.tied or software.cuts_evenly):
        # the gradients of the embedding and the tied head are added
        table = shape.shared_elements / layout.tensor * software.wire_bytes
        ends = RankGroup(2, (layout.pipeline - 1) * layout.data * layout.tensor)
        reduction += collective_seconds(cluster, ALL_REDUCE, table, ends)
    owned = count / (layout.data if policy.state is SHARD else 1)
    update = (
        cluster.device.pass_seconds(owned * software.update_bytes)
        + collective_seconds(cluster, ALL_REDUCE, 8, data)
        + collective_seconds(cluster, ALL_REDUCE, 8, RankGroup(layout.pipeline, 1))
        + messages[most] * cluster.device.call_seconds
    )
    return reduction + spread, update


def _meetings(number: int, software: Software, data: RankGroup, cluster: Cluster) -> float:
    """Return the seconds until owners have written the parameters that a node has once; 0 if each
    gather waits for its own.
    """
    if software.gathers(data.size, data.stride, cluster.sharing):
        return 0.0
    return number * collective_seconds(cluster, ALL_GATHER, data.size, data)


def _parts(
    layout: RunLayout, stages: list[_Stage], busy: float, pipeline: float, gathers_once: bool
) -> dict[str, float]:
    """Return the seconds of the pipeline by what an average rank does; the rest is the bubble."""
    times = layout.micro_batches / layout.pipeline
    tensor = times * sum(stage.tensor for stage in stages)
    work = times * sum(stage.forward + stage.backward + stage.weight for stage in stages)
    transfers = times * busy * 2 * (len(stages) - 1)
    gathers = sum(stage.gather for stage in stages) * 2 * (1 if gathers_once else times)
    idle = pipeline - work - transfers
    if idle < _ROUNDING * pipeline:  # what is left of nearly equal sums
        idle = 0.0
    gathers = min(gathers, idle)
    bubble = idle - gathers
    return {
        "compute": work - tensor,
        "tensor": tensor,
        "gathers": gathers,
        "transfers": transfers,
        "bubble": bubble if bubble >= _ROUNDING * pipeline else 0.0,
    }


def checkpoint_bytes(shape: Shape, software: Software) -> float:
    """Return the bytes of parameters and optimizer state in a checkpoint.

    Where parameters are halves, the state has their master weights.
    """
    kept = software.state_bytes + (software.parameter_bytes if software.parameter_bytes >= 4 else 0)
    return shape.parameter_count * kept


def _checkpoint_seconds(shape: Shape, software: Software, cluster: Cluster) -> float:
    if not cluster.storage_bytes_per_second:
        return 0.0
    return checkpoint_bytes(shape, software) / cluster.storage_bytes_per_second
