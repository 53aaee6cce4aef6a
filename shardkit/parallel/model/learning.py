"""The steps of one sharded model, and what it remembers of them.

train(x, y) --engine--> loss --> History: of this model; its clones go on with their own
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import numpy

from ...arguments import is_number, require
from ...array.backend import to_host
from ...comm.same import alike, check_same
from ..fingerprint import describe_loss


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

    def note_step(self, loss: float, batch: Any, seconds: float) -> None:
        """Record a train()."""
        self.last_loss, self.last_batch = loss, batch
        self.train_seconds += seconds

    def note_evaluation(self, step: int, loss: float, metrics: dict[str, float]) -> None:
        """Record what was measured at a step."""
        self.evaluation = {"loss": loss, "step": step, "metrics": metrics}

    def stored_evaluation(self) -> dict | None:
        """Return the evaluation as JSON can hold it: null for what is not finite."""
        return self._with_figures(_stored)

    def go_on_from(self, description: dict) -> None:
        """Go on from the last loss and the stored_evaluation() of a checkpoint."""
        self.last_loss, self.evaluation = description["last_loss"], description.get("evaluation")
        self.evaluation = self._with_figures(lambda figure: nan if figure is None else figure)

    def _with_figures(self, form: Callable[[Any], Any]) -> dict | None:
        if self.evaluation is None:
            return None
        metrics = {name: form(figure) for name, figure in self.evaluation["metrics"].items()}
        return {**self.evaluation, "loss": form(self.evaluation["loss"]), "metrics": metrics}


class Learning:
    """Takes steps, as ShardedModel says of its members. Every method is collective over the mesh.

    saver   whose checkpoint, once all ranks have written it, is committed before a step
    """

    def __init__(self, engine, history: History, saver):
        self._engine, self._history = engine, history
        self._saver = saver

    def train(self, x, y, only) -> float:
        """Take a step, or accumulate its gradients; return the loss before it."""
        self._commit()
        began = time.perf_counter()
        engine = self._engine
        is_whole_step = engine.config.auto_synchronize_gradients
        loss = (engine.train if is_whole_step else engine.accumulate)(x, y, only)
        self._history.note_step(loss, (x, y), time.perf_counter() - began)
        return loss

    def compute_gradients(self, x, y, loss):
        """Return the mean gradients of what this rank trains, end to end, on the host."""
        engine = self._engine
        check_same(engine.mesh.world, {"loss": describe_loss(loss)}, call="compute_gradients")
        engine.compute_gradients(x, y, loss)
        gradients = [to_host(unit.gradients.updated) for unit in engine.units.trained.own]
        return numpy.concatenate([numpy.empty(0, engine.units[0].dtype), *gradients])

    def apply_gradients(self, gradients, learning_rate: float) -> None:
        """Take a step with gradients as compute_gradients() returns them."""
        self._commit()
        world = self._engine.mesh.world
        wanted = "a finite number, at least 0"
        with alike(world, call="apply_gradients") as facts:
            require(is_number(learning_rate, at_least=0), "learning_rate", learning_rate, wanted)
            self._engine.check_gradients(gradients)
            facts["learning_rate"] = str(learning_rate)
        self._engine.apply_gradients(gradients, learning_rate)

    def step(self) -> None:
        """Apply the rule to reduced gradients."""
        self._commit()
        self._engine.update()

    def _commit(self) -> None:
        """Commit the checkpoint that all ranks have written, if any."""
        if self._saver.pending is not None:
            self._saver.poll()


def _stored(figure: Any) -> float | None:
    try:
        return float(figure) if isfinite(figure) else None
    except (TypeError, ValueError):  # a metric of one's own may be anything
        return None
