"""Signals that ask a run to stop, as a flag that is checked between steps."""

import ctypes
import os
import signal
import threading
from typing import Protocol

from ...environment import launcher
from .program import INTERRUPTED_CODE

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_FIRST_INTERRUPT = (
    b"\nshardkit: Ctrl-C: the run ends after this step, with a checkpoint; "
    b"once more ends it at once, without\n"
)
_SECOND_INTERRUPT = b"""
shardkit: ended by Ctrl-C; the checkpoints that were written before are whole
"""


_ACTION_BYTES = 512  # more than any system's struct sigaction


class SignalAction:
    """How this process handles a signal now, by Python or by a function of C."""

    def __init__(self, number: int):
        self._number, self._handler = number, signal.getsignal(number)
        self._action = ctypes.create_string_buffer(_ACTION_BYTES)
        ctypes.CDLL(None).sigaction(number, None, self._action)

    @property
    def is_ignored(self) -> bool:
        """True if nothing follows the signal."""
        return self._handler == signal.SIG_IGN

    def put_back(self) -> None:
        """Handle it that way again. Python knows None of what a program in C has set before it."""
        signal.signal(self._number, self._handler or signal.SIG_DFL)
        ctypes.CDLL(None).sigaction(self._number, self._action, None)


class StopRequest(Protocol):
    """What a run asks before each step: is it to stop?"""

    @property
    def name(self) -> str | None:
        """What asks for it, once something does."""

    def is_raised(self) -> bool:
        """Return True once the run is to stop."""

    def is_urgent(self) -> bool:
        """Return True if little time is left then."""


class StopSignals:
    """SIGTERM, SIGUSR1, SIGUSR2 and SIGINT (Ctrl-C) as a flag that is checked between steps.

    More of them change nothing, but for a second SIGINT, which ends the process at once, with exit
    code 130.
    """

    def __init__(self):
        self.name: str | None = None  # of the first that came
        self._is_interrupted = False
        self._before: dict[int, SignalAction] = {}
        self._speaks = launcher().rank == 0  # Ctrl-C reaches all ranks, and one of them answers

    def listen(self) -> "StopSignals":
        """Catch the signals from now on, so that none interrupts a save. Only the main thread of a
        program hears them.
        """
        if threading.current_thread() is not threading.main_thread():
            return self
        self._before = {n: SignalAction(n) for n in (*_SIGNALS, signal.SIGINT)}
        for number in _SIGNALS:
            signal.signal(number, self._note)
        if not self._before[signal.SIGINT].is_ignored:  # as shells have it in the background
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def leave(self) -> None:
        """Give the signals back to whoever handled them before listen()."""
        for action in self._before.values():
            action.put_back()
        self._before = {}

    def ignore(self) -> None:
        """Ignore the signals: nothing may change the exit code any more.

        Python itself would restore the default, which ends the process.
        """
        for number in (*_SIGNALS, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number, frame):
        self.name = self.name or signal.Signals(number).name

    def _interrupt(self, number, frame):
        if self._speaks:
            os.write(2, _SECOND_INTERRUPT if self._is_interrupted else _FIRST_INTERRUPT)
        if self._is_interrupted:
            os._exit(INTERRUPTED_CODE)
        self._is_interrupted = True
        self._note(number, frame)

    def is_urgent(self) -> bool:
        """Return True once a signal has come after which little time is left."""
        return self.name in ("SIGTERM", "SIGINT")

    def is_raised(self) -> bool:
        """Return True once a signal has come."""
        return self.name is not None
