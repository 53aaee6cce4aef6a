"""The example of a scientist's script: a model of one's own, from a table to predictions."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy
from test_command_line import MPIEXEC

from shardkit.testing.checkpoint import compare, find_checkpoint

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(folder, *command):
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_of_a_surrogate_trains_stops_early_or_in_time_and_predicts(tmp_path):
    assert len((EXAMPLES / "surrogate.py").read_text().splitlines()) <= 45
    for name, rows in (("table.h5", "2000"), ("new.h5", "300")):
        run(tmp_path, sys.executable, str(EXAMPLES / "surrogate_table.py"), name, rows)
    script = [sys.executable, str(EXAMPLES / "surrogate.py"), "table.h5", "new.h5", "run"]
    out = run(tmp_path, MPIEXEC, "-n", "2", *script)
    assert "validation loss" in out and "rmse" in out
    with h5py.File(tmp_path / "new.h5") as new:
        y = new["y"][:]
    with h5py.File(tmp_path / "run" / "predictions.h5") as file:
        error = file["prediction"][:] - y
    assert numpy.sqrt((error**2).mean()) < 0.2 * y.std()
    first = (tmp_path / "run" / "predictions.h5").read_bytes()

    assert "resumed at step" in run(tmp_path, *script)  # it is done, and predicts again
    assert (tmp_path / "run" / "predictions.h5").read_bytes() == first


def test_a_task_of_ones_own_is_killed_on_four_ranks_and_goes_on_on_two_with_the_same_bits(tmp_path):
    run(tmp_path, sys.executable, str(EXAMPLES / "surrogate_table.py"), "table.h5", "300")
    train = [
        sys.executable,
        "-m",
        "shardkit",
        "train",
        "--task",
        f"{EXAMPLES}/surrogate.py:Surrogate",
    ]
    train += ["--data.path=table.h5", "--data.features=x", "--data.target=y", "--run.steps=120"]
    train += ["--batch.sequences=64", "--batch.micro_batch=16", "--run.checkpoint_every=5"]
    killed = subprocess.Popen(
        [MPIEXEC, "-n", "4", *train, "--run.folder=killed"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 100
    while not (tmp_path / "killed" / "checkpoints" / "step-00000010").exists():
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(500)
    out = run(tmp_path, MPIEXEC, "-n", "2", *train, "--run.folder=killed", "--resume")
    assert "resumed at step" in out and "resumed at step 120" not in out
    run(tmp_path, *train, "--run.folder=whole")
    both = (find_checkpoint(tmp_path / name)[0] for name in ("killed", "whole"))
    assert compare(*both, tolerance=0.0, model_only=False).is_equal
