"""Loss and metrics of batches, added up over batches and ranks.

    batch --without metrics--> total loss, where predictions are made --\
          --with metrics-----> prediction --> loss, metrics -------------> exact sums --> figures

What is added up is exact (task/metrics.py), so the figures of the same batches have the same bits
whichever ranks computed them.
"""

import numpy

from ..comm.collectives.ordered import ordered_sum
from ..comm.failure.agreement import collectively
from ..nn.autograd import Tensor, no_grad
from ..nn.loss import as_loss
from ..parallel.model.sharded_model import ShardedModel
from ..parallel.tensor.vocabulary import whole_outputs
from ..task.metrics import LANES, exact_lanes, exact_value
from ..task.task import Task


class Measurement:
    """The loss and the metrics of a task on some batches. Its methods are collective."""

    def __init__(self, task: Task, model: ShardedModel):
        self._model = model
        self._metrics = task.metrics
        self._loss = as_loss(task.loss or model.wrapped_model.loss)
        self._is_summed = not task.metrics  # over the ranks, as soon as it is measured
        self._vectors: list[numpy.ndarray] = []  # of the loss and its items, then of each metric

    def add(self, x, y, *, is_counted: bool) -> None:
        """Measure a batch of this data rank; one that is not counted only runs along."""
        if self._is_summed:
            total, items = self._model.engine.evaluation.total_loss(x, y, is_counted=is_counted)
            added = [numpy.array([*exact_lanes(total), items])]
        else:
            added = self._of_prediction(self._model.predict(x), y)
            if not is_counted:
                added = [numpy.zeros_like(vector) for vector in added]
        self._vectors = [a + b for a, b in zip(self._vectors, added)] or added

    def _of_prediction(self, prediction, y) -> list[numpy.ndarray]:
        with collectively(self._model.mesh.world), no_grad(), whole_outputs():
            total = float(self._loss.total(Tensor(prediction), y).item())
            added = [numpy.array([*exact_lanes(total), self._loss.count(y)])]
            return added + [metric.sums(prediction, y) for metric in self._metrics.values()]

    def figures(self) -> tuple[float, dict[str, float]]:
        """Return the mean loss and the metrics of all batches; NaN if nothing counts."""
        vectors = self._vectors
        if not self._is_summed:
            vectors = [ordered_sum(self._model.mesh.group("data"), each) for each in vectors]
        items = vectors[0][LANES]
        loss = exact_value(vectors[0][:LANES]) / items if items else float("nan")
        named = zip(self._metrics.items(), vectors[1:])
        return loss, {name: metric.value(sums) for (name, metric), sums in named}
