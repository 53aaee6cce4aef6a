"""Where the time of a start goes, from the launch of this process to its first step.

    imports | MPI | data | weights | step       what the process is at
        kernels                                 machine code, read or compiled in any of them

"first step 1.05 s after rank 0 was launched: imports 0.52, MPI 0.11, data 0.02, weights 0.03, ..."
"""

import os
import time
from pathlib import Path

from ..array.machine_code import MACHINE_CODE
from ..parallel.model.callback import Callback


class StartClock(Callback):
    """Counts the seconds of each part of a start; rank 0 says them after the first step.

    began     time.monotonic() from which on it counts; None: now
    since     what then was, for the line
    seconds   {part: seconds} so far
    """

    def __init__(self, began: float | None = None, since: str = "the call"):
        self._noted = self._began = time.monotonic() if began is None else began
        self._since, self._say = since, None
        self._code_seconds = 0.0 if began is not None else MACHINE_CODE.seconds
        self.seconds: dict[str, float] = {}
        self.is_over = False

    @classmethod
    def of_process(cls) -> "StartClock":
        """Return one that has counted since this process was launched; its imports are over."""
        clock = cls(launched_at(), "rank 0 was launched")
        clock.note("imports")
        return clock

    def note(self, part: str) -> None:
        """Count the seconds since the last note for this part, but those of machine code."""
        now, code = time.monotonic(), MACHINE_CODE.seconds
        self._add(part, now - self._noted - (code - self._code_seconds))
        self._add("kernels", code - self._code_seconds)
        self._noted, self._code_seconds = now, code

    def _add(self, part: str, seconds: float):
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def at_start(self, run):
        """Count what it took to make the model ready."""
        if not self.is_over:
            self.note("weights")
            self._say = run.say

    def after_step(self, step, loss):
        """Say the parts, once."""
        if self.is_over:
            return
        self.note("step")
        self.is_over = True
        total = self._noted - self._began
        parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in self.seconds.items())
        self._say(f"first step {total:.2f} s after {self._since}: {parts}")


def launched_at() -> float:
    """Return the time.monotonic() at which this process was launched, to 10 ms.

    Where /proc does not tell (proc_pid_stat(5), field 22): when this function is called.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    launched = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # seconds since the machine was booted
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - launched)
