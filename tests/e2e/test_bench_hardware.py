"""`shardkit bench hardware` writes a file that `shardkit plan` reads."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardkit.testing.cli import main
from shardkit.testing.plan import read_cluster

MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
QUICKLY = Path(__file__).with_name("measuring_rank.py")  # `bench hardware` of few tries


def shardkit(folder, *words, ranks=None):
    return python(folder, "-m", "shardkit", *words, ranks=ranks)


def python(folder, *words, ranks=None):
    command = [sys.executable, *words]
    return subprocess.run(
        [MPIEXEC, "-n", str(ranks), *command] if ranks else command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_is_measured_can_be_planned_with(tmp_path, ranks, capsys):
    """On three ranks it measures groups of two and of three."""
    measured = python(tmp_path, QUICKLY, "--output", "mine.toml", ranks=ranks)
    assert measured.returncode == 0, measured.stderr
    cluster = read_cluster(tmp_path / "mine.toml")
    assert cluster.devices == ranks and re.search(rf"{ranks} ranks? on a node", cluster.name)
    assert 0.9 < max(cluster.device.fractions) <= 1
    assert cluster.device.peak_of("float32") > cluster.device.peak_of("float64") > 1e8
    assert {row.head_dim for row in cluster.device.attention} == {32, 64, 128}
    assert all(
        0 < fraction <= 1
        for row in cluster.device.attention
        for fraction in row.forward + row.backward
    )
    assert cluster.device.bytes_per_second > 1e8 and 0 < cluster.device.memory_fraction <= 1
    assert 1e-7 < cluster.device.call_seconds < 1e-2 and cluster.storage_bytes_per_second > 0
    operations = {(row.operation, row.ranks) for row in cluster.measured}
    wanted = {
        (operation, size)
        for operation in ("all_reduce", "all_gather", "reduce_scatter", "send")
        for size in range(2, ranks + 1)
    }
    assert operations == wanted
    assert all(row.latency_seconds > 0 and row.bytes_per_second > 0 for row in cluster.measured)
    assert [row.ranks for row in cluster.crowding] == list(range(1, ranks + 1))
    assert cluster.crowding[-1].slowdown == 1 and 0.1 < cluster.crowding[0].slowdown < 10
    assert all(row.lag >= 0 for row in cluster.crowding)
    assert 0 <= cluster.device.unit_seconds < 0.1
    (tmp_path / "run.toml").write_text(
        "[model]\nwidth = 32\nlayers = 3\nheads = 4\nsequence_length = 32\n"
    )
    files = [str(tmp_path / name) for name in ("run.toml", "mine.toml")]
    assert main(["plan", *files, "--devices", str(ranks), "--batch", "12"]) == 0
    assert "run it: mpiexec" in capsys.readouterr().out


@pytest.mark.parametrize(
    "setting, ranks, words",
    [("--parallel.blas=fast", 2, "parallel.blas"), ("--run.steps=3", None, "no setting")],
)
def test_a_setting_that_it_does_not_measure_is_refused(tmp_path, setting, ranks, words):
    done = shardkit(tmp_path, "bench", "hardware", setting, "--output", "mine.toml", ranks=ranks)
    assert done.returncode == 2 and words in done.stderr and not (tmp_path / "mine.toml").exists()


def test_a_file_that_cannot_be_written_is_said_before_the_work(tmp_path):
    done = shardkit(tmp_path, "bench", "hardware", "--output", "no/such/folder.toml", ranks=2)
    assert done.returncode != 0 and "folder.toml" in done.stderr and "GFLOP/s" not in done.stdout
