"""Search: all layouts of a model on a number of devices; those that fit are ranked by the time of a
step.

    found = search(shape, SHARDKIT, read_cluster("cpu-node"), devices=512, batch=1536)
    found.best.layout, found.best.cost.seconds, found.best.memory.total
    found.rows(8)                       the best layout of each of the 8 best meshes

    all layouts
      -> without those that the program refuses
      -> without those that do not fit into memory
      -> ranked by a closed form
      -> the first few replayed, and ranked again

Recomputation saves memory and costs time, so it is only considered where a layout does not fit
without it; and ranks share samples only where no other layout fits.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf

from ..errors import ConfigurationError
from ..layout.cuts import divisors
from ..layout.policy import POLICIES
from ..schedule.catalog import ORDERS
from .cost import PARTS, StepCost, step_cost
from .hardware import Cluster
from .layouts import RunLayout, why_not
from .memory import MemoryEstimate, memory_of
from .shape import Shape, cuts_of
from .software import RECOMPUTATIONS, Software

_REPLAYED = 16  # layouts whose schedules are replayed
_MOST_REPLAYED = 256  # in any case
_NEAR = 1.1  # times the quickest replay: the closed form of a layout may be this much above its own
_MOST_VIRTUAL = 16
_LARGEST_TENSOR = 64
_GROWTH = (2, 4, 8, 16, 32, 64)  # times the devices, considered when nothing fits
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
    """A layout with its memory and its cost."""

    layout: RunLayout
    memory: MemoryEstimate
    cost: StepCost
    limit_bytes: float

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.limit_bytes


@dataclass(frozen=True)
class Search:
    """The result of a search.

    fitting     candidates that fit, the quickest first
    too_large   candidates that do not fit, the one that needs least first
    refused     {why: how many} of layouts that the program does not take
    considered  how many layouts there were
    """

    shape: Shape
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
        """The quickest candidate that fits."""
        return self.fitting[0] if self.fitting else None

    def rows(self, count: int) -> list[Candidate]:
        """Return the best layout of each mesh, the quickest meshes first."""
        of_mesh = {}
        for candidate in self.fitting:
            of_mesh.setdefault(candidate.layout.mesh, candidate)
        return list(of_mesh.values())[:count]

    def why_it_lost(self, candidate: Candidate) -> str:
        """Return what it spends more time on than the best, or that it does not fit."""
        if not candidate.fits:
            return _shortage(candidate)
        if candidate is self.best:
            return "best"
        ours, theirs = self.best.cost.parts, candidate.cost.parts
        more = max(PARTS, key=lambda part: theirs[part] - ours[part])
        return f"+{theirs[more] - ours[more]:.3g} s {PARTS[more]}"

    def what_would_fit(self) -> list[str]:
        """Return how far the layouts are from fitting, and what would help; [] if one fits."""
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
            devices = self.devices * factor
            layout = _least_memory(self.shape, self.software, self.cluster, devices, self.batch)
            if layout is None:
                continue
            memory = memory_of(layout, self.shape, self.software, self.cluster.sharing)
            if memory.total <= least.limit_bytes:
                lines.append(f"{devices} devices would: {layout}")
                break
        else:
            lines.append(
                f"more devices, up to {_GROWTH[-1]} times as many, would not help: a smaller "
                "model, or shorter sequences, would"
            )
        return lines


def search(
    shape: Shape,
    software: Software,
    cluster: Cluster,
    devices: int,
    batch: int,
    micro_batch: int | None = None,
) -> Search:
    """Search all layouts on this many devices, for a global batch of this many sequences.

    micro_batch   only layouts with micro-batches of this many sequences; None: all that divide the
                  batch

    Errors: ConfigurationError if the micro-batch does not divide the batch, or the device does not
    multiply in a dtype of the program.
    """
    if micro_batch is not None and batch % micro_batch:
        raise ConfigurationError(
            f"micro-batches of {micro_batch} samples in a batch of {batch}; wanted a size that "
            "divides it"
        )
    for dtype in software.dtypes:
        cluster.device.peak_of(dtype)
    found = _searched(shape, software, cluster, devices, batch, micro_batch, is_cut=False)
    if found.fitting or not software.cuts_samples:
        return found
    cut = _searched(shape, software, cluster, devices, batch, micro_batch, is_cut=True)
    large = sorted(found.too_large + cut.too_large, key=lambda each: each.memory.total)
    return replace(
        cut,
        too_large=tuple(large),
        refused=Counter(found.refused) + Counter(cut.refused),
        considered=found.considered + cut.considered,
    )


def _searched(shape, software, cluster, devices, batch, micro_batch, *, is_cut: bool) -> Search:
    """Search the layouts whose ranks share samples, or those whose ranks do not."""
    limit = cluster.device.memory_bytes
    refused = Counter()
    candidates = []
    considered = 0
    domains = divisors(devices)[1:] if is_cut else (1,)
    for layout in _layouts(shape, software, cluster, devices, batch, micro_batch, domains):
        considered += 1
        reason = why_not(layout, shape, software)
        if reason is not None:
            refused[reason] += 1
            continue
        chosen, memory = _with_recomputation(layout, shape, software, limit, cluster.sharing)
        candidates.append((chosen, memory))
    small = [(layout, memory) for layout, memory in candidates if memory.total <= limit]
    fitting = _ranked(small, shape, software, cluster)
    large = [(layout, memory) for layout, memory in candidates if memory.total > limit]
    large.sort(key=lambda pair: pair[1].total)
    too_large = tuple(_estimated(large[:_REPLAYED], shape, software, cluster))
    return Search(
        shape, software, cluster, devices, batch, fitting, too_large, dict(refused), considered
    )


def _ranked(fitting: list, shape, software, cluster) -> tuple[Candidate, ...]:
    """Rank by the closed form; then the first few, the first of each of the first meshes, and all
    whose closed form is near the quickest replay, by a replay.
    """
    quick = sorted(_estimated(fitting, shape, software, cluster), key=_rank)
    firsts = {}
    for candidate in quick:
        firsts.setdefault(candidate.layout.mesh, candidate)
    close = dict.fromkeys([*quick[:_REPLAYED], *list(firsts.values())[:_REPLAYED]])
    exact = []
    best = inf
    for candidate in [*close, *(c for c in quick[:_MOST_REPLAYED] if c not in close)]:
        if candidate in close or candidate.cost.seconds < _NEAR * best:
            close[candidate] = None
            cost = step_cost(candidate.layout, shape, software, cluster)
            exact.append(replace(candidate, cost=cost))
            best = min(best, cost.seconds)
    return tuple(sorted(exact, key=_rank)) + tuple(c for c in quick if c not in close)


def _estimated(pairs: list, shape, software, cluster) -> Iterator[Candidate]:
    """Yield a candidate for each (layout, memory), with its cost by the closed form."""
    for layout, memory in pairs:
        cost = step_cost(layout, shape, software, cluster, is_exact=False)
        yield Candidate(layout, memory, cost, cluster.device.memory_bytes)


def _rank(candidate: Candidate):
    """Return the sort key: time, then memory, then what makes a layout complicated."""
    layout = candidate.layout
    return (
        round(candidate.cost.seconds, 9),
        round(candidate.memory.total),
        layout.pipeline,
        layout.tensor,
        layout.virtual,
        list(POLICIES).index(layout.policy),
    )


def _with_recomputation(
    layout: RunLayout, shape, software, limit, sharing
) -> tuple[RunLayout, MemoryEstimate]:
    """Return the layout with as little recomputation as fits, or with the most."""
    for recomputation in (r for r in RECOMPUTATIONS if r in software.recomputations):
        chosen = replace(layout, recomputation=recomputation)
        memory = memory_of(chosen, shape, software, sharing)
        if memory.total <= limit:
            break
    if recomputation == "full" and software.recomputes_part and memory.total <= limit:
        return _with_fewest_layers_again(chosen, memory, shape, software, limit, sharing)
    return chosen, memory


def _with_fewest_layers_again(
    whole: RunLayout, memory: MemoryEstimate, shape, software, limit, sharing
) -> tuple[RunLayout, MemoryEstimate]:
    """Return the layout with the fewest layers of a rank computed again that fits.

    whole   computes all again, and takes this memory, within the limit
    """
    best = whole, memory
    least, most = 1, -(-len(shape.blocks) // whole.pipeline)
    while least < most:
        middle = (least + most) // 2
        chosen = replace(whole, recomputed=middle)
        memory = memory_of(chosen, shape, software, sharing)
        if memory.total <= limit:
            best, most = (chosen, memory), middle
        else:
            least = middle + 1
    return best


def _least_memory(shape, software, cluster, devices, batch) -> RunLayout | None:
    """Return the layout that needs least memory."""
    most = software.recomputations[-1]
    domains = divisors(devices) if software.cuts_samples else (1,)
    allowed = [
        layout
        for layout in _layouts(shape, software, cluster, devices, batch, 1, domains)
        if why_not(layout, shape, software) is None
    ]
    return min(
        (replace(layout, recomputation=most) for layout in allowed),
        key=lambda layout: memory_of(layout, shape, software, cluster.sharing).total,
        default=None,
    )


def _shortage(candidate: Candidate) -> str:
    """Return how much memory it lacks, and what takes most of it."""
    memory = candidate.memory
    largest = max(WORDS, key=lambda part: getattr(memory, part))
    return (
        f"{memory.total / 1e9:.3g} GB per device, {candidate.limit_bytes / 1e9:.3g} are there; "
        f"{getattr(memory, largest) / 1e9:.3g} GB are {WORDS[largest]}"
    )


# ---- all layouts ---------------------------------------------------------------------------------


def _layouts(shape, software, cluster, devices, batch, micro_batch, domains) -> Iterator[RunLayout]:
    """Yield every layout whose sizes multiply to the devices and divide the batch, without
    recomputation, with one of these numbers of domain ranks.
    """
    for domain, tensor in product(domains, divisors(devices)):
        if tensor > min(cluster.devices, _LARGEST_TENSOR):
            continue  # a region that leaves the node waits for the network in every layer
        for pipeline in divisors(devices // tensor) if devices % (domain * tensor) == 0 else ():
            data, rest = divmod(devices, tensor * pipeline * domain)
            if rest or batch % data or pipeline > len(shape.blocks):
                continue
            own = batch // data
            for size in divisors(own) if micro_batch is None else (micro_batch,):
                if own % size == 0:
                    ranks = pipeline, data, tensor, domain
                    yield from _choices(software, cluster, shape, ranks, size, own // size)


def _choices(software, cluster, shape, ranks, micro_batch, micro_batches) -> Iterator[RunLayout]:
    pipeline, data, tensor, domain = ranks
    policies = list(_policies(software, data * domain, cluster.devices // tensor))
    for schedule, virtual in _schedules(software, shape, pipeline, micro_batches):
        for policy, shard_ranks in policies:
            for is_sequence_parallel, cut in _forms(shape, tensor, domain):
                yield RunLayout(
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
                    shard_ranks=shard_ranks,
                    domain=domain,
                    domain_grid=cut if len(cut) > 1 else None,
                )


def _forms(shape, tensor, domain) -> list[tuple[bool, tuple[int, ...]]]:
    """Return whether sequences are cut between regions, and how ranks share samples: pairs."""
    if domain == 1:
        return [(between, (1,)) for between in ((False, True) if tensor > 1 else (False,))]
    return [(False, cut) for cut in cuts_of(shape, domain)]


def _policies(software, copies, per_node) -> Iterator[tuple[str, int | None]]:
    """Yield (policy, ranks of its groups): those of a node, where they are neither one nor all."""
    for policy in software.policies if copies > 1 else software.policies[:1]:
        if not POLICIES[policy].in_groups:
            yield policy, None
        elif 1 < per_node < copies and copies % per_node == 0:
            yield policy, per_node


def _schedules(software, shape, pipeline, micro_batches) -> list[tuple[str, int]]:
    """Return the pairs (schedule, stages per rank) to consider.

    On one rank gpipe and 1f1b are the two ways to accumulate gradients: the schedules of one stage
    that do not delay weight gradients. On several, a schedule with all forwards first takes as long
    as 1f1b and keeps more.
    """
    if pipeline == 1:
        known = [
            name
            for name in software.schedules
            if ORDERS[name].stages_per_rank == 1 and not ORDERS[name].delays_weights
        ]
        return [(name, 1) for name in (known[:1] if micro_batches == 1 else known)]
    pairs = []
    for name in software.schedules:
        order = ORDERS[name]
        if order.forwards_first:
            continue
        if order.is_flexible:
            most = min(_MOST_VIRTUAL, (len(shape.blocks)) // pipeline)
            pairs += [
                (name, virtual) for virtual in range(2, most + 1) if micro_batches % pipeline == 0
            ]
        else:
            pairs.append((name, order.stages_per_rank))
    return pairs
