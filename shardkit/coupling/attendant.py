"""Attendant: who takes what comes to a rank, beside its training or while it waits, until all part.

A thread does it on ranks that only train; on others, whoever waits.
"""

import threading
import time
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from ..comm.mpi.ending import ending
from ..files.notes import tell
from .desk import EMPTY, NoteDesk

NAP_SECONDS = 2e-4
LONG_SECONDS = 60.0  # a wait that is told of


class Attendant:
    """A thread, once it is started; else whoever waits.

    turn   function () -> bool: take what has come; True if there was something
    lock   held around turns, and by others who use the same things
    jobs   functions () to be called beside the turns, without the lock
    awaited   function () -> str: what comes next, for who waits long
    """

    def __init__(self, desk: NoteDesk, turn: Callable[[], bool], awaited: Callable[[], str] = str):
        self.lock = threading.RLock()
        self.jobs: list[Callable[[], None]] = []
        self._desk, self._turn = desk, turn
        self._awaited = awaited
        self._thread: threading.Thread | None = None
        self._has_stopped = False
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Let a thread take what comes, until stop()."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="shardkit-coupled")
        self._thread.start()
        ending().add(self.stop)  # no thread may call MPI when it is finalized

    def stop(self) -> None:
        """End the thread."""
        ending().remove(self.stop)
        self._has_stopped = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self):
        try:
            while not self._has_stopped:
                if not self._take():
                    time.sleep(NAP_SECONDS)
        except BaseException as error:  # for who waits
            self._failure = error

    def _take(self) -> bool:
        with self.lock:
            is_busy = self._turn()
        while self.jobs:
            self.jobs.pop(0)()
        return is_busy

    def wait(
        self, until: Callable[[], bool], needed: Callable[[], Iterable[int]], doing: str
    ) -> None:
        """Wait until this is true, which is asked with the lock held; a line tells of a long wait.

        Errors: CommunicationError if one of the needed ranks is lost.
        """
        told_at = time.monotonic() + LONG_SECONDS
        while not self._is_true(until, needed, doing):
            if time.monotonic() > told_at:
                told_at = inf
                waits = f"rank {self._desk.post.rank} of a coupling waits in {doing}"
                tell(f"{waits} for {LONG_SECONDS:g} s by now{self._awaited()}")
            if self._thread is not None or not self._take():
                time.sleep(NAP_SECONDS)

    def _is_true(self, until, needed, doing: str) -> bool:
        with self.lock:
            if self._failure is not None:
                raise self._failure
            if until():
                return True
            self._desk.check(needed(), doing)
            return False

    def tell(self, to: Iterable[int], kind: str, body: Any = EMPTY, **facts: Any) -> None:
        """Send a note to these ranks."""
        with self.lock:
            for rank in to:
                self._desk.tell(rank, kind, body, **facts)

    # ---- the end ---------------------------------------------------------------------------------

    def meet_all(self, is_complete: Callable[[], bool], needed: Callable[[], Iterable[int]]):
        """Answer the others until they close too, and free what all have made together.

        is_complete   whether all that these ranks have sent is here
        Errors: CommunicationError if a rank is lost.
        """
        desk = self._desk
        try:
            self.wait(is_complete, needed, "close()")
            self.tell(desk.others, "close")
            self.wait(desk.is_over, lambda: desk.others, "close()")
        finally:
            self.stop()
        desk.post.close()

    def fail(self, why: str) -> None:
        """Tell the others, who wait for this rank no more; it meets nobody."""
        self.tell(self._desk.others, "failed", why=why)
        self.stop()
