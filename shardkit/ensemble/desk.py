"""The desk of an ensemble: it knows all trials, and says which group trains which.

    group     report --> desk: the record is written, then trials are compared --> order    group
    0, 1, 2                    (a group for which there is none waits)                      0, 1, 2

The leader of group 0 has the desk and trains too: it looks at its lines after each of its steps, so
another group waits for an order as long as one of these steps takes. No rank is there for the desk
alone. One rank writes the file and asks Optuna; a shared counter would not do: which trial comes
next depends on what others have come to.

A message of a line is two: the number of its bytes, and its bytes. Who waits looks again and again,
so no call lasts longer than it takes, and no limit of time ends a long wait.
"""

import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy

from ..comm.backend import CommunicationBackend
from ..comm.operations import Handle
from ..files.notes import tell
from ..parallel.model.callback import Callback
from .comparing import Judge
from .record import SweepRecord
from .trials import FAILED, WAITING, Assignment, Report, Trial

_SIZE, _CONTENT = 1, 2  # tags
_PAUSE_SECONDS = 0.001
END = None  # in the place of an order: the ensemble is over, or was told to stop


class Book:
    """The trials of an ensemble, in memory and in its file.

    ask     (number) -> settings of one more trial; None: no more are drawn
    total   trials that there are to be
    """

    def __init__(
        self,
        folder: Path,
        record: SweepRecord,
        rule: Judge,
        total: int,
        ask: Callable[[int], dict[str, Any]] | None = None,
    ):
        self._folder, self._record = folder, record
        self._rule = rule
        self._total, self._ask = total, ask
        self._running: set[int] = set()
        self.is_told = False  # a group was told to stop, so no trial begins any more
        self._settle()

    @property
    def trials(self) -> list[Trial]:
        """All trials, by their numbers."""
        return self._record.trials

    @property
    def is_over(self) -> bool:
        """True if no trial is under way, where next_order() has none."""
        return not self._running

    @property
    def is_complete(self) -> bool:
        """True if no trial is left to run."""
        is_done = all(trial.status != WAITING for trial in self.trials)
        return is_done and len(self.trials) >= self._total

    def hear(self, report: Report) -> None:
        """Note what a group says of its trial, or of itself (number -1)."""
        self.is_told |= report.is_told
        self._running.discard(report.number)
        if report.is_told or report.number < 0:
            return
        trial = self.trials[report.number]
        until = self._rule.until(trial, self.trials)
        self.trials[trial.number] = trial.after(report, until)
        self._record.curves[trial.number] = report.curves
        self._settle()
        tell(self._line(self.trials[trial.number]))

    def _settle(self) -> None:
        """Compare what can be compared, and write it down; a full disk is tried again."""
        self.trials[:] = self._rule.settle(self.trials)
        try:
            self.write()
        except OSError as error:
            tell(f"warning: {error}; the file of the ensemble is written again after each report")

    def _line(self, trial: Trial) -> str:
        done = sum(each.status != WAITING for each in self.trials)
        loss = "" if trial.loss is None else f", validation loss {trial.loss:.6g}"
        what = trial.error if trial.status == FAILED else f"step {trial.step}{loss}"
        status = "waits to be compared" if trial.status == WAITING else trial.status
        return f"trial {trial.number} {status}: {what} ({done} of {self._total} done)"

    def next_order(self) -> Assignment | None:
        """Return what a free group does next; None: there is nothing now."""
        if self.is_told:
            return None
        trial = next(filter(self._is_ready, self.trials), None)
        if trial is None and self._ask is not None and len(self.trials) < self._total:
            trial = Trial(len(self.trials), self._ask(len(self.trials)))
            self.trials.append(trial)
            self._settle()
        if trial is None:
            return None
        self._running.add(trial.number)
        source = trial.source_at(trial.step)
        is_own = source in (None, trial.number)
        until = self._rule.until(trial, self.trials)
        return Assignment(trial, until, None if is_own or source is None else (trial.step, source))

    def _is_ready(self, trial: Trial) -> bool:
        if trial.status != WAITING or trial.number in self._running:
            return False
        until = self._rule.until(trial, self.trials)
        return until is None or trial.step < until

    def write(self) -> None:
        """Write the record. Errors: OSError."""
        self._record.write(self._folder)


class Line:
    """One end of the line between this leader and another."""

    def __init__(self, leaders: CommunicationBackend, other: int):
        self._leaders, self._other = leaders, other
        self._size = numpy.zeros(1, numpy.int64)
        self._coming: Handle | None = None
        self._sent: list[tuple[Handle, numpy.ndarray]] = []

    def send(self, message: Any) -> None:
        """Begin to send a message."""
        content = numpy.frombuffer(pickle.dumps(message), numpy.uint8)
        size = numpy.array([content.size], numpy.int64)
        for array, tag in ((size, _SIZE), (content, _CONTENT)):
            self._sent.append((self._leaders.isend(array, self._other, tag), array))

    def look(self) -> Iterator[Any]:
        """Yield the next message, if it is here."""
        self._sent = [(handle, array) for handle, array in self._sent if not handle.test()]
        if self._coming is None:
            self._coming = self._leaders.irecv(self._size, self._other, _SIZE)
        if self._coming.test():
            self._coming = None
            content = numpy.empty(int(self._size[0]), numpy.uint8)
            self._leaders.receive(content, self._other, _CONTENT)
            yield pickle.loads(content.tobytes())

    def part(self) -> None:
        """Wait for the last message of the other end, to which nothing is sent any more."""
        while not any(True for _ in self.look()):
            time.sleep(_PAUSE_SECONDS)
        self.close()

    def close(self) -> None:
        """Wait until what was sent has arrived."""
        for handle, _ in self._sent:
            handle.wait()
        self._sent = []


class LeaderDesk(Callback):
    """The desk of the leader of group 0, which is a callback of its own trainings.

    lines   {group: the line to its leader}, of the others
    """

    def __init__(self, book: Book, lines: dict[int, Line]):
        self._book, self._lines = book, lines
        self._waiting: set[int] = set()
        self._open = set(lines)  # groups that have not come to their end
        self._own: list[Assignment | None] = []  # orders for group 0

    def send(self, report: Report) -> None:
        """Take a report of the own group."""
        self._take(0, report)

    def look(self) -> Iterator[Assignment | None]:
        """Yield the next order of the own group, if there is one."""
        self._serve()
        if self._own:
            yield self._own.pop()

    def close(self) -> tuple[tuple[Trial, ...], bool]:
        """Part from the other groups and write the record; return the trials, and whether none is
        left to run. Errors: OSError.
        """
        for line in self._lines.values():
            line.part()
        self._book.write()
        return tuple(self._book.trials), self._book.is_complete

    def _serve(self, *_: Any) -> None:
        """Hear all groups, and give orders to those that wait; between two steps of a training."""
        for group, line in self._lines.items():
            for report in line.look() if group in self._open else ():
                self._take(group, report)
        for group in sorted(self._waiting):
            order = self._book.next_order()
            if order is not END or self._may_end(group):
                self._give(group, order)

    after_step = after_report = after_validation = after_checkpoint = cast(Any, _serve)

    def _may_end(self, group: int) -> bool:
        """Return True where nothing is left to do, for the own group once the others have left."""
        return self._book.is_over and not (group == 0 and self._open)

    def _take(self, group: int, report: Report) -> None:
        self._book.hear(report)
        self._waiting.add(group)

    def _give(self, group: int, order: Assignment | None) -> None:
        self._waiting.discard(group)
        if group == 0:
            self._own.append(order)
            return
        self._lines[group].send(order)
        if order is END:
            self._open.discard(group)
