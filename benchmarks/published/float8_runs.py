"""Published runs with the products of layers in float8 on H100s and H200s, each fully specified,
and how the planner describes them.

    mpt_float8()     GPTs on 8 GPUs: the table "H100 80GB FP8" of the file of mpt() in
                     mosaicml/llm-foundry, in mpt_float8.csv
    titan_float8()   Llama 3.1 8B on 8 to 128 GPUs: benchmarks/llama3_h100_202412_torchtitan.md and
                     benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md of pytorch/torchtitan
    titan_large()    Llama 3.1 70B and 405B on 256 and 512 GPUs: the first of these files
    nemo()           GPTs and Llamas on 8 to 512 GPUs: the performance summary of NeMo 24.07
                     (docs/source/performance of NVIDIA/NeMo), and those of 25.09 and 25.11
                     (docs/performance-summary.md of NVIDIA-NeMo/Megatron-Bridge); rows without
                     context parallelism

Each family is split by published_runs.halves, but nothing was chosen with a row of any half.
"""

from dataclasses import replace
from pathlib import Path

from fsdp_runs import FSDP, LLAMA_8B, grand_teton, mpt_points, sharded
from megatron_runs import LLAMA_405B
from published_runs import Point, hardware

from shardkit.plan import ModelShape, RunLayout, software_named
from shardkit.plan.software import in_float8

MPT_FLOAT8_ROWS = Path(__file__).with_name("mpt_float8.csv")
LLAMA_70B = ModelShape(
    80, 8192, 64, 128256, 8192, kv_heads=8, hidden=28672, style="llama", tied=False
)
# Transformer Engine scales by the magnitudes of earlier steps (delayed scaling): one pass reads an
# element and writes it twice, and finds the largest for later steps.
_DELAYED_BYTES = 4.0
FSDP_FLOAT8 = replace(in_float8(FSDP), cast_bytes=_DELAYED_BYTES)
TITAN_FLOAT8 = in_float8(software_named("torchtitan-float8"))
TITAN_LARGE = replace(
    TITAN_FLOAT8,
    recomputed_share=0.0,
    schedules=("1f1b", "interleaved"),
    policies=("fsdp", "zero2"),
)
# NeMo of 25.09 and later scales by the magnitudes of the step itself, as in_float8() has it
NEMO_DELAYED = in_float8(software_named("nemo"))
NEMO = replace(NEMO_DELAYED, name="nemo-current", cast_bytes=6.0)


def mpt_float8() -> list[Point]:
    """Return the runs of the table: tokens/s per GPU."""
    points = mpt_points(MPT_FLOAT8_ROWS)
    return [
        replace(
            point,
            name=f"float8 {point.name}",
            software=replace(FSDP_FLOAT8, attention_kernel=point.software.attention_kernel),
        )
        for point in points
    ]


def titan_float8() -> list[Point]:
    """Return the runs of Llama 3.1 8B: tokens/s per GPU, 2 sequences of 8192 each."""
    rows = [
        ("H100", 8, 8532, grand_teton()),
        ("H100", 128, 8380, grand_teton()),
        ("H200", 32, 10938, hardware("h200-141gb-ndr")),
        ("H200", 64, 10753, hardware("h200-141gb-ndr")),
    ]
    return [
        Point(
            f"8B, {gpus} {device}, float8",
            LLAMA_8B,
            sharded(gpus, 2, 1, "fsdp", "selective"),
            TITAN_FLOAT8,
            published,
            "tokens/s",
            cluster,
        )
        for device, gpus, published, cluster in rows
    ]


def titan_large() -> list[Point]:
    """Return the runs of Llama 3.1 70B and 405B: tokens/s per GPU, all layers computed again.

    Under pipelines a step's parameters are gathered once (parallelize_llama.py). The numbers of
    micro-batches and of virtual stages are not published: as many as pipeline ranks are taken,
    which was the program's default (pipelining_utils.py at its commit 022d40f), and 2.
    """
    ways = [
        ("70B", LLAMA_70B, RunLayout(1, 32, 8, "fsdp", micro_batch=16), False, 829),
        ("70B, overlapped", LLAMA_70B, RunLayout(1, 32, 8, "fsdp", micro_batch=16), True, 876),
        ("405B, 1f1b", LLAMA_405B, _pipelined("1f1b", 1), True, 100),
        ("405B, interleaved", LLAMA_405B, _pipelined("interleaved", 2), True, 128),
    ]
    return [
        Point(
            f"{name}, {layout.devices} GPUs, float8",
            shape,
            replace(layout, recomputation="full", is_sequence_parallel=True),
            replace(TITAN_LARGE, overlaps_tensor=overlaps),
            published,
            "tokens/s",
            grand_teton(),
        )
        for name, shape, layout, overlaps, published in ways
    ]


def _pipelined(schedule: str, virtual: int) -> RunLayout:
    return RunLayout(8, 8, 8, "zero2", schedule, virtual, micro_batch=4, micro_batches=8)


def nemo() -> list[Point]:
    """Return the runs of NeMo: tokens/s per GPU."""
    llama2 = [
        ModelShape(*sizes, 32000, 4096, kv_heads=kv_heads, hidden=hidden, style="llama")
        for sizes, kv_heads, hidden in (
            ((32, 4096, 32), 32, 11008),
            ((40, 5120, 40), 40, 13824),
            ((80, 8192, 64), 8, 28672),
        )
    ]
    gpt3 = [
        ModelShape(*sizes, 51200, 2048, tied=True)
        for sizes in ((24, 4096, 32), (44, 6144, 48), (96, 12288, 96))
    ]
    rows = [  # GPUs, batch, micro-batch, tensor, pipeline, virtual
        ("GPT 5B", gpt3[0], 64, 2048, 4, 1, 1, 1, 23406, NEMO_DELAYED),
        ("GPT 20B", gpt3[1], 64, 256, 2, 2, 1, 1, 5851, NEMO_DELAYED),
        ("GPT 175B", gpt3[2], 128, 256, 1, 4, 8, 6, 716, NEMO_DELAYED),
        ("GPT 175B", gpt3[2], 512, 2048, 2, 4, 8, 6, 825, NEMO_DELAYED),
        ("Llama 2 7B", llama2[0], 8, 128, 1, 1, 1, 1, 16934, NEMO_DELAYED),
        ("Llama 2 13B", llama2[1], 16, 128, 1, 1, 4, 10, 8715, NEMO_DELAYED),
        ("Llama 2 70B", llama2[2], 64, 128, 1, 4, 4, 20, 1728, NEMO_DELAYED),
        ("Llama 3 70B of 25.09", LLAMA_70B, 64, 128, 1, 4, 8, 5, 1619, NEMO),
        ("Llama 3 70B of 25.11", LLAMA_70B, 64, 128, 1, 4, 8, 5, 1602, NEMO),
        ("Llama 3 8B of 25.11", LLAMA_8B, 8, 128, 1, 1, 1, 1, 14451, NEMO),
    ]
    return [_nemo_point(*row) for row in rows]


def _nemo_point(
    name, shape, gpus, batch, micro_batch, tensor, pipeline, virtual, published, software
) -> Point:
    """Return a run; the one of 8B of 25.11 is under FSDP."""
    data = gpus // tensor // pipeline
    layout = RunLayout(
        pipeline,
        data,
        tensor,
        "fsdp" if shape is LLAMA_8B else "zero1",
        "interleaved" if virtual > 1 else "1f1b",
        virtual,
        micro_batch,
        batch // data // micro_batch,
        is_sequence_parallel=tensor > 1,
    )
    cluster = hardware("h100-80gb-ndr")
    return Point(f"{name}, {gpus} GPUs", shape, layout, software, published, "tokens/s", cluster)
