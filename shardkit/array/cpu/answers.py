"""What the process of workshop.py does: compile a loop for each line that it is asked for.

It ends with the process that asks, or when that had nothing to ask for a while. What is said to be
asked for soon is compiled by a fork of it, where there is another core: a fork has Numba and LLVM
at once, as another process would have after a second.
"""

import ctypes
import gc
import os
import queue
import signal
import sys
import threading

from .compiled import loop_named
from .compiling import image_of
from .targets import target
from .workshop import LENGTH

IDLE_SECONDS = 20.0
OBJECTS = 100_000  # made between two looks for garbage, an eighth of Numba's time by default
_SIGNAL_AT_DEATH = 1  # an option of prctl(2)


def main() -> None:
    """Answer lines of the standard input by packed code on the standard output, b"" on errors.

    A line and, after tabs, lines that go with it.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # what else is printed
    gc.freeze()
    gc.set_threshold(OBJECTS)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    ahead = Ahead((0, answers))
    while True:
        try:
            line, *others = lines.get(timeout=IDLE_SECONDS).split("\t")
        except queue.Empty:
            return
        ahead.add(others)
        content = _made(line)
        with open(answers, "wb", closefd=False) as file:
            file.write(LENGTH.pack(len(content)) + content)


def _listen(lines) -> None:
    """Pass lines on. The process that asks holds the other end as long as it lives."""
    for line in sys.stdin:
        lines.put(line.rstrip("\n"))
    os._exit(0)


def _made(line: str) -> bytes:
    try:
        loop, signature = loop_named(line)
        return image_of(loop, signature, target()).pack()
    except Exception:  # the process that asks tries by itself, and says what is wrong
        return b""


class Ahead:
    """A fork of this process, with a pipe of lines: it compiles them and keeps their code.

    files   that are this process's alone
    """

    def __init__(self, files):
        self._files = files
        self._pipe: int | None = None  # to the fork
        self._known: set[str] = set()

    def add(self, lines) -> None:
        """Let the fork compile what it was not told of before; there is one once it is needed."""
        new = [line for line in lines if line not in self._known]
        if not new or len(os.sched_getaffinity(0)) < 2:
            return
        if self._pipe is None:
            self._pipe = self._forked()
        self._known.update(new)
        try:
            os.write(self._pipe, "".join(f"{line}\n" for line in new).encode())
        except OSError:  # it has ended: what it does not do is done when it is asked for
            pass

    def _forked(self) -> int:
        read, write = os.pipe()
        parent = os.getpid()
        if os.fork():
            os.close(read)
            return write
        for file in (write, *self._files):
            os.close(file)
        _end_with(parent)
        try:
            with open(read, encoding="utf-8") as lines:
                for line in lines:
                    loop, signature = loop_named(line.rstrip("\n"))
                    loop.make_ahead(signature, image_of)
        finally:
            os._exit(0)


def _end_with(parent: int) -> None:
    """End this fork with the process that it was forked from, and give up what it has claimed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    ctypes.CDLL(None).prctl(_SIGNAL_AT_DEATH, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(0)
