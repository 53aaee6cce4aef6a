"""Jobs of ensembles are killed at random moments, or told to stop: no trial that has finished is
lost or run twice, and in the end all is as if nothing had happened.

Two kills here; 20 with  python -m pytest -m sweep tests/e2e/test_ensembles_killed.py -s
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardkit.testing.checkpoint import compare, find_checkpoint
from shardkit.testing.ensemble import read_record

SCRIPT = Path(__file__).with_name("ensemble_rank.py")
ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).with_name("mpiexec")


def started(folder, num_trials, log, num_ranks=4):
    return subprocess.Popen(
        [MPIEXEC, "-n", str(num_ranks), sys.executable, SCRIPT, folder, str(num_trials), log],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def steps_in(log):
    """The trial of each step that was taken, in their order."""
    return [int(line.split()[0]) for line in log.read_text().splitlines()]


def finished_in(folder):
    record = read_record(folder)
    trials = [] if record is None else record.trials
    return {trial.number: trial for trial in trials if trial.status == "finished"}


def struck(folder, num_trials, log, rng, how, num_ranks=4):
    """Start the ensemble, strike it at some moment of its steps, and return how it ended; a signal
    that it can hear comes once a trial has finished.
    """
    before, done = len(steps_in(log)), how == signal.SIGKILL or finished_in(folder)
    job = started(folder, num_trials, log, num_ranks)
    try:
        while job.poll() is None and len(steps_in(log)) == before:
            time.sleep(0.02)
        while job.poll() is None and not (done or finished_in(folder)):
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 1.5))
        if job.poll() is None:
            os.killpg(job.pid, how)
        _, told = job.communicate(timeout=500)
    finally:
        job.kill()
    return job.returncode, told


def check_equal(folder, other, num_trials):
    ours, theirs = read_record(folder), read_record(other)
    assert ours.trials == theirs.trials
    for number in range(num_trials):
        trial = f"trials/{number:04d}"
        found = [find_checkpoint(each / trial)[0] for each in (folder, other)]
        assert compare(*found, tolerance=0.0).is_equal, number
        curves = [each.curves[number]["validation_loss"] for each in (ours, theirs)]
        assert (curves[0] == curves[1]).all()


def killed(tmp_path, num_kills, num_trials):
    rng, log, folder = random.Random(num_kills), tmp_path / "log", tmp_path / "killed"
    log.touch()
    kills, known, code = 0, {}, None
    while code != 0:
        before = len(steps_in(log))
        if kills < num_kills:
            code, _ = struck(folder, num_trials, log, rng, signal.SIGKILL)
            kills += code != 0
        else:
            job = started(folder, num_trials, log)
            _, told = job.communicate(timeout=500)
            code = job.returncode
            assert code == 0, told
        now = finished_in(folder)
        assert {number: now.get(number) for number in known} == known, "a trial was lost"
        assert not set(steps_in(log)[before:]) & known.keys(), "a trial was run twice"
        known = now
    assert len(known) == num_trials
    job = started(tmp_path / "whole", num_trials, tmp_path / "other")
    assert job.communicate(timeout=500) and job.returncode == 0
    check_equal(folder, tmp_path / "whole", num_trials)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_killed_ensemble_goes_on_as_if_it_had_not_been_killed(tmp_path):
    killed(tmp_path, 2, 4)


@pytest.mark.sweep
@pytest.mark.timeout(3000)
def test_twenty_kills(tmp_path):
    killed(tmp_path, 20, 12)


@pytest.mark.timeout(600)
def test_an_ensemble_that_is_told_to_stop_saves_ends_with_75_and_goes_on(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "told"
    log.touch()
    code, told = struck(folder, 40, log, random.Random(0), signal.SIGTERM)
    assert code == 75, told
    done, waiting = finished_in(folder), read_record(folder).trials
    assert len(done) < 40 and {t.status for t in waiting} == {"finished", "waiting"}
    before = len(steps_in(log))
    struck(folder, 40, log, random.Random(1), signal.SIGTERM, num_ranks=2)
    assert not set(steps_in(log)[before:]) & done.keys()
    assert not re.search("Traceback|died", told), told
