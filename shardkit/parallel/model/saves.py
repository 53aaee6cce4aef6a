"""The checkpoints of a run: written, in the background if it wants, and reported when complete.

    save --> first place --> second place --> again after some seconds --> ...
                |                |                     the last one: until its time
              there            there                   is over, then the run fails

What cannot be written costs no step: training goes on, and a later state is saved. A run of
`shardkit train` (train/saves.py) and an optimize() (journal.py) say what goes into a checkpoint,
and hear what became of it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ...checkpoint.background import PendingCheckpoint
from ...checkpoint.format.hdf5 import load_library
from ...errors import CheckpointError
from .sharded_model import ShardedModel

LAST_SAVE_SECONDS = 600.0  # how long the last save is tried, if nothing else is said
RETRY_SECONDS = 10.0  # from a save that could be written nowhere to the next try
HURRIED_SECONDS = 20.0  # for the last save, after a signal that a kill follows soon
IN_THE_WAY = FileExistsError, NotADirectoryError, IsADirectoryError  # no time heals these


@dataclass(frozen=True)
class LastSave:
    """How long the last checkpoint of a run is tried.

    seconds        at most
    seconds_left   function () -> seconds until the job is killed
    is_hurried     function () -> bool: a signal has come that a kill follows soon
    """

    seconds: float = LAST_SAVE_SECONDS
    seconds_left: Callable[[], float] = lambda: inf
    is_hurried: Callable[[], bool] = lambda: False

    def limit(self) -> float:
        """Return the seconds, as things are now."""
        limit = min(self.seconds, self.seconds_left() / 2)
        return min(limit, HURRIED_SECONDS) if self.is_hurried() else limit

    def pause(self) -> float:
        """Return the seconds between two tries."""
        return min(RETRY_SECONDS, self.seconds / 4, HURRIED_SECONDS / 4)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is on disk.

    seconds         that it took to be there
    pause_seconds   of these, for how long training stood still; None: for all of them
    """

    step: int
    folder: str
    seconds: float
    pause_seconds: float | None = None


class SaveNews(Protocol):
    """What a run puts into its checkpoints, and who hears what becomes of them, on all ranks."""

    @property
    def advice(self) -> str:
        """Return what to do about a last checkpoint that is lost."""

    def content(self, step: int) -> dict[str, Any]:
        """Return what save_model() is given beside a folder; this step is written next."""

    def paused(self, step: int, seconds: float) -> None:
        """Hear for how long training stood still to begin a checkpoint."""

    def saved(self, saved: Saved) -> None:
        """Hear that a checkpoint is on disk."""

    def failed(self, step: int, text: str) -> None:
        """Hear that a place takes none from this step on."""

    def healed(self, place: Path) -> None:
        """Hear that a place takes checkpoints again."""


class _Writing(NamedTuple):
    """A checkpoint that is being written."""

    step: int
    place: Path
    checkpoint: PendingCheckpoint


class Saves:
    """The checkpoints of a run in progress. Methods are collective, unless they say otherwise.

    places       folders of checkpoints, the preferred one first
    background   train while one is written
    newest       step of the newest, written or being written; None: there is none
    written      the newest that is there
    """

    def __init__(
        self,
        model: ShardedModel,
        places: tuple[Path, ...],
        news: SaveNews,
        last: LastSave,
        *,
        background: bool = False,
    ):
        self._model, self.places, self._news = model, places, news
        self._last, self._background = last, background
        self._writing: _Writing | None = None
        self._failures: dict[Path, OSError] = {}  # of places that could not be written, since then
        self._failed_at: float | None = None  # when all places had failed; None: they have not
        load_library()
        self.newest: int | None = None
        self.written: tuple[int, str] | None = None  # step and folder

    def go_on_from(self, step: int, folder: str) -> None:
        """Note the checkpoint that the run was loaded from. Not collective."""
        self.newest, self.written = step, (step, folder)

    # ---- during the run --------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint of this step, unless it is there already."""
        step = self._model.step_number
        if step == self.newest:
            return
        began = time.perf_counter()
        self._settle()
        self._begin(self.places)
        self._news.paused(step, time.perf_counter() - began)

    def look(self) -> None:
        """Say what became of the checkpoint that was being written, once it is known.

        One that failed is written again, of the step that the model is at now: into the next place,
        or after some seconds.
        """
        if self._writing is not None:
            if self._writing.checkpoint.is_over:
                self._take(self._writing)
        elif self._failed_at is not None and self._agreed(self._seconds_since() >= RETRY_SECONDS):
            self._begin(self.places)

    def finish(self) -> None:
        """Wait until the newest state is on disk, after as many tries as there is time for.

        Errors, on all ranks: CheckpointError, which says what is lost.
        """
        self._settle()
        began = time.monotonic()
        while self._failed_at is not None:
            is_over = time.monotonic() - began >= self._last.limit() or not self._may_heal()
            if self._agreed(is_over):
                raise CheckpointError(self._loss(time.monotonic() - began))
            time.sleep(self._last.pause())
            self._begin(self.places)
            self._settle()

    # ---- one of them -----------------------------------------------------------------------------

    def _begin(self, places: tuple[Path, ...]) -> None:
        """Write into the first of these places that takes it."""
        self.newest, self._failed_at = self._model.step_number, None
        for place in places:
            try:
                saved = self._write(self.newest, place)
            except OSError as error:  # on all ranks
                self._fail(place, error)
                continue
            if saved is not None:
                self._succeed(place, saved)
            return
        self.newest, self._failed_at = None, time.monotonic()

    def _write(self, step: int, place: Path) -> Saved | None:
        """Write into this place; return None if that has only begun."""
        content, began = self._news.content(step), time.perf_counter()
        if not self._background:
            folder = self._model.save_model(place, **content)
            return Saved(step, folder, time.perf_counter() - began)
        pending = self._model.save_model_async(place, **content)
        pending.is_forgiving = True
        self._writing = _Writing(step, place, pending)
        return None

    def _settle(self) -> None:
        """Wait until nothing is being written, in one place after the other."""
        while self._writing is not None:
            self._writing.checkpoint.wait()
            self._take(self._writing)

    def _take(self, writing: _Writing) -> None:
        """Say that a checkpoint is there, or begin with the next place."""
        self._writing = None
        step, place, checkpoint = writing
        if checkpoint.error is not None:
            self._fail(place, checkpoint.error)
            self._begin(self._places_after(place))
            return
        pause = checkpoint.pause_seconds
        seconds = pause + checkpoint.write_seconds
        folder = str(place / Path(checkpoint.folder).name)  # as the run calls it
        self._succeed(place, Saved(step, folder, seconds, pause))

    def _succeed(self, place: Path, saved: Saved) -> None:
        self.written = saved.step, saved.folder
        self._news.saved(saved)
        if self._failures.pop(place, None) is not None:
            self._news.healed(place)

    def _fail(self, place: Path, error: OSError) -> None:
        """Say why this place cannot be written, if that is news."""
        if place not in self._failures:
            others = self._places_after(place)
            then = f"it goes to {others[0]}" if others else "it is tried again from time to time"
            self._news.failed(
                self._model.step_number,
                f"no checkpoint in {place}: {error}; training goes on, and {then}",
            )
        self._failures[place] = error

    def _places_after(self, place: Path) -> tuple[Path, ...]:
        return self.places[self.places.index(place) + 1 :]

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
            f"be written within {seconds:.0f} s ({reasons}); {where}. {self._news.advice}"
        )

    def _seconds_since(self) -> float:
        assert self._failed_at is not None
        return time.monotonic() - self._failed_at

    def _agreed(self, decision: bool) -> bool:
        """Return what rank 0 decides."""
        return self._model.mesh.world.broadcast_object(decision, 0)
