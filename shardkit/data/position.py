"""Where the steps of a run are in its endless stream of samples, and how a checkpoint says it.

    epoch        0                     | 1                       N = 96 samples
    steps of 8   0  1  2  3  4  5      |                         48 samples are read, then
    of 16                        6 7 8 | 9 10 11 ...             a run goes on with another batch

A step begins where the one before it ended. So the position is stored with the state: a batch of
another size after a resume leaves no sample out, and reads none twice.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from ..checkpoint.format.description import is_count
from ..errors import CheckpointError

_STORED = ("next_step", "epoch", "sample", "samples")


@dataclass(frozen=True)
class Position:
    """Steps of `batch` samples each, the first of which begins at a sample of the stream.

    step, first   this step, counted from 0, begins at this sample, counted over all epochs
    batch         samples of a step
    samples       of an epoch
    """

    step: int
    first: int
    batch: int
    samples: int

    def of_step(self, step: int) -> int:
        """Return at which sample of the stream a step begins, counted from 0 over all epochs."""
        return self.first + (step - self.step) * self.batch

    def stored(self, step: int) -> dict[str, int]:
        """Return what a checkpoint before this step holds: its epoch, and its place in there."""
        epoch, sample = divmod(self.of_step(step), self.samples)
        return dict(zip(_STORED, (step, epoch, sample, self.samples)))

    def after(self, stored: dict) -> "Position":
        """Return the position of the same batches after a checkpoint that holds this.

        Where the samples are other ones, as sequences of another length are, what is left of the
        epoch is dropped. A checkpoint without a position was written under steps of this batch.
        Errors: CheckpointError.
        """
        if "epoch" not in stored and is_count(stored.get("next_step", 0)):
            stored = replace(self, step=0, first=0).stored(stored.get("next_step", 0))
        if not all(is_count(stored.get(name)) for name in _STORED) or not stored["samples"]:
            raise CheckpointError(
                f"the checkpoint's data_position is {stored!r:.200}; wanted counts for "
                f"{', '.join(_STORED)}"
            )
        step, epoch, sample, samples = (stored[name] for name in _STORED)
        if samples != self.samples and sample:
            epoch, sample = epoch + 1, 0
        return replace(self, step=step, first=epoch * self.samples + sample)

    def num_steps(self, step: int, epochs: float) -> int:
        """Return after how many steps in all the stream has been through these epochs, at least
        `step`, which is the next one.
        """
        whole = ceil(Fraction(str(epochs)) * self.samples)  # 1.1 of 10 is 11, and no more
        left = max(whole - self.of_step(step), 0)
        return step - (-left // self.batch)
