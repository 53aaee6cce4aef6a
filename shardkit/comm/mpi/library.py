"""Loading mpi4py, MPI_Init with a time limit, and MPI_Finalize.

Importing shardkit imports no MPI; the first backend, or import_mpi(), does.
"""

import atexit
import faulthandler
import os
import sys
import threading
import time
from math import inf

from ...errors import CommunicationError
from ..watch.attendance import attendance
from .launch import check_library
from .start import join_roll, start_limit

FORWARDING_SECONDS = 0.1  # MPICH's launcher drops what it has not forwarded when the job is aborted
LAUNCHER_SECONDS = 1.5
LATER_THAN_WARDEN_SECONDS = 1.0  # whose words come first


def import_mpi(timeout: float = inf):
    """Return mpi4py's MPI module, initialized.

    timeout   seconds that MPI_Init may take, if SHARDKIT_START_SECONDS is not less
    Errors: CommunicationError that names what to install; LaunchError if mpiexec belongs to another
    MPI. A process that stays in MPI_Init is ended (start.py).
    """
    try:
        import mpi4py

        mpi4py.rc.initialize = (
            False  # but below, once the library is known to fit, and with a time limit
        )
        from mpi4py import MPI
    except (
        ImportError,
        RuntimeError,
    ) as error:  # RuntimeError: mpi4py is there, but no MPI library
        raise CommunicationError(
            f'MPI is not available ({error}); on a laptop install "shardkit[mpich]", on a cluster '
            "load "
            "the site's MPI module and install mpi4py; for threads in one process use run_ranks"
        ) from None
    if not MPI.Is_initialized():
        library = MPI.get_vendor()[0]
        check_library(library)
        level = (
            getattr(MPI, f"THREAD_{mpi4py.rc.thread_level.upper()}")
            if mpi4py.rc.threads
            else MPI.THREAD_SINGLE
        )
        with start_limit(library, timeout):
            MPI.Init_thread(level)
        atexit.register(_finalize, MPI)  # mpi4py finalizes only what it has initialized itself
    elif not attendance().is_open:  # the program has initialized MPI itself
        join_roll(MPI.get_vendor()[0])
        atexit.register(attendance().leave_mpi)
    return MPI


def _finalize(mpi):
    try:
        _finalize_mpi(mpi)
    except BaseException:  # of a signal handler: the others wait all the same
        _finalize_mpi(mpi)
        raise
    finally:
        attendance().close()


def _finalize_mpi(mpi):
    if not mpi.Is_finalized():
        needed_by = attendance().leave_mpi()
        if needed_by is not None:
            _say_that_one_left(mpi, needed_by)
        exit_within(attendance().limit() + LATER_THAN_WARDEN_SECONDS)
        mpi.Finalize()
    faulthandler.cancel_dump_traceback_later()


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
    attendance().end_job()
    exit_within(LAUNCHER_SECONDS)
    mpi.COMM_WORLD.Abort(1)


def exit_within(seconds: float) -> None:
    """End this process after that time with exit code 1.

    Even if MPI never returns and holds the interpreter's lock.
    """
    if seconds < threading.TIMEOUT_MAX:
        faulthandler.dump_traceback_later(seconds, exit=True, file=open(os.devnull, "w"))
