"""What the process of workshop.py does: compile a loop for each line that it is asked for.

It ends with the process that asks, or when that had nothing to ask for a while.
"""

import gc
import os
import queue
import sys
import threading

from .compiled import loop_named
from .compiling import image_of
from .targets import target
from .workshop import LENGTH

IDLE_SECONDS = 20.0
OBJECTS = 100_000  # made between two looks for garbage, an eighth of Numba's time by default


def main() -> None:
    """Answer lines of the standard input by packed code on the standard output, b"" on errors."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what else is printed
    gc.freeze()
    gc.set_threshold(OBJECTS)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            return
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
