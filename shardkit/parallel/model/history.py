"""The history of one sharded model's training; its clones go on with histories of their own."""

from dataclasses import dataclass


@dataclass
class History:
    """Figures of the training so far.

    last_loss       of the last batch; None before the first
    last_batch      (x, y) of this data rank, on which feature importance is measured
    evaluation      {"loss", "step"} of the last evaluate()
    train_seconds   spent in train()
    """

    last_loss: float | None = None
    last_batch: tuple | None = None
    evaluation: dict | None = None
    train_seconds: float = 0.0
