"""Seconds of a training step, and what takes them.

stage seconds (operations.py) -> pipeline (timeline.py) -> reduction over data ranks -> optimizer

Under hsdp, data ranks gather and reduce-scatter within their group, and the shards are all-reduced
between groups.

Where the program overlaps them, the parameters of the next unit travel while this one computes,
and gradients while backward goes on (overlap.py); both share a link. In the open are: the gather of
the first unit of each forward, the reduction of the last unit of a step, whatever the computing
beside does not cover, and what it loses to the collectives. Not overlapped: the sum of a tied
table's gradients, the norm of the gradients, and, unless the program does so, collectives of tensor
ranks.

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
from .operations import Setting
from .overlap import exposed_seconds, slowest_of
from .shape import Shape
from .software import Software
from .stage_cost import Exposed, StageCost, data_seconds, exposed_of, reduces_each, stage_cost
from .stages import order_ranks, recomputed_of_stages, stage_units
from .timeline import PipelineRun, StageSeconds

PARTS = {
    "compute": "computing",
    "tensor": "collectives of tensor ranks",
    "gathers": "gathering parameters",
    "transfers": "messages between stages",
    "bubble": "pipeline bubble",
    "reduction": "reducing gradients, spreading parameters",
    "update": "optimizer",
    "stragglers": "waiting for the slowest device",
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


def step_cost(
    layout: RunLayout,
    shape: Shape,
    software: Software,
    cluster: Cluster,
    *,
    is_exact: bool = True,
) -> StepCost:
    """Return the cost of a step; is_exact replays the schedule, else the closed form is used."""
    cluster = cluster.at_work(layout.devices, software.efficiency)
    stages, exposed = _stages(layout, shape, software, cluster)
    latency, busy = _transfer(layout, shape, software, cluster)
    seconds = _stage_seconds(stages, exposed, software, busy)
    run = PipelineRun(
        layout.schedule, layout.pipeline, layout.virtual, layout.micro_batches, seconds, latency
    )
    pipeline = run.replayed() if is_exact else run.estimated()
    pipeline = max(pipeline, _shared_cores(layout, seconds, latency + busy, cluster))
    parts = _parts(layout, stages, exposed, busy, pipeline)
    if _gathers_once(layout):
        parts["gathers"] = _gathered_once(stages, layout, software, cluster.device.contention)
        pipeline += parts["gathers"]
    reduction, parts["update"] = _end_of_step(layout, stages, shape, software, cluster)
    parts["reduction"] += reduction
    late = cluster.device.spread * slowest_of(layout.devices)
    late += cluster.crowded_by(layout.devices).lag
    parts["stragglers"] = pipeline * late
    return StepCost(
        pipeline + reduction + parts["update"] + parts["stragglers"],
        parts,
        seconds,
        latency,
        _checkpoint_seconds(layout, shape, software, cluster),
    )


def _stages(
    layout: RunLayout, shape: Shape, software: Software, cluster: Cluster
) -> tuple[list[StageCost], list[Exposed]]:
    """Return what each stage costs, and what of its communication is in the open."""
    setting = Setting(
        shape,
        software,
        cluster,
        layout.micro_batch,
        layout.tensor,
        layout.recomputation,
        layout.is_sequence_parallel,
        layout.cut,
    )
    units = stage_units(shape, software, layout.num_stages, layout.tensor)
    again = recomputed_of_stages(
        units, layout.schedule, layout.virtual, layout.recomputed, shape, software
    )
    data = RankGroup(layout.copies, layout.tensor)
    unlike = {}  # stages of the same units cost the same
    for stage, count in dict.fromkeys(zip(units, again)):
        cost = stage_cost(stage, setting, data, layout.sharing, layout.policy, count)
        in_the_open = exposed_of(cost, software, cluster.device.contention)
        unlike[stage, count] = cost, Exposed() if _gathers_once(layout) else in_the_open
    costs, exposed = zip(*(unlike[stage] for stage in zip(units, again)))
    return list(costs), list(exposed)


def _transfer(
    layout: RunLayout, shape: Shape, software: Software, cluster: Cluster
) -> tuple[float, float]:
    """Return the seconds of a message while ranks compute, and those that it keeps a rank busy."""
    if layout.pipeline == 1:
        return 0.0, 0.0
    num_bytes = boundary_bytes(shape, software, layout)
    seconds = collective_seconds(
        cluster, SEND, num_bytes, RankGroup(layout.pipeline, layout.copies * layout.tensor)
    )
    if software.scatters_transfers and not layout.is_sequence_parallel:
        whole = num_bytes * layout.tensor  # gathered again on the other side
        seconds += collective_seconds(cluster, ALL_GATHER, whole, RankGroup(layout.tensor, 1))
    return (seconds, 0.0) if software.overlaps_transfers else (0.0, seconds)


def _stage_seconds(
    stages: list[StageCost], exposed: list[Exposed], software: Software, busy: float
) -> StageSeconds:
    """Return the seconds of each action of a stage, with the gathers and messages in the open."""
    last = len(stages) - 1
    forward = []
    backward = []
    weight = []
    for number, (stage, more) in enumerate(zip(stages, exposed)):
        send_forward = busy if number < last else 0.0
        send_backward = busy if number else 0.0
        b, w = stage.backward, stage.weight
        if not software.splits_backward:
            b, w = b + w, 0.0
        forward.append(stage.forward + more.forward + send_forward)
        backward.append(b + more.backward + more.reduction + send_backward)
        weight.append(w)
    return StageSeconds(tuple(forward), tuple(backward), tuple(weight))


def _gathers_once(layout: RunLayout) -> bool:
    """Return whether each unit is gathered once for all forwards of a step and once for all
    backwards: see lowering.expand.
    """
    return layout.pipeline == 1 and ORDERS[layout.schedule].forwards_first


def _gathered_once(
    stages: list[StageCost], layout: RunLayout, software: Software, contention: float
) -> float:
    """Return the seconds that one gather for all forwards and one for all backwards add."""
    once = sum(stage.gather for stage in stages)
    gather = (1 + software.backward_gathers) * once
    if not software.overlaps_gathers or not gather:
        return gather
    compute = layout.micro_batches * sum(stage.compute for stage in stages)
    first = once / sum(stage.units for stage in stages)
    return exposed_seconds(compute, gather, contention, first, software.overlap)


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
        * layout.copies
        * layout.tensor
    )
    here = min(layout.devices, cluster.devices)
    neighbors = min(layout.pipeline - 1, 2)
    messages = layout.micro_batches * layout.virtual * neighbors
    return work / layout.devices * here / min(cluster.cores, here) + messages * message


def _end_of_step(
    layout: RunLayout, stages: list[StageCost], shape: Shape, software: Software, cluster: Cluster
) -> tuple[float, float]:
    """Return the seconds of reducing gradients and spreading parameters, and those of the
    optimizer, on the rank with the most parameters.
    """
    policy = POLICIES[layout.policy]
    data = RankGroup(layout.copies, layout.tensor)
    rank_of = order_ranks(layout.schedule, layout.pipeline, layout.virtual)
    elements = [0] * layout.pipeline
    messages = [0] * layout.pipeline
    for rank, stage in zip(rank_of, stages):
        elements[rank] += stage.elements
        messages[rank] += stage.messages
    most = max(range(layout.pipeline), key=lambda rank: elements[rank])
    count = elements[most]

    of_rank = [stage for rank, stage in zip(rank_of, stages) if rank == most]
    units = sum(stage.units for stage in of_rank)
    contention = cluster.device.contention
    reduction, spread, update = _ends_of_rank(
        count,
        messages[most],
        sum(stage.gather_bytes for stage in of_rank),
        data,
        layout.sharing,
        layout.policy,
        software,
        cluster,
    )
    if software.overlaps_gathers and policy.parameters is WHOLE and policy.state is SHARD:
        forward = sum(stage.forward for stage in of_rank)  # the first of the next step
        first = spread / units
        spread = exposed_seconds(forward, spread, contention, first, software.overlap)
    if not software.overlaps_reductions:
        reduction *= layout.micro_batches if reduces_each(policy, software) else 1
    elif reduces_each(policy, software):
        reduction /= units  # of the last unit; each backward has the others
    else:  # with the backward of the last micro-batch
        backward = sum(stage.backward + stage.weight for stage in of_rank)
        last = reduction / units
        reduction = exposed_seconds(backward, reduction, contention, last, software.overlap)
    if layout.pipeline > 1 and shape.tied:
        # the gradients of the embedding and the tied head are added
        table = shape.shared_elements / layout.tensor * software.wire_bytes
        ends = RankGroup(2, (layout.pipeline - 1) * layout.copies * layout.tensor)
        reduction += data_seconds(cluster, software, ALL_REDUCE, table, 1, ends)
    update += collective_seconds(cluster, ALL_REDUCE, 8, RankGroup(layout.pipeline, 1))
    return reduction + spread, update


@lru_cache(maxsize=65536)
def _ends_of_rank(
    count: int,
    messages: int,
    gather_bytes: float,
    data: RankGroup,
    sharing: int,
    policy_name: str,
    software: Software,
    cluster: Cluster,
) -> tuple[float, float, float]:
    """Return the seconds of reducing all gradients of a rank once, of spreading its parameters, and
    of its optimizer, with nothing beside them.

    count          of its parameters
    messages       that they travel in
    gather_bytes   of all of them on their way
    """
    policy = POLICIES[policy_name]
    inside, between = data.cut(sharing)

    def travel(operation, num_bytes, group=inside):
        return data_seconds(cluster, software, operation, num_bytes, messages, group)

    operation = ALL_REDUCE if policy.state is WHOLE else REDUCE_SCATTER
    reduction = travel(operation, count * software.wire_bytes)
    reduction += travel(ALL_REDUCE, count * software.wire_bytes / sharing, between)
    spread = 0.0
    is_once = not software.gathers(inside.size, inside.stride, cluster.sharing)
    if policy.state is SHARD and is_once:  # ranks wait until owners have written what all read
        spread = messages * collective_seconds(cluster, ALL_GATHER, inside.size, inside)
    elif policy.state is SHARD and policy.parameters is WHOLE:
        spread = travel(ALL_GATHER, gather_bytes)
        spread += messages * (inside.size - 1) * software.copying_seconds
    owned = count / (sharing if policy.state is SHARD else 1)
    agreed = 1 if software.gather_bytes is None else 2  # on the norm, on the scales of casts
    update = (
        cluster.device.pass_seconds(owned * software.update_bytes)
        + agreed * collective_seconds(cluster, ALL_REDUCE, 8, data)
        + messages * cluster.device.call_seconds
    )
    return reduction, spread, update


def _parts(
    layout: RunLayout, stages: list[StageCost], exposed: list[Exposed], busy: float, pipeline: float
) -> dict[str, float]:
    """Return the seconds of the pipeline by what an average rank does; the rest is the bubble."""
    times = layout.micro_batches / layout.pipeline
    tensor = times * sum(stage.tensor for stage in stages)
    work = times * sum(stage.compute for stage in stages)
    transfers = times * busy * 2 * (len(stages) - 1)
    gathers = times * sum(more.forward + more.backward for more in exposed)
    reduction = times * sum(more.reduction for more in exposed)
    bubble = pipeline - work - transfers - gathers - reduction
    return {
        "compute": work - tensor,
        "tensor": tensor,
        "gathers": gathers,
        "transfers": transfers,
        "bubble": bubble if bubble >= _ROUNDING * pipeline else 0.0,  # no rest of rounded sums
        "reduction": reduction,
    }


@lru_cache(maxsize=256)
def checkpoint_bytes(shape: Shape, software: Software) -> float:
    """Return the bytes of parameters and optimizer state in a checkpoint.

    Where parameters are halves, the state has their master weights.
    """
    kept = software.state_bytes + (software.parameter_bytes if software.parameter_bytes >= 4 else 0)
    return shape.parameter_count * kept


def _checkpoint_seconds(
    layout: RunLayout, shape: Shape, software: Software, cluster: Cluster
) -> float:
    speed = cluster.storage_speed(layout.devices)
    return checkpoint_bytes(shape, software) / speed if speed else 0.0
