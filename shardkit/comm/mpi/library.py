"""Loading mpi4py, and MPI_Init with a time limit.

Importing shardkit imports no MPI; the first backend, or import_mpi(), does.
"""

import ctypes
import os
import re
import sys
from contextlib import suppress
from importlib.util import find_spec
from math import inf
from typing import Any

from ...errors import CommunicationError
from ..watch.attendance import attendance
from ..watch.folder import memory_map
from .ending import Finalizer, ending
from .launch import check_library
from .start import join_roll, start_limit


def import_mpi(timeout: float = inf):
    """Return mpi4py's MPI module, initialized.

    timeout   seconds that MPI_Init may take, if SHARDKIT_START_SECONDS is not less
    Errors: CommunicationError that names what to install, or if MPI is at its end; LaunchError if
    mpiexec belongs to another MPI. A process that stays in MPI_Init is ended (start.py).
    """
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            # but below, once the library is known to fit, and with a time limit
            mpi4py.rc(initialize=False)
            if _has_begun():  # the error handlers of the program stay as they are
                mpi4py.rc(errors="default")
                _check_extension()
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
    if MPI.Is_finalized():
        raise CommunicationError(
            "MPI is finalized in this process, and starts only once; make backends, and train, "
            "before MPI.Finalize()"
        )
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
        ending().watch(MPI, Finalizer.SHARDKIT)
    elif not ending().is_watching:  # the program has initialized MPI
        join_roll(MPI.get_vendor()[0])
        attendance().enter_program()
        ending().watch(MPI, _finalizer(mpi4py.rc))
    return MPI


def parent_of(mpi: Any, comm: Any) -> Any:
    """Return the communicator that was given, or that of all ranks for None.

    Errors: ValueError, unless it is one of ranks of which this is one.
    """
    parent = mpi.COMM_WORLD if comm is None else comm
    if not isinstance(parent, mpi.Comm):
        found = f"a {type(parent).__name__}"
    elif parent == mpi.COMM_NULL:
        found = "MPI.COMM_NULL: it was freed, or this rank is in none"
    elif parent.Is_inter():
        found = "one between two groups: its Merge() makes one of all"
    else:
        return parent
    raise ValueError(f"comm is {found}; wanted an mpi4py communicator that this rank is in")


def communicator_of(handle: int) -> Any:
    """Return mpi4py's communicator of a handle in Fortran, which any MPI has."""
    return import_mpi().Comm.f2py(handle)


def _has_begun() -> bool:
    """Return True if this program, in C or Fortran, has initialized MPI without mpi4py."""
    flag = ctypes.c_int(0)
    try:
        ctypes.CDLL(None).MPI_Initialized(ctypes.byref(flag))
    except AttributeError:  # it is not linked with MPI
        return False
    return bool(flag.value)


def _check_extension() -> None:
    """Load mpi4py before its import, which would crash a program that uses another MPI: see which.

    That of MPICH and its kin is libmpi*.so.12, that of Open MPI libmpi*.so.40.
    """
    found, ours = find_spec("mpi4py.MPI"), _libraries()
    with suppress(OSError):  # the import says what is missing
        ctypes.CDLL(found.origin if found else None)
    both = _libraries()
    if ours and both.keys() - ours.keys():
        raise CommunicationError(
            f"this program and mpi4py use different MPIs, {' and '.join(both.values())}; build one "
            "of them with the other's mpicc"
        )


def _libraries() -> dict[str, str]:
    """Return the MPI libraries of this process: {number of its binary interface: path}."""
    found = re.findall(r"(/\S*/libmpi\w*\.so\.(\d+))", "\n".join(memory_map()))
    return {number: path for path, number in found}


def _finalizer(rc) -> Finalizer:
    """Return who calls MPI_Finalize after this program has initialized MPI."""
    is_told = rc.initialize if rc.finalize is None else rc.finalize
    return Finalizer.MPI4PY if is_told and not _is_embedded() else Finalizer.NOBODY


def _is_embedded() -> bool:
    """Return True if a program holds this interpreter: it goes on when Python has ended."""
    try:
        return not os.path.samefile("/proc/self/exe", sys.executable)
    except OSError:  # a system without /proc, or a program that finds no Python
        return not sys.executable
