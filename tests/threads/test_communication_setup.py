"""What a user sees when MPI is missing or started in the wrong way. No MPI is needed."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from shardkit import CommunicationError, MPICommunicationBackend
from shardkit.testing.base import LaunchError
from shardkit.testing.comm import Call, JobGuard, check_launch, check_library, launch_warnings


def test_a_missing_mpi4py_is_an_error_that_says_what_to_install_and_no_silent_single_process(
    monkeypatch,
):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(
        CommunicationError, match=r'MPI is not available.*install "shardkit\[mpich\]".*run_ranks'
    ):
        MPICommunicationBackend()


LAUNCH_VARIABLES = (
    "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMIX_SIZE",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
)


@pytest.fixture
def launched(monkeypatch):
    """A function that makes the environment look as if a launcher had started this process."""

    def launch(**variables):
        for variable in LAUNCH_VARIABLES:
            monkeypatch.delenv(variable, raising=False)
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)

    return launch


@pytest.mark.parametrize(
    "variables, library, fix",
    [
        (
            {"OMPI_COMM_WORLD_SIZE": "4"},
            "MPICH",
            "started by Open MPI, but mpi4py loads MPICH; start with ",
        ),
        ({"PMI_SIZE": "4"}, "Open MPI", "started by PMI, but mpi4py loads Open MPI; start with "),
        ({"PMI_SIZE": "4"}, "MPICH", "another MPICH than the launcher's"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, "MPICH", "srun --mpi=pmi2"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, "Open MPI", "srun --mpi=pmix"),
    ],
)
def test_singletons_are_refused_with_the_fix(launched, variables, library, fix):
    launched(**variables)
    with pytest.raises(
        LaunchError, match="launcher started 4 ranks, but MPI sees a world of 1"
    ) as caught:
        check_launch(1, library)
    assert fix in str(caught.value)
    check_launch(4, library)
    check_launch(2, library)  # a part of the job is a communicator like any other


def test_another_mpi_than_open_mpis_is_refused_before_it_aborts_under_open_mpis_launcher(launched):
    launched(OMPI_COMM_WORLD_SIZE="4")
    with pytest.raises(
        LaunchError, match="4 ranks cannot find each other: .* by Open MPI, but mpi4py loads MPICH"
    ):
        check_library("MPICH")
    check_library("Open MPI")
    launched(PMI_SIZE="4")
    check_library("Open MPI")  # some Open MPI builds speak PMI: its own start will show


def test_a_single_process_without_a_launcher_is_a_world_of_one(launched):
    launched()
    check_launch(1, "MPICH")
    assert launch_warnings(1) == []


def test_one_rank_in_a_job_of_several_tasks_is_a_warning(launched):
    launched(SLURM_NTASKS="8")
    assert launch_warnings(1) == [
        "SLURM gave this job 8 tasks, but 1 rank runs; start with srun or mpiexec"
    ]
    assert launch_warnings(8) == []
    launched(SLURM_NTASKS="8", PMI_SIZE="2")  # mpiexec -n 2: somebody meant it
    assert launch_warnings(2) == []


def test_importing_shardkit_imports_no_mpi():
    program = (
        "import sys; from shardkit import run_ranks; assert not [name for name in sys.modules if "
        "name.startswith('mpi4py')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=500)


@pytest.mark.parametrize(
    "call, is_missing",
    [
        (
            Call("all_reduce", "world", (0, 1, 2), 3),
            False,
        ),  # it made three calls on the world before it left
        (Call("all_reduce", "world", (0, 1, 2), 4), True),
        (Call("barrier", "world/1.0", (0, 1), 1), True),  # and none on this group
        (Call("receive", "world", (1,), None), True),
    ],
)
def test_a_rank_that_left_is_missing_only_in_calls_it_did_not_make(call, is_missing):
    mpi = SimpleNamespace(Query_thread=lambda: 3, THREAD_MULTIPLE=3)
    guard = JobGuard(None, mpi, None, None, is_active=False)
    guard._left = {1: {"world": 3}}
    assert guard._is_missing(1, call) == is_missing
    assert not guard._is_missing(0, call)


def test_a_rank_that_waits_for_others_at_its_end_sleeps(monkeypatch):
    naps = []
    comm = SimpleNamespace(Ibarrier=lambda: SimpleNamespace(Test=lambda: len(naps) == 100))
    mpi = SimpleNamespace(Query_thread=lambda: 3, THREAD_MULTIPLE=3)
    monkeypatch.setattr("time.sleep", naps.append)
    JobGuard(None, mpi, comm, None, is_active=True).meet()
    assert len(naps) == 100 and naps == sorted(naps)
    assert naps[0] < 1e-3 and naps[-1] == 0.02, "from short to long"
