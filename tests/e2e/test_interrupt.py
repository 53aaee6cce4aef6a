"""Ctrl-C as a terminal sends it, to the whole process group: it ends a run with a checkpoint, and
everything else in one line.
"""

import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from e2e.mpi_jobs import OPEN_MPI_SETTINGS, ROOT, hear_ctrl_c, python_of
from e2e.test_stopping import SMALL, checkpoints

from shardkit.testing.checkpoint import find_checkpoint

REPORTED = re.compile(r"step \d+/\d+  loss")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text(
        "".join(f"line {i} with the number {i * i}\n" for i in range(600))
    )
    return tmp_path


class Foreground:
    """A command with a process group of its own, as a shell starts it in the foreground."""

    def __init__(self, folder, command):
        environment = {
            **os.environ,
            **OPEN_MPI_SETTINGS,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            list(map(str, command)),
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=hear_ctrl_c,
        )
        self._watch = threading.Timer(100, self._process.kill)  # so that no read waits for ever
        self._watch.start()
        self.output = ""

    def read_until(self, pattern):
        """Read lines up to one that matches."""
        for line in self._process.stdout:
            self.output += line
            if re.search(pattern, line):
                return
        raise AssertionError(f"no {pattern} in:\n{self.output}")

    def press_ctrl_c(self):
        os.killpg(self._process.pid, signal.SIGINT)

    def tell_launcher(self, number):
        self._process.send_signal(number)

    def end(self):
        """The exit code; all output is in `output` then."""
        self.output += self._process.stdout.read()
        code = self._process.wait()
        self._watch.cancel()
        return code


def train(folder, ranks, *arguments, library="MPICH"):
    """`shardkit train` on some ranks; 0: without a launcher."""
    python = python_of(library)
    start = [python.with_name("mpiexec"), "-n", ranks] if ranks else []
    return Foreground(
        folder,
        [
            *start,
            python,
            "-m",
            "shardkit",
            "train",
            *SMALL,
            "--data.path=text.txt",
            "--run.folder=run",
            "--run.steps=100000",
            *arguments,
        ],
    )


@pytest.mark.parametrize("ranks, elastic", [(0, False), (2, False), (2, True)])
def test_ctrl_c_ends_a_run_with_a_checkpoint_and_says_how_to_go_on(folder, ranks, elastic):
    job = train(folder, ranks, f"--run.elastic={str(elastic).lower()}")
    job.read_until(REPORTED)
    job.press_ctrl_c()
    assert job.end() == 75, job.output
    (step,) = checkpoints(folder)
    assert (
        f"stopped with a checkpoint of step {step}; to go on: shardkit train --resume "
        f"--run.folder=run" in job.output
    )
    assert (
        job.output.count("shardkit: Ctrl-C: the run ends after this step") == 1
        and "Traceback" not in job.output
    )


def test_ctrl_c_before_the_first_step_leaves_a_run_that_goes_on(folder):
    job = train(folder, 0)
    job.read_until("shardkit: .* parameters as")
    job.press_ctrl_c()
    assert job.end() == 75, job.output
    again = train(folder, 0, "--resume", f"--run.steps={checkpoints(folder)[-1] + 1}")
    assert again.end() == 0 and "resumed at step" in again.output, again.output


def test_a_second_ctrl_c_ends_at_once_and_earlier_checkpoints_stay(folder):
    job = train(
        folder,
        0,
        "--run.checkpoint_every=1",
        "--model.width=256",
        "--batch.sequences=64",
        "--run.keep_checkpoints=2",
    )
    job.read_until("checkpoint run/")
    job.press_ctrl_c()
    job.read_until("Ctrl-C: the run ends after this step")
    job.press_ctrl_c()
    assert job.end() in (130, 75), job.output  # 75: it was quicker
    assert "Traceback" not in job.output
    find_checkpoint(folder / "run")[0].verify()


def test_under_mpiexec_a_second_ctrl_c_is_the_launchers_and_checkpoints_stay(folder):
    job = train(
        folder,
        2,
        "--run.checkpoint_every=1",
        "--model.width=256",
        "--batch.sequences=64",
        "--run.keep_checkpoints=2",
    )
    job.read_until("checkpoint run/")
    job.press_ctrl_c()
    job.read_until("Ctrl-C: the run ends after this step")
    job.press_ctrl_c()
    job.end()  # with the launcher's code, which is 0 where its own cleaning fails
    assert "Traceback" not in job.output
    find_checkpoint(folder / "run")[0].verify()


def test_open_mpi_ends_the_ranks_on_ctrl_c_and_checkpoints_stay(folder):
    job = train(folder, 2, "--run.checkpoint_every=1", library="Open MPI")
    job.read_until("checkpoint run/")
    job.press_ctrl_c()
    assert job.end() != 0, job.output
    assert "Traceback" not in job.output
    find_checkpoint(folder / "run")[0].verify()


BENCH = """
import sys
from shardkit.testing.cli import bench, main
{name} = bench.{name}
def bench_{name}(*arguments, **settings):
    print("ready\\n", end="", flush=True)
    return {name}(*arguments, **settings)
bench.{name} = bench_{name}
settings = ["--model.width=16", "--batch.sequences=12", "--batch.micro_batch=2"]
sys.exit(main(["bench", "--steps=100000", *settings]))
"""
INSPECT = """
import signal, sys
from shardkit.testing.cli import inspect, main
def describe(*arguments, **options):
    print("ready\\n", end="", flush=True)
    signal.pause()
inspect.describe = describe
sys.exit(main(["inspect", "."]))
"""
SCRIPT = """
import numpy
import shardkit as sk
from shardkit.testing.comm import abort_on_error
backend = sk.MPICommunicationBackend()
backend.initialize()
with abort_on_error(backend):
    while True:
        backend.all_reduce(numpy.ones(3))
        print("ready\\n", end="", flush=True)
"""


@pytest.mark.parametrize(
    "script, ranks",
    [(BENCH.format(name="bench_run"), 2), (SCRIPT, 0), (SCRIPT, 3)],
    ids=["bench on 2", "own script", "own script on 3"],
)
def test_ctrl_c_elsewhere_is_one_line_and_130(folder, script, ranks):
    start = [python_of("MPICH").with_name("mpiexec"), "-n", ranks] if ranks else []
    job = Foreground(folder, [*start, sys.executable, "-c", script])
    for _ in range(ranks or 1):
        job.read_until("ready")
    job.press_ctrl_c()
    assert job.end() == 130, job.output[-3000:]
    words = re.findall("shardkit: .*", job.output)  # Ctrl-C may cut a line of the script in two
    assert (
        len(words) == 1 and "interrupted by Ctrl-C" in words[0] and "Traceback" not in job.output
    ), job.output[-3000:]


def test_ctrl_c_while_mpi_starts_keeps_no_rank_waiting(folder):
    job = Foreground(
        folder,
        [
            python_of("MPICH").with_name("mpiexec"),
            "-n",
            2,
            sys.executable,
            "-c",
            BENCH.format(name="mpi_backend"),
        ],
    )
    for _ in range(2):
        job.read_until("ready")
    job.press_ctrl_c()
    assert job.end() > 0 and "Traceback" not in job.output, job.output


def test_ctrl_c_in_a_command_of_one_process_is_one_line_and_130(folder):
    job = Foreground(folder, [sys.executable, "-c", INSPECT])
    job.read_until("ready")
    job.press_ctrl_c()
    assert job.end() == 130 and job.output == "ready\nshardkit: interrupted by Ctrl-C\n"


def test_open_mpi_passes_usr1_on_so_that_the_run_saves(folder):
    job = train(folder, 2, library="Open MPI")
    job.read_until(REPORTED)
    job.tell_launcher(signal.SIGUSR1)
    assert job.end() == 75 and "to go on: shardkit train --resume" in job.output, job.output
    assert checkpoints(folder)
