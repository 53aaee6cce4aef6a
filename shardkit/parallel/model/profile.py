"""Where the time of a training step goes: measured on a sharded model, on every rank, part by part.

    products        matrix products
    kernels         the other inner loops of array/kernels.py
    optimizer       clipping and the update
    communication   inside verbs, once all ranks of the group have called them
    idle            waiting for another rank to call a verb, or for its message
    rest            outside of all timed calls: Python, and passes over arrays without a kernel

Steps are taken in pairs, one plain and one watched by a stopwatch (step/stopwatch.py). The watched
step of median length is reported, and its parts add up to it. In a collective, the time until the
last rank arrives is idle: ranks exchange their arrival times afterwards, by clocks that a barrier
has synchronized.
"""

import resource
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from ...array import kernels
from ...errors import ShardingError
from ..step.recorder import COMMUNICATION, STEP
from ..step.stopwatch import (
    MESSAGE_WAIT,
    OPTIMIZER,
    OWN,
    Product,
    Record,
    Stopwatch,
    overhead_per_call,
    watching,
)
from .sharded_model import ShardedModel, parts_of

PARTS = ("products", "kernels", "optimizer", "communication", "idle", "rest")
WARM_UP_STEPS = 2


@dataclass(frozen=True)
class StepProfile:
    """One rank's step.

    seconds          of the plain step, the median
    watched_seconds  of the step that the parts are of, without what the stopwatch itself took
    parts            {part: seconds}; they add up to watched_seconds, but for what calling the step
                     takes
    kernels          {name: (seconds, calls)}, wherever they were called
    products         {product: (seconds, calls)}
    sent_bytes       to other ranks in the watched step; sent_calls: of verbs that send
    peak_bytes       most memory that was ever resident in this process
    """

    seconds: float
    watched_seconds: float
    parts: dict[str, float]
    kernels: dict[str, tuple[float, int]]
    products: dict[Product, tuple[float, int]]
    sent_bytes: int
    sent_calls: int
    peak_bytes: int

    @property
    def product_flops(self) -> int:
        """Floating point operations of all matrix products of the step."""
        return sum(product.flops * calls for product, (_, calls) in self.products.items())


def profile_steps(model: ShardedModel, x, y, steps: int) -> list[StepProfile]:
    """Return the profile of each rank, the same list on all, from `steps` pairs of steps.

    Collective; the model is trained. Each rank must be a process of its own: kernels are timed in
    all its threads. Errors, on all ranks: ShardingError if the model is compiled.
    """
    _check_uncompiled(model)
    world = model.mesh.world
    plain = []
    records = []
    traffic = []
    stopwatch = Stopwatch(parts_of(model).engine.device)
    _warm_up(model, x, y)
    world.barrier()
    origin = stopwatch.now()
    for _ in range(steps):
        began = stopwatch.now()
        model.train(x, y)
        plain.append(stopwatch.now() - began)
        before = _traffic(model)
        records.append(_watched_step(model, x, y))
        traffic.append([after - first for first, after in zip(before, _traffic(model))])
    middle = _middle_step(world.all_gather_object([record.seconds for record in records]))
    idle = _idle_seconds(
        records[middle], world.all_gather_object(_begun(records[middle], origin)), origin
    )
    mine = _profile(
        records[middle],
        median(plain),
        idle,
        overhead_per_call(parts_of(model).engine.device),
        traffic[middle],
    )
    return world.all_gather_object(mine)


def least_parts(model: ShardedModel, x, y, steps: int) -> dict[str, float]:
    """Return {part: the fewest seconds that it took on this rank in any of `steps` steps}.

    Collective, as profile_steps is; idle time is not told from communication.
    """
    _check_uncompiled(model)
    overhead = overhead_per_call(parts_of(model).engine.device)
    _warm_up(model, x, y)
    records = [_watched_step(model, x, y) for _ in range(steps)]
    parts = [_profile(record, record.seconds, 0.0, overhead, (0, 0)).parts for record in records]
    return {part: min(of_step[part] for of_step in parts) for part in PARTS}


def _warm_up(model: ShardedModel, x, y) -> None:
    """Train until the model has chosen the program that it stays with."""
    for _ in range(WARM_UP_STEPS):
        model.train(x, y)
    while not parts_of(model).engine.overlap.is_settled:
        model.train(x, y)


def _check_uncompiled(model: ShardedModel):
    if parts_of(model).engine.compilation.is_on:
        raise ShardingError(
            "the model is compiled, and a replay does not go through the functions that are timed; "
            "profile one that is not (parallel.compile = false)"
        )


def _watched_step(model: ShardedModel, x, y) -> Record:
    engine = parts_of(model).engine
    stopwatch = Stopwatch(engine.device)
    with watching(stopwatch, engine.listening), stopwatch.span(OWN, STEP):
        model.train(x, y)
    return stopwatch.record


def _traffic(model: ShardedModel) -> tuple[int, int]:
    """Return the bytes sent and the calls made so far, over all groups."""
    mesh = model.mesh
    all_traffic = [
        mesh.world.traffic,
        *(group.traffic for axis in mesh.shape.order for group in mesh.carriers(axis)),
    ]
    return sum(t.bytes_sent for t in all_traffic), sum(sum(t.calls.values()) for t in all_traffic)


def _middle_step(seconds_of_ranks: list[list[float]]) -> int:
    """Return the step whose slowest rank is the median: the same one on all ranks."""
    slowest = [max(of_step) for of_step in zip(*seconds_of_ranks)]
    return sorted(range(len(slowest)), key=slowest.__getitem__)[len(slowest) // 2]


def _begun(record: Record, origin: float) -> dict:
    return {key: began - origin for key, began in record.begun.items()}


def _idle_seconds(record: Record, begun_of_ranks: list[dict], origin: float) -> float:
    """Return how long this rank was in collectives that another rank had not entered yet."""
    latest: dict = defaultdict(float)
    for begun in begun_of_ranks:
        for key, began in begun.items():
            latest[key] = max(latest[key], began)
    return sum(
        min(
            max(latest[wait.group, wait.number] - (wait.entered - origin), 0.0),
            wait.left - wait.entered,
        )
        for wait in record.waits
    )


def _profile(
    record: Record, plain_seconds: float, idle: float, overhead: float, traffic
) -> StepProfile:
    parts, of_calls = dict.fromkeys(PARTS, 0.0), defaultdict(lambda: (0.0, 0))
    for (region, call), (seconds, calls) in record.table.items():
        parts[_part(region, call)] += seconds
        of_calls[call] = of_calls[call][0] + seconds, of_calls[call][1] + calls
    spent_watching = min(overhead * record.num_calls, parts["rest"])
    idle = min(idle, parts["communication"])
    parts["rest"] -= spent_watching
    parts["communication"] -= idle
    parts["idle"] += idle
    return StepProfile(
        plain_seconds,
        record.seconds - spent_watching,
        parts,
        {call: figures for call, figures in of_calls.items() if call in kernels.__all__},
        {call: figures for call, figures in of_calls.items() if isinstance(call, Product)},
        *traffic,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _part(region, call) -> str:
    """Return the part that a call's own time belongs to."""
    if call == COMMUNICATION:
        return "communication"
    if call == MESSAGE_WAIT:
        return "idle"
    if region == OPTIMIZER:
        return "optimizer"
    if isinstance(call, Product):
        return "products"
    return "kernels" if call in kernels.__all__ else "rest"
