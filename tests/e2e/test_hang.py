"""A job that stands still is named and ended; the files of a job that was killed tell where it
was.
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

from shardkit.testing.comm import hang_report

MPIEXEC = Path(sys.executable).with_name("mpiexec")
PROGRAM = textwrap.dedent("""
    import os, signal, sys, time, numpy
    import shardkit as sk
    from shardkit.testing.comm import begin_all_gather
    backend = sk.MPICommunicationBackend()
    backend.initialize()
    folder, kind = sys.argv[1:]
    array = numpy.ones(10, "float32")
    backend.barrier()                       # a busy machine may take long to start all ranks
    call = backend.prepare.all_reduce(array)
    for _ in range(300 if kind == "prepared" else 0):
        call()                              # until its loop is compiled, which may take long too
    backend.timeout = 600.0 if kind == "killed" else 2.0
    backend.keep_ledger(folder)
    for _ in range(5):
        call() if kind == "prepared" else backend.all_reduce(array)
    # print() may write a line in parts
    os.write(1, f"ready {backend.rank} {os.getpid()}\\n".encode())
    if kind in ("late", "prepared", "begun") and backend.rank == 1:
        time.sleep(60)
    if kind == "begun":
        begin_all_gather(backend, array, numpy.empty(30, "float32"), 0).end()
    if kind in ("stopped", "killed") and backend.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "other" and backend.rank == 1:
        backend.barrier()
    if kind == "prepared":
        assert backend.memory() is None or backend.noted.bind("barrier", (), 0)
        call()
    backend.all_reduce(array[:9] if kind == "count" and backend.rank == 2 else array)
    if kind == "message" and backend.rank == 1:
        backend.receive(array, 2)
    backend.barrier()
    backend.shutdown()
""")


def job(tmp_path, kind, **settings):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return subprocess.Popen(
        [MPIEXEC, "-n", "3", sys.executable, program, tmp_path / "ledger", kind],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **settings,
    )


WAITING = (
    r"ranks 0, 2 in all_reduce of 10 float32 \(call \d on group world\) for \d+\.\d s, "
    r"called at .*program.py:\d+"
)


@pytest.mark.parametrize(
    "kind, words",
    [
        (
            "late",
            [
                WAITING,
                "missing: rank 1 of 3 ranks",
                "rank 1 in no call: last seen",
                r"program.py\", line \d+ in <module>",
            ],
        ),
        (
            "prepared",
            [
                WAITING.replace("\\d on", "\\d+ on"),
                "missing: rank 1 of 3 ranks",
                "rank 1 in no call",
            ],
        ),
        (
            "begun",
            [
                "no progress in begin_all_gather within 2 s: rank 1 is missing",
                "ranks 0, 2 in wait for begin_all_gather with ranks 0, 1, 2 for",
            ],
        ),
        ("stopped", [WAITING, "missing: rank 1 of 3 ranks", "rank 1 wrote no stacks"]),
        ("message", ["rank 1 in receive of 10 float32 with rank 2", "missing: rank 1 of 3 ranks"]),
    ],
)
def test_a_job_that_stands_still_is_ended_with_one_report(tmp_path, kind, words):
    process = job(tmp_path, kind)
    output, _ = process.communicate(timeout=500)
    assert process.returncode != 0
    assert output.count("no progress in") == 1, output
    for word in words:
        assert re.search(word, output), f"{word}\n{output}"


@pytest.mark.parametrize(
    "kind, checked, words",
    [
        (
            "other",
            "0",
            r"rank 1 called barrier; rank 0 and 1 more called all_reduce\(sum, 10 float32\)",
        ),
        (
            "count",
            "1",
            r"rank 2 called all_reduce\(sum, 9 float32\); rank 0 and 1 more called "
            r"all_reduce\(sum, 10 float32\)",
        ),
        ("none", "0", ""),
    ],
)
def test_the_rank_that_calls_something_else_is_named_at_once(tmp_path, kind, words, checked):
    """The first calls of a group are compared without checked mode, too."""
    process = job(tmp_path, kind, env={**os.environ, "SHARDKIT_CHECK": checked})
    output, _ = process.communicate(timeout=500)
    assert (process.returncode == 0) == (kind == "none"), output
    assert re.search(words, output) and "no progress" not in output, output


def test_the_ledgers_of_a_job_that_was_killed_can_be_inspected(tmp_path):
    process, standing = (
        job(tmp_path, "killed"),
        r"ranks 0, 2 in all_reduce of 10 float32 \(call \d+ on group world\)",
    )
    ranks = []
    while len(ranks) < 3:  # their next call is the one that stands still
        ranks += map(int, re.findall(r"ready \d (\d+)", process.stdout.readline()))
    while not re.search(standing, report(tmp_path)):
        time.sleep(0.05)
    for rank in [*ranks, process.pid]:  # a stopped rank goes on if its launcher alone is killed
        with suppress(ProcessLookupError):  # ended by the launcher, since another was killed
            os.kill(rank, signal.SIGKILL)
    process.communicate(timeout=500)
    inspected = subprocess.run(
        [sys.executable, "-m", "shardkit", "inspect", "hang", tmp_path],
        text=True,
        capture_output=True,
        timeout=500,
    )
    assert inspected.returncode == 0, inspected.stderr
    assert re.search(standing, inspected.stdout), inspected.stdout


def report(folder):
    try:
        return hang_report(folder / "ledger")
    except FileNotFoundError:  # no rank has begun to write
        return ""
