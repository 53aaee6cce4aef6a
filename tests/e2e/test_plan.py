"""The command line that `shardkit plan` recommends, run as it stands."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

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
    planned = run(
        tmp_path,
        sys.executable,
        "-m",
        "shardkit",
        "plan",
        "run.toml",
        "cpu-node",
        "--devices",
        ranks,
    )
    assert planned.returncode == 0, planned.stderr
    words = shlex.split(planned.stdout.split("run it: ")[1].splitlines()[0])
    assert words[:4] == ["mpiexec", "-n", str(ranks), "shardkit"]
    trained = run(tmp_path, BIN / "mpiexec", "-n", ranks, sys.executable, "-m", *words[3:])
    assert trained.returncode == 0, trained.stderr
    assert "trained for" in trained.stdout
