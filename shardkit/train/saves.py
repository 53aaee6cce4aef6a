"""The checkpoints of a run: written in the background, reported when complete.

    save --> run.folder --> run.fallback_folder --> again after some seconds --> ...
                |               |                                    the last one: until its time
              there           there                                  is over, then the run fails

What cannot be written costs no step: training goes on, and a later state is saved.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..checkpoint.background import PendingCheckpoint
from ..checkpoint.format.hdf5 import load_library
from ..errors import CheckpointError
from ..parallel.model.sharded_model import ShardedModel
from .best import Best
from .log import Reporter, seconds_text
from .settings import Run

RETRY_SECONDS = 10.0  # from a save that could be written nowhere to the next try
HURRIED_SECONDS = 20.0  # for the last save, after a signal that a kill follows soon
IN_THE_WAY = FileExistsError, NotADirectoryError, IsADirectoryError  # no time heals these


class Saves:
    """The checkpoints of a run in progress. Methods are collective, unless they say otherwise.

    run            the settings; may be set
    position       function (step) -> what a checkpoint says about the data
    places         folders of checkpoints, the preferred one first
    best           the best checkpoint, which stays
    seconds_left   function () -> seconds that rank 0 still has
    is_hurried     function () -> bool: a signal has come that a kill follows soon
    note_save      function (seconds), called with the time that a checkpoint took to be on disk
    after          function (step, folder), called when one is on disk
    """

    def __init__(
        self,
        model: ShardedModel,
        run: Run,
        reporter: Reporter,
        position: Callable[[int], dict],
        *,
        places: tuple[Path, ...],
        best: Best,
        seconds_left: Callable[[], float],
        is_hurried: Callable[[], bool],
        note_save: Callable[[float], None],
        after: Callable[[int, str], None],
    ):
        self._model, self.run, self._reporter = model, run, reporter
        self._backend = model.mesh.world
        self._position = position
        self._places, self._at = places, 0  # the one that is written into
        self._best = best
        self._patience, self._seconds_left = run.last_save_seconds, seconds_left
        self._note_save, self._after, self._is_hurried = note_save, after, is_hurried
        self._pending: tuple[int, PendingCheckpoint] | None = None  # that is being written
        self._failures: dict[Path, OSError] = {}  # of places that could not be written, since then
        self._failed_at: float | None = None  # when all places had failed; None: they have not
        load_library()
        self.newest: int | None = None  # step of the newest, written or being written
        self.written: tuple[int, str] | None = None  # step and folder of the newest that is there

    def go_on_from(self, step: int, folder: str) -> None:
        """Note the checkpoint that the run was loaded from. Not collective."""
        self.newest, self.written = step, (step, folder)

    # ---- during the run --------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint of this step, unless it is there already."""
        if self._model.step_number == self.newest:
            return
        began = time.perf_counter()
        self._settle()
        self._begin(0)
        self._reporter.record(
            step=self._model.step_number, checkpoint_pause_seconds=time.perf_counter() - began
        )

    def look(self) -> None:
        """Say what became of the checkpoint that was being written, once it is known.

        One that failed is written again, of the step that the model is at now: into the next place,
        or after some seconds.
        """
        if self._pending is not None:
            if self._pending[1].is_over:
                self._take()
        elif self._failed_at is not None and self._agreed(self._seconds_since() >= RETRY_SECONDS):
            self._begin(0)

    def finish(self) -> None:
        """Wait until the newest state is on disk, after as many tries as there is time for.

        Errors, on all ranks: CheckpointError, which says what is lost.
        """
        self._settle()
        began = time.monotonic()
        while self._failed_at is not None:
            limit = min(self._patience, self._seconds_left() / 2)
            if self._is_hurried():
                limit = min(limit, HURRIED_SECONDS)
            is_over = time.monotonic() - began >= limit or not self._may_heal()
            if self._agreed(is_over):
                raise CheckpointError(self._loss(time.monotonic() - began))
            time.sleep(min(RETRY_SECONDS, self._patience / 4, HURRIED_SECONDS / 4))
            self._begin(0)
            self._settle()

    # ---- one of them -----------------------------------------------------------------------------

    def _begin(self, at: int) -> None:
        """Write into the first place from this one on that takes it."""
        step = self._model.step_number
        self.newest, self._failed_at = step, None
        for self._at in range(at, len(self._places)):
            try:
                self._begin_there(step)
                return
            except OSError as error:  # on all ranks
                self._fail(error)
        self.newest, self._failed_at = None, time.monotonic()

    def _begin_there(self, step: int) -> None:
        run, folder, began = self.run, self._places[self._at], time.perf_counter()
        how: dict[str, Any] = {
            "keep": run.keep_checkpoints,
            "keep_every": run.keep_every,
            "data_position": self._position(step),
            "validation": self._best.description(step),
        }
        if run.asynchronous_checkpoints:
            pending = self._model.save_model_async(folder, **how)
            pending.is_forgiving = True
            self._pending = step, pending
        else:
            written = self._model.save_model(folder, **how)
            self._succeed(step, written, time.perf_counter() - began, "")

    def _settle(self) -> None:
        """Wait until nothing is being written, in one place after the other."""
        while self._pending is not None:
            self._pending[1].wait()
            self._take()

    def _take(self) -> None:
        """Say that a checkpoint is there, or begin with the next place."""
        assert self._pending is not None
        (step, checkpoint), self._pending = self._pending, None
        if checkpoint.error is not None:
            self._fail(checkpoint.error)
            self._begin(self._at + 1)
            return
        seconds = checkpoint.write_seconds
        self._reporter.record(step=step, checkpoint_write_seconds=seconds)
        self._succeed(
            step,
            checkpoint.folder,
            checkpoint.pause_seconds + seconds,
            f"  written in {seconds_text(seconds)}, training stood still for "
            f"{seconds_text(checkpoint.pause_seconds)}",
        )

    def _succeed(self, step: int, folder: str, seconds: float, words: str) -> None:
        self._note_save(seconds)
        self._reporter.line(f"step {step}/{self.run.steps}  checkpoint {folder}{words}")
        if self._failures.pop(self._places[self._at], None) is not None:
            self._reporter.line(f"{self._places[self._at]} can be written again")
        self.written = step, folder
        self._best.is_saved(step, folder)
        self._after(step, folder)

    def _fail(self, error: OSError) -> None:
        """Say why this place cannot be written, if that is news."""
        place, step = self._places[self._at], self._model.step_number
        if place not in self._failures:
            others = self._places[self._at + 1 :]
            then = f"it goes to {others[0]}" if others else "it is tried again from time to time"
            self._reporter.warn(
                f"step {step}/{self.run.steps}  no checkpoint in {place}: {error}; training goes "
                f"on, and {then}"
            )
        self._failures[place] = error

    def _may_heal(self) -> bool:
        """Return False if something stands in each place that will not go away by itself."""
        return not all(isinstance(error, IN_THE_WAY) for error in self._failures.values())

    def _loss(self, seconds: float) -> str:
        """Return what is lost, in words."""
        kept, folder = self.written or (0, None)
        where = f"the newest is of step {kept}, in {folder}" if folder else "there is none"
        reasons = "; ".join(f"{place}: {why}" for place, why in self._failures.items())
        return (
            f"steps {kept + 1} to {self._model.step_number} are lost: their checkpoint could not "
            f"be written within {seconds:.0f} s ({reasons}); {where}. Make room and start again "
            "with --resume; run.fallback_folder names another folder to write into, and "
            "run.last_save_seconds how long to try"
        )

    def _seconds_since(self) -> float:
        assert self._failed_at is not None
        return time.monotonic() - self._failed_at

    def _agreed(self, decision: bool) -> bool:
        """Return what rank 0 decides."""
        return self._backend.broadcast_object(decision, 0)
