"""A layout: how a model and its batch are spread over devices, and whether a program would take it.

    RunLayout(pipeline=8, data=12, tensor=8, policy="zero1", schedule="interleaved", virtual=2,
              micro_batch=1, micro_batches=32)

memory.py and cost.py find whether it fits into memory and how long a step takes. The runtime
refuses what is refused here; the tests build what is not.
"""

from dataclasses import dataclass, field
from math import prod

from ..errors import ConfigurationError
from ..layout.axes import AXES, COPIES
from ..layout.mesh_shape import MeshShape
from ..layout.policy import POLICIES, check_tree
from ..plain import counted
from ..schedule.catalog import ORDERS
from .shape import Shape, Share, by, share_of
from .software import Software
from .stages import stage_units


@dataclass(frozen=True)
class RunLayout:
    """All choices of a run that leave the model and the global batch as they are.

    virtual         stages on each pipeline rank
    micro_batch     sequences of a micro-batch
    micro_batches   per data rank and step
    recomputation   what backward computes again: "none", "selective" (the inside of attention),
                    "full" (each layer)
    recomputed      layers of each pipeline rank, its first ones, that "full" computes again; None:
                    all
    is_sequence_parallel   norms and dropouts between tensor-parallel regions see a slice of the
                           sequence
    shard_ranks     ranks that share one copy under hsdp; None: under another policy
    domain          ranks that share each sample
    domain_grid     of these along each of its first dims; None: all along the first
    """

    pipeline: int = 1
    data: int = 1
    tensor: int = 1
    policy: str = "fsdp"
    schedule: str = "1f1b"
    virtual: int = 1
    micro_batch: int = 1
    micro_batches: int = 1
    recomputation: str = "none"
    is_sequence_parallel: bool = False
    recomputed: int | None = None
    shard_ranks: int | None = None
    domain: int = 1
    domain_grid: tuple[int, ...] | None = None
    devices: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "devices", self.mesh.size)

    @property
    def mesh(self) -> MeshShape:
        return MeshShape(**{axis: getattr(self, axis) for axis in AXES})

    @property
    def copies(self) -> int:
        """Ranks that hold the same parameters: those of data and of domain together."""
        return prod(getattr(self, axis) for axis in COPIES)

    @property
    def sharing(self) -> int:
        """Ranks that share one copy of what the policy shards."""
        return self.copies if self.shard_ranks is None else self.shard_ranks

    @property
    def cut(self) -> tuple[int, ...]:
        """The ranks that share each sample, along each dim that is cut."""
        return self.domain_grid or (self.domain,)

    def share(self, shape: Shape) -> Share:
        """Return the largest share of a micro-batch that a rank has."""
        return share_of(shape, self.micro_batch, self.cut)

    @property
    def policy_words(self) -> str:
        """The policy, and the ranks of a group if it has groups."""
        return self.policy if self.shard_ranks is None else f"{self.policy} of {self.shard_ranks}"

    @property
    def num_stages(self) -> int:
        return self.pipeline * self.virtual

    @property
    def batch(self) -> int:
        """Sequences of a step, on all data ranks."""
        return self.data * self.micro_batch * self.micro_batches

    @property
    def recomputed_words(self) -> str:
        """What is computed again, in a word or two."""
        if self.recomputed is None:
            return self.recomputation
        return counted(self.recomputed, "layer")

    def __str__(self) -> str:
        virtual = f" x {self.virtual}" if self.virtual > 1 else ""
        grid = [f"domain grid: {by(self.cut)}"] if self.domain_grid else []
        extras = [f"recomputation: {self.recomputed_words}"] if self.recomputation != "none" else []
        extras += ["sequence parallel"] if self.is_sequence_parallel else []
        parts = [
            str(self.mesh),
            *grid,
            self.policy_words,
            f"{self.schedule}{virtual}",
            f"{self.micro_batches} micro-batches of {self.micro_batch}",
            *extras,
        ]
        return ", ".join(parts)


def why_not(layout: RunLayout, shape: Shape, software: Software) -> str | None:
    """Return why the program would refuse this layout, with the arithmetic; None if it takes it."""
    return (
        shape.why_not_cut(layout.tensor, layout.is_sequence_parallel)
        or _domain_problem(layout, shape, software)
        or _software_problem(layout, software)
        or _group_problem(layout, software)
        or _stage_problem(layout, shape, software)
    )


def _software_problem(layout, software) -> str | None:
    for what, got, known in (
        ("policy", layout.policy, software.policies),
        ("schedule", layout.schedule, software.schedules),
        ("recomputation", layout.recomputation, software.recomputations),
    ):
        if got not in known:
            return f"{software.name} knows no {what} {got}"
    if layout.recomputed is not None:
        if layout.recomputation != "full" or not software.recomputes_part:
            return f"{software.name} computes no part of its layers again under this layout"
        if layout.recomputed < 1:
            return f"{layout.recomputed} layers computed again; wanted at least 1"
    order = ORDERS[layout.schedule]
    if layout.virtual != order.stages_per_rank and not order.is_flexible:
        return (
            f"{layout.schedule} runs {order.stages_per_rank} stages per rank, not {layout.virtual}"
        )
    return None


def _domain_problem(layout, shape, software) -> str | None:
    if prod(layout.cut) != layout.domain:
        return f"{by(layout.cut)} domain ranks are not {layout.domain}"
    if layout.domain == 1:
        return None
    if not software.cuts_samples:
        return f"{software.name} shares no samples between ranks"
    if layout.is_sequence_parallel:
        return "samples are not shared under sequence parallelism"
    return shape.why_not_shared(layout.cut)


def _group_problem(layout, software) -> str | None:
    if POLICIES[layout.policy].in_groups and layout.shard_ranks is None:
        return f"{layout.policy} without shard_ranks; wanted the ranks that share one copy"
    try:
        POLICIES[layout.policy].sharing(layout.copies, layout.shard_ranks)
        if software.sums_in_tree:
            check_tree(layout.copies, layout.sharing)
    except ConfigurationError as error:
        return str(error)
    return None


def _stage_problem(layout, shape, software) -> str | None:
    if stage_units(shape, software, layout.num_stages, layout.tensor) is None:
        return f"{len(shape.blocks)} blocks, some merged, are fewer than {layout.num_stages} stages"
    return None
