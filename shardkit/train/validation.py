"""Validation: loss and metrics of the held-out samples, on all ranks together.

    the first n of a shuffled order --> parts of the data ranks --> sums, items --> added --> means

Every sample counts once, whatever the mesh; a data rank whose part of the last batch is empty adds
nothing to it.
"""

from ..comm.failure.agreement import collectively
from ..data.order import EpochOrder
from ..data.samples import VALIDATION, Samples, reader_of
from ..parallel.model.measuring import Measurement
from ..parallel.model.sharded_model import ShardedModel, domain_part, parts_of
from ..task.task import Task


class Validation:
    """The held-out samples of a run, and what is measured on them."""

    def __init__(self, task: Task, model: ShardedModel, samples: Samples):
        run, self._batch = task.settings.run, task.settings.batch.sequences
        self._task, self._model = task, model
        self._samples_at, self._sample_part = reader_of(samples), domain_part(model)
        num = len(samples)
        limit = run.validation_batches
        self._num = num if limit is None else min(num, limit * self._batch)
        self._order = EpochOrder(num, run.seed, VALIDATION, samples.run_length)
        number, parts = model.mesh.sample_part
        self._part = self._batch // parts
        self._first = number * self._part

    def measure(self) -> tuple[float, dict[str, float]]:
        """Return the mean loss and the metrics; NaN if nothing counts. Collective."""
        model, task = self._model, self._task
        with Measurement(parts_of(model).engine, task.metrics, task.loss) as measured:
            for start in range(0, self._num, self._batch):
                measured.add(*self._read(start))
        parts_of(model).history.note_evaluation(model.step_number, measured.loss, measured.metrics)
        return measured.loss, measured.metrics

    def _read(self, start: int):
        """Return x, y of this rank's part of a batch, None twice if there is none. Collective."""
        first = min(start + self._first, self._num)
        count = min(start + self._first + self._part, self._num) - first
        with collectively(self._model.mesh.world):
            if not count:
                return None, None
            numbers = self._order.numbers(first, count)
            return self._samples_at(numbers, part=self._sample_part)
