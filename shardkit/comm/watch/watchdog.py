"""The watchdog: a call that exceeds the time limit ends the job with a report.

Every rank keeps a ledger (ledger.py), and a thread checks regularly how long the current call has
taken, and notes that it could (pulse.py). The first rank that finds a call over the limit makes the
folder `stacks`, into which those that see it write what their threads do (stacks.py), reads all
ledgers once, and aborts with the report of hang.py.

The report names all ranks if they see one folder; if each node has its own folder, it names the
ranks of the node. What counts as waiting is said in call_clock.py.
Source: the flight recorder of torch.distributed.
"""

import threading
import time
from contextlib import suppress
from math import inf
from pathlib import Path

from ..failure.agreement import describe_error
from .attendance import attendance
from .call_clock import CallClock
from .frames import first_frame, main_frame
from .hang import hang_suspects, late_text, report_of, suspects_of
from .ledger import Ledger
from .ledgers import read_ledgers
from .places import LedgerPlace
from .progress import Call
from .pulse import beat_seconds
from .stacks import HANDLER_SECONDS, Stacks
from .turn import Idle

STOPPED_SECONDS = 2.0  # between two beats: a process that was stopped, with all others perhaps
PATIENCE_SECONDS = 5.0  # the time that the first rank to notice has to end the job
REPORT_SECONDS = 8.0  # a hang is reported so long before the batch system kills the job
MIN_SECONDS = 10.0  # a call may take so long even then: a save may still succeed


class Watchdog:
    """The ledger of one rank, and the thread that watches its current call.

    progress      the calls to write into the ledger
    folder        for the files of all ranks; made if it is missing. None, or one that cannot be
                  written: this rank's calls are watched, and a report lacks them
    seconds       function () -> seconds that a call may take
    seconds_left  function () -> seconds until the batch system kills the job
    abort         function (message) that ends the job
    patience      seconds beyond the limit: wardens end a stopped rank, and the others go on
    place         of the ledger; None: that of a rank of the world
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
        place: LedgerPlace | None = None,
    ):
        self.folder = None if folder is None else Path(folder)
        self._seconds = seconds
        self._progress = progress
        self._abort = abort
        self._seconds_left = seconds_left
        self._patience = patience
        self._stopped = threading.Event()
        self._clock = CallClock(self.folder, rank, progress.places)
        self._idle = Idle(self.folder, rank, world_size)
        self._away_since = 0.0
        self._resumed_at = 0.0  # after this process was stopped
        self._gives_up = inf  # when this rank ends the job although another one should
        place = progress.places.of(rank) if place is None else place
        self.ledger = Ledger(self.folder, rank, world_size, progress.names, place)
        self._stacks = Stacks(self.folder, rank)
        self.ledger.beat(seconds(), 0.0)
        self.take_over()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="shardkit watchdog")
        self._thread.start()

    def take_over(self) -> None:
        """Let calls be noted in this ledger from now on."""
        attendance().note_ledger(self.ledger.path, self.ledger.start)
        self._stacks.listen()
        self._progress.ledger = self.ledger

    def close(self) -> None:
        """Stop watching; the files stay."""
        self._stopped.set()
        self._thread.join()
        is_last = self._progress.kept is self.ledger  # else another watchdog has taken over
        if is_last:
            self._progress.ledger = None
            attendance().note_ledger(None)
        self._stacks.close(is_last)
        self.ledger.close()

    def suspects(self) -> str:
        """Return a phrase that names the ranks for which the others wait."""
        if self.folder is None:
            return "no rank has a ledger that shows what it does"
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
        self.ledger.note_made(self._progress.calls_made)

    def _is_away(self) -> bool:
        """Return True if the main thread runs code of others inside of its call."""
        frame = None if self._progress.current is None else main_frame()
        return first_frame(frame, of_room=True) not in (None, frame)

    def _look(self):
        if self._has_outlived():
            self._report()
        else:
            self._stacks.write_if_asked()

    def _has_outlived(self) -> bool:
        call, began = self._under_way()
        return (
            call is not None
            and self._clock.seconds(call, max(began, self._resumed_at), self._limit())
            > self._limit() + self._patience
            and self._under_way()[0] is call
        )

    def _under_way(self) -> tuple[Call | None, float]:
        """Return the call of the host, else the one that the GPU is in, and when it began."""
        call = self._progress.current
        if call is not None:
            return call, self._progress.began
        return self._progress.gpu.oldest()

    def look_at_others(self) -> None:
        """End the job if another rank, in no verb, has long not got on with work of its own.

        For ranks that all note their work, while this one works too.
        """
        limit = self._limit()
        stuck = self._idle.ranks(limit)
        with suppress(OSError):
            if stuck and self._stacks.may_ask():
                _, report = self._look_at_ledgers()
                self._abort(f"{stuck} got nowhere for {limit:g} s; the job is ended\n{report}")

    def _limit(self) -> float:
        """Return the seconds that a call may take now: fewer if the job is about to be killed."""
        seconds = self._seconds()
        return min(seconds, MIN_SECONDS) if self._seconds_left() < REPORT_SECONDS else seconds

    def _report(self):
        """Report the hang if this rank is the first; otherwise wait for the report of the first."""
        if not self._stacks.may_ask():
            self._stacks.write_if_asked()
            self._gives_up = min(self._gives_up, time.monotonic() + PATIENCE_SECONDS)
            self._stopped.wait(HANDLER_SECONDS)
            if time.monotonic() < self._gives_up:
                return
        call, _ = self._under_way()
        limit = self._limit()
        suspects, report = self._look_at_ledgers()
        if self._progress.current is None and call is not None:  # the GPU waits, and no host
            suspects = self._late(call) or suspects
            call = f"{call}, which the GPU is in, while its host is in no call"
        why = "" if limit == self._seconds() else ", and the batch system is about to kill the job"
        self._abort(
            f"no progress in {call} within {limit:g} s{why}: {suspects}; the job is ended\n{report}"
        )

    def _look_at_ledgers(self) -> tuple[str, str]:
        """Return the ranks that are missing, in words, and the report."""
        if self.folder is None:
            return self.suspects(), ""
        try:
            found, now = read_ledgers(self.folder), time.time()
            suspects = suspects_of(found, self.folder, self._limit())
            self._stacks.gather(found, self._limit())  # it may wake a process in a system call
            report = report_of(found, self.folder, now)
        except OSError as error:
            return f"what the ranks do is not known, for {error}", ""
        return suspects, f"{report}\nfiles: {self.folder}"

    def _late(self, call: Call) -> str:
        """Return the ranks that have not come to this call, in words; "" if none is known."""
        with suppress(OSError):
            return late_text(self.folder, call, self._progress.places)
        return ""
