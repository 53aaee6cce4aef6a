"""Published runs on A100s beside what the planner says about them. One hardware description, three
programs, nothing per row.

    python -m shardkit.plan.validation_page         writes VALIDATION.md, which a test holds up to
                                                    date

Each point names its sizes as published. Its micro-batch and virtual stages are those that were run:
for arXiv 2104.04473 they stand in examples/sc21/run_table_1.sh of the Megatron-LM repository.
"""

from dataclasses import dataclass
from functools import cached_property
from statistics import mean

from ..layout.policy import POLICIES
from .cost import StepCost, step_cost
from .hardware import read_cluster
from .layouts import Layout, why_not
from .memory import memory_of
from .model import ModelShape
from .operations import Setting, block_seconds
from .software import MEGATRON_2021, MEGATRON_2022, ZERO3_2021, Software

CLUSTER = "a100-80gb-hdr"
VOCABULARY, SEQUENCE = 51200, 2048


@dataclass(frozen=True)
class Point:
    """A published run: `published` is in the table's unit, seconds of a step or TFLOP/s per GPU."""

    name: str
    shape: ModelShape
    layout: Layout
    software: Software
    published: float
    unit: str

    @cached_property
    def cost(self) -> StepCost:
        assert why_not(self.layout, self.shape, self.software) is None, (
            f"{self.name}: {self.layout}"
        )
        return step_cost(self.layout, self.shape, self.software, read_cluster(CLUSTER))

    @property
    def predicted(self) -> float:
        return (
            self.cost.seconds
            if self.unit == "s"
            else megatron_flops(self.shape, self.layout) / self.cost.seconds / 1e12
        )

    @property
    def error(self) -> float:
        """Predicted by published, less one."""
        return self.predicted / self.published - 1

    @property
    def gigabytes(self) -> float:
        return memory_of(self.layout, self.shape, self.software).total / 1e9


def megatron_flops(shape: ModelShape, layout: Layout) -> float:
    """Operations per GPU of a step as arXiv 2104.04473 counts them, the forward that is computed
    again included: its eq. 3.
    """
    b, s, h, layers, v = (
        layout.batch,
        shape.sequence_length,
        shape.width,
        shape.layers,
        shape.vocabulary,
    )
    return 96 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h)) / layout.devices


def gpt(layers: int, width: int, heads: int) -> ModelShape:
    """As in both papers: tied embeddings, dropout, sequences of 2048, 51200 tokens."""
    return ModelShape(layers, width, heads, VOCABULARY, SEQUENCE, tied=True, dropout=0.1)


def _layout(
    pipeline: int, data: int, tensor: int, virtual: int, micro_batch: int, batch: int, **changes
) -> Layout:
    schedule = "interleaved" if virtual > 1 else "1f1b"
    return Layout(
        pipeline,
        data,
        tensor,
        **{
            "policy": "ddp",
            "schedule": schedule,
            "virtual": virtual,
            "micro_batch": micro_batch,
            "micro_batches": batch // data // micro_batch,
            "recomputation": "full",
            **changes,
        },
    )


def korthikanti() -> list[Point]:
    """Table 5 of arXiv 2205.05198: seconds of a step, with full recomputation, and with selective
    and sequence parallelism.
    """
    rows = [
        ("22B", gpt(48, 6144, 64), 1, 1, 4, 4, 1.42, 1.10),
        ("175B", gpt(96, 12288, 96), 8, 3, 1, 64, 18.13, 13.75),
        ("530B", gpt(105, 20480, 128), 35, 3, 1, 280, 49.05, 37.83),
        ("1T", gpt(128, 25600, 160), 64, 1, 1, 512, 94.42, 71.49),
    ]
    points = []
    for name, shape, pipeline, virtual, micro_batch, batch, full, selective in rows:
        for choice, published, changes in (
            ("full recomputation", full, {}),
            (
                "sequence parallel, selective",
                selective,
                {"recomputation": "selective", "is_sequence_parallel": True},
            ),
        ):
            layout = _layout(pipeline, 1, 8, virtual, micro_batch, batch, **changes)
            points.append(
                Point(
                    f"{name}, {layout.devices} GPUs, {choice}",
                    shape,
                    layout,
                    MEGATRON_2022,
                    published,
                    "s",
                )
            )
    return points


def narayanan() -> list[Point]:
    """Table 1 of arXiv 2104.04473: achieved TFLOP/s per GPU, with full recomputation."""
    rows = [
        ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
        ("3.6B", 30, 3072, 32, 2, 1, 64, 512, 16, 1, 138),
        ("7.5B", 36, 4096, 32, 4, 1, 128, 512, 16, 1, 142),
        ("18.4B", 40, 6144, 48, 8, 1, 256, 1024, 8, 1, 135),
        ("39.1B", 48, 8192, 64, 8, 2, 512, 1536, 4, 1, 138),
        ("76.1B", 60, 10240, 80, 8, 4, 1024, 1792, 2, 3, 140),
        ("145.6B", 80, 12288, 96, 8, 8, 1536, 2304, 2, 2, 148),
        ("310.1B", 96, 16384, 128, 8, 16, 1920, 2160, 1, 2, 155),
        ("529.6B", 105, 20480, 128, 8, 35, 2520, 2520, 1, 3, 163),
        ("1008.0B", 128, 25600, 160, 8, 64, 3072, 3072, 1, 1, 163),
    ]
    return [
        Point(
            f"{name}, {gpus} GPUs",
            gpt(layers, width, heads),
            _layout(pipeline, gpus // tensor // pipeline, tensor, virtual, micro_batch, batch),
            MEGATRON_2021,
            published,
            "TFLOP/s",
        )
        for name, layers, width, heads, tensor, pipeline, gpus, batch, micro_batch, virtual, published in rows
    ]


def layer_milliseconds() -> list[tuple[str, float, float]]:
    """Table 4 of arXiv 2205.05198: (what, published, predicted) ms of one layer's forward and
    backward, 22B, 8 GPUs.
    """
    rows = [
        ("no recomputation", "none", False, 19.6),
        ("sequence parallel", "none", True, 19.0),
        ("full recomputation", "full", False, 27.2),
        ("selective recomputation", "selective", False, 20.9),
        ("sequence parallel, selective", "selective", True, 20.3),
    ]
    found = []
    for name, recomputation, is_sequence_parallel, published in rows:
        at = Setting(
            gpt(48, 6144, 64),
            MEGATRON_2022,
            read_cluster(CLUSTER),
            4,
            8,
            recomputation,
            is_sequence_parallel,
        )
        seconds = block_seconds("layer", at)
        found.append((name, published, 1e3 * (seconds.forward + seconds.backward + seconds.weight)))
    return found


def zero_paper() -> list[tuple[str, float, float]]:
    """Figure 1 of arXiv 1910.02054: (policy, published, predicted) GB per device of 7.5e9
    parameters on 64 devices.
    """
    of_one = {"parameter_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 12}
    return [
        (
            POLICIES[policy].name,
            published,
            POLICIES[policy].bytes_per_rank(7.5e9, 64, **of_one) / 1e9,
        )
        for policy, published in (("ddp", 120.0), ("zero1", 31.4), ("zero2", 16.6), ("fsdp", 1.9))
    ]


def zero3_against_ptd() -> list[Point]:
    """Table 2 of arXiv 2104.04473, the 174.6B rows: ZeRO-3 alone, and tensor, pipeline and data
    together, at a fixed batch.

    The micro-batches of ZeRO-3 are published; the other rows take 8 tensor ranks and 12 stages of 8
    layers.
    """
    shape = gpt(96, 12288, 96)
    zero3 = [
        Point(
            f"ZeRO-3, {gpus} GPUs",
            shape,
            _layout(1, gpus, 1, 1, micro_batch, 1536, policy="fsdp"),
            ZERO3_2021,
            published,
            "TFLOP/s",
        )
        for gpus, micro_batch, published in ((384, 4, 144), (768, 2, 88), (1536, 1, 44))
    ]
    ptd = [
        Point(
            f"PTD-P, {gpus} GPUs",
            shape,
            _layout(12, gpus // 96, 8, 1, 1, 1536),
            MEGATRON_2021,
            published,
            "TFLOP/s",
        )
        for gpus, published in ((384, 153), (768, 149), (1536, 141))
    ]
    return zero3 + ptd


def mean_error(points: list[Point]) -> float:
    """Of the magnitudes."""
    return mean(abs(point.error) for point in points)


def largest_error(points: list[Point]) -> float:
    """Of the magnitudes."""
    return max(abs(point.error) for point in points)
