"""Loss and metrics of batches, added up over batches and ranks.

    batch --without metrics--> total loss, where predictions are made --\
          --with metrics-----> prediction --> loss, metrics -------------> exact sums --> figures

What is added up is exact (nn/metrics.py), so the figures of the same batches have the same bits
whichever ranks computed them.
"""

import numpy

from ...arguments import require
from ...comm.collectives.ordered import ordered_sum
from ...comm.failure.agreement import collectively
from ...comm.same import check_same
from ...nn.autograd import no_grad
from ...nn.loss import as_loss
from ...nn.metrics import LANES, Metric, exact_lanes, exact_value
from ...nn.trees import as_tensors
from ..step.engine import Engine
from ..tensor.vocabulary import whole_outputs


class Measurement:
    """The loss and some metrics of a model on batches. Its methods are collective.

    metrics   {name: Metric}
    loss      as in the configuration; None: the model's own
    """

    def __init__(self, engine: Engine, metrics: dict[str, Metric], loss=None):
        self._engine = engine
        self._metrics = metrics
        self._loss = as_loss(loss or engine.model.loss)
        self._is_summed = not metrics  # over the ranks, as soon as it is measured
        self._vectors: list[numpy.ndarray] = []  # of the loss and its items, then of each metric

    def add(self, x, y, *, is_counted: bool = True) -> None:
        """Measure a batch of this data rank; one that is not counted only runs along.

        Errors, on all ranks: ShapeError if any rank's batch is nothing that the model takes, or its
        loss has targets in.
        """
        evaluation = self._engine.evaluation
        if self._is_summed:
            total, items = evaluation.total_loss(x, y, is_counted=is_counted)
            added = [numpy.array([*exact_lanes(total), items])]
        else:
            with collectively(self._engine.mesh.world):
                self._engine.check_samples(x, y)
            added = self._of_prediction(evaluation.predict(x), y)
            if not is_counted:
                added = [numpy.zeros_like(vector) for vector in added]
        self._vectors = [a + b for a, b in zip(self._vectors, added)] or added

    def _of_prediction(self, prediction, y) -> list[numpy.ndarray]:
        with collectively(self._engine.mesh.world), no_grad(), whole_outputs():
            total = float(self._loss.total(as_tensors(prediction), y).item())
            added = [numpy.array([*exact_lanes(total), self._loss.count(y)])]
            return added + [metric.sums(prediction, y) for metric in self._metrics.values()]

    def figures(self) -> tuple[float, dict[str, float]]:
        """Return the mean loss and the metrics of all batches; NaN if nothing counts."""
        vectors = self._vectors
        if not self._is_summed:
            vectors = [ordered_sum(self._engine.data, each) for each in vectors]
        items = float(vectors[0][LANES])
        loss = exact_value(vectors[0][:LANES]) / items if items else float("nan")
        named = zip(self._metrics.items(), vectors[1:])
        return loss, {name: metric.value(sums) for (name, metric), sums in named}


def check_metrics(metrics, world) -> None:
    """Check that all ranks measure the same. Collective over `world`.

    Errors, on all ranks: ConfigurationError on what is no {name: Metric}; ShardingError.
    """
    with collectively(world):
        require(isinstance(metrics, dict), "metrics", metrics, "{name: Metric}, or None")
    kinds = {f"metrics[{name!r}]": type(metric).__qualname__ for name, metric in metrics.items()}
    check_same(world, kinds)
