"""What a user sees when MPI is missing or started in the wrong way. No MPI is needed."""
import subprocess
import sys
from types import SimpleNamespace

import pytest

from shardkit.comm import MPICommunicationBackend
from shardkit.comm.guard import JobGuard
from shardkit.comm.mpi import check_launch
from shardkit.comm.progress import Call
from shardkit.errors import CommunicationError


def test_a_missing_mpi4py_is_an_error_that_says_what_to_install_and_no_silent_single_process(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(CommunicationError, match=r'MPI is not available.*install "shardkit\[mpich\]".*run_ranks'):
        MPICommunicationBackend()


@pytest.mark.parametrize("variable", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_a_launcher_of_another_mpi_is_found_and_named(monkeypatch, variable):
    monkeypatch.setenv(variable, "4")
    with pytest.raises(CommunicationError, match="launcher started 4 ranks, but MPI sees a world of 1.*srun --mpi"):
        check_launch(1)
    check_launch(4)
    check_launch(2)                                  # a part of the job is a communicator like any other


def test_a_single_process_without_a_launcher_is_a_world_of_one(monkeypatch):
    for variable in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(variable, raising=False)
    check_launch(1)


def test_importing_shardkit_imports_no_mpi():
    program = "import shardkit.comm, sys; assert not [name for name in sys.modules if name.startswith('mpi4py')]"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("call, is_missing", [
    (Call("all_reduce", "world", (0, 1, 2), 3), False),                # it made three calls on the world before it left
    (Call("all_reduce", "world", (0, 1, 2), 4), True),
    (Call("barrier", "world/1.0", (0, 1), 1), True),                   # and none on this group
    (Call("receive", "world", (1,), None), True),
])
def test_a_rank_that_left_is_missing_only_in_calls_it_did_not_make(call, is_missing):
    mpi = SimpleNamespace(Query_thread=lambda: 3, THREAD_MULTIPLE=3)
    guard = JobGuard(None, mpi, None, is_active=False)
    guard._left = {1: {"world": 3}}
    assert guard._is_missing(1, call) == is_missing
    assert not guard._is_missing(0, call)
