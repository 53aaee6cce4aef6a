"""What a training run puts into its checkpoints beside the model, and says of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data.stream import Stream
from ..parallel.model.callback import Callback
from ..parallel.model.saves import Saved
from ..task.task import Task
from .best import Best
from .log import Reporter, seconds_text
from .resuming import DataMarks, told_settings


class CheckpointNews:
    """The SaveNews of a training run: log, curve, clock, the best one, callbacks.

    marks       of its samples
    note_save   function (seconds), called with the time that a checkpoint took to be on disk
    """

    advice = (
        "Make room and start again with --resume; run.fallback_folder names another folder to "
        "write into, and run.last_save_seconds how long to try"
    )

    def __init__(
        self,
        task: Task,
        stream: Stream,
        marks: DataMarks,
        *,
        best: Best,
        note_save: Callable[[float], None],
        reporter: Reporter,
        callbacks: Callback,
    ):
        self._task, self._stream, self.marks = task, stream, marks
        self._best, self._note_save = best, note_save
        self._reporter, self._callbacks = reporter, callbacks

    def content(self, step: int) -> dict[str, Any]:
        """Return how many to keep, and what is said of the data, the settings, the validation."""
        run = self._task.settings.run
        return {
            "keep": run.keep_checkpoints,
            "keep_every": run.keep_every,
            "data_position": self.data_position(step),
            "validation": self._best.description(step),
            "files_per_node": run.files_per_node,
        }

    def data_position(self, step: int) -> dict[str, Any]:
        """Return what is said of the data of a step, and the settings then."""
        own = {**self.marks.stored(), "settings": told_settings(self._task.settings)}
        return {**own, **self._stream.position.stored(step)}

    def paused(self, step: int, seconds: float) -> None:
        """Record for how long training stood still."""
        self._reporter.record(step=step, checkpoint_pause_seconds=seconds)

    def saved(self, saved: Saved) -> None:
        """Say that a checkpoint is there."""
        words = ""
        if saved.pause_seconds is not None:
            seconds = saved.seconds - saved.pause_seconds
            self._reporter.record(step=saved.step, checkpoint_write_seconds=seconds)
            words = (
                f"  written in {seconds_text(seconds)}, training stood still for "
                f"{seconds_text(saved.pause_seconds)}"
            )
        self._note_save(saved.seconds)
        self._reporter.line(f"{self._at(saved.step)}  checkpoint {saved.folder}{words}")
        self._best.is_saved(saved.step, saved.folder)
        self._callbacks.after_checkpoint(saved.step, saved.folder)

    def failed(self, step: int, text: str) -> None:
        """Warn that a place takes no checkpoints."""
        self._reporter.warn(f"{self._at(step)}  {text}")

    def healed(self, place: Path) -> None:
        """Say that it takes them again."""
        self._reporter.line(f"{place} can be written again")

    def _at(self, step: int) -> str:
        return f"step {step}/{self._task.settings.run.steps}"
