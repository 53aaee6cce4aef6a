"""The end of MPI in this process, whoever finalizes it.

    who calls MPI_Finalize              how it is known                        what follows
    the program, while it runs          MPI first deletes the attributes of    the process is free
                                          MPI_COMM_SELF, and one is ours         when that is done
    shardkit, if it initialized MPI     it is an exit hook                     the process ends
    mpi4py, if the program imported     an exit hook; it finalizes without a   the process ends
      mpi4py first                        word when the interpreter is gone
    nobody (mpi4py.rc.finalize), or     an exit hook                           the process is free
      a program that embeds Python

Before that, the ranks of a job that shardkit guards meet: nobody is in MPI_Finalize before all have
come to their end, whether that of this MPI waits for others or not. A process that ends before it
has met the others has died; afterwards it may end at any time.
Source: the MPI standard, "Allowing User Functions at MPI Finalization".
"""

import atexit
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any

from ...forks import is_of_parent, own
from ..watch.attendance import attendance

FORWARDING_SECONDS = 0.1  # MPICH's launcher drops what it has not forwarded when the job is aborted
LAUNCHER_SECONDS = 1.5
POLL_SECONDS = 0.002


class Finalizer(Enum):
    """Who calls MPI_Finalize, unless the program does."""

    SHARDKIT = "shardkit"  # it has initialized MPI
    MPI4PY = "mpi4py"
    NOBODY = "nobody"


@cache
def ending() -> "Ending":
    """Return the ending of this process."""
    return Ending()


class Ending:
    """What this process does before MPI_Finalize, once."""

    def __init__(self):
        self._mpi: Any = None
        own(self)
        # {call: what makes it at the end, in this process alone}, the newest first to be made
        self._calls: dict[Callable, Callable] = {}
        self._comm: Any = None  # of all ranks of a guarded job
        self._meeting: Any = None  # the request of the last barrier
        self._has_begun = False

    @property
    def has_begun(self) -> bool:
        """True once MPI is left, or about to be."""
        return self._has_begun

    @property
    def is_watching(self) -> bool:
        """True once watch() was called."""
        return self._mpi is not None

    def watch(self, mpi, finalizer: Finalizer) -> None:
        """Begin to watch for the end of MPI."""
        self._mpi = mpi
        keyval = mpi.Comm.Create_keyval(delete_fn=self._finalize_begins)
        mpi.COMM_SELF.Set_attr(keyval, None)
        ends = {
            Finalizer.SHARDKIT: self._finalize,
            Finalizer.MPI4PY: self._leave_to_mpi4py,
            Finalizer.NOBODY: self._leave,
        }
        atexit.register(self._at_exit, ends[finalizer])

    def meet_on(self, comm, *, again: bool) -> None:
        """Let the ranks of this communicator wait for each other at their end. Collective.

        again   it takes the place of an earlier one, of which ranks have died
        """
        if self._comm is None or again:
            self._comm = comm.Dup()

    def add(self, call: Callable[[], None]) -> None:
        """Make this call when the program ends or MPI_Finalize begins, unless it is removed.

        A process that this one forks does not make it at its own end.
        """

        def made_here():
            if not is_of_parent(self):
                call()

        self._calls[call] = made_here
        atexit.register(made_here)

    def remove(self, call: Callable[[], None]) -> None:
        """Make the call no more."""
        made_here = self._calls.pop(call, None)
        if made_here is not None:
            atexit.unregister(made_here)

    # ---- the roads -------------------------------------------------------------------------------

    def _finalize_begins(self, *_):
        """Be called by MPI_Finalize, while all of MPI still works."""
        if self._has_begun or is_of_parent(self):
            return
        for call in [*reversed(self._calls)]:  # a call removes itself, or another
            if call in self._calls:
                call()
        _surely(self._begin)
        threading.Thread(target=self._await_finalize, daemon=True, name="shardkit ending").start()

    def _await_finalize(self):
        while not self._mpi.Is_finalized():
            time.sleep(POLL_SECONDS)
        attendance().close()

    def _finalize(self):
        self._begin()
        exit_within(attendance().own_limit())
        self._mpi.Finalize()
        faulthandler.cancel_dump_traceback_later()

    def _leave_to_mpi4py(self):
        self._begin()
        LastWords(attendance().run_exit_hooks())

    def _leave(self):
        self._begin()
        attendance().dismiss_warden()
        attendance().close()

    def _at_exit(self, end: Callable[[], None]):
        """End MPI, or leave it, unless it has been finalized or is that of a parent process."""
        if is_of_parent(self):
            return
        try:
            if not self._mpi.Is_finalized():
                _surely(end)
        finally:
            if self._mpi.Is_finalized():
                attendance().close()

    # ---- the end ---------------------------------------------------------------------------------

    def _begin(self):
        """Wait until all ranks of a guarded job have come to their end. A second call goes on."""
        if not self._has_begun:
            self._has_begun = True
            needed_by = attendance().leave_mpi()
            if needed_by is not None:
                _say_that_one_left(self._mpi, needed_by)
        self._meet()
        attendance().may_end()

    def _meet(self):
        if self._comm is None:
            return
        deadline = time.monotonic() + attendance().own_limit()
        try:
            self._meeting = self._meeting or self._comm.Ibarrier()
            while not self._meeting.Test():
                # A launcher that tolerates deaths takes those by the hand of wardens for success.
                if attendance().is_job_ended() or time.monotonic() > deadline:
                    end_mpi(self._mpi)
                time.sleep(POLL_SECONDS)
        except self._mpi.Exception:  # a rank has died, and MPI goes on
            return


def _surely(call: Callable[[], None]) -> None:
    """Make a call, again if a signal handler raises in it: the others wait all the same."""
    try:
        call()
    except BaseException:
        call()
        raise


class LastWords:
    """A call that is made when Python clears its modules: after all exit hooks and threads.

    Only sys holds it. The names of sys are cleared whatever else is still in use; those of another
    module stay where a daemon thread, or a hook, still refers to one of its functions.
    """

    def __init__(self, call: Callable[[], object]):
        self._call = call
        setattr(sys, "_shardkit_last_words", self)

    def __del__(self):
        self._call()


def _say_that_one_left(mpi, needed_by: str) -> None:
    """End the job: this rank is at its end, but others wait for it, and no guard watches.

    needed_by   what they do
    """
    if attendance().may_speak():
        sys.stderr.write(
            f"shardkit: rank {attendance().rank} left the program (sys.exit, or the end of its "
            "script) while "
            f"{needed_by}; the job is ended\n"
        )
        sys.stderr.flush()
        time.sleep(FORWARDING_SECONDS)
    end_mpi(mpi)


def end_mpi(mpi, code: int = 1) -> None:
    """End all ranks of the job, and this process even if MPI does not."""
    attendance().end_job()  # ranks that are stopped, or miss the abort, are killed
    # MPI_Abort may return before the launcher has killed the rank, or never
    exit_within(LAUNCHER_SECONDS)
    mpi.COMM_WORLD.Abort(code)
    time.sleep(LAUNCHER_SECONDS)
    os._exit(code)


def exit_within(seconds: float) -> None:
    """End this process after that time with exit code 1.

    Even if MPI never returns and holds the interpreter's lock.
    """
    if seconds < threading.TIMEOUT_MAX:
        faulthandler.dump_traceback_later(seconds, exit=True, file=open(os.devnull, "w"))
