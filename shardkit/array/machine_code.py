"""The seconds that this process has spent on machine code; cpu/compiled.py counts them here.

a loop is called --in a file--> read
                 --not-------> begin, ... loops that it calls ..., end
"""

import time
from collections.abc import Callable


class MachineCode:
    """What this process has spent on machine code. Numba's lock is held in its methods.

    seconds      reading it and compiling, in all
    on_compile   function (), called once, before the first loop is compiled
    """

    def __init__(self):
        self.seconds = 0.0
        self.on_compile: Callable[[], None] = lambda: None
        self._compiling: list[tuple[object, float]] = []  # (loop, when it began), outermost first

    def read(self, seconds: float) -> None:
        """Note that a loop was read from a file."""
        if not self._compiling:
            self.seconds += seconds

    def begin(self, loop) -> None:
        """Note that a loop is compiled from now on."""
        self._compiling.append((loop, time.perf_counter()))
        on_compile, self.on_compile = self.on_compile, lambda: None
        on_compile()

    def end(self, loop) -> None:
        """Note that it is compiled; those that began later and did not end have failed."""
        compiled, began = None, 0.0
        while compiled is not loop and self._compiling:
            compiled, began = self._compiling.pop()
        if compiled is loop and not self._compiling:
            self.seconds += time.perf_counter() - began


MACHINE_CODE = MachineCode()
