"""Start MPI for a command, and end all ranks together."""

import signal
from contextlib import contextmanager

from ..comm.failure.program import abort_on_error
from ..comm.mpi.backend import MPICommunicationBackend
from ..environment import launcher


def mpi_backend() -> MPICommunicationBackend:
    """Return a new backend.

    Ctrl-C ends a rank immediately while MPI starts: a rank that left later would keep the others
    waiting.
    """
    before = signal.getsignal(signal.SIGINT)
    if launcher().num_ranks and before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return MPICommunicationBackend()
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def job(backend):
    """Initialize the backend; an error or Ctrl-C on one rank ends all of them.

    Ctrl-C waits while the ranks begin and end together. Afterwards signals are as before: whoever
    calls a command from Python, and the processes that start then, hear Ctrl-C.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        backend.initialize()
        with abort_on_error(backend) as program:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            yield program
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        backend.shutdown()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
