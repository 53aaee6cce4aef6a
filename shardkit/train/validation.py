"""Validation: loss and metrics of the held-out samples, on all ranks together.

    the first n of a shuffled order --> parts of the data ranks --> sums, items --> added --> means

Every sample counts once, whatever the mesh; a data rank whose part of the last batch is empty runs
along with a sample that is not counted.
"""

from ..comm.failure.agreement import collectively
from ..data.order import EpochOrder
from ..data.samples import VALIDATION, Samples
from ..parallel.model.measuring import Measurement
from ..parallel.model.sharded_model import ShardedModel
from ..task.task import Task


class Validation:
    """The held-out samples of a run, and what is measured on them."""

    def __init__(self, task: Task, model: ShardedModel, samples: Samples):
        run, self._batch = task.settings.run, task.settings.batch.sequences
        self._task, self._model = task, model
        self._samples = samples
        num = len(samples)
        limit = run.validation_batches
        self._num = num if limit is None else min(num, limit * self._batch)
        self._order = EpochOrder(num, run.seed, VALIDATION, samples.run_length)
        self._part = self._batch // model.mesh.size("data")
        self._first = model.mesh.coordinates.data * self._part

    def measure(self) -> tuple[float, dict[str, float]]:
        """Return the mean loss and the metrics; NaN if nothing counts. Collective."""
        measurement = Measurement(self._model.engine, self._task.metrics, self._task.loss)
        for start in range(0, self._num, self._batch):
            x, y, is_counted = self._read(start)
            measurement.add(x, y, is_counted=is_counted)
        loss, metrics = measurement.figures()
        self._model.history.note_evaluation(self._model.step_number, loss, metrics)
        return loss, metrics

    def _read(self, start: int):
        """Return x, y of this rank's part of a batch, and whether it counts. Collective."""
        first = min(start + self._first, self._num)
        count = min(start + self._first + self._part, self._num) - first
        numbers = self._order.numbers(first, count) if count else self._order.numbers(0, 1)
        with collectively(self._model.mesh.world):
            x, y = self._samples.read(numbers)
        return x, y, count > 0
