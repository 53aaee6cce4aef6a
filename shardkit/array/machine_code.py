"""The seconds that this process has spent on machine code; cpu/compiled.py counts them here.

a loop is called --in a file--> read
                 --not-------> begin, ... loops that it calls ..., end

Rank 0 says on standard error when it begins to compile, and when nothing was compiled any more for
a while: a program whose first step takes long would else look like one that hangs.

A rank that does this does not wait for others, and they should not take it for one that hangs: so
listeners hear what is loaded or compiled, and when that is done.
"""

import atexit
import threading
import time
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from ..environment import launcher
from ..files.notes import tell
from ..forks import is_of_parent, own
from ..plain import counted

QUIET_SECONDS = 3.0  # without a loop that is compiled: then all are


class MachineCode:
    """What this process has spent on machine code. Numba's lock is held in its methods.

    seconds      reading it and compiling, in all
    refused      why code that came with the package is not used; "": nothing was refused
    said         who says that loops are compiled
    doing        what is loaded or compiled now, in words; "": nothing
    listeners    objects whose note_code(doing) is called when that changes, as long as they live
    """

    def __init__(self):
        self.seconds = 0.0
        self.refused = ""
        self.said = Announcement()
        self.doing = ""
        self.listeners: WeakSet[Any] = WeakSet()
        self._compiling: list[tuple[object, float]] = []  # (loop, when it began), outermost first

    @contextmanager
    def loading(self, what: str):
        """Enclose the loading of code, a module or a loop, under this name."""
        is_outermost = not self.doing
        if is_outermost:
            self._tell(f"loading {what}")
        try:
            yield
        finally:
            if is_outermost:
                self._tell("")

    def refuse(self, why: str) -> None:
        """Note why code that came with the package is not used."""
        self.refused = why

    def read(self, seconds: float) -> None:
        """Note that a loop was read from a file."""
        if not self._compiling:
            self.seconds += seconds

    def begin(self, loop) -> None:
        """Note that a loop is compiled from now on."""
        self._compiling.append((loop, time.perf_counter()))
        if not self.doing:
            self._tell(f"compiling {loop}")
        self.said.begin(self.refused)

    def end(self, loop) -> None:
        """Note that it is compiled; those that began later and did not end have failed."""
        compiled, began = None, 0.0
        while compiled is not loop and self._compiling:
            compiled, began = self._compiling.pop()
        if compiled is loop and not self._compiling:
            seconds = time.perf_counter() - began
            self.seconds += seconds
            self.said.end(seconds)
            self._tell("")

    def _tell(self, doing: str):
        self.doing = doing
        for listener in list(self.listeners):
            listener.note_code(doing)


class Announcement:
    """Says once that loops are compiled, and how many they were; on rank 0 alone."""

    def __init__(self):
        self._lock = threading.Lock()
        self._has_said, self._number, self._seconds = False, 0, 0.0
        self._timer = threading.Timer(QUIET_SECONDS, self.conclude)

    def begin(self, reason: str) -> None:
        """Say it before the first of them, and why it must be, where there is a reason."""
        why = f" ({reason})" if reason else ""
        with self._lock:
            self._timer.cancel()
            if not self._has_said and not launcher().rank:
                tell(f"compiling kernels for this kind of CPU, once; later starts read them{why}")
                atexit.register(self.conclude)
                own(self)  # a process that is forked from this one says no more
            self._has_said = True

    def end(self, seconds: float) -> None:
        """Count one more."""
        if launcher().rank:
            return
        with self._lock:
            self._number += 1
            self._seconds += seconds
            self._timer = threading.Timer(QUIET_SECONDS, self.conclude)
            self._timer.daemon = True
            self._timer.start()

    def conclude(self) -> None:
        """Say how many there were since it was said the last time."""
        with self._lock:
            number, seconds = self._number, self._seconds
            self._number, self._seconds = 0, 0.0
        if number and not is_of_parent(self):
            tell(f"compiled {counted(number, 'kernel')} in {seconds:.1f} s")


MACHINE_CODE = MachineCode()
