"""Which tests run, decided by the launcher and by --all, and how long each may take.

pytest                            the quick tests (see quick.py) that are no MPI job: pure, threads,
                                  gpu, docs; also with -n 2
pytest --all                      and the thorough ones: their other cases, and e2e
pytest --all -m sweep             what takes minutes, and whole products of parameters
mpiexec -n 4 pytest               tests/mpi on 4 ranks, and under srun too; other folders are not
                                  even collected; all of tests/mpi with --all
mpiexec -n 1 pytest --only-mpi    tests/mpi on one rank; without a launcher too
    --host=mpi4py, --host=guest   the same where mpi4py is imported first, and as a guest
"""

import faulthandler
import gc
import os
import signal
import sys
from functools import cache
from pathlib import Path

import pytest
from mpi_run import HOSTS, MPIRun
from quick import QuickTests, asked_for, room_of

from shardkit.testing.array import MACHINE_CODE, MachineCode
from shardkit.testing.base import launched_ranks

HERE = Path(__file__).parent
MPI_TESTS = HERE / "mpi"
# The limit (setup.cfg) is for hangs: far beyond what a test takes on a busy machine that compiles
# kernels meanwhile. A test beyond it is ended in one of two ways. A thread kills the process: the
# only way out of a call that hangs in native code, and under MPI the launcher then ends the other
# ranks. A signal interrupts the test alone: enough where the test waits for processes, and the
# tests after it still run.
LIMIT_METHODS = {"e2e": "signal"}  # of a folder; setup.cfg has that of the others


def pytest_addoption(parser):
    parser.addoption(
        "--all", action="store_true", dest="run_all", help="run the thorough tests too"
    )
    parser.addoption(
        "--host",
        choices=HOSTS,
        default=HOSTS[0],
        help="whose MPI job it is: shardkit starts MPI; mpi4py is imported first; or shardkit is a "
        "guest on the communicator of a program",
    )


class Backstop:
    """Ends a process whose test hangs where its limit is not heard: in native code that holds the
    lock of the interpreter.
    """

    NAME = "shardkit backstop"
    SPARE_SECONDS = 300  # for what a test that is beyond its limit leaves behind

    def __init__(self, limit):
        self._limit = limit
        self._stream = os.dup(sys.__stderr__.fileno())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        own = item.get_closest_marker("timeout")
        limit = own.args[0] if own and own.args else self._limit
        faulthandler.dump_traceback_later(limit + self.SPARE_SECONDS, exit=True, file=self._stream)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


class OneCore:
    """Keeps ranks that are threads on one core. The lock of the interpreter lets one of them run at
    a time, and to hand it from core to core takes a fifth of the processor time of such tests.
    """

    NAME = "shardkit one core"
    ROOMS = ("threads", "gpu")

    def __init__(self):
        self._all = os.sched_getaffinity(0)
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        self._one = {sorted(self._all)[worker % len(self._all)]}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        if room_of(item.path) not in self.ROOMS:
            return (yield)
        os.sched_setaffinity(0, self._one)
        try:
            return (yield)
        finally:
            os.sched_setaffinity(0, self._all)


class Silence:
    """Says nothing of kernels that tests compile: a test finds in a stream what is its own."""

    def begin(self, reason):
        """Say nothing."""

    def end(self, seconds):
        """Say nothing."""


class LastingObjects:
    """Keeps thousands of tests, what is left of those that ran, and large libraries that some
    import, out of the garbage collector's way: many tests call it, and it would look through them
    all each time. Between two files nothing else is there that might be garbage later.
    """

    NAME = "shardkit lasting objects"
    MANY_MODULES, MANY_TESTS = 50, 100

    def __init__(self):
        self._num_modules = self._num_tests = 0
        self._file = None

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self):
        """Collect tests, and no garbage: what they are made of stays, and would be looked through
        dozens of times.
        """
        gc.disable()
        try:
            return (yield)
        finally:
            gc.enable()

    def pytest_collection_finish(self):
        self._keep()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        self._num_tests += 1
        is_new_file, self._file = item.path != self._file, item.path
        many_tests = is_new_file and self._num_tests > self.MANY_TESTS
        if many_tests or len(sys.modules) >= self._num_modules + self.MANY_MODULES:
            self._keep()

    def _keep(self):
        gc.collect()
        gc.freeze()
        self._num_modules, self._num_tests = len(sys.modules), 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share files among the workers of pytest-xdist, where it would share single tests."""
    if config.getvalue("dist") == "loadgroup":
        from shared_files import SharedFiles

        return SharedFiles(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Run before pytest-mpi reads its options and the terminal reporter takes its stream."""
    config.pluginmanager.register(QuickTests(config, HERE), QuickTests.NAME)
    config.pluginmanager.register(LastingObjects(), LastingObjects.NAME)
    config.pluginmanager.register(Backstop(float(config.getini("timeout"))), Backstop.NAME)
    config.pluginmanager.register(OneCore(), OneCore.NAME)
    MACHINE_CODE.said = Silence()
    if (launched_ranks() or 1) > 1:
        config.option.only_mpi = True
    if takes_mpi_tests(config):
        config.pluginmanager.register(MPIRun.begin(config), MPIRun.NAME)


def takes_mpi_tests(config) -> bool:
    """Return True if this process is a rank of an MPI job, or shall run its tests as the only
    one.
    """
    return config.option.only_mpi or config.option.with_mpi


def takes(config, path) -> bool:
    """Return True if the tests of this file or folder run here."""
    return takes_mpi_tests(config) if is_mpi(path) else not config.option.only_mpi


@cache
def is_mpi(path) -> bool:
    """Return True of tests/mpi and what is in it; asked once for a file, not for each test."""
    return path == MPI_TESTS or MPI_TESTS in path.parents


def pytest_ignore_collect(collection_path, config):
    """Leave whole folders alone, so that nothing in them is imported."""
    if collection_path.parent == HERE and not takes(config, collection_path):
        return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Drop what a file or folder of the command line brought anyway, before pytest-mpi marks it as
    skipped.
    """
    left_out = [item for item in items if not takes(config, item.path)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if takes(config, item.path)]
    for item in items:
        _limit(item)


@pytest.fixture
def own_code():
    """What a process has spent on machine code that has compiled nothing, and tells nobody: what
    it says comes seconds later, when another test reads the stream.
    """
    code = MachineCode()
    code.said = Silence()
    return code


@pytest.fixture(autouse=True)
def signals_stay():
    """Fail a test that leaves a signal blocked or handled: processes of later tests inherit it."""
    before = _signals()
    yield
    assert _signals() == before


def _signals():
    """What this thread blocks, and who handles the signals that shardkit listens to."""
    heard = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return blocked, [signal.getsignal(number) for number in heard]


def _limit(item):
    """End a test beyond its limit as its folder wants it; its own seconds stay."""
    own = item.get_closest_marker("timeout")
    room = room_of(item.path)
    if room in LIMIT_METHODS:
        given = own.args if own else ()
        item.add_marker(pytest.mark.timeout(*given, method=LIMIT_METHODS[room]), append=False)


def pytest_terminal_summary(terminalreporter, config):
    """Print one line about the tests that this run left out, and what runs them."""
    has_mpi = any(path in MPI_TESTS.parents or is_mpi(path) for path in asked_for(config))
    if has_mpi and not takes_mpi_tests(config):
        terminalreporter.write_line(
            "the MPI tests were left out: mpiexec -n 2 pytest runs them on 2 ranks"
        )
    if config.option.only_mpi and not has_mpi:
        terminalreporter.write_line(
            "only tests/mpi runs under a launcher: pytest, without one, runs the others"
        )
