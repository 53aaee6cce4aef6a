"""Seconds of a training step, and what they are spent on.

stage seconds (operations.py) -> pipeline (timeline.py) -> reduction over data ranks -> optimizer

cost = step_cost(layout, shape, software, cluster)
cost.seconds, cost.parts["bubble"]
"""

from dataclasses import dataclass, field
from functools import lru_cache

from ..layout.policy import POLICIES, SHARD, WHOLE
from .activations import boundary_bytes
from .collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, SEND, Group, collective_seconds
from .hardware import Cluster
from .layouts import Layout
from .model import ModelShape
from .operations import Setting, block_seconds
from .software import Software
from .stages import StageUnits, stage_units
from .timeline import StageSeconds, estimated, order_ranks, replayed

PARTS = {
    "compute": "computing",
    "tensor": "collectives of tensor ranks",
    "gathers": "gathering parameters",
    "transfers": "messages between stages",
    "bubble": "pipeline bubble",
    "reduction": "reducing gradients, spreading parameters",
    "update": "optimizer",
}


@dataclass(frozen=True)
class StepCost:
    """Of one step.

    seconds            of the slowest rank
    parts              {part: seconds} of PARTS, an average rank's; they add up to `seconds`
    stages             seconds of each stage, and transfer_seconds of a message, as the timeline
                       takes them
    checkpoint_seconds to write parameters and optimizer state once; 0 where the hardware does not
    say
    """

    seconds: float
    parts: dict[str, float] = field(compare=False)
    stages: StageSeconds = field(compare=False, repr=False)
    transfer_seconds: float = 0.0
    checkpoint_seconds: float = 0.0


@dataclass(frozen=True)
class _Stage:
    """Seconds of a stage and micro-batch; `gather` is that of all its parameters, once."""

    forward: float
    backward: float
    weight: float
    tensor: float
    gather: float
    elements: int
    messages: int


def step_cost(
    layout: Layout,
    shape: ModelShape,
    software: Software,
    cluster: Cluster,
    *,
    is_exact: bool = True,
) -> StepCost:
    """The cost of a step. is_exact: replay the schedule; else take the closed form, for a
    search.
    """
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
    data = Group(layout.data, layout.tensor)
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
        pipeline += (
            2
            * sum(stage.gather for stage in stages)
            * (1 - _hidden(software.overlaps_gathers, stages, layout))
        )
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
def _stage(units: StageUnits, at: Setting, data: Group, policy: str) -> _Stage:
    """The sum of a stage's blocks."""
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
    at: Setting, operation: str, num_bytes: float, messages: int, group: Group
) -> float:
    return messages * collective_seconds(at.cluster, operation, num_bytes / messages, group)


def _transfer(
    layout: Layout, shape: ModelShape, software: Software, cluster: Cluster
) -> tuple[float, float]:
    """(seconds that a message is on its way while ranks compute, seconds that it keeps a rank
    busy).
    """
    if layout.pipeline == 1:
        return 0.0, 0.0
    num_bytes = boundary_bytes(shape, software, layout)
    seconds = collective_seconds(
        cluster, SEND, num_bytes, Group(layout.pipeline, layout.data * layout.tensor)
    )
    if (
        software.scatters_transfers and not layout.is_sequence_parallel
    ):  # put together again on the other side
        seconds += collective_seconds(
            cluster, ALL_GATHER, num_bytes * layout.tensor, Group(layout.tensor, 1)
        )
    return (seconds, 0.0) if software.overlaps_transfers else (0.0, seconds)


def _stage_seconds(
    stages: list[_Stage], layout: Layout, software: Software, busy: float, gathers_once: bool
) -> StageSeconds:
    """What each action of a stage takes, gathers and messages that nothing hides included."""
    last = len(stages) - 1
    forward, backward, weight = [], [], []
    for number, stage in enumerate(stages):
        gather = 0.0 if gathers_once else stage.gather
        sends = (busy if number < last else 0.0), (busy if number else 0.0)
        forward.append(_beside(stage.forward, gather, software.overlaps_gathers) + sends[0])
        b, w = (
            (stage.backward, stage.weight)
            if software.splits_backward
            else (stage.backward + stage.weight, 0.0)
        )
        backward.append(_beside(b, gather, software.overlaps_gathers) + sends[1])
        weight.append(w)
    return StageSeconds(tuple(forward), tuple(backward), tuple(weight))


def _beside(compute: float, gather: float, overlaps: bool) -> float:
    return max(compute, gather) if overlaps else compute + gather


def _gathers_once(layout: Layout) -> bool:
    """True if each unit is gathered once for all forwards and once for all backwards of a step: see
    lowering.expand.
    """
    return layout.pipeline == 1 and layout.schedule == "gpipe"


def _hidden(overlaps: bool, stages: list[_Stage], layout: Layout) -> float:
    """The fraction of gathers that the computing of all micro-batches hides."""
    gather = 2 * sum(stage.gather for stage in stages)
    compute = layout.micro_batches * sum(
        stage.forward + stage.backward + stage.weight for stage in stages
    )
    return min(compute / gather, 1.0) if overlaps and gather else 0.0


def _shared_cores(layout: Layout, seconds: StageSeconds, message: float, cluster: Cluster) -> float:
    """Where there are more ranks than cores: the work of all ranks by the cores, and the messages
    that a rank waits for.
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
    messages = (
        layout.micro_batches * layout.virtual * min(layout.pipeline - 1, 2)
    )  # in the midst of it from both sides
    return work / layout.devices * here / min(cluster.cores, here) + messages * message


def _end_of_step(
    layout: Layout, stages: list[_Stage], shape: ModelShape, software: Software, cluster: Cluster
) -> tuple[float, float]:
    """(seconds of reducing gradients and spreading parameters, seconds of the optimizer) of the
    rank with the most.
    """
    policy, data = POLICIES[layout.policy], Group(layout.data, layout.tensor)
    rank_of = order_ranks(layout.schedule, layout.pipeline, layout.virtual)
    elements, messages = [0] * layout.pipeline, [0] * layout.pipeline
    for rank, stage in zip(rank_of, stages):
        elements[rank] += stage.elements
        messages[rank] += stage.messages
    most = max(range(layout.pipeline), key=lambda rank: elements[rank])
    count = elements[most]

    def travel(operation, item_bytes):
        return messages[most] * collective_seconds(
            cluster, operation, count * item_bytes / messages[most], data
        )

    if policy.state is WHOLE:
        reduction = travel(ALL_REDUCE, software.wire_bytes)
        spread = 0.0
    else:
        reduction = travel(REDUCE_SCATTER, software.wire_bytes)
        spread = (
            travel(ALL_GATHER, software.parameter_bytes)
            if policy.parameters is WHOLE
            else _meetings(messages[most], software, data, cluster)
        )
    times = 1 if software.sums_in_tree or policy.gradients is WHOLE else layout.micro_batches
    reduction *= times  # there is no room for whole gradients to wait for the last micro-batch
    if software.overlaps_reductions:  # with the backward of that micro-batch
        of_rank = [stage for rank, stage in zip(rank_of, stages) if rank == most]
        reduction = max(
            0.0, reduction - times * sum(stage.backward + stage.weight for stage in of_rank)
        )
    if shape.layers and layout.pipeline > 1 and (shape.tied or software.cuts_evenly):
        table = (
            shape.vocabulary * shape.width / layout.tensor * software.wire_bytes
        )  # embedding and tied head, added up
        reduction += collective_seconds(
            cluster,
            ALL_REDUCE,
            table,
            Group(2, (layout.pipeline - 1) * layout.data * layout.tensor),
        )
    owned = count / (layout.data if policy.state is SHARD else 1)
    clip = sum(
        collective_seconds(cluster, ALL_REDUCE, 8, group)
        for group in (data, Group(layout.pipeline, 1))
    )
    update = (
        cluster.device.pass_seconds(owned * software.update_bytes)
        + clip
        + messages[most] * cluster.device.call_seconds
    )
    return reduction + spread, update


def _meetings(number: int, software: Software, data: Group, cluster: Cluster) -> float:
    """Seconds until owners have written so many parameters that a node has once; 0 where each
    gather waits for its own.
    """
    if software.gathers(data.size, data.stride, cluster.sharing):
        return 0.0
    return number * collective_seconds(cluster, ALL_GATHER, data.size, data)


def _parts(
    layout: Layout, stages: list[_Stage], busy: float, pipeline: float, gathers_once: bool
) -> dict[str, float]:
    """The seconds of the pipeline by what an average rank does in them; what is left is the
    bubble.
    """
    times = layout.micro_batches / layout.pipeline
    tensor = times * sum(stage.tensor for stage in stages)
    compute = (
        times * sum(stage.forward + stage.backward + stage.weight for stage in stages) - tensor
    )
    transfers = times * busy * 2 * (len(stages) - 1)
    gathers = sum(stage.gather for stage in stages) * 2 * (1 if gathers_once else times)
    gathers = max(0.0, min(gathers, pipeline - compute - tensor - transfers))
    return {
        "compute": compute,
        "tensor": tensor,
        "gathers": gathers,
        "transfers": transfers,
        "bubble": pipeline - compute - tensor - transfers - gathers,
    }


def checkpoint_bytes(shape: ModelShape, software: Software) -> float:
    """Of parameters and optimizer state in a checkpoint; where parameters are halves, the state has
    their masters.
    """
    kept = software.state_bytes + (software.parameter_bytes if software.parameter_bytes >= 4 else 0)
    return shape.parameter_count * kept


def _checkpoint_seconds(shape: ModelShape, software: Software, cluster: Cluster) -> float:
    if not cluster.storage_bytes_per_second:
        return 0.0
    return checkpoint_bytes(shape, software) / cluster.storage_bytes_per_second
