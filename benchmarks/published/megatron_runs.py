"""Published runs of tensor, pipeline and data ranks together on H100s; all of them judge.

    megatron()   images/model_table.png of the repository NVIDIA/Megatron-LM (2024): GPTs of 1.7 to
                 462 billion parameters on 48 to 6144 H100s, 4096 tokens, a vocabulary of 131072,
                 BF16, with overlaps of data, tensor and pipeline ranks

Micro-batches and virtual stages of that table are not published: the ones that the planner finds
quickest, of those that fit into 80 GB, stand in for them.
"""

from functools import lru_cache

from published_runs import Point, hardware

from shardkit.plan import (
    ModelShape,
    RunLayout,
    Software,
    memory_of,
    search,
    software_named,
    step_cost,
    why_not,
)

_H100 = "h100-80gb-ndr"
_ROCE = "h100-80gb-roce"
_DATA = 48
LLAMA_405B = ModelShape(
    126, 16384, 128, 128256, 8192, kv_heads=8, hidden=53248, style="llama", tied=False
)
MEGATRON_CORE = software_named("megatron-core")
TUNED = software_named("tuned")


@lru_cache
def megatron() -> list[Point]:
    """Return the weak scaling of that table: TFLOP/s of the model per GPU."""
    rows = [
        (24, 2048, 16, 1, 1, 192, 408.8),
        (30, 4096, 32, 2, 1, 192, 465.9),
        (32, 6144, 48, 4, 1, 192, 489.1),
        (48, 7168, 56, 8, 1, 192, 459.6),
        (84, 8192, 64, 8, 2, 384, 419.7),
        (92, 10240, 80, 8, 4, 768, 420.5),
        (96, 12288, 96, 8, 6, 1152, 432.8),
        (96, 16384, 128, 8, 8, 1536, 474.4),
        (112, 18432, 144, 8, 16, 3072, 459.9),
    ]
    points = []
    for layers, width, heads, tensor, pipeline, batch, published in rows:
        shape = ModelShape(layers, width, heads, 131072, 4096)
        layout = _quickest(shape, tensor, pipeline, batch)
        name = f"{shape.parameter_count / 1e9:.1f}B, {layout.devices} GPUs"
        points.append(
            Point(name, shape, layout, MEGATRON_CORE, published, "model TFLOP/s", hardware(_H100))
        )
    return points


def _quickest(shape: ModelShape, tensor: int, pipeline: int, batch: int) -> RunLayout:
    layouts = [
        layout
        for layout in _layouts(shape, tensor, pipeline, batch // _DATA)
        if why_not(layout, shape, MEGATRON_CORE) is None and _fits(layout, shape, MEGATRON_CORE)
    ]
    return min(
        layouts,
        key=lambda of: step_cost(of, shape, MEGATRON_CORE, hardware(_H100), is_exact=False).seconds,
    )


def _fits(layout: RunLayout, shape: ModelShape, software: Software) -> bool:
    return memory_of(layout, shape, software).total <= 80e9


def _layouts(shape: ModelShape, tensor: int, pipeline: int, each: int):
    """Yield the layouts of `each` sequences for a data rank in a step."""
    most = shape.layers // pipeline if pipeline > 1 else 1
    for micro_batch in (size for size in (1, 2, 4) if each % size == 0):
        for virtual in (count for count in range(1, most + 1) if most % count == 0):
            yield RunLayout(
                pipeline,
                _DATA,
                tensor,
                "zero1",
                "interleaved" if virtual > 1 else "1f1b",
                virtual,
                micro_batch,
                each // micro_batch,
                is_sequence_parallel=tensor > 1,
            )


def llama3() -> list[tuple[str, float, float]]:
    """Return (run, published, predicted) of Llama 3 405B in model TFLOP/s per GPU (arXiv
    2407.21783, table 4, from memory): 8 tensor ranks, 16 stages, 16 million tokens of sequences of
    8192. Of 128 stages the first has the embedding alone and the last the head. Operations are
    counted as nn.GPT does, attention in full.
    """
    rows = []
    for data, micro_batches, published in ((64, 32, 430.0), (128, 16, 400.0)):
        layout = RunLayout(
            16,
            data,
            8,
            "zero1",
            "interleaved",
            8,
            micro_batches=micro_batches,
            is_sequence_parallel=True,
        )
        seconds = step_cost(layout, LLAMA_405B, TUNED, hardware(_ROCE)).seconds
        rows.append((f"405B, {layout.devices} GPUs", published, _llama3_speed(layout, seconds)))
    return rows


def _llama3_speed(layout: RunLayout, seconds: float) -> float:
    """Return the TFLOP/s of the model per GPU."""
    flops = LLAMA_405B.num_flops_per_item * layout.batch * LLAMA_405B.sequence_length
    return flops / seconds / layout.devices / 1e12


@lru_cache
def llama3_plans(devices: int, batch: int) -> list[tuple[str, str, float, float]]:
    """Return the first three rows of a plan of Llama 3 405B for so many GPUs and sequences in a
    step, one in a micro-batch: (mesh, layout, seconds, model TFLOP/s per GPU).
    """
    found = search(LLAMA_405B, TUNED, hardware(_ROCE), devices, batch, micro_batch=1)
    rows = []
    for candidate in found.rows(3):
        layout, seconds = candidate.layout, candidate.cost.seconds
        mesh = f"{layout.pipeline} x {layout.data} x {layout.tensor}"
        how = f"{layout.schedule} x {layout.virtual}, {layout.recomputed_words} again"
        rows.append((mesh, how, seconds, _llama3_speed(layout, seconds)))
    return rows
