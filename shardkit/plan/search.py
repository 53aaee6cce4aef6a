"""Search: all layouts of a model on a number of devices, the ones that fit ranked by the time of a
step.

    found = search(shape, SHARDKIT, read_cluster("cpu-node"), devices=512, batch=1536)
    found.best.layout, found.best.cost.seconds, found.best.memory.total
    found.rows(8)                       the best layout of each of the 8 best meshes

    all layouts -> what the program refuses -> state alone too large -> no memory -> ranked by a
    closed form
                                                                                -> the first few
                                                                                replayed, and ranked
                                                                                again

Recomputation is only looked at where a layout does not fit without it: it saves memory and costs
time.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ..layout.policy import POLICIES
from ..schedule import ORDERS
from .cost import PARTS, StepCost, step_cost
from .hardware import Cluster
from .layouts import RECOMPUTATIONS, Layout, why_not
from .memory import Memory, memory_of
from .model import ModelShape
from .software import Software

_REPLAYED = 16  # layouts whose schedules are replayed
_MOST_VIRTUAL = 8
_LARGEST_TENSOR = 64
_GROWTH = (2, 4, 8, 16, 32, 64)  # times the devices, looked at when nothing fits
WORDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "gathered": "gathered parameters",
    "in_flight": "gradients until they are reduced",
    "activations": "activations",
    "buffers": "buffers of messages",
}


@dataclass(frozen=True)
class Candidate:
    """A layout, what it takes, and how long."""

    layout: Layout
    memory: Memory
    cost: StepCost
    limit_bytes: float

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.limit_bytes


@dataclass(frozen=True)
class Search:
    """What was found.

    fitting     that fit, the quickest first
    too_large   that would be quicker than the best if they fitted, or all if nothing fits; the one
                that needs least first
    refused     {why: how many} of layouts that the program does not take
    considered  how many layouts were looked at
    """

    shape: ModelShape
    software: Software
    cluster: Cluster
    devices: int
    batch: int
    fitting: tuple[Candidate, ...]
    too_large: tuple[Candidate, ...]
    refused: dict[str, int] = field(compare=False)
    considered: int = 0

    @property
    def best(self) -> Candidate | None:
        """The quickest that fits."""
        return self.fitting[0] if self.fitting else None

    def rows(self, count: int) -> list[Candidate]:
        """The best layout of each mesh, the quickest meshes first."""
        of_mesh = {}
        for candidate in self.fitting:
            of_mesh.setdefault(candidate.layout.mesh, candidate)
        return list(of_mesh.values())[:count]

    def why_it_lost(self, candidate: Candidate) -> str:
        """Against the best: what it spends more time on, or that it does not fit."""
        if not candidate.fits:
            return _shortage(candidate)
        if candidate is self.best:
            return "best"
        ours, theirs = self.best.cost.parts, candidate.cost.parts
        more = max(PARTS, key=lambda part: theirs[part] - ours[part])
        return f"+{theirs[more] - ours[more]:.3g} s {PARTS[more]}"

    def what_would_fit(self) -> list[str]:
        """Where nothing fits: how far it is from fitting, and what would change that. Empty if
        something fits.
        """
        if self.fitting:
            return []
        if not self.too_large:
            reasons = "; ".join(
                f"{count} x {reason}" for reason, count in Counter(self.refused).most_common(3)
            )
            return [f"{self.software.name} refuses all {self.considered} layouts: {reasons}"]
        least = self.too_large[0]
        lines = [f"the layout that needs least, {least.layout}, does not fit: {_shortage(least)}"]
        lines.append(f"a device with {least.memory.total / 1e9:.3g} GB would hold it")
        for factor in _GROWTH:
            layout = _least_memory(
                self.shape, self.software, self.cluster, self.devices * factor, self.batch
            )
            if layout is None:
                continue
            if (
                memory_of(layout, self.shape, self.software, self.cluster.sharing).total
                <= least.limit_bytes
            ):
                lines.append(f"{self.devices * factor} devices would: {layout}")
                break
        else:
            lines.append(
                f"more devices, up to {_GROWTH[-1]} times as many, would not help: a smaller model, or shorter "
                "sequences, would"
            )
        return lines


def search(
    shape: ModelShape,
    software: Software,
    cluster: Cluster,
    devices: int,
    batch: int,
    micro_batch: int | None = None,
) -> Search:
    """All layouts on so many devices, for a global batch of so many sequences.

    micro_batch   only layouts with micro-batches of so many sequences; None: all that divide the
                  batch
    """
    limit, refused, candidates, considered = cluster.device.memory_bytes, Counter(), [], 0
    for layout in _layouts(shape, software, cluster, devices, batch, micro_batch):
        considered += 1
        reason = why_not(layout, shape, software)
        if reason is not None:
            refused[reason] += 1
            continue
        chosen, memory = _with_recomputation(layout, shape, software, limit, cluster.sharing)
        candidates.append((chosen, memory))
    fitting = _ranked(
        [(layout, memory) for layout, memory in candidates if memory.total <= limit],
        shape,
        software,
        cluster,
    )
    rest = sorted(
        ((layout, memory) for layout, memory in candidates if memory.total > limit),
        key=lambda c: c[1].total,
    )
    too_large = tuple(
        Candidate(
            layout, memory, step_cost(layout, shape, software, cluster, is_exact=False), limit
        )
        for layout, memory in rest[:_REPLAYED]
    )
    return Search(
        shape, software, cluster, devices, batch, fitting, too_large, dict(refused), considered
    )


def _ranked(fitting: list, shape, software, cluster) -> tuple[Candidate, ...]:
    """By the closed form; then the first few, and the first of each of the first meshes, by a
    replay.
    """
    limit = cluster.device.memory_bytes
    quick = sorted(
        (
            Candidate(
                layout, memory, step_cost(layout, shape, software, cluster, is_exact=False), limit
            )
            for layout, memory in fitting
        ),
        key=_rank,
    )
    firsts = {}
    for candidate in quick:
        firsts.setdefault(candidate.layout.mesh, candidate)
    close = list(dict.fromkeys([*quick[:_REPLAYED], *list(firsts.values())[:_REPLAYED]]))
    exact = [replace(c, cost=step_cost(c.layout, shape, software, cluster)) for c in close]
    return tuple(sorted(exact, key=_rank)) + tuple(c for c in quick if c not in set(close))


def _rank(candidate: Candidate):
    """By time; of layouts that take equally long the one that needs less memory, and then the
    plainer.
    """
    layout = candidate.layout
    return (
        round(candidate.cost.seconds, 9),
        round(candidate.memory.total),
        layout.pipeline,
        layout.tensor,
        layout.virtual,
        list(POLICIES).index(layout.policy),
    )


def _with_recomputation(layout: Layout, shape, software, limit, sharing) -> tuple[Layout, Memory]:
    """The layout with as little recomputation as fits, or with the most."""
    for recomputation in (r for r in RECOMPUTATIONS if r in software.recomputations):
        chosen = replace(layout, recomputation=recomputation)
        memory = memory_of(chosen, shape, software, sharing)
        if memory.total <= limit:
            break
    return chosen, memory


def _least_memory(shape, software, cluster, devices, batch) -> Layout | None:
    """The layout that needs least."""
    most = software.recomputations[-1]
    allowed = [
        layout
        for layout in _layouts(shape, software, cluster, devices, batch, 1)
        if why_not(layout, shape, software) is None
    ]
    return min(
        (replace(layout, recomputation=most) for layout in allowed),
        key=lambda layout: memory_of(layout, shape, software, cluster.sharing).total,
        default=None,
    )


def _shortage(candidate: Candidate) -> str:
    """How much it lacks, and where most of it goes."""
    memory = candidate.memory
    largest = max(WORDS, key=lambda part: getattr(memory, part))
    return (
        f"{memory.total / 1e9:.3g} GB per device, {candidate.limit_bytes / 1e9:.3g} are there; "
        f"{getattr(memory, largest) / 1e9:.3g} GB are {WORDS[largest]}"
    )


# ---- all layouts ---------------------------------------------------------------------------------


def _layouts(shape, software, cluster, devices, batch, micro_batch) -> Iterator[Layout]:
    """Every layout whose sizes multiply to the devices and divide the batch, without
    recomputation.
    """
    for tensor in divisors(devices):
        if tensor > min(cluster.devices, _LARGEST_TENSOR):
            break  # a region that leaves the node waits for the network in every layer
        for pipeline in divisors(devices // tensor):
            data = devices // tensor // pipeline
            if batch % data or pipeline > shape.layers + 2:
                continue
            for size in divisors(batch // data) if micro_batch is None else (micro_batch,):
                if batch // data % size == 0:
                    yield from _choices(
                        software, shape, pipeline, data, tensor, size, batch // data // size
                    )


def _choices(
    software, shape, pipeline, data, tensor, micro_batch, micro_batches
) -> Iterator[Layout]:
    policies = software.policies if data > 1 else software.policies[:1]
    for schedule, virtual in _schedules(software, shape, pipeline, micro_batches):
        for policy in policies:
            for is_sequence_parallel in (False, True) if tensor > 1 else (False,):
                yield Layout(
                    pipeline,
                    data,
                    tensor,
                    policy,
                    schedule,
                    virtual,
                    micro_batch,
                    micro_batches,
                    "none",
                    is_sequence_parallel,
                )


def _schedules(software, shape, pipeline, micro_batches) -> list[tuple[str, int]]:
    """(schedule, stages per rank). On one rank gpipe and 1f1b are the two ways to accumulate
    gradients; on several, gpipe takes as long as 1f1b and keeps more.
    """
    if pipeline == 1:
        known = [name for name in ("gpipe", "1f1b") if name in software.schedules]
        return [(name, 1) for name in (known[:1] if micro_batches == 1 else known)]
    pairs = []
    for name in software.schedules:
        order = ORDERS[name]
        if name == "gpipe":
            continue
        if order.is_flexible:
            most = min(_MOST_VIRTUAL, (shape.layers + 2) // pipeline)
            pairs += [
                (name, virtual) for virtual in range(2, most + 1) if micro_batches % pipeline == 0
            ]
        else:
            pairs.append((name, order.stages_per_rank))
    return pairs


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(dict.fromkeys([*small, *(number // n for n in reversed(small))]))
