"""Published runs of programs that nobody described for them, by the names that a user has.

    blind_families()   {family: its runs}, of blind.csv
    drawn()            the families that constants may be chosen with, and those that judge

Sources of the rows of blind.csv, by the beginning of a family's name:

    llama      NeurIPS-WANT-submission-efficient-parallelization-layouts of Aleph-Alpha on GitHub, a
               family for each of its tables (arXiv 2311.05610): seconds of a step, empty where a
               run ended without memory
    nanotron   docs/benchmark_summary.svg of huggingface/nanotron at its commit 2411b02, by size:
               part of 989.5 TFLOP/s, GB of a device
    fms        the README of foundation-model-stack/fms-fsdp at its commit 5a296af
    nemo, dgxc, bridge   the performance summaries of NeMo 24.12, of dgxc-benchmarking 25.05 and of
               Megatron-Bridge 25.09 to 26.06
"""

import csv
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from published_runs import Point, hardware, ratio

from shardkit.plan import ModelShape, RunLayout, Software, software_named
from shardkit.plan.hardware import Cluster
from shardkit.plan.software import in_float8

ROWS = Path(__file__).with_name("blind.csv")
_PEAK = 989.5e12  # that nanotron's parts are of
_FLOAT8 = "-float8"
_SOURCES = ("llama", "nanotron", "fms", "nemo dgxc bridge")
_MODELS = {
    "llama-13B": ModelShape(40, 5120, 40, 128000, 2048, 40, 13824, "llama"),
    "llama-30B": ModelShape(60, 6656, 52, 128000, 2048, 52, 17920, "llama"),
    "llama-65B": ModelShape(80, 8192, 64, 128000, 2048, 64, 22016, "llama"),
    "nanotron-1.34B": ModelShape(16, 2048, 32, 131072, 4096, 32, 8192, "llama", tied=True),
    "nanotron-3.57B": ModelShape(28, 3072, 32, 131072, 4096, 32, 8192, "llama", tied=True),
    "nanotron-8.86B": ModelShape(32, 4096, 32, 131072, 4096, 32, 14336, "llama"),
    "nanotron-80.0B": ModelShape(80, 8192, 64, 131072, 4096, 64, 28672, "llama"),
    "llama2-7b": ModelShape(32, 4096, 32, 32000, 4096, 32, 11008, "llama"),
    "llama2-13b": ModelShape(40, 5120, 40, 32000, 4096, 40, 13824, "llama"),
    "llama2-34b": ModelShape(48, 8192, 64, 32000, 4096, 8, 22016, "llama"),
    "llama2-70b": ModelShape(80, 8192, 64, 32000, 4096, 8, 28672, "llama"),
    "nemotron-8b": ModelShape(32, 4096, 32, 256000, 4096, 32, 16384, "gpt2"),
    "nemotron-15b": ModelShape(32, 6144, 48, 256000, 4096, 8, 24576, "gpt2"),
    "nemotron-22b": ModelShape(40, 6144, 48, 256000, 4096, 48, 24576, "gpt2"),
    "nemotron-340b": ModelShape(96, 18432, 96, 256000, 4096, 8, 73728, "gpt2"),
    "llama3-8b": ModelShape(32, 4096, 32, 128256, 8192, 8, 14336, "llama"),
    "llama3-70b": ModelShape(80, 8192, 64, 128256, 8192, 8, 28672, "llama"),
}


@dataclass(frozen=True)
class BlindRun(Point):
    """A run of blind.csv; published is 0 of one that ended without memory.

    measured_gigabytes   of a device; 0: not published
    """

    measured_gigabytes: float = 0.0

    @property
    def has_run(self) -> bool:
        return self.published > 0

    @property
    def ratio(self) -> float:
        """Seconds that the run took over those predicted."""
        return ratio(self)


def drawn(names: list[str]) -> tuple[list[str], list[str]]:
    """Return the families that constants may be chosen with, and those that judge.

    The rule was written down before any constant was chosen: of each source the families in the
    order of the SHA-256 of their names; the first, third, ... choose, the others judge.
    """
    chosen, judged = [], []
    for source in _SOURCES:
        own = [name for name in names if name.split("_")[0] in source.split()]
        own.sort(key=lambda name: sha256(name.encode()).hexdigest())
        chosen += own[::2]
        judged += own[1::2]
    return chosen, judged


@lru_cache
def blind_families() -> dict[str, list[BlindRun]]:
    """Return {family: its runs}."""
    families = {}
    for row in csv.DictReader(ROWS.read_text(encoding="utf-8").splitlines()):
        families.setdefault(row["family"], []).append(_run(row))
    return families


def _run(row: dict) -> BlindRun:
    shape = replace(_MODELS[row["model"]], sequence_length=int(row["sequence"]))
    published, unit = float(row["published"] or 0), row["unit"]
    if unit == "MFU":
        published, unit = published / 100 * _PEAK / shape.num_flops_per_item, "tokens/s"
    layout = _layout_of(row)
    return BlindRun(
        f"{row['family']}: {row['program']}, {row['model']}, {layout}",
        shape,
        layout,
        _program(row["program"]),
        published,
        unit,
        _cluster(row["hardware"]),
        float(row["gigabytes"] or 0),
    )


def _layout_of(row: dict) -> RunLayout:
    gpus, pipeline, tensor, virtual, micro_batch, batch = (
        int(row[key]) for key in "gpus pipeline tensor virtual micro_batch batch".split()
    )
    data = gpus // pipeline // tensor
    return RunLayout(
        pipeline,
        data,
        tensor,
        row["policy"],
        "interleaved" if virtual > 1 else "1f1b",
        virtual,
        micro_batch,
        batch // data // micro_batch,
        row["recomputation"],
        row["sequence_parallel"] == "1",
        shard_ranks=8 if row["policy"] == "hsdp" else None,
    )


@lru_cache
def _program(name: str) -> Software:
    program = software_named(name.removesuffix(_FLOAT8))
    return in_float8(program) if name.endswith(_FLOAT8) else program


@lru_cache
def _cluster(name: str) -> Cluster:
    """Return hardware; "NAME:50" has that many GB/s between nodes."""
    name, _, between = name.partition(":")
    cluster = hardware(name)
    if not between:
        return cluster
    return replace(cluster, between=replace(cluster.between, bytes_per_second=1e9 * int(between)))
