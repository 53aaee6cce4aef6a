"""`pytest` and `mpiexec -n 2 pytest` in a small copy of this folder: what runs, who speaks, and the
exit code.
"""

import functools
import re
import shutil
import subprocess
import sys

import pytest
from e2e.mpi_jobs import LIBRARIES, ROOT, python_of, run_job

from shardkit.testing.base import environment_without_launcher

MPI_TESTS = """
import os
import pytest
from shardkit.testing.base import launcher
pytestmark = pytest.mark.mpi
FAULT, GUILTY = os.environ["FAULT"], str(launcher().rank) in os.environ["GUILTY"]
assert not (FAULT == "import" and GUILTY)


def test_that_ranks_meet(backend):
    assert backend.communicator.allgather(backend.rank) == list(range(backend.world_size))


def test_that_may_fail():
    assert not (FAULT == "assert" and GUILTY)


def test_that_may_die(backend):
    if FAULT == "death" and GUILTY:
        os._exit(0)
"""
PLAIN_TESTS = """
from shardkit.testing.base import launched_ranks
assert launched_ranks() is None, "imported under a launcher"


def test_that_is_no_mpi_job():
    pass
"""


@pytest.fixture
def project(tmp_path):
    """One test that is no MPI job, and three that are."""
    (tmp_path / "tests" / "mpi").mkdir(parents=True)
    copied = ("conftest", "mpi_run", "quick", "shared_files", "mpi/conftest")
    for name in ("setup.cfg", *(f"tests/{name}.py" for name in copied)):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "tests" / "pure").mkdir()
    (tmp_path / "tests" / "pure" / "test_plain.py").write_text(PLAIN_TESTS)
    (tmp_path / "tests" / "mpi" / "test_small.py").write_text(MPI_TESTS)
    return tmp_path


@functools.cache
def has_pytest(python):
    program = "import pytest_mpi, pytest_timeout, xdist"
    return subprocess.run([python, "-c", program], capture_output=True).returncode == 0


def on_ranks(library, project, *arguments, guilty="", fault="assert", num_ranks=2):
    if not has_pytest(python_of(library)):
        pytest.skip(f"{python_of(library)} has no pytest; install shardkit[test] there")
    return run_job(
        library,
        "-m",
        "pytest",
        "--color=no",
        *arguments,
        num_ranks=num_ranks,
        folder=project,
        FAULT=fault,
        GUILTY=guilty,
    )


@pytest.mark.parametrize(
    "library, guilty, failures",
    [
        (LIBRARIES[0], "", None),
        (LIBRARIES[1], "1", "1 on rank 1"),
        (LIBRARIES[0], "0", "1 on rank 0"),
    ],
)
def test_the_mpi_tests_run_on_two_ranks_with_one_summary_and_the_exit_code_of_the_worst(
    project, library, guilty, failures
):
    done = on_ranks(library, project, guilty=guilty)
    assert done.returncode == (1 if guilty else 0), done.stdout + done.stderr
    assert (
        done.stdout.count("3 MPI tests ran on 2 ranks") == 1
        and len(re.findall(r"=+ .*\d passed", done.stdout)) == 1
    )
    assert re.findall("tests failed: (.*)", done.stdout) == ([failures] if failures else [])
    assert ("rank 1: tests/mpi/test_small.py::test_that_may_fail failed" in done.stderr) == (
        guilty == "1"
    ), done.stderr


def test_a_rank_that_dies_ends_the_run_with_an_exit_code(project):
    done = on_ranks("MPICH", project, guilty="1", fault="death", num_ranks=3)
    assert done.returncode != 0 and "rank 1 died" in done.stderr, done.stdout + done.stderr


def test_ranks_that_collect_different_tests_run_none(project):
    done = on_ranks("MPICH", project, guilty="1", fault="import")
    assert done.returncode == 2 and "rank 1 has other tests than rank 0" in done.stdout, (
        done.stdout + done.stderr
    )
    assert "0 MPI tests ran on 2 ranks" in done.stdout and "could not be collected" in done.stderr


def test_with_exitfirst_ranks_stop_together(project):
    done = on_ranks("MPICH", project, "-x", guilty="1")
    assert done.returncode == 1 and "2 MPI tests ran on 2 ranks" in done.stdout, (
        done.stdout + done.stderr
    )


def test_workers_are_refused_under_a_launcher(project):
    done = on_ranks("MPICH", project, "-n", "2")
    assert done.returncode == 4 and done.stderr.count("-n 2 shares tests among workers") == 1, (
        done.stderr
    )


def test_without_a_launcher_all_others_run_and_workers_may_share_them(project):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=500,
        env={**environment_without_launcher(), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0 and re.search(r"=+ 1 passed in", done.stdout), (
        done.stdout + done.stderr
    )
    assert done.stdout.count("the MPI tests were left out: mpiexec -n 2 pytest") == 1
