"""`shardkit train` where disks are full and standard output takes little: it trains to the end.

Small file systems are mounted, which takes root; tests/threads/test_failing_logs.py has the same
without.
"""

import os
import shlex
import subprocess
import sys

import pytest
from builders import TINY_RUN
from e2e.mpi_jobs import python_of

SETTINGS = {**TINY_RUN, "run.steps": 6, "run.report_every": 1}
CAN_MOUNT = (
    os.geteuid() == 0
    and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
)


@pytest.fixture
def train(tmp_path):
    """A command line that trains in a folder "run" beside it."""
    (tmp_path / "one.txt").write_text("".join(f"line {i} of ∂ {i * i}\n" for i in range(60)))
    settings = {**SETTINGS, "data.path": tmp_path / "one.txt", "sample.tokens": 40}
    words = [f"--{name}={value}" for name, value in settings.items()]
    return shlex.join([sys.executable, "-m", "shardkit", "train", *words])


def shell(command, folder, **environment):
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )


OUTPUTS = {
    "ascii": ("", {"PYTHONIOENCODING": "ascii"}),
    "latin-1": ("", {"PYTHONIOENCODING": "latin-1"}),
    "the locale C": ("", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "a full disk": (">/dev/full", {}),
    "full disks": (">/dev/full 2>/dev/full", {}),
    "nothing": (">&-", {}),
    "a reader that leaves": ("| head -n 1; exit ${PIPESTATUS[0]}", {}),
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_finished_run_ends_with_0_wherever_its_output_goes(tmp_path, train, output):
    redirection, environment = OUTPUTS[output]
    done = shell(f"{train} --run.folder=run {redirection}", tmp_path, **environment)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert (tmp_path / "run/checkpoints/step-00000006").is_dir()
    if output == "a full disk":
        assert done.stderr.count("standard output (/dev/full) cannot be written") == 1


@pytest.mark.skipif(not CAN_MOUNT, reason="mounting a file system takes root")
@pytest.mark.parametrize("kilobytes", [4, 60, pytest.param(160, marks=pytest.mark.sweep)])
def test_a_temporary_folder_without_room_ends_no_run(tmp_path, train, kilobytes):
    mpiexec = python_of("MPICH").with_name("mpiexec")
    (tmp_path / "small").mkdir()
    command = (
        f"mount -t tmpfs -o size={kilobytes}k none small && "
        f"TMPDIR=$PWD/small {mpiexec} -n 2 {train} --run.folder=run"
    )
    done = shell(f"unshare --mount bash -c {shlex.quote(command)}", tmp_path)
    assert done.returncode == 0, done.stderr
    if kilobytes == 60:  # where there are 4, ranks may find another temporary folder
        assert "node-00000.ledger cannot be made: No space left on device" in done.stderr


@pytest.mark.skipif(not CAN_MOUNT, reason="mounting a file system takes root")
def test_a_run_folder_without_room_for_a_while_costs_no_step(tmp_path, train):
    mpiexec = python_of("MPICH").with_name("mpiexec")
    (tmp_path / "small").mkdir()
    command = (
        "mount -t tmpfs -o size=4m none small; "
        "( until [ -e small/run/logs/rank-00001.log ]; do sleep 0.05; done; "
        "  head -c 9m /dev/zero >small/fill; sleep 3; rm small/fill ) & "
        f"{mpiexec} -n 2 {train} --run.folder=small/run --run.steps=60 --run.checkpoint_every=20;"
        "code=$?; wait; ls small/run/checkpoints; wc -l <small/run/metrics.jsonl; exit $code"
    )
    done = shell(f"unshare --mount bash -c {shlex.quote(command)}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "step-00000060" in done.stdout and int(done.stdout.splitlines()[-1]) > 60
