"""Processes that compile loops for this one, and end when they have nothing to do for a while.

    loop and signature, a line --> the process, with Numba and LLVM --> its code
    and lines that go with it  --> a fork of the process            --> files

So a rank that compiles is not larger than one that finds its code: LLVM's memory ends with the
process. It has nothing of MPI, imports from where this process does, and ends with it. There are as
many as threads that compile at a time.
"""

import os
import select
import struct
import subprocess
import threading
from collections.abc import Sequence

from ...environment import environment_without_launcher
from ...files.programs import python_command

LONGEST_SECONDS = 600.0  # for one loop, on a machine that does other things
LENGTH = struct.Struct("=q")
_PLAIN = "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"  # Numba writes errors that nobody sees
_MAIN = f"from {__package__}.answers import main; main()"


class Workshop:
    """The process, which is started when it is needed."""

    def __init__(self):
        self._process: subprocess.Popen | None = None
        self._owner = 0  # after a fork the process is another's

    @property
    def is_open(self) -> bool:
        """True if the process runs, and has loaded its compiler."""
        process = self._process
        return process is not None and self._owner == os.getpid() and process.poll() is None

    def code(self, line: str, others: Sequence[str] = ()) -> bytes | None:
        """Return the code of a loop for a signature, packed; None if that cannot be had here.

        others   lines that are compiled meanwhile, and kept
        """
        for _ in range(2):  # the process may just have ended
            if not self.is_open and not self._start():
                return None
            try:
                return self._ask(line, others)
            except OSError:
                self.close()
            except BaseException:  # Ctrl-C: its answer would be taken for that of the next line
                self.close()
                raise
        return None

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.communicate()

    def _start(self) -> bool:
        self.close()
        try:
            self._process = subprocess.Popen(
                python_command(_MAIN),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=os.sep,  # Numba reads a file of settings in the working folder
                env={**environment_without_launcher(), _PLAIN: "1"},
                start_new_session=True,
            )
        except OSError:
            return False
        self._owner = os.getpid()
        return True

    def _ask(self, line: str, others) -> bytes | None:
        """Errors: OSError if the process has ended, or takes too long."""
        pipes = self._process
        assert pipes is not None and pipes.stdin is not None and pipes.stdout is not None
        pipes.stdin.write("\t".join((line, *others)).encode() + b"\n")
        pipes.stdin.flush()
        if not select.select([pipes.stdout], [], [], LONGEST_SECONDS)[0]:
            raise TimeoutError(f"{line} is not compiled after {LONGEST_SECONDS:g} s")
        head = pipes.stdout.read(LENGTH.size)
        if len(head) < LENGTH.size:
            raise BrokenPipeError
        (length,) = LENGTH.unpack(head)
        content = pipes.stdout.read(length)
        if len(content) < length:
            raise BrokenPipeError
        return content or None


class Workshops:
    """Gives each thread that compiles a process of its own, and it to the next one."""

    def __init__(self):
        self._lock = threading.Lock()
        self._idle: list[Workshop] = []

    @property
    def is_open(self) -> bool:
        """True if one has nothing to do, and its compiler is loaded."""
        with self._lock:
            return any(one.is_open for one in self._idle)

    def code(self, line: str, others: Sequence[str] = ()) -> bytes | None:
        """Return what Workshop.code returns."""
        with self._lock:
            one = self._idle.pop() if self._idle else Workshop()
        try:
            return one.code(line, others)
        finally:
            with self._lock:
                self._idle.append(one)


WORKSHOPS = Workshops()
