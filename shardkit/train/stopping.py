"""Why a run stops before its last step: a signal (comm/failure/signals.py), the end of its
allocation, or its patience (parallel/model/patience.py).

    rank 0   time is short?    --+
    rank k   signal arrived?   --+--> Ballot, before each step --> all ranks save the same step and
    all      patience over?    --+    end with exit code 75 (after patience with 0: the run is done)
    all      a stream ended, when they read the batch: as after patience

Each rank votes for itself and all act on the outcome, so any rank may receive the signal.
"""

import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable
from math import inf

from ..comm.backend import CommunicationBackend
from ..comm.failure.signals import StopRequest
from ..data.samples import STREAM
from ..environment import allocation_end, slurm_job
from ..files.programs import find_program
from ..parallel.model.patience import Patience
from ..parallel.model.saves import LastSave
from .log import duration_text
from .settings import Run

COMPLETING = ("patience",), (STREAM,)  # after these reasons a run is done, not interrupted
_ASK_SECONDS = 10.0  # longest wait for squeue
_GAPS = 64  # the longest of the last so many times between two boundaries is kept free


class Clock:
    """The rest of the job's time: is it enough for another step and a save? For one rank.

    end             Unix time, in seconds; None: the job has no end
    margin_seconds  how long before the end to stop, plus twice the longest save and the longest way
                    from one boundary to the next
    ask_again       function () -> Unix time or None: asked before the answer is that time is short,
                    since limits are extended
    """

    def __init__(self, end: float | None, margin_seconds: float, ask_again=lambda: None):
        self._end = end
        self._margin = margin_seconds
        self._ask_again = ask_again
        self._save_seconds = 0.0
        self._gaps: deque[float] = deque(maxlen=_GAPS)
        self._asked_at: float | None = None

    @classmethod
    def of_run(cls, run: Run) -> "Clock":
        """Make the clock of run.time_limit_seconds from now on, or else that of the allocation."""
        if run.time_limit_seconds:
            return cls(time.time() + run.time_limit_seconds, run.stop_margin_seconds)
        end = allocation_end()
        return cls(
            end_of_slurm_job() if end is None else end, run.stop_margin_seconds, end_of_slurm_job
        )

    @property
    def seconds_left(self) -> float:
        """Seconds until the end."""
        return inf if self._end is None else self._end - time.time()

    def left(self) -> str:
        """Return the rest of the time in words."""
        return (
            "no end in sight"
            if self._end is None
            else f"{duration_text(max(self.seconds_left, 0))} of the allocation left"
        )

    @property
    def reserve_seconds(self) -> float:
        """Seconds that another step needs: the longest step, two saves and the margin."""
        return max(self._gaps, default=0.0) + 2 * self._save_seconds + self._margin

    def note_save(self, seconds: float) -> None:
        """Record how long a checkpoint took until it was on disk."""
        self._save_seconds = max(self._save_seconds, seconds)

    def is_short(self) -> bool:
        """Return True if the run should save now.

        Call it at every boundary between steps, since it measures the time between its calls.
        """
        now = time.monotonic()
        if self._asked_at is not None:
            self._gaps.append(now - self._asked_at)
        self._asked_at = now
        if self.seconds_left > self.reserve_seconds:
            return False
        self._end = self._ask_again() or self._end
        return self.seconds_left <= self.reserve_seconds


class Stops:
    """What stops a run before its last step, beside its patience: signals and the end of its time.

    Until begin() there is time without end, as there is on all ranks but the first.
    """

    def __init__(self, run: Run, signals: StopRequest):
        self._run, self._signals = run, signals
        self._clock = Clock(None, run.stop_margin_seconds)

    def begin(self, backend: CommunicationBackend) -> None:
        """From now on time counts, on the first rank. No communication."""
        if backend.rank == 0:
            self._clock = Clock.of_run(self._run)
        if not self._run.time_limit_seconds:  # of one's own, after which nobody kills
            backend.seconds_left = self.seconds_left

    def questions(self) -> dict[str, Callable[[], bool]]:
        """Return the questions of the ballot before each step."""
        return {"signal": self._signals.is_raised, "time": lambda: self._clock.is_short()}

    def seconds_left(self) -> float:
        """Return the seconds until the end, as far as this rank knows."""
        return self._clock.seconds_left

    def note_save(self, seconds: float) -> None:
        """Record how long a checkpoint took until it was on disk."""
        self._clock.note_save(seconds)

    def last_save(self) -> LastSave:
        """Return how long the last checkpoint is tried."""
        return LastSave(self._run.last_save_seconds, self.seconds_left, self._signals.is_urgent)

    def reasons(
        self, voted: Iterable[str], patience: Patience, backend: CommunicationBackend
    ) -> str:
        """Return in words why the ranks have voted to stop, and who did. Collective."""
        names = backend.all_gather_object(self._signals.name)
        words = {
            "signal": ", ".join(
                f"{name} on rank {rank}" for rank, name in enumerate(names) if name
            )[:100],
            "time": self._clock.left(),
            "patience": str(patience),
            STREAM: "the stream of its samples has ended",
        }
        return "; ".join(words[reason] for reason in voted)


def end_of_slurm_job() -> float | None:
    """Return when SLURM will end this job, as squeue prints it.

    None outside of a job, for a job without a limit, or if squeue fails.
    """
    job, squeue = slurm_job(), find_program("squeue")
    if job is None or squeue is None:
        return None
    try:
        answer = subprocess.run(
            [squeue, "--noheader", "--jobs", job, "--format=%e"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_ASK_SECONDS,
        ).stdout.strip()
        return time.mktime(time.strptime(answer, "%Y-%m-%dT%H:%M:%S"))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
