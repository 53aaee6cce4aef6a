"""A rank that never gets out of MPI_Init says so and ends; one that does leaves nothing behind."""
import os
import socket
import subprocess
import sys
import time

import pytest
from e2e.mpi_jobs import python_of

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
    return subprocess.Popen([python, "-c", PROGRAM], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            pass_fds=[int(environment["PMI_FD"])] if "PMI_FD" in environment else (),
                            env={**os.environ, "SHARDKIT_START_SECONDS": seconds, **environment})


def test_a_rank_that_stays_in_mpi_init_says_where_and_what_to_check_and_is_ended():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        began = time.monotonic()
        process = start(seconds="1.5", PMI_FD=str(theirs.fileno()), PMI_RANK="1", PMI_SIZE="2")
        output, words = process.communicate(timeout=60)
    assert process.returncode == -9 and output == "" and time.monotonic() - began > 1.5
    assert words.count("shardkit: ") == 1
    assert words.startswith("shardkit: rank 1 of 2 has waited 1.5 s in MPI_Init on "
                            f"{os.uname().nodename} (process {process.pid}, MPICH, started by PMI); the job is ended. Check: ")
    assert "srun --mpi=pmi2" in words and "SHARDKIT_START_SECONDS" in words


@pytest.mark.parametrize("seconds", ["30", "0"])
def test_a_rank_that_starts_has_no_watcher_any_more(seconds):
    process = start(seconds=seconds)
    output, words = process.communicate(timeout=60)
    assert (process.returncode, output, words) == (0, "started alone\n", "")


def test_a_limit_that_is_no_number_is_refused():
    process = start(seconds="soon")
    assert "SHARDKIT_START_SECONDS = 'soon'; wanted seconds" in process.communicate(timeout=60)[1] and process.returncode != 0
