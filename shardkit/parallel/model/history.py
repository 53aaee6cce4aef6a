"""The history of one sharded model's training; its clones go on with histories of their own."""

from dataclasses import dataclass
from typing import Any


@dataclass
class History:
    """Figures of the training so far.

    last_loss       of the last batch; None before the first
    last_batch      (x, y) of this data rank, on which feature importance is measured
    evaluation      {"loss", "step", "metrics": {name: figure}} of the last evaluation
    train_seconds   spent in train()
    """

    last_loss: float | None = None
    last_batch: Any = None
    evaluation: dict | None = None
    train_seconds: float = 0.0

    def note_evaluation(self, step: int, loss: float, metrics: dict[str, float]) -> None:
        """Record what was measured at a step."""
        self.evaluation = {"loss": loss, "step": step, "metrics": metrics}
