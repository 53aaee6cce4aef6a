"""The best checkpoint of a run: which of those on disk has the lowest validation loss.

    validation --loss--> is a checkpoint of this step the best? --> save --> is on disk: it is

It is kept beside the newest ones, whatever comes after it, and is known again from the manifests of
the checkpoints when a run goes on, on any mesh. A step whose checkpoint could not be written is
none, and neither is one whose loss was NaN.
"""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from ..checkpoint.choice import Validated
from ..checkpoint.find import best_among
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import by_first
from .settings import Run


class Best:
    """The best checkpoint that is on disk, the same on all ranks.

    found   None: there is none yet
    """

    def __init__(self, run: Run):
        self._run = run
        self.found: Validated | None = None
        self._measured: Validated | None = None  # by the last validation
        self._coming: Validated | None = None  # while its checkpoint is being written

    def find(self, places: Sequence[Path], step: int, backend: CommunicationBackend) -> None:
        """Look for the best one in these folders, up to this step. Collective."""
        self.found = by_first(backend, lambda: best_among(places, step))

    def note(self, step: int, loss: float) -> bool:
        """Take what was measured at a step; return True if it shall be saved for that.

        So it shall where the run ends by its patience; else the best is one of those that
        run.checkpoint_every makes.
        """
        self._measured = Validated(loss, step, Path()) if isfinite(loss) else None
        return (
            self._run.patience is not None
            and self._measured is not None
            and self._measured.leads(self.found)
            and self._measured.leads(self._coming)
        )

    def description(self, step: int) -> dict:
        """Return what a checkpoint of this step stores: its own loss, and which one is the best
        once it is there. It is being written from now on, and no other.
        """
        own = self._measured if self._measured and self._measured.step == step else None
        best = own if own is not None and own.leads(self.found) else self.found
        self._coming = own
        return {
            "loss": own and own.loss,
            "best_step": best and best.step,
            "patience": self._run.patience,
        }

    def is_saved(self, step: int, folder: str) -> None:
        """Note that a checkpoint is on disk."""
        own, self._coming = self._coming, None
        if own is not None and own.leads(self.found):
            self.found = Validated(own.loss, step, Path(folder))

    def text(self, newest: tuple[int, str] | None, lowest: tuple[float, int] | None) -> str:
        """Name the best and the newest checkpoint; "" if none was validated.

        newest   step and folder
        lowest   loss and step of the lowest validation, which may have no checkpoint
        """
        if self.found is None or newest is None:
            return ""
        best, (step, folder) = self.found, newest
        text = f"best checkpoint: step {best.step}, validation loss {best.loss:.6g}, {best.folder}"
        text += (
            "; it is the newest too" if step == best.step else f"; newest: step {step}, {folder}"
        )
        if lowest is not None and lowest[0] < best.loss:
            text += (
                f"; the validation of step {lowest[1]} had {lowest[0]:.6g}, and no checkpoint of "
                "that step is there (run.checkpoint_every; with run.patience each best is saved)"
            )
        return text
