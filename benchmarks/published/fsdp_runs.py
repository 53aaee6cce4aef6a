"""Published runs of FSDP on A100s and H100s, each fully specified, and how the planner describes
them.

    mpt()          GPTs on 8 to 512 GPUs: the tables of scripts/train/benchmarking/README.md in the
                   repository mosaicml/llm-foundry, in mpt_fsdp.csv
    fsdp_paper()   175B on A100s: section 5.4 of arXiv 2304.11277
    titan()        Llama 3.1 8B on H100s: benchmarks/llama3_h100_202412_torchtitan.md in the
                   repository pytorch/torchtitan

Each family is split by published_runs.halves: one half chooses constants, the other judges them.
"""

import csv
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from published_runs import CLUSTER, Point, hardware

from shardkit.plan import ModelShape, RunLayout, software_named
from shardkit.plan.hardware import Cluster

MPT_ROWS = Path(__file__).with_name("mpt_fsdp.csv")
MPT_VOCABULARY = 50368
_SIZES = {  # layers, width, heads
    "70b": (80, 8192, 64),
    "30b": (48, 7168, 56),
    "13b": (40, 5120, 40),
    "7b": (32, 4096, 32),
    "3b": (32, 2560, 20),
    "1b": (24, 2048, 16),
    "760m": (24, 1536, 12),
    "350m": (24, 1024, 16),
    "125m": (12, 768, 12),
}
_CLUSTERS = {"A100": CLUSTER, "H100": "h100-80gb-ndr"}

FSDP = software_named("torch-fsdp")
FSDP_PURE = replace(FSDP, name="torch-fsdp-pure", wire_bytes=2)
# minGPT's attention writes its scores to memory, and drops some of them; that the runs used it is
# what the name says, not the paper.
MINGPT = replace(FSDP_PURE, name="torch-fsdp-mingpt", keeps_scores=True, masks_dropout=True)
# Up to the tables of October 2023 (its commit b2a43a1) llm-foundry's yamls asked for Triton's
# attention; those of January 2024 (5e85bd6), from 128 GPUs on, for FlashAttention-2.
_NEW_GPUS = 128


def sharded(gpus: int, micro_batch: int, micro_batches: int, policy: str, again: str) -> RunLayout:
    return RunLayout(
        data=gpus,
        policy=policy,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        recomputation=again,
    )


def mpt(device: str) -> list[Point]:
    """Return the runs on this device, "A100" or "H100": tokens/s per GPU.

    Tied embeddings, learned positions, biases: the parameter counts of the tables.
    """
    return [point for point in mpt_points(MPT_ROWS) if point.cluster is hardware(_CLUSTERS[device])]


def mpt_points(path: Path) -> list[Point]:
    """Return the runs of such a file: tokens/s per GPU."""
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return [_mpt_point(row) for row in rows]


def _mpt_point(row: dict) -> Point:
    layers, width, heads = _SIZES[row["model"]]
    sequence, gpus, micro_batch, micro_batches = (
        int(row[key]) for key in ("sequence", "gpus", "micro_batch", "micro_batches")
    )
    shape = ModelShape(layers, width, heads, MPT_VOCABULARY, sequence, tied=True)
    software = FSDP if row["wire_bytes"] == "4" else FSDP_PURE
    if gpus < _NEW_GPUS:
        software = replace(software, name=f"{software.name}-triton", attention_kernel="triton")
    return Point(
        f"{row['device']} {row['model']}, {sequence} tokens x {micro_batch} x {micro_batches}, "
        f"{gpus} GPUs",
        shape,
        sharded(gpus, micro_batch, micro_batches, row["policy"], row["recomputation"]),
        software,
        float(row["tokens_per_second"]),
        "tokens/s",
        hardware(_CLUSTERS[row["device"]]),
    )


@lru_cache
def _roce() -> Cluster:
    """Return the nodes of arXiv 2304.11277: A100s with 2 Tb/s of RoCE instead of 1.6."""
    cluster = hardware(CLUSTER)
    return replace(cluster, between=replace(cluster.between, bytes_per_second=250e9))


def fsdp_paper() -> list[Point]:
    """Return the 175B runs of arXiv 2304.11277, of minGPT: TFLOP/s per GPU.

    173 with one sequence for each GPU, 186 with two, said to hold from 128 to 512 GPUs. They count
    the recomputed forward, as 186 of at most 245 for matrix products of an A100 shows.
    """
    shape = ModelShape(96, 12288, 96, 50257, 2048, dropout=0.1)
    return [
        Point(
            f"175B, batch {batch}, {gpus} GPUs",
            shape,
            sharded(gpus, batch, 1, "fsdp", "full"),
            MINGPT,
            published,
            "TFLOP/s",
            _roce(),
        )
        for batch, published in ((1, 173.0), (2, 186.0))
        for gpus in (128, 256, 512)
    ]


TITAN = software_named("torchtitan")
TITAN_COMPILED = software_named("torchtitan-compiled")
LLAMA_8B = ModelShape(
    32, 4096, 32, 128256, 8192, kv_heads=8, hidden=14336, style="llama", tied=False
)
_POWER = 0.80


@lru_cache
def grand_teton() -> Cluster:
    """Return those nodes: H100s of 96 GB and 2.4 TB/s that are limited to 500 of 700 W.

    By the choosing half that takes a part of the speed of products, _POWER.
    """
    cluster = hardware("h100-80gb-ndr")
    device = replace(
        cluster.device,
        name="H100-96GB",
        memory_bytes=92e9,
        bytes_per_second=2.4e12,
        fractions=tuple(_POWER * fraction for fraction in cluster.device.fractions),
    )
    return replace(cluster, name="Grand Teton, H100 96 GB, 8 x 400 Gb/s", device=device)


def titan() -> list[Point]:
    """Return the runs of Llama 3.1 8B in bfloat16: tokens/s per GPU, 2 sequences of 8192 each."""
    rows = [
        (TITAN, 8, 5762),
        (TITAN, 128, 5605),
        (TITAN_COMPILED, 8, 6667),
        (TITAN_COMPILED, 128, 6514),
    ]
    return [
        Point(
            f"8B, {gpus} GPUs, {software.name}",
            LLAMA_8B,
            sharded(gpus, 2, 1, "fsdp", "selective"),
            software,
            published,
            "tokens/s",
            grand_teton(),
        )
        for software, gpus, published in rows
    ]
