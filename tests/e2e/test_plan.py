"""The command line that `shardkit plan` recommends, run as it stands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import h5py
import numpy
import pytest

from shardkit.testing.plan import FOLDER

BIN = Path(sys.executable).parent
MODEL = """
[model]
width = 32
layers = 4
heads = 4
sequence_length = 32
[batch]
sequences = 8
[run]
steps = 3
[sample]
tokens = 0
[data]
path = ["text.txt"]
"""

UNET = """
[run]
task = "unet"
steps = 2
[model]
width = 8
depth = 2
[batch]
sequences = 1
micro_batch = 1
[data]
path = "rows.h5"
target = ["y"]
"""


def run(folder, *words):
    return subprocess.run(
        list(map(str, words)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.sweep), 4])
def test_the_recommended_run_trains(tmp_path, ranks):
    (tmp_path / "text.txt").write_text("a text that repeats itself\n" * 2000)
    (tmp_path / "run.toml").write_text(MODEL)
    check_that_it_trains(tmp_path, ranks, "cpu-node")


def test_a_unet_is_planned_on_ranks_that_share_samples_and_trains(tmp_path):
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        for name in "xy":
            file[name] = numpy.random.default_rng(0).random((10, 1, 64, 64), "float32")
    (tmp_path / "run.toml").write_text(UNET)
    text = (FOLDER / "cpu-node.toml").read_text()
    small = re.sub(r"memory_bytes = .*", "memory_bytes = 7.5e6", text, count=1)
    (tmp_path / "small.toml").write_text(small)
    words = check_that_it_trains(tmp_path, 4, "small.toml")
    assert "--mesh.domain=4" in words


def check_that_it_trains(folder, ranks, cluster):
    """Plan, and run what is recommended; return its words."""
    planned = run(
        folder,
        sys.executable,
        "-m",
        "shardkit",
        "plan",
        "run.toml",
        cluster,
        "--devices",
        ranks,
    )
    assert planned.returncode == 0, planned.stderr
    words = shlex.split(planned.stdout.split("run it: ")[1].splitlines()[0])
    assert words[:4] == ["mpiexec", "-n", str(ranks), "shardkit"]
    trained = run(folder, BIN / "mpiexec", "-n", ranks, sys.executable, "-m", *words[3:])
    assert trained.returncode == 0, trained.stderr
    assert "trained for" in trained.stdout
    return words
