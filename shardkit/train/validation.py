"""Validation: loss and metrics of the held-out samples, on all ranks together.

    the first n of a shuffled order --> parts of the data ranks --> sums, items --> added --> means

Every sample counts once, whatever the mesh; a data rank whose part of the last batch is empty runs
along with a sample that is not counted.
"""

import numpy

from ..comm.collectives.ordered import ordered_sum
from ..comm.failure.agreement import collectively
from ..data.order import EpochOrder
from ..nn.autograd import Tensor, no_grad
from ..nn.loss import as_loss
from ..parallel.model.sharded_model import ShardedModel
from ..task.task import VALIDATION, Task


class Validation:
    """The held-out samples of a run, and what is measured on them."""

    def __init__(self, task: Task, model: ShardedModel):
        run, self._batch = task.settings.run, task.settings.batch.sequences
        self._model, self._metrics = model, task.metrics
        self._loss = as_loss(task.loss or model.wrapped_model.loss)
        self._samples = task.samples(VALIDATION)
        num = len(self._samples)
        limit = run.validation_batches
        self._num = num if limit is None else min(num, limit * self._batch)
        self._order = EpochOrder(num, run.seed, VALIDATION, self._samples.run_length)
        self._part = self._batch // model.mesh.size("data")
        self._first = model.mesh.coordinates.data * self._part

    def measure(self) -> tuple[float, dict[str, float]]:
        """Return the mean loss and the metrics; NaN if nothing counts. Collective."""
        measured = self._with_metrics if self._metrics else self._loss_alone
        total, items = 0.0, 0.0
        sums: dict[str, numpy.ndarray] = {}
        for start in range(0, self._num, self._batch):
            x, y, is_counted = self._read(start)
            of_batch = measured(x, y, is_counted, sums)
            total, items = total + of_batch[0], items + of_batch[1]
        loss = total / items if items else float("nan")
        self._model.history.evaluation = {"loss": loss, "step": self._model.step_number}
        return loss, {name: self._metrics[name].value(added) for name, added in sums.items()}

    def _read(self, start: int):
        """Return x, y of this rank's part of a batch, and whether it counts. Collective."""
        first = min(start + self._first, self._num)
        count = min(start + self._first + self._part, self._num) - first
        numbers = self._order.numbers(first, count) if count else self._order.numbers(0, 1)
        with collectively(self._model.mesh.world):
            x, y = self._samples.read(numbers)
        return x, y, count > 0

    def _loss_alone(self, x, y, is_counted: bool, sums) -> tuple[float, float]:
        """Return the summed loss and the items of a batch."""
        return self._model.engine.evaluation.total_loss(x, y, is_counted=is_counted)

    def _with_metrics(self, x, y, is_counted: bool, sums) -> tuple[float, float]:
        """Return the same, from a prediction that the metrics see too, added up in `sums`."""
        prediction = self._model.predict(x)
        with collectively(self._model.mesh.world), no_grad():
            own = [float(self._loss.total(Tensor(prediction), y).item()), self._loss.count(y)]
            vectors = [metric.sums(prediction, y) for metric in self._metrics.values()]
        box = numpy.concatenate([own, *vectors]).astype(numpy.float64) * is_counted
        box = ordered_sum(self._model.mesh.group("data"), box)
        at = 2
        for name, vector in zip(self._metrics, vectors):
            sums[name] = sums.get(name, 0.0) + box[at : at + len(vector)]
            at += len(vector)
        return float(box[0]), float(box[1])
