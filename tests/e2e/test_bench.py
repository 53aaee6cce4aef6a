"""shardkit bench as a user meets it: real processes, with and without mpiexec."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
SMALL = [
    "--model.width=64",
    "--model.layers=2",
    "--model.heads=2",
    "--model.sequence_length=64",
    "--batch.sequences=8",
    "--batch.micro_batch=2",
    "--steps=3",
]


def bench(folder, *arguments, ranks=None):
    command = [sys.executable, "-m", "shardkit", "bench", *SMALL, *arguments]
    if ranks:
        command = [MPIEXEC, "-n", str(ranks), *command]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(
    "ranks, arguments, strategy",
    [
        (None, [], "FSDP"),
        (2, ["--mesh.pipeline=2", "--parallel.policy=ddp"], "DDP"),
        (2, ["--mesh.tensor=2", "--model.style=gpt2"], "FSDP"),
    ],
    ids=["alone", "pipeline", "tensor"],
)
def test_the_parts_add_up_to_the_step_and_stand_in_table_and_file(
    tmp_path, ranks, arguments, strategy
):
    done = bench(tmp_path, *arguments, "--json", "figures.json", ranks=ranks)
    assert done.returncode == 0, done.stderr
    for words in (
        "matrix products",
        "exposed communication",
        "Python and bookkeeping",
        "model FLOP utilization",
        "GFLOP/s",
        "peak memory per rank",
        "ms for its data",
        "\n- ",
    ):
        assert done.stdout.count(words) >= 1, done.stdout
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (
        figures["ranks"] == (ranks or 1) == len(figures["parts_per_rank"])
        and figures["strategy"] == strategy
    )
    assert all(
        seconds >= 0 for of_rank in figures["parts_per_rank"] for seconds in of_rank.values()
    )
    slowest = max(sum(of_rank.values()) for of_rank in figures["parts_per_rank"])
    assert slowest == pytest.approx(figures["watched_step_seconds"], rel=0.02)
    assert all(figures["parts"][part] > 0 for part in ("products", "kernels", "python")), figures[
        "parts"
    ]
    assert (
        figures["parts"]["communication"] + figures["parts"]["idle"]
        > 0.01 * figures["step_seconds"]
    ) or not ranks
    assert (
        0 < figures["model_flop_utilization"] < 1.5
        and figures["tokens_per_second"] > 0
        and figures["advice"]
    )
    assert figures["tokens_per_second"] == pytest.approx(8 * 64 / figures["step_seconds"])
    assert not list(tmp_path.glob("runs")), "bench keeps nothing"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--batch.sequences=9"], "does not divide"),
        (["--json", "no/f.json"], "no/f.json"),
    ],
)
def test_bad_input_is_one_sentence_and_an_exit_code(tmp_path, arguments, words):
    """More of it is in test_exit_codes.py and test_config.py."""
    done = bench(tmp_path, *arguments)
    assert (
        done.returncode in (1, 2)
        and words in done.stderr
        and "Traceback" not in done.stderr + done.stdout
    )
