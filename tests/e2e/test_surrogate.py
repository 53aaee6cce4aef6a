"""The example of a scientist's script: a model of one's own, from a table to predictions."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy
from test_command_line import MPIEXEC

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def run(folder, *command):
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_of_a_surrogate_trains_stops_early_or_in_time_and_predicts(tmp_path):
    assert len((JOBS / "surrogate.py").read_text().splitlines()) <= 45
    for name, rows in (("table.h5", "2000"), ("new.h5", "300")):
        run(tmp_path, sys.executable, str(JOBS / "surrogate_table.py"), name, rows)
    script = [sys.executable, str(JOBS / "surrogate.py"), "table.h5", "new.h5", "run"]
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
