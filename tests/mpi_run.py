"""One run of pytest on all ranks of an MPI job, with one summary and one exit code.

    rank 0   reports, as pytest always does; its summary names the ranks where tests failed
    others   are quiet, but show on standard error what failed there

Ranks meet twice, before the first test and after the last, and with -x after every test: ranks with
different tests would wait for each other, and launchers differ in whose exit code they pass on. A
rank that hangs in a test is ended by its time limit, one that dies is noticed by the backend; both
end the job.
"""

import os
import sys

import pytest

from shardkit import MPICommunicationBackend, ShardkitError
from shardkit.testing.base import launcher

HOSTS = ("shardkit", "mpi4py", "guest")
MEETING_SECONDS = 30  # beyond the longest limit of a test, which a late rank may still be in

BROKEN = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR)


class MPIRun:
    """See above."""

    NAME = "shardkit MPI run"

    def __init__(self, backend):
        self.backend = backend
        self._num_ran, self._failed = 0, set()
        self._patience = MEETING_SECONDS  # seconds
        self._reports: dict[
            int, tuple[int, int]
        ] = {}  # rank -> exit status, number of failed tests
        self._is_over = False  # a rank has met the others for the last time

    @classmethod
    def begin(cls, config) -> "MPIRun":
        """Start MPI; from here on ranks other than 0 print nothing. Collective.

        Errors: UsageError where pytest-xdist shall share the tests, or MPI does not start.
        """
        if getattr(config.option, "numprocesses", None):
            reason = (
                f"-n {config.option.numprocesses} shares tests among workers, but every rank runs "
                "every test; leave it out"
            )
            raise pytest.UsageError(reason) if launcher().rank == 0 else pytest.UsageError()
        try:
            backend = MPICommunicationBackend(_communicator(config.option.host))
            backend.initialize()
        except ShardkitError as error:
            raise pytest.UsageError(str(error)) from None
        if backend.rank != 0:
            sys.stdout = open(os.devnull, "w")
        return cls(backend)

    # ---- together --------------------------------------------------------------------------------

    def _meet(self, occasion, note):
        """Return [(occasion, note)] of all ranks. Collective; a rank that stays away ends the
        job.
        """
        notes = self.backend.exchange_within((occasion, note), self._patience)
        if notes is None:
            self.backend.abort(
                f"rank {self.backend.rank} waited {self._patience:g} s {occasion} the tests for "
                "ranks that did not come; the job is ended"
            )
        self._is_over = any(other == "after" for other, _ in notes)
        return notes

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        """Compare the lists of tests."""
        self._patience += max(map(_limit_of, session.items), default=0)
        notes = self._meet("before", (session.testsfailed, [item.nodeid for item in session.items]))
        differ = [rank for rank, note in enumerate(notes) if note != notes[0]]
        if differ:
            raise session.Interrupted(
                f"rank {differ[0]} has other tests than rank 0, or could not collect them"
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Stop all ranks together with -x or --maxfail."""
        result = yield
        if item.config.option.maxfail:
            notes = self._meet("between", item.session.shouldfail)
            reasons = [
                reason if occasion == "between" else "a rank has ended"
                for occasion, reason in notes
            ]
            item.session.shouldfail = next(filter(None, reasons), False)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session, exitstatus):
        """Agree on the exit status."""
        own = int(exitstatus), len(self._failed)
        self._reports = {self.backend.rank: own}
        if not self._is_over:
            notes = self._meet("after", own)
            self._reports = {
                rank: note for rank, (occasion, note) in enumerate(notes) if occasion == "after"
            }
        session.exitstatus = max(status for status, _ in self._reports.values())

    def pytest_unconfigure(self):
        """Leave MPI. Collective; rank 0 has printed its summary before any rank ends."""
        sys.stdout.flush()
        self.backend.shutdown()

    # ---- what is said ----------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.outcome != "skipped":
            self._num_ran += 1
        if report.failed:
            self._failed.add(report.nodeid)
            self._tell(f"{report.nodeid} failed in {report.when}", report.longreprtext)

    def pytest_collectreport(self, report):
        if report.failed:
            self._tell(f"{report.nodeid} could not be collected", report.longreprtext)

    def pytest_internalerror(self, excrepr):
        self._tell("pytest failed", str(excrepr))

    def _tell(self, what, text):
        """Show what rank 0, which reports by itself, does not see."""
        if self.backend.rank != 0:
            sys.stderr.write(f"---- rank {self.backend.rank}: {what}\n{text}\n")

    def pytest_terminal_summary(self, terminalreporter):
        """Print the line that tells a run on K ranks from K runs on one, and the one about
        failures.
        """
        failed = [
            f"{num_failed} on rank {rank}"
            for rank, (_, num_failed) in self._reports.items()
            if num_failed
        ]
        broken = [
            f"rank {rank} with exit status {status}"
            for rank, (status, _) in self._reports.items()
            if status in BROKEN
        ]
        if failed or broken:
            words = ["tests failed: " + ", ".join(failed)] * bool(failed) + [
                "broken off: " + ", ".join(broken)
            ] * bool(broken)
            terminalreporter.write_line("; ".join(words), red=True)
        terminalreporter.write_line(
            f"{self._num_ran} MPI tests ran on {self.backend.world_size} ranks"
        )


def _communicator(host):
    """Return what the backend of the run is given, where the job is this host's."""
    if host == "shardkit":
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD if host == "guest" else None


def _limit_of(item) -> float:
    marker = item.get_closest_marker("timeout")
    return marker.args[0] if marker and marker.args else float(item.config.getini("timeout"))
