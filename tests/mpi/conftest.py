"""Tests under a launcher: mpiexec -n 4 python -m pytest --only-mpi tests/mpi

Rank 0 reports; other ranks are quiet unless a test fails on them. A test that hangs is ended by pytest-timeout, which kills
its process, so that the launcher ends the job.
"""
import os
import sys
from pathlib import Path

import pytest

TIME_LIMIT_SECONDS = 60


class MPIRun:
    """One run of pytest under MPI: its backend, and how many tests ran."""

    def __init__(self):
        from shardkit.comm import MPICommunicationBackend
        self.backend = MPICommunicationBackend()
        self.backend.initialize()
        self.num_ran = 0

    def pytest_runtest_logreport(self, report):
        """Count what ran; show what failed on a rank whose terminal is closed."""
        if report.when == "call" and report.outcome != "skipped":
            self.num_ran += 1
        if report.failed and self.backend.rank != 0:
            sys.stderr.write(f"---- rank {self.backend.rank}: {report.nodeid} failed in {report.when}\n"
                             f"{report.longreprtext}\n")

    def pytest_terminal_summary(self, terminalreporter):
        """The line that tells a run on K ranks from K runs on one."""
        terminalreporter.write_line(f"{self.num_ran} MPI tests ran on {self.backend.world_size} ranks")

    def pytest_unconfigure(self):
        """Collective: a rank that hangs in its last test is ended by its time limit."""
        self.backend.shutdown()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Before the terminal reporter takes its stream: ranks other than 0 get one that goes nowhere."""
    if config.getoption("--only-mpi") or config.getoption("--with-mpi"):
        run = MPIRun()
        config.pluginmanager.register(run, "shardkit MPI run")
        if run.backend.rank != 0:
            sys.stdout = open(os.devnull, "w")


def pytest_collection_modifyitems(items):
    """Every test here has a time limit."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIME_LIMIT_SECONDS, method="thread"))


@pytest.fixture
def backend(pytestconfig):
    """The MPI backend over all ranks of the run."""
    return pytestconfig.pluginmanager.get_plugin("shardkit MPI run").backend
