"""The epochs of ShardedOptimizer.optimize(): training, judging, and the best epoch so far."""

from math import inf
from typing import Callable

from ...nn.features import input_features
from ..data.batches import own_part, split_batch
from .optimization import SETS, EvaluationResult, OptimizationInputData, OptimizationResult
from .sharded_model import ShardedModel


class Epochs:
    """The epochs of one run over given samples. Every method is collective, but for check().

    step   completes the step of a batch whose gradients are only accumulated
    """

    def __init__(self, model: ShardedModel, given: OptimizationInputData, step: Callable):
        self._model, self._given = model, given
        self._step = step
        self._first_step = model.step_number
        # equal parts that a global batch is cut into, over all data ranks
        config = model.sharding_configuration
        self._num_parts = model.mesh.size("data") * config.micro_batches
        self._synchronizes = config.auto_synchronize_gradients

    def check(self) -> None:
        """Raise ConfigurationError or ShapeError unless the model can train on the samples."""
        self._given.check_batches(self._num_parts)
        self._given.check_samples(self._model.engine)

    def fitness_after(self, epoch: int) -> float:
        """Train for an epoch; return the validation loss after it, or else its training loss."""
        training_loss = self._train(epoch)
        validation = self._evaluate("validation")
        return training_loss if validation is None else validation.loss

    def _train(self, epoch: int) -> float:
        """Take a step per batch; return the mean loss of their samples, each before its step."""
        x, y = self._given.samples("train")
        total, count = 0.0, 0
        for batch in self._given.batches(epoch, self._num_parts):
            (mine,) = split_batch(self._model.mesh, batch)
            total += len(batch) * self._model.train(x[mine], y[mine])
            count += len(batch)
            if not self._synchronizes:
                self._step()
        return total / count

    def _evaluate(self, name: str) -> EvaluationResult | None:
        return evaluate_set(self._model, self._given.samples(name), self._given.batch_size)

    def result(self, fitness: float, history: list[float]) -> OptimizationResult:
        """Return the result of a run whose best parameters are back in the model."""
        features = input_features(self._model.wrapped_model)
        return OptimizationResult(
            self._model,
            fitness,
            self._model.step_number - self._first_step,
            tuple(history),
            *(self._evaluate(name) for name in SETS),
            selected_features=None if features is None else tuple(features.active),
        )


class BestEpoch:
    """The best fitness so far, and what this rank owns of the parameters of its epoch."""

    def __init__(self):
        self.fitness = inf
        self._parameters = None

    def offer(self, fitness: float, model: ShardedModel):
        """Keep the model's parameters if this fitness is the lowest, or the first.

        No communication.
        """
        if self._parameters is None or fitness < self.fitness or self.fitness != self.fitness:
            self.fitness, self._parameters = fitness, model.engine.weights.copy_owned()

    def put_back(self, model: ShardedModel):
        """Give the model the parameters of the best epoch. Collective."""
        model.engine.weights.put_back(self._parameters)


def evaluate_set(model: ShardedModel, samples, batch_size: int) -> EvaluationResult | None:
    """Return the mean loss over all items of a set, whatever its size; None for None. Collective.

    samples      (x, y), global, the same on all ranks
    batch_size   samples per pass, over all data ranks
    The last slice may leave a data rank without a part. It computes on a sample that it does not
    count, since the others gather parameters with it.
    """
    if samples is None:
        return None
    total = items = 0.0
    for start in range(0, len(samples[0]), batch_size):
        x, y = (array[start : start + batch_size] for array in samples)
        mine = own_part(model.mesh, x), own_part(model.mesh, y)
        has_part = len(mine[0]) > 0
        of_slice = model.engine.evaluation.total_loss(
            *(mine if has_part else (x[:1], y[:1])), is_counted=has_part
        )
        total, items = total + of_slice[0], items + of_slice[1]
    return EvaluationResult(total / max(items, 1.0), len(samples[0]))


def epochs_since_improvement(history, minimum_improvement: float) -> int:
    """Return the epochs since the last that improved the best by more than `minimum_improvement`.

    NaN never improves it.
    """
    best, waited = inf, 0
    for fitness in history:
        improves = fitness < best - minimum_improvement
        best, waited = (fitness, 0) if improves else (best, waited + 1)
    return waited
