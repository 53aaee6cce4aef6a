"""A rank that never gets out of MPI_Init says so and ends; one that does leaves nothing behind."""

import os
import socket
import subprocess
import sys
import time

import pytest
from e2e.mpi_jobs import LIBRARIES, python_of, run_job, words_of_shardkit

PROGRAM = """
import os, shardkit as sk
backend = sk.MPICommunicationBackend()
try:
    os.waitpid(-1, os.WNOHANG)
    print("a child is left")
except ChildProcessError:
    print("started alone")
"""


def start(*, seconds, **environment):
    """One process of its own, as a rank of MPICH whose launcher says no word if PMI_FD is given."""
    python = python_of("MPICH") if "PMI_FD" in environment else sys.executable
    return subprocess.Popen(
        [python, "-c", PROGRAM],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[int(environment["PMI_FD"])] if "PMI_FD" in environment else (),
        env={**os.environ, "SHARDKIT_START_SECONDS": seconds, **environment},
    )


def test_a_rank_that_stays_in_mpi_init_says_where_and_what_to_check_and_is_ended():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        began = time.monotonic()
        process = start(seconds="1.5", PMI_FD=str(theirs.fileno()), PMI_RANK="1", PMI_SIZE="2")
        output, words = process.communicate(timeout=500)
    assert process.returncode == -9 and output == "" and time.monotonic() - began > 1.5
    assert words.count("shardkit: ") == 1
    assert words.startswith(
        "shardkit: rank 1 of 2 has waited 1.5 s in MPI_Init on "
        f"{os.uname().nodename} (process {process.pid}, MPICH, started by PMI): rank 0 is missing, "
        "which has not come to MPI_Init, or is on another node; the job is ended. Check: "
    )
    assert "srun --mpi=pmi2" in words and "SHARDKIT_START_SECONDS" in words


@pytest.mark.parametrize("seconds", ["30", "0"])
def test_a_rank_that_starts_has_no_watcher_any_more(seconds):
    process = start(seconds=seconds)
    output, words = process.communicate(timeout=500)
    assert (process.returncode, output, words) == (0, "started alone\n", "")


def test_a_limit_that_is_no_number_is_refused():
    process = start(seconds="soon")
    assert (
        "SHARDKIT_START_SECONDS = 'soon'; wanted seconds" in process.communicate(timeout=500)[1]
        and process.returncode != 0
    )


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "when, words",
    [
        ("True", "ValueError: bad settings (on all 2 ranks)"),
        ("backend.rank == 1", "rank 1 failed: ValueError: bad settings"),
    ],
)
def test_an_error_before_initialize_is_one_message_and_nobody_waits(tmp_path, library, when, words):
    program = tmp_path / "program.py"
    program.write_text(f"""
import shardkit as sk
backend = sk.MPICommunicationBackend()
if {when}:
    raise ValueError("bad settings")
backend.initialize()
""")
    done = run_job(library, program, num_ranks=2)
    said = words_of_shardkit(done)
    assert done.returncode != 0 and len(said) == 1, done.stderr
    assert said[0].startswith(f"shardkit: {words}"), done.stderr


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_rank_that_never_comes_to_the_start_is_missed_after_the_time_limit_of_the_backend(
    tmp_path, library
):
    program = tmp_path / "program.py"
    program.write_text("""
import os, time
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    time.sleep(3600)
import shardkit as sk
sk.MPICommunicationBackend(timeout=2.0)
""")
    done = run_job(library, program, num_ranks=2)
    said = words_of_shardkit(done)
    assert done.returncode != 0 and len(said) == 1, done.stderr
    assert (
        "has waited 2 s in MPI_Init" in said[0]
        and "rank 1 is missing, which has not come to MPI_Init" in said[0]
    )
