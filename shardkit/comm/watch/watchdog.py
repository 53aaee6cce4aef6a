"""The watchdog: a call that exceeds the time limit ends the job with a report.

Every rank keeps a ledger (ledger.py), and a thread checks regularly how long the current call has
taken, and notes that it could (pulse.py). The first rank that finds a call over the limit makes the
file `hang`, asks the processes of its node for their stacks by a signal (ranks of other nodes see
the file), reads all ledgers, and aborts with the report of hang.py.

The report names all ranks if they see one folder; if each node has its own folder, it names the
ranks of the node.
Source: the flight recorder of torch.distributed.
"""

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from math import inf
from pathlib import Path

from ..failure.agreement import describe_error
from .attendance import attendance
from .hang import HANG_NAME, STACKS_NAME, hang_report, hang_suspects, read_ledgers
from .ledger import LEDGER_NAME, Ledger
from .pulse import beat_seconds

STACKS_SIGNAL = signal.SIGRTMIN + 7
STACKS_SECONDS = 0.7  # until the stacks of this node are written
STOPPED_SECONDS = 2.0  # between two beats: a process that was stopped, with all others perhaps
PATIENCE_SECONDS = 3.0  # the time that the first rank to notice has to end the job
REPORT_SECONDS = 8.0  # a hang is reported so long before the batch system kills the job
_HERE = os.path.dirname(os.path.dirname(__file__))
MIN_SECONDS = 10.0  # a call may take so long even then: a save may still succeed


class Watchdog:
    """The ledger of one rank, and the thread that watches its current call.

    progress      the calls to write into the ledger
    folder        for the files of all ranks; made if it is missing
    seconds       function () -> seconds that a call may take
    seconds_left  function () -> seconds until the batch system kills the job
    abort         function (message) that ends the job
    patience      seconds beyond the limit: wardens end a stopped rank, and the others go on
    """

    def __init__(
        self,
        progress,
        folder,
        rank: int,
        world_size: int,
        *,
        seconds,
        abort,
        seconds_left=lambda: inf,
        patience: float = 0.0,
    ):
        self.folder = Path(folder)
        self.rank = rank
        self._seconds = seconds
        self._progress = progress
        self._abort = abort
        self._seconds_left = seconds_left
        self._patience = patience
        self._stopped = threading.Event()
        self._away_since = 0.0
        self._resumed_at = 0.0  # after this process was stopped
        self._gives_up = inf  # when this rank ends the job although another one should
        self.ledger = Ledger(
            self.folder / LEDGER_NAME.format(rank), rank, world_size, progress.names
        )
        self._stacks = open(self.folder / STACKS_NAME.format(rank), "w")
        self._hang = self.folder / HANG_NAME
        self._hang.unlink(missing_ok=True)  # left by an earlier run in this folder
        self.ledger.beat(seconds(), 0.0)
        attendance().note_ledger(self.ledger.path)
        faulthandler.register(STACKS_SIGNAL, self._stacks, all_threads=True)
        progress.ledger = self.ledger
        self._thread = threading.Thread(target=self._watch, daemon=True, name="shardkit watchdog")
        self._thread.start()

    def close(self) -> None:
        """Stop watching; the files stay."""
        self._stopped.set()
        self._thread.join()
        if self._progress.ledger is self.ledger:  # else another watchdog has taken over
            self._progress.ledger = None
            attendance().note_ledger(None)
            faulthandler.unregister(STACKS_SIGNAL)
        self._stacks.close()
        self.ledger.close()

    def suspects(self) -> str:
        """Return a phrase that names the ranks for which the others wait."""
        return hang_suspects(self.folder, self._limit())

    def _watch(self):
        beat_at = time.monotonic()
        while not self._stopped.wait(beat_seconds(self._seconds())):
            before, beat_at = beat_at, time.monotonic()
            if beat_at - before > max(self._seconds() / 2, STOPPED_SECONDS):
                self._resumed_at = beat_at
            try:
                self._beat()
                self._look()
            except Exception as error:  # without this thread, no hang would be noticed
                self._abort(
                    f"no progress in {self._progress.current}, or the watchdog itself fails: "
                    f"{describe_error(error)}; the job is ended"
                )

    def _beat(self):
        now = time.monotonic()
        self._away_since = (self._away_since or now) if self._is_away() else 0.0
        self.ledger.beat(self._seconds(), self._away_since)

    def _is_away(self) -> bool:
        """Return True if the main thread runs code of others inside of its call."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        if self._progress.current is None or frame is None or _is_own(frame):
            return False
        while frame is not None and not _is_own(frame):
            frame = frame.f_back
        return frame is not None

    def _look(self):
        if self._has_outlived():
            self._report()
        elif self._hang.exists():
            self._dump_stacks()

    def _has_outlived(self) -> bool:
        call, began = self._progress.current, self._progress.began
        return (
            call is not None
            and time.monotonic() - max(began, self._resumed_at) > self._limit() + self._patience
            and self._progress.current is call
        )

    def _limit(self) -> float:
        """Return the seconds that a call may take now: fewer if the job is about to be killed."""
        seconds = self._seconds()
        return min(seconds, MIN_SECONDS) if self._seconds_left() < REPORT_SECONDS else seconds

    def _report(self):
        """Report the hang if this rank is the first; otherwise wait for the report of the first."""
        try:
            self._hang.touch(exist_ok=False)
        except FileExistsError:
            self._dump_stacks()
            self._gives_up = min(self._gives_up, time.monotonic() + PATIENCE_SECONDS)
            self._stopped.wait(STACKS_SECONDS)
            if time.monotonic() < self._gives_up:
                return
        call = self._progress.current
        limit = self._limit()
        suspects = self.suspects()
        self._ask_for_stacks()  # afterwards: the signal may wake a process in a system call
        time.sleep(STACKS_SECONDS)
        report = hang_report(self.folder, time.time())
        why = "" if limit == self._seconds() else ", and the batch system is about to kill the job"
        self._abort(
            f"no progress in {call} within {limit:g} s{why}: {suspects}; the job is ended\n"
            f"{report}\nfiles: {self.folder}"
        )

    def _ask_for_stacks(self):
        """Signal every process of this node: its handler writes the stacks, even inside of MPI."""
        for other in read_ledgers(self.folder):
            if other.host == socket.gethostname():
                try:
                    os.kill(other.pid, STACKS_SIGNAL)
                except OSError:  # it has died, or the id belongs to another user's process now
                    continue

    def _dump_stacks(self):
        """Write the stacks, unless the signal has done so."""
        if os.fstat(self._stacks.fileno()).st_size == 0:
            faulthandler.dump_traceback(self._stacks, all_threads=True)


def _is_own(frame) -> bool:
    """Return True if this is code of this room."""
    return frame.f_code.co_filename.startswith(_HERE)
