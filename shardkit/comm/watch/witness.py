"""What a warden has seen of the end of its rank, in a job of another program.

    a signal has killed the rank       its death is told
    it has ended by itself             nothing is told: exit, MPI_Abort and _exit are the program's
    another rank was gone before       nothing is told: the launcher then kills all

Ranks that do not use this library have no entry in the roll. They are known as the other processes
that the launcher of this node has started.
"""

import signal
import time

from .cores import children_of
from .processes import EndOfProcess, state_of
from .roll import Entry

LOOK_SECONDS = 2.0
SIGNAL_MASK = 0x7F  # of a status: what killed the process; 0 if it ended by itself


class Witness:
    """A witness to the end of a process that this launcher has started.

    knows   it has seen how the process ended
    """

    def __init__(self, process: int, launcher: int):
        self._process, self._launcher = process, launcher
        self._end = EndOfProcess(process)
        self._status: int | None = None
        self._strangers: set[int] = set()  # ranks without an entry, as last seen
        self._next_look = 0.0

    def look_round(self, others: dict[int, Entry | None]) -> None:
        """Note the processes of ranks without an entry. Often called."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        known = {self._process, *(entry.process for entry in others.values() if entry is not None)}
        self._strangers = {child for child in children_of(self._launcher) if child not in known}

    def note_end(self) -> None:
        """Note how the process has ended, now that its files are closed."""
        self._status = self._end.status()

    @property
    def knows(self) -> bool:
        return self._status is not None

    def saw_kill(self, others: dict[int, Entry | None]) -> bool:
        """Return True if a signal killed the process, and no launcher because of another rank."""
        num_absent = sum(entry is None for entry in others.values())
        if len(self._strangers) < num_absent or not all(map(state_of, self._strangers)):
            return False
        if self._status is None:
            return not num_absent
        return self._status & SIGNAL_MASK not in (0, signal.SIGTERM)
