"""The warden of this process (warden.py), as the process itself starts it and hears of it."""

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from ...environment import launcher
from ...files.programs import this_python

WATCHING = b"watching\n"  # what a warden says first; afterwards, only why it has ended
_PACKAGE = Path(__file__).parents[2]
_WARDEN = """\
import os, sys, types
for name, folder in (("shardkit", ""), ("shardkit.comm", "/comm")):  # not their __init__.py
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[2] + folder]
try:
    from shardkit.comm.watch.warden import main
    main(sys.argv[1])
except BaseException as error:
    try:
        os.write(1, f"{type(error).__name__}: {error}".encode(errors="replace"))
    finally:
        raise SystemExit(1)
"""


class OwnWarden:
    """A process that watches over this one, until this one ends.

    arguments   of warden.main, as JSON can hold them
    is_needed   function () -> bool: an end of the warden is worth a word
    ended       why the warden has ended; None: it has not, as far as is known
    Errors: OSError if it cannot be started.
    """

    def __init__(self, arguments: dict, is_needed: Callable[[], bool]):
        self.ended: str | None = None
        self._rank, self._is_needed = arguments["rank"], is_needed
        self._has_spoken = Event()
        with _lines_to_launcher() as kept:
            self.process = subprocess.Popen(
                [this_python(), "-I", "-S", "-c", _WARDEN, json.dumps(arguments), str(_PACKAGE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                pass_fds=kept,
            )
        Thread(target=self._follow, daemon=True).start()

    def await_watch(self) -> None:
        """Wait until the warden watches, or has ended."""
        self._has_spoken.wait()

    def end(self) -> None:
        """End the warden: there is nothing to watch."""
        self._is_needed = lambda: False
        self.process.kill()
        self.process.wait()

    def _follow(self):
        """Say that the warden has ended before this rank did, and why. In a thread of its own."""
        first = self.process.stdout.readline()
        if first == WATCHING:
            self._has_spoken.set()
        reason = _why_ended(self.process, b"" if first == WATCHING else first)
        if self._is_needed():
            self.ended = reason
            text = f"{unwatched_text({self._rank: reason})} (process {os.getpid()})\n"
            os.write(2, f"shardkit: {text}".encode(errors="replace"))
        self._has_spoken.set()


@contextmanager
def _lines_to_launcher():
    """Return a context manager: the descriptors that the launcher of MPICH sees closed at a death.

    It kills the other ranks once it has seen one of them closed, even before a warden on a busy
    machine has said who died; as long as they are open in a warden, it knows of no death.
    """
    socket = launcher().socket
    if socket is None:
        yield ()
        return
    try:
        output = os.dup(1)  # a warden's own standard output is for its rank
    except OSError:  # the program has closed it
        yield (socket,)
        return
    try:
        yield socket, output
    finally:
        os.close(output)


def unwatched_text(reasons: dict[int, str]) -> str:
    """Return what it means that the wardens of these ranks have ended; {rank: why}."""
    each = "; ".join(f"rank {rank}: {why}" for rank, why in reasons.items())
    return (
        f"the process that watches over a rank outside of the verbs has ended early ({each}); if "
        "that rank hangs at the start or the end of the program, nobody will end the job"
    )


def _why_ended(warden, first: bytes) -> str:
    """Wait for the end of a warden; return its last words, or else how it was ended."""
    words = (first + warden.stdout.read()).decode(errors="replace").strip()
    code = warden.wait()
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return "".join(c if c.isprintable() else "?" for c in words.splitlines()[-1]) if words else how
