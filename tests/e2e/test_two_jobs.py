"""Two jobs in one run folder: one trains, the other one is refused, and nothing is lost."""

import os
import re
import signal
import subprocess
import time

import pytest
from e2e.mpi_jobs import python_of

SETTINGS = (
    "--run.report_every=10 --run.validate_every=100000 --model.width=16 --model.layers=1 "
    "--model.heads=2 --model.sequence_length=32 --batch.sequences=8 --batch.micro_batch=4 "
    "--sample.tokens=0 --data.path=text.txt --run.folder=run"
).split()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"line {i} of {i * i}\n" for i in range(2000)))
    return tmp_path


def start(folder, job, *arguments):
    """A training job of two ranks, as a batch system numbers it."""
    python = python_of("MPICH")
    return subprocess.Popen(
        [python.with_name("mpiexec"), "-n", "2", python, "-m", "shardkit", "train", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PBS_JOBID": job},
    )


def steps_of(folder):
    names = [path.name for path in (folder / "run" / "checkpoints").glob("step-*")]
    return sorted(name for name in names if "." not in name)


@pytest.mark.parametrize("seconds_between", [0, pytest.param(0.5, marks=pytest.mark.sweep), 4])
def test_of_two_jobs_one_trains_and_the_other_is_refused(folder, seconds_between):
    more = ("--resume-if-any", "--run.steps=60", "--run.checkpoint_every=20")
    first = start(folder, "11", *SETTINGS, *more)
    time.sleep(seconds_between)
    second = start(folder, "12", *SETTINGS, *more)
    said = [job.communicate(timeout=500)[0] for job in (first, second)]
    codes = [job.returncode for job in (first, second)]
    assert steps_of(folder) == ["step-00000020", "step-00000040", "step-00000060"], said
    assert not (folder / "run" / "owner.json").exists()
    if codes != [0, 0]:  # else the first one had ended before the second one came
        assert sorted(codes) == [0, 2], said
        refused = said[codes.index(2)]
        own, other = ("11", "12") if codes[0] == 2 else ("12", "11")
        words = rf"run belongs to job {other}, process \d+ on .*, and this is job {own}, process"
        assert re.search(words, refused) and refused.count("belongs to") == 1, refused


def test_a_job_goes_on_at_once_in_the_folder_of_one_that_was_killed(folder):
    first = start(folder, "11", *SETTINGS, "--run.steps=100000", "--run.checkpoint_every=10")
    deadline = time.monotonic() + 120
    while not steps_of(folder):
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.1)
    pids = re.findall(
        r"\d+",
        subprocess.run(["pgrep", "-g", str(first.pid)], capture_output=True, text=True).stdout,
    )
    assert (folder / "run" / "owner.json").exists()
    for pid in pids:
        os.kill(int(pid), signal.SIGKILL)
    first.communicate(timeout=500)
    more = int(steps_of(folder)[-1].removeprefix("step-")) + 10
    again = start(folder, "12", "--resume", "--run.folder=run", f"--run.steps={more}")
    said = again.communicate(timeout=500)[0]
    assert "resumed at step" in said and "waiting up to" not in said, said
    assert again.returncode == 0, said
    assert not (folder / "run" / "owner.json").exists()
