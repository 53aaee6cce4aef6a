"""Loss and metrics of batches, added up over batches and ranks.

    batch --without metrics--> total loss, where predictions are made --\\
          --with metrics-----> prediction --> loss, metrics -------------> exact sums --> figures

What is added up is exact (nn/metrics.py), so the figures of the same batches have the same bits
whichever ranks computed them, and those of other batches differ by what their predictions do.

    rank 0   add    add    add    end            In each round the ranks say what they have. One
    rank 1   add    add    end    (runs along)   that has nothing runs along with a sample of
    rank 2   add    add of nothing   ...         another, which it does not count.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy

from ...annotations import Tree
from ...arguments import require
from ...comm.failure.agreement import collectively, raise_together
from ...comm.same import alike
from ...errors import CommunicationTimeout, ShardingError
from ...nn.autograd import no_grad
from ...nn.loss import as_loss
from ...nn.metrics import LANES, Metric, exact_lanes, exact_value, metrics_of
from ...nn.trees import as_float64, as_tensors
from ...tree import rows
from ..tensor.vocabulary import whole_outputs
from .learning import History

_NOTHING, _SAMPLES, _END, _FAILED = range(4)  # what a rank has for a round


class Measurement:
    """The loss and the metrics of a model on batches: of what was added in a `with` block.

        with model.evaluation() as measured:
            for x, y in batches:
                measured.add(x, y)
        print(measured.loss, measured.metrics)

    The end of the block is collective. Ranks need not add equally often: one that is through runs
    along with the others. An error on one rank, in the block too, is raised on all of them, where
    they add next. The figures are known after the block.

    Attributes
    ----------
    loss
        The mean over all items of all ranks; NaN if nothing counts.
    metrics
        {name: figure}.
    samples
        How many were added, on all data ranks.
    """

    loss: float
    metrics: dict[str, float]
    samples: int

    def __init__(
        self,
        engine: Any,
        metrics: dict[str, Metric],
        loss: Any = None,
        note: Callable[[float, dict[str, float]], None] | None = None,
    ) -> None:
        # engine    an Engine
        # metrics   {name: Metric}
        # loss      as in the configuration; None: the model's own
        # note      told of loss and metrics at the end
        self._engine = engine
        self._metrics = metrics
        self._loss = as_loss(loss or engine.model.loss)
        self._note = note
        self._adds_parts = engine.evaluation.adds_parts(self._loss, metrics.values())
        self._is_open = False
        self._is_in_step = True  # with the other ranks: False once a measurement has raised
        self._sums: list[numpy.ndarray] = []  # of the loss, items and samples; then of each metric

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_open = False
        if not self._is_in_step or isinstance(error, CommunicationTimeout):
            return
        if isinstance(error, Exception):
            self._meet(_FAILED, error=error)
        if error is None:
            while self._meet(_END):
                pass
            self._finish()

    def add(self, x: Tree | None, y: Tree | None) -> None:
        """Measure the samples of this data rank. Collective, but for ranks that are at the end.

        Parameters
        ----------
        x, y
            [samples of this rank, ...], as in train, as many as there are; none, or None, where
            this rank has nothing.

        Raises
        ------
        ShapeError
            On all ranks, if the model or its loss does not accept the samples of some rank.
        ShardingError
            Outside of the `with` block; on all ranks, if some ranks of a data replica have samples
            and others do not.
        """
        if not self._is_open:
            raise ShardingError(
                "samples are added in the block: with model.evaluation() as measured: ..."
            )
        try:
            x, y, count = self._engine.evaluation.own_samples(x, y)
        except Exception as error:
            self._meet(_FAILED, error=error)
        else:
            self._meet(_SAMPLES if count else _NOTHING, x, y, count)

    def _meet(self, state: int, x=None, y=None, count: int = 0, error=None) -> bool:
        """Take part in a round; return whether any rank is not at its end."""
        world = self._engine.mesh.world
        states = numpy.empty(world.world_size, numpy.uint8)
        world.all_gather(numpy.array([state], numpy.uint8), states)
        self._is_in_step = False  # until this round is over
        if (states == _FAILED).any():
            raise_together(world, error)
        self._check_replicas(states)
        giving = numpy.flatnonzero(states == _SAMPLES)
        if giving.size:
            if giving.size < states.size:
                sample = (rows(x, slice(1)), rows(y, slice(1))) if count else None
                first = self._engine.mesh.shape.part_of(int(giving[0]))
                sample = self._engine.mesh.group("data").broadcast_object(sample, first)
                x, y = (x, y) if count else sample
            self._measure(x, y, count)
        self._is_in_step = True
        return bool((states != _END).any())

    def _check_replicas(self, states) -> None:
        """Raise ShardingError on all ranks if ranks that pass the same part do not."""
        shape, have = self._engine.mesh.shape, states == _SAMPLES
        if have.all() or not have.any():
            return
        first: dict[int, int] = {}  # part of the samples -> its first rank
        for rank in range(have.size):
            first.setdefault(shape.part_of(rank), rank)
        for rank in range(have.size):
            peer = first[shape.part_of(rank)]
            if have[rank] != have[peer]:
                raise ShardingError(
                    f"only one of ranks {peer} and {rank}, peers in a data replica, has samples; "
                    "wanted the same part on all ranks of a replica: take it with "
                    "split_batch(model.mesh, x, y)"
                )

    def _measure(self, x, y, count: int) -> None:
        """Add what these samples add; those of a count of 0 only run along."""
        evaluation, in_parts = self._engine.evaluation, self._adds_parts
        once = count if evaluation.counts_whole else 0
        if self._metrics:
            pair = evaluation.predicted(x, y, self._loss, in_parts=in_parts)
            added, counts = self._of_prediction(*pair), count if in_parts else once
        else:
            added, counts = [self._row(*evaluation.own_loss(x, y))], count
        added[0][-1] = once
        if not counts:
            added = [numpy.zeros_like(vector) for vector in added]
        self._sums = [a + b for a, b in zip(self._sums, added)] or added

    def _of_prediction(self, prediction, y) -> list[numpy.ndarray]:
        with collectively(self._engine.mesh.world), no_grad(), whole_outputs():
            with self._engine.evaluation.around_loss(self._loss):
                total = self._loss.total(as_tensors(as_float64(prediction)), as_float64(y)).item()
            added = [self._row(float(total), self._loss.count(y))]
            return added + [metric.sums(prediction, y) for metric in self._metrics.values()]

    @staticmethod
    def _row(total: float, items: float) -> numpy.ndarray:
        """Return the lanes of both numbers, and a place for the samples."""
        return numpy.array([*exact_lanes(total), *exact_lanes(items), 0])

    def _finish(self) -> None:
        """Make the figures. Collective."""
        if self._sums:
            summed = numpy.array(self._engine.evaluation.summed(numpy.concatenate(self._sums)))
            ends = numpy.cumsum([len(vector) for vector in self._sums])
            of_loss, *of_metrics = numpy.split(summed, ends[:-1])
        else:
            of_loss, of_metrics = self._row(0, 0), []
        items = exact_value(of_loss[LANES : 2 * LANES])
        self.loss = exact_value(of_loss[:LANES]) / items if items else float("nan")
        self.samples = int(of_loss[-1])
        self.metrics = dict.fromkeys(self._metrics, float("nan"))
        for (name, metric), sums in zip(self._metrics.items(), of_metrics):
            self.metrics[name] = metric.value(sums)
        if self._note is not None:
            self._note(self.loss, self.metrics)


class Measuring:
    """Measures one model, as ShardedModel says of its members, and notes it in its history."""

    def __init__(self, engine: Any, history: History):
        self._engine, self._history = engine, history

    def begin(self, metrics: dict[str, Metric] | None) -> Measurement:
        """Return what measures batches, with the metrics of the model if there are none given.

        Collective.
        """
        engine = self._engine
        metrics = metrics_of(engine.model) if metrics is None else metrics
        _check_metrics(metrics, engine.mesh.world)
        return Measurement(engine, metrics, engine.config.loss, self._note)

    def mean_loss(self, x, y, metrics: dict[str, Metric] | None) -> float:
        """Return the mean loss over the samples of all ranks. Collective."""
        with self.begin(metrics) as measured:
            measured.add(x, y)
        return measured.loss

    def _note(self, loss: float, figures: dict[str, float]) -> None:
        self._history.note_evaluation(self._engine.state.step_number, loss, figures)


def _check_metrics(metrics, world) -> None:
    """Check that all ranks measure the same. Collective over `world`.

    Errors, on all ranks: ConfigurationError on what is no {name: Metric}; ShardingError.
    """
    with alike(world, call="evaluation") as facts:
        require(isinstance(metrics, dict), "metrics", metrics, "{name: Metric}, or None")
        for name, metric in metrics.items():
            facts[f"metrics[{name!r}]"] = type(metric).__qualname__
