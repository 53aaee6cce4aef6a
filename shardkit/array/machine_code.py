"""The seconds that this process has spent on machine code; cpu/compiled.py counts them here.

a loop is called --in a file--> read
                 --not-------> begin, ... loops that it calls ..., end

A rank that does this does not wait for others, and they should not take it for one that hangs: so
listeners hear what is loaded or compiled, and when that is done.
"""

import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet


class MachineCode:
    """What this process has spent on machine code. Numba's lock is held in its methods.

    seconds      reading it and compiling, in all
    on_compile   function (), called once, before the first loop is compiled
    doing        what is loaded or compiled now, in words; "": nothing
    listeners    objects whose note_code(doing) is called when that changes, as long as they live
    """

    def __init__(self):
        self.seconds = 0.0
        self.on_compile: Callable[[], None] = lambda: None
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

    def read(self, seconds: float) -> None:
        """Note that a loop was read from a file."""
        if not self._compiling:
            self.seconds += seconds

    def begin(self, loop) -> None:
        """Note that a loop is compiled from now on."""
        self._compiling.append((loop, time.perf_counter()))
        if not self.doing:
            self._tell(f"compiling {loop}")
        on_compile, self.on_compile = self.on_compile, lambda: None
        on_compile()

    def end(self, loop) -> None:
        """Note that it is compiled; those that began later and did not end have failed."""
        compiled, began = None, 0.0
        while compiled is not loop and self._compiling:
            compiled, began = self._compiling.pop()
        if compiled is loop and not self._compiling:
            self.seconds += time.perf_counter() - began
            self._tell("")

    def _tell(self, doing: str):
        self.doing = doing
        for listener in list(self.listeners):
            listener.note_code(doing)


MACHINE_CODE = MachineCode()
