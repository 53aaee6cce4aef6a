"""Child processes that are forked from a process without threads.

A rank's thread that has just been joined may still hold a lock of the MPI library's while it gives
its stack back; a child that is forked at that moment waits for the lock for ever.
"""

import multiprocessing
import signal

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["numpy", "h5py", "pytest", "shardkit"])
SECONDS = 60


def clean_context():
    """Return the context of such processes; what they call must be a module's function."""
    return _CONTEXT


def exit_code(function, *arguments) -> int:
    """Return the exit code of a process that calls function(*arguments); -n: signal n ended it."""
    process = _CONTEXT.Process(target=_within_limit, args=(function, arguments))
    process.start()
    process.join()
    return process.exitcode


def _within_limit(function, arguments):
    signal.alarm(SECONDS)
    function(*arguments)
