"""The history of one sharded model's training; its clones go on with histories of their own."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, nan
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

    def stored_evaluation(self) -> dict | None:
        """Return the evaluation as JSON can hold it: null for what is not finite."""
        return self._with_figures(_stored)

    def take_evaluation(self, stored: dict | None) -> None:
        """Go on from what stored_evaluation() returned; None: nothing was measured."""
        self.evaluation = stored
        self.evaluation = self._with_figures(lambda figure: nan if figure is None else figure)

    def _with_figures(self, form: Callable[[Any], Any]) -> dict | None:
        if self.evaluation is None:
            return None
        metrics = {name: form(figure) for name, figure in self.evaluation["metrics"].items()}
        return {**self.evaluation, "loss": form(self.evaluation["loss"]), "metrics": metrics}


def _stored(figure: Any) -> float | None:
    try:
        return float(figure) if isfinite(figure) else None
    except (TypeError, ValueError):  # a metric of one's own may be anything
        return None
