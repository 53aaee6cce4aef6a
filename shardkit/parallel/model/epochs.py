"""The epochs of ShardedOptimizer.optimize(): training, judging, and the best epoch so far.

    batches of epoch e --train--> mean training loss --\
    validation set     --evaluate--> validation loss ----> fitness --offered--> best epoch

Between two batches any rank may ask to stop; all ranks stop there (StopVoted), and `progress` says
where.
"""

from math import inf, isnan
from typing import Callable

from ...comm.failure.agreement import agree
from ...errors import StopVoted
from ...nn.features import input_features
from ...nn.metrics import metrics_of
from ...tree import num_samples, rows
from ..data.batches import own_part, split_batch
from .callback import Callback
from .journal import EpochProgress
from .measuring import Measurement
from .optimization import SETS, EvaluationResult, OptimizationInputData, OptimizationResult
from .sharded_model import ShardedModel


class Epochs:
    """The epochs of one run over given samples. Every method is collective, but for check().

    step        completes the step of a batch whose gradients are only accumulated
    callbacks   told of steps and validations
    stop        () -> bool, asked on each rank before each step; None: nobody asks
    """

    def __init__(
        self,
        model: ShardedModel,
        given: OptimizationInputData,
        step: Callable,
        callbacks: Callback,
        stop: Callable[[], bool] | None,
    ):
        self._model, self._given = model, given
        self._step, self._callbacks, self._stop = step, callbacks, stop
        self._synchronizes = model.sharding_configuration.auto_synchronize_gradients

    def check(self) -> None:
        """Raise ConfigurationError or ShapeError unless the model can train on the samples."""
        micro_batches = self._model.sharding_configuration.micro_batches
        self._given.check_batches(self._model.mesh.size("data") * micro_batches)
        self._given.check_samples(self._model.engine)

    def train(self, progress: EpochProgress) -> float:
        """Finish the epoch that `progress` is in, and return its fitness: the validation loss after
        it, or else its training loss.

        Errors: StopVoted, on all ranks.
        """
        self._train(progress)
        values = {"train_loss": progress.total / progress.count}
        validation = self._evaluate("validation")
        if validation is not None:
            values["validation_loss"] = validation.loss
        fitness = values.get("validation_loss", values["train_loss"])
        self._callbacks.after_validation(self._model.step_number, {**values, "fitness": fitness})
        return fitness

    def _train(self, progress: EpochProgress) -> None:
        """Take a step per batch, and add up the loss of their samples, each before its step."""
        x, y = self._given.samples("train")
        for batch in self._given.batches(progress.epoch)[progress.batch :]:
            if self._stop is not None and agree(self._model.mesh.world, self._stop()):
                raise StopVoted("signal")
            (mine,) = split_batch(self._model.mesh, batch)
            loss = self._model.train(rows(x, mine), rows(y, mine))
            if not self._synchronizes:
                self._step()
            progress.total += len(batch) * loss
            progress.count += len(batch)
            progress.batch += 1
            self._callbacks.after_step(self._model.step_number, loss)

    def _evaluate(self, name: str, metrics=None) -> EvaluationResult | None:
        samples = self._given.samples(name)
        return evaluate_set(self._model, samples, self._given.batch_size, metrics or {})

    def result(self, progress: EpochProgress) -> OptimizationResult:
        """Return the result of a run whose best parameters are back in the model."""
        model = self._model
        module = model.wrapped_model
        features = input_features(module)
        figures = {name: self._evaluate(name, metrics_of(module)) for name in SETS}
        noted = figures["validation"] or figures["train"]
        assert noted is not None
        model.history.note_evaluation(model.step_number, noted.loss, noted.metrics)
        return OptimizationResult(
            model,
            progress.fitness,
            model.step_number - progress.first_step,
            tuple(progress.fitness_history),
            *figures.values(),
            selected_features=None if features is None else tuple(features.active),
        )


class BestEpoch:
    """What this rank owns of the parameters and buffers of the best epoch so far."""

    def __init__(self):
        self._parameters = self._buffers = None

    def keep(self, model: ShardedModel) -> None:
        """Keep the model's parameters and buffers. No communication."""
        self._parameters = model.engine.weights.copy_owned()
        self._buffers = model.engine.state.buffers.copies()

    def put_back(self, model: ShardedModel) -> None:
        """Give the model the parameters and buffers that were kept. Collective."""
        model.engine.state.buffers.put_back(self._buffers)
        model.engine.weights.put_back(self._parameters)


def is_better(fitness: float, best: float | None) -> bool:
    """Return True if the fitness is lower than the best so far; NaN is higher than any number."""
    return best is None or fitness < best or isnan(best) and not isnan(fitness)


def evaluate_set(
    model: ShardedModel, samples, batch_size: int, metrics=None
) -> EvaluationResult | None:
    """Return loss and metrics of a set, whatever its size; None for None. Collective.

    samples      (x, y), global, the same on all ranks
    batch_size   samples per pass, over all data ranks
    metrics      {name: Metric}
    """
    if samples is None:
        return None
    loss = model.sharding_configuration.loss
    with Measurement(model.engine, metrics or {}, loss) as measured:
        for start in range(0, num_samples(samples[0]), batch_size):
            x, y = (rows(tree, slice(start, start + batch_size)) for tree in samples)
            measured.add(own_part(model.mesh, x), own_part(model.mesh, y))
    return EvaluationResult(measured.loss, measured.samples, measured.metrics)


def epochs_since_improvement(history, minimum_improvement: float) -> int:
    """Return the epochs since the last that improved the best by more than `minimum_improvement`.

    NaN never improves it.
    """
    best, waited = inf, 0
    for fitness in history:
        improves = fitness < best - minimum_improvement
        best, waited = (fitness, 0) if improves else (best, waited + 1)
    return waited
