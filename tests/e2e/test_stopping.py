"""A run that is told to stop, or whose time ends, saves the step at hand and ends with exit code
75; --resume goes on.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shardkit.testing.checkpoint import compare, find_checkpoint

MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
SMALL = [
    "--model.width=16",
    "--model.layers=2",
    "--model.heads=2",
    "--model.sequence_length=32",
    "--batch.sequences=8",
    "--batch.micro_batch=2",
    "--run.report_every=1",
    "--run.validate_every=10000",
    "--run.validation_batches=1",
    "--run.checkpoint_every=10000",
    "--run.keep_checkpoints=20",
    "--sample.tokens=0",
    "--optimizer.decay_steps=100000",
]
ENDLESS = 100_000  # steps, far more than any test takes


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text(
        "".join(f"line {i} with the number {i * i}\n" for i in range(600))
    )
    return tmp_path


class Job:
    """mpiexec -n RANKS shardkit train, in the background; ended by the end of the `with` at the
    latest.
    """

    def __init__(self, folder, *arguments, ranks=2, steps=ENDLESS, **environment):
        command = [
            MPIEXEC,
            "-n",
            str(ranks),
            sys.executable,
            "-m",
            "shardkit",
            "train",
            *SMALL,
            "--data.path=text.txt",
            "--run.folder=run",
            f"--run.steps={steps}",
            *arguments,
        ]
        self.folder = folder
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.communicate()

    def wait_for_step(self, step, seconds=240):
        """Return when this step has been reported."""
        deadline = time.monotonic() + seconds
        while last_step(self.folder) < step:
            assert self._process.poll() is None, self._process.communicate()[0]
            assert time.monotonic() < deadline, "no progress"
            time.sleep(0.01)

    def signal_rank(self, rank, number):
        """Send a signal to the process of this rank alone, as its log knows it."""
        log = (self.folder / "run" / "logs" / f"rank-{rank:05d}.log").read_text()
        os.kill(int(re.findall(r"process (\d+),", log)[-1]), number)

    def signal_launcher(self, number):
        self._process.send_signal(number)

    def end(self, seconds=60):
        """(exit code, all output)."""
        output = self._process.communicate(timeout=seconds)[0]
        return self._process.returncode, output


def last_step(folder):
    path = folder / "run" / "metrics.jsonl"
    return (
        json.loads(path.read_text().splitlines()[-1])["step"]
        if path.exists() and path.read_text().endswith("\n")
        else 0
    )


def checkpoints(folder):
    return sorted(
        int(path.name[5:])
        for path in (folder / "run" / "checkpoints").glob("step-*")
        if path.suffix == ""
    )


def same_bits(one, other):
    first, second = (find_checkpoint(folder / "run")[0] for folder in (one, other))
    return compare(first, second, tolerance=0.0, model_only=False).is_equal


@pytest.mark.parametrize(
    "number, ranks", [(signal.SIGUSR1, 3), (signal.SIGUSR2, 1), (signal.SIGTERM, 2)]
)
def test_a_signal_to_one_rank_stops_all_after_a_checkpoint(folder, number, ranks):
    with Job(folder, f"--batch.sequences={2 * ranks}", ranks=ranks) as job:
        job.wait_for_step(5)
        job.signal_rank(ranks - 1, number)
        code, output = job.end(60)
    assert code == 75, output
    assert checkpoints(folder) == [last_step(folder)], "a step was lost"
    assert f"stopping: {number.name} on rank {ranks - 1}" in output


def test_a_stopped_run_goes_on_to_the_bits_of_one_that_was_not(folder, tmp_path_factory):
    with Job(folder) as job:
        job.wait_for_step(4)
        job.signal_launcher(signal.SIGUSR1)  # mpiexec passes it on to all ranks
        assert job.end(60)[0] == 75
    steps = last_step(folder) + 6
    with Job(folder, "--resume-if-any", steps=steps) as job:
        code, output = job.end()
    assert code == 0 and f"resumed at step {steps - 6}" in output, output
    whole = tmp_path_factory.mktemp("whole")
    (whole / "text.txt").write_text((folder / "text.txt").read_text())
    with Job(whole, "--resume-if-any", ranks=1, steps=steps) as job:  # nothing to resume: it starts
        assert job.end()[0] == 0
    assert same_bits(folder, whole)


def test_a_run_stops_before_its_allocation_ends_without_any_signal(folder):
    """The margin is reached in three seconds, or at the first step of a slow start."""
    end, margin = int(time.time()) + 1003, 1000
    with Job(folder, f"--run.stop_margin_seconds={margin}", SHARDKIT_END_TIME=str(end)) as job:
        code, output = job.end(60)
    assert code == 75 and re.search(r"stopping: \d+m\d\ds of the allocation left", output), output
    assert checkpoints(folder) == [last_step(folder)]


def test_a_time_limit_of_the_run_itself_counts_from_its_start(folder):
    with Job(folder, "--run.time_limit_seconds=3", "--run.stop_margin_seconds=1", ranks=1) as job:
        code, output = job.end(60)
    assert code == 75 and checkpoints(folder) == [last_step(folder)], output


def test_signals_that_rain_on_all_ranks_while_they_save_do_no_harm(folder):
    with Job(folder, "--run.checkpoint_every=1", "--run.report_every=1") as job:
        job.wait_for_step(3)
        stopped = threading.Event()

        def rain():
            while not stopped.wait(0.001):
                for rank in (0, 1):
                    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
                        try:
                            job.signal_rank(rank, number)
                        except ProcessLookupError:
                            return

        thread = threading.Thread(target=rain)
        thread.start()
        try:
            code, output = job.end(60)
        finally:
            stopped.set()
            thread.join()
    assert code == 75, output
    assert checkpoints(folder)[-1] == last_step(folder) and not list(
        (folder / "run").rglob("*.tmp")
    )
    find_checkpoint(folder / "run" / "checkpoints" / f"step-{last_step(folder):08d}")[0].verify()


def test_a_run_that_does_not_improve_ends_early_and_well_with_a_log_of_each_rank(folder):
    still = ["--optimizer.name=sgd", "--optimizer.learning_rate=1e-30"]
    with Job(folder, "--run.patience=2", "--run.validate_every=1", *still) as job:
        code, output = job.end()
    assert code == 0 and "stopping: 2 validations without a lower loss" in output, output
    assert checkpoints(folder) == [1, 3], "the best and the newest"
    check_logs(folder, f"step 3/{ENDLESS}  loss")


def check_logs(folder, words):
    """Look for the place of each of two ranks in its log, and for what both have said."""
    for rank in (0, 1):
        log = (folder / "run" / "logs" / f"rank-{rank:05d}.log").read_text()
        stamp, place = (
            r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}",
            f"rank {rank} of 2 at pipeline 0, data {rank}, tensor 0: host ",
        )
        assert re.search(f"{stamp}  {place}", log, re.M)
        assert words in log


def test_losses_that_stay_infinite_end_the_run_with_one_sentence(folder):
    with Job(
        folder,
        "--optimizer.name=sgd",
        "--optimizer.learning_rate=1e38",
        "--optimizer.max_gradient_norm=0",
        "--run.stop_after_bad_steps=3",
    ) as job:
        code, output = job.end()
    assert (
        code == 1
        and output.count("3 steps in a row were NaN or infinite") == 1
        and "on all 2 ranks" in output
    ), output
    assert output.count("skipped: ") >= 3 and "Traceback" not in output
    skips = [
        json.loads(line).get("skipped_steps")
        for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [count for count in skips if count] == [1, 2, 3]
