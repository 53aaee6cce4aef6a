"""The checkpoints of a run: one is written while training goes on, and told of when it is there."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..checkpoint.background import PendingCheckpoint
from ..parallel.model.sharded_model import ShardedModel
from .log import Reporter, seconds_text
from .settings import Run


class Saves:
    """The checkpoints of a run in progress. Methods are collective, unless they say otherwise.

    fingerprint   of the data, which a run that goes on compares
    note_save     function (seconds), called with the time that a checkpoint took to be on disk
    after         function (step, folder), called when one is on disk
    """

    def __init__(
        self,
        model: ShardedModel,
        run: Run,
        reporter: Reporter,
        fingerprint: str,
        *,
        note_save: Callable[[float], None],
        after: Callable[[int, str], None],
    ):
        self._model, self._run, self._reporter = model, run, reporter
        self._fingerprint = fingerprint
        self._note_save, self._after = note_save, after
        self._pending: tuple[int, PendingCheckpoint] | None = None  # that is being written
        self.newest: int | None = None  # step of the newest, written or being written

    def save(self) -> None:
        """Write a checkpoint of this step, unless it is there already."""
        run, step, began = self._run, self._model.step_number, time.perf_counter()
        if step == self.newest:
            return
        folder = Path(run.folder) / "checkpoints"
        how: dict[str, Any] = {
            "keep": run.keep_checkpoints,
            "keep_every": run.keep_every,
            "data_position": {"fingerprint": self._fingerprint, "next_step": step},
        }
        if run.asynchronous_checkpoints:
            pending = self._model.save_model_async(folder, **how)
            self.look()  # at the one before, if it was still being written
            self._pending = step, pending
        else:
            written = self._model.save_model(folder, **how)
            self._note_save(time.perf_counter() - began)
            self._reporter.line(f"step {step}/{run.steps}  checkpoint {written}")
            self._after(step, written)
        self.newest = step
        self._reporter.record(step=step, checkpoint_pause_seconds=time.perf_counter() - began)

    def look(self) -> None:
        """Say that the checkpoint which was being written is there, once it is. Not collective."""
        if self._pending is None or not self._pending[1].is_committed:
            return
        step, checkpoint = self._pending
        self._pending = None
        self._note_save(checkpoint.pause_seconds + checkpoint.write_seconds)
        self._reporter.line(
            f"step {step}/{self._run.steps}  checkpoint {checkpoint.folder}  written in "
            f"{seconds_text(checkpoint.write_seconds)}, training stood still for "
            f"{seconds_text(checkpoint.pause_seconds)}"
        )
        self._reporter.record(step=step, checkpoint_write_seconds=checkpoint.write_seconds)
        self._after(step, checkpoint.folder)

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, if there is one."""
        if self._pending is not None:
            self._pending[1].wait()
            self.look()
