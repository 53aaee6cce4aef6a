"""A limit for MPI_Init: a rank that never gets out of it says so and ends, instead of holding its nodes until the time limit.

    process of the rank   ...... MPI_Init ...................... back: closes the pipe
    watcher, forked       ...... waits for the pipe to close ... gone at once, with a rank that dies too
                                 the time is over: says who waits where, and kills the rank, so that the launcher ends the job

A thread cannot do it, since mpi4py holds the interpreter's lock while MPI_Init runs. The fork comes before MPI_Init, so no
library's resources are shared.
"""
import os
import platform
import select
import signal
import warnings
from contextlib import contextmanager

from ..config import Launcher, launcher, start_seconds

TURN_SECONDS = 0.25              # later for each rank: mostly the first speaks for all, since the launcher ends the others
MAX_TURNS = 40


@contextmanager
def start_limit(library: str, seconds: float | None = None):
    """Around MPI_Init: a process that does not get out of it in time is killed, after one line that says what to check.

    library   name of the MPI that mpi4py loads
    seconds   None: SHARDKIT_START_SECONDS, 180 by default; 0: no limit
    """
    seconds = start_seconds() if seconds is None else seconds
    if not seconds or not hasattr(os, "fork"):
        yield
        return
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)      # of forking beside threads: the watcher makes system calls only
        watcher = os.fork()
    if watcher == 0:
        os.close(writing)
        _watch(reading, os.getppid(), library, seconds)
    os.close(reading)
    try:
        yield
    finally:
        os.close(writing)
        os.waitpid(watcher, 0)


def _watch(reading: int, rank_process: int, library: str, seconds: float) -> None:
    """The life of the watcher."""
    try:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)                # these are for the rank; the watcher ends with it
        found = launcher()
        turn = TURN_SECONDS * min(found.rank, MAX_TURNS)
        is_over, _, _ = select.select([reading], [], [], seconds + turn)
        if not is_over:
            os.write(2, f"shardkit: {start_report(found, library, seconds)}\n".encode())
            os.kill(rank_process, signal.SIGKILL)
    finally:
        os._exit(0)


def start_report(found: Launcher, library: str, seconds: float) -> str:
    """Who waits where, and what to check."""
    who = f"rank {found.rank} of {found.num_ranks}" if found.num_ranks else "a process that no launcher numbered"
    kind = "pmix" if library == "Open MPI" else "pmi2"
    return (f"{who} has waited {seconds:g} s in MPI_Init on {platform.node()} (process {os.getppid()}, {library}, started by "
            f"{found.name or 'nobody that is known'}); the job is ended. Check: does the launcher speak this MPI's protocol "
            f"(srun --mpi={kind}; srun --mpi=list), or is it the mpiexec of this very {library}? Did all ranks start, or did one "
            "die first? Do the nodes reach each other (firewall, network interface)? Starting again may be enough. "
            "SHARDKIT_START_SECONDS sets the limit")
