"""A layout: how a model and its batch are spread over devices, and whether a program would take it.

    Layout(pipeline=8, data=12, tensor=8, policy="zero1", schedule="interleaved", virtual=2,
    micro_batch=1, micro_batches=32)

Whether it fits into memory, and how long a step takes, is for memory.py and cost.py to say; what is
refused here is refused by the runtime too, and the tests build what is not.
"""

from dataclasses import dataclass, field

from ..layout.mesh_shape import MeshShape
from ..schedule import ORDERS
from .model import ModelShape
from .software import Software
from .stages import stage_units

RECOMPUTATIONS = ("none", "selective", "full")


@dataclass(frozen=True)
class Layout:
    """All choices of a run that leave the model and the global batch as they are.

    virtual         stages on each pipeline rank
    micro_batch     sequences computed at once
    micro_batches   of one data rank in a step
    recomputation   what backward computes again: "none", "selective" (the inside of attention),
                    "full" (each layer)
    is_sequence_parallel   norms and dropouts between tensor-parallel regions see a slice of the
                           sequence
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
    devices: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "devices", self.pipeline * self.data * self.tensor)

    @property
    def mesh(self) -> MeshShape:
        return MeshShape(self.pipeline, self.data, self.tensor)

    @property
    def num_stages(self) -> int:
        return self.pipeline * self.virtual

    @property
    def batch(self) -> int:
        """Sequences of a step, on all data ranks."""
        return self.data * self.micro_batch * self.micro_batches

    def __str__(self) -> str:
        virtual = f" x {self.virtual}" if self.virtual > 1 else ""
        extras = [f"{self.recomputation} recomputation"] if self.recomputation != "none" else []
        extras += ["sequence parallel"] if self.is_sequence_parallel else []
        return ", ".join(
            [
                f"pipeline {self.pipeline} x data {self.data} x tensor {self.tensor}",
                self.policy,
                f"{self.schedule}{virtual}",
                f"{self.micro_batches} micro-batches of {self.micro_batch}",
                *extras,
            ]
        )


def why_not(layout: Layout, shape: ModelShape, software: Software) -> str | None:
    """Why the program would refuse this layout, with the arithmetic; None if it would not."""
    return (
        _tensor_problem(layout, shape)
        or _software_problem(layout, software)
        or _stage_problem(layout, shape, software)
    )


def _tensor_problem(layout, shape) -> str | None:
    tensor = layout.tensor
    for what, count in (
        ("heads", shape.heads),
        ("hidden units", shape.num_hidden),
        ("vocabulary rows", shape.vocabulary),
    ):
        if count % tensor:
            return f"{count} {what} = {tensor} tensor ranks x {count // tensor} + {count % tensor}"
    if shape.num_kv_heads % tensor and tensor % shape.num_kv_heads:
        return f"{shape.num_kv_heads} key heads and {tensor} tensor ranks do not divide each other"
    if layout.is_sequence_parallel and shape.sequence_length % tensor:
        return (
            f"a sequence of {shape.sequence_length} = {tensor} tensor ranks x {shape.sequence_length // tensor} + "
            f"{shape.sequence_length % tensor}"
        )
    return None


def _software_problem(layout, software) -> str | None:
    for what, got, known in (
        ("policy", layout.policy, software.policies),
        ("schedule", layout.schedule, software.schedules),
        ("recomputation", layout.recomputation, software.recomputations),
    ):
        if got not in known:
            return f"{software.name} knows no {what} {got}"
    order = ORDERS[layout.schedule]
    if layout.virtual != order.stages_per_rank and not order.is_flexible:
        return (
            f"{layout.schedule} runs {order.stages_per_rank} stages per rank, not {layout.virtual}"
        )
    return None


def _stage_problem(layout, shape, software) -> str | None:
    if software.cuts_evenly and shape.layers % layout.num_stages:
        return (
            f"{shape.layers} layers = {layout.num_stages} stages x {shape.layers // layout.num_stages} + "
            f"{shape.layers % layout.num_stages}"
        )
    if stage_units(shape, software, layout.num_stages, layout.tensor) is None:
        return f"{shape.layers + 2} blocks, some merged, are fewer than {layout.num_stages} stages"
    return None
