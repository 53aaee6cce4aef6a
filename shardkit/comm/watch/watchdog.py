"""The watchdog: a call that exceeds the time limit ends the job with a report.

Every rank keeps a ledger (ledger.py), and a thread checks regularly how long the current call has
taken. The first rank that finds a call over the limit makes the file `hang`, asks the processes of
its node for their stacks by a signal (ranks of other nodes see the file), reads all ledgers, and
aborts with the report of hang.py.

The report names all ranks if they see one folder; if each node has its own folder, it names the
ranks of the node. What counts as waiting is said in call_clock.py.
Source: the flight recorder of torch.distributed.
"""

import faulthandler
import os
import signal
import socket
import threading
import time
from math import inf
from pathlib import Path

from ..failure.agreement import describe_error
from .call_clock import CallClock
from .hang import HANG_NAME, STACKS_NAME, hang_report, hang_suspects, read_ledgers
from .ledger import LEDGER_NAME, Ledger

STACKS_SIGNAL = signal.SIGRTMIN + 7
STACKS_SECONDS = 0.7  # until the stacks of this node are written
PATIENCE_SECONDS = 3.0  # the time that the first rank to notice has to end the job
MAX_POLL_SECONDS = 1.0  # the time limit may change at any time
REPORT_SECONDS = 8.0  # a hang is reported so long before the batch system kills the job
MIN_SECONDS = 10.0  # a call may take so long even then: a save may still succeed


class Watchdog:
    """The ledger of one rank, and the thread that watches its current call.

    progress      the calls to write into the ledger
    folder        for the files of all ranks; made if it is missing
    seconds       function () -> seconds that a call may take
    seconds_left  function () -> seconds until the batch system kills the job
    abort         function (message) that ends the job
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
    ):
        self.folder = Path(folder)
        self.rank = rank
        self._seconds = seconds
        self._progress = progress
        self._abort = abort
        self._seconds_left = seconds_left
        self._stopped = threading.Event()
        self._clock = CallClock(self.folder)
        self._gives_up = inf  # when this rank ends the job although another one should
        self.ledger = Ledger(
            self.folder / LEDGER_NAME.format(rank), rank, world_size, progress.names
        )
        self._stacks = open(self.folder / STACKS_NAME.format(rank), "w")
        self._hang = self.folder / HANG_NAME
        self._hang.unlink(missing_ok=True)  # left by an earlier run in this folder
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
            faulthandler.unregister(STACKS_SIGNAL)
        self._stacks.close()
        self.ledger.close()

    def _watch(self):
        while not self._stopped.wait(min(MAX_POLL_SECONDS, self._seconds() / 8)):
            try:
                self._look()
            except Exception as error:  # without this thread, no hang would be noticed
                self._abort(
                    f"no progress in {self._progress.current}, or the watchdog itself fails: "
                    f"{describe_error(error)}; the job is ended"
                )

    def _look(self):
        if self._has_outlived():
            self._report()
        elif self._hang.exists():
            self._dump_stacks()

    def _has_outlived(self) -> bool:
        call, began = self._progress.current, self._progress.began
        return (
            call is not None
            and self._clock.seconds(call, began, self._limit()) > self._limit()
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
        suspects = hang_suspects(self.folder)
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
