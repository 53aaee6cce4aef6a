"""One optimize(): the course of its steps in epochs, its files, and how it ends.

    batches of epoch e --RunLoop--> mean training loss --\\
    validation set ----evaluate--> validation loss ---------> fitness --> best kept, checkpoint

Where EpochProgress says it is, a run goes on.
"""

import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ...comm.failure.agreement import collectively
from ...comm.failure.signals import StopSignals
from ...errors import ShardingWarning, StopVoted
from ...nn.features import input_features
from ...nn.metrics import metrics_of
from ...tree import num_samples, rows
from ..data.batches import own_part, split_batch
from .callback import Callback
from .journal import EpochProgress, Journal, NoJournal
from .loop import RunLoop
from .measuring import Measurement
from .optimization import SETS, EvaluationResult, OptimizationInputData, OptimizationResult
from .patience import Patience
from .sharded_model import ShardedModel, parts_of


@dataclass(frozen=True)
class StartedOptimization:
    """What callbacks are given at the start."""

    model: ShardedModel
    folder: Path | None


class BestEpoch:
    """What this rank owns of the parameters and buffers of the best epoch so far."""

    def __init__(self):
        self._parameters = self._buffers = None

    def keep(self, model: ShardedModel) -> None:
        """Keep the model's parameters and buffers. No communication."""
        self._parameters = parts_of(model).engine.weights.copy_owned()
        self._buffers = parts_of(model).engine.state.buffers.copies()

    def put_back(self, model: ShardedModel) -> None:
        """Give the model the parameters and buffers that were kept. Collective."""
        parts_of(model).engine.state.buffers.put_back(self._buffers)
        parts_of(model).engine.weights.put_back(self._parameters)


class Optimization:
    """One run over given samples: a Course. Methods are collective, and so is the constructor.

    step       completes the step of a batch whose gradients are only accumulated
    folder     None: nothing is written, and no signal is listened to
    patience   with epochs
    history    empty; the fitness of each epoch is added to it
    stop       as of ShardedOptimizer.optimize()
    """

    def __init__(
        self,
        model: ShardedModel,
        given: OptimizationInputData,
        step: Callable,
        folder,
        callbacks: Callback,
        *,
        patience: Patience,
        history: list[float],
        stop: Callable[[], bool] | None,
    ):
        self._model, self._given = model, given
        self._step, self._callbacks = step, callbacks
        self._synchronizes = model.sharding_configuration.auto_synchronize_gradients
        self._signals = signals = StopSignals()
        asks = stop or (lambda: False)
        self._loop = RunLoop(
            model, callbacks, patience, signal=lambda: signals.is_raised() or asks()
        )
        self._best = BestEpoch()
        self._progress = EpochProgress(first_step=model.step_number, fitness_history=history)
        self._journal: Journal | NoJournal = NoJournal()
        if folder is not None:
            self._journal = Journal(
                folder,
                model,
                given,
                lambda: self._progress,
                patience=patience,
                callbacks=callbacks,
                is_hurried=signals.is_urgent,
            )
        self._samples = given.samples("train")
        self._batches: list = []  # of the epoch, once it has begun

    def run(self) -> OptimizationResult:
        """Train to the end, or to where the ranks are asked to stop."""
        if self._journal.folder is None:
            return self._go()
        if threading.current_thread() is threading.main_thread():
            self._signals.listen()
        try:
            result = self._go()
        except StopVoted:
            sys.stdout.flush()
            raise SystemExit(StopVoted.exit_code) from None  # more signals change nothing
        except BaseException:
            self._signals.leave()
            raise
        self._signals.leave()
        return result

    def _go(self) -> OptimizationResult:
        model = self._model
        with collectively(model.mesh.world):
            self._check()
            left_out = self._given.left_out()
            if left_out is not None and model.rank == 0:
                warnings.warn(left_out, ShardingWarning, stacklevel=4)
        self._begin()
        self._callbacks.at_start(StartedOptimization(model, self._journal.folder))
        vote = self._loop.go(self)
        if vote is not None and "patience" not in vote.reasons:
            self._journal.save()
            self._journal.finish()
            raise vote
        try:
            self._journal.finish()
        finally:  # a lost checkpoint is an error on all ranks, and the model is the best one still
            self._best.put_back(model)
        result = self._result()
        self._callbacks.at_end(result)
        return result

    def _check(self) -> None:
        """Raise ConfigurationError or ShapeError unless the model can train on the samples."""
        micro_batches = self._model.sharding_configuration.micro_batches
        self._given.check_batches(self._model.mesh.size("data") * micro_batches)
        self._given.check_samples(parts_of(self._model).engine)

    def _begin(self) -> None:
        """Be where the run is: at its start, or at the newest checkpoint of its folder."""
        progress = self._journal.find()
        if progress is None:
            return
        if progress.best is not None:
            here = self._model.serialize()
            self._journal.load_best(progress)
            self._best.keep(self._model)
            self._model.deserialize(here)
        self._loop.go_on_after(progress.fitness_history)
        history = self._progress.fitness_history
        history += progress.fitness_history
        self._progress = replace(progress, fitness_history=history)

    # ---- the course ------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Return True after the last epoch."""
        return self._progress.epoch >= self._given.epochs

    def step(self) -> float:
        """Train on the next batch; return its loss. Errors: StopVoted, on all ranks."""
        progress = self._progress
        if progress.batch == 0 or not self._batches:
            self._batches = self._given.batches(progress.epoch)
        batch = self._batches[progress.batch]
        (mine,) = split_batch(self._model.mesh, batch)
        loss = self._model.train(*(rows(tree, mine) for tree in self._samples))
        if not self._synchronizes:
            self._step()
        progress.add(loss, len(batch))
        return loss

    def after_step(self, loss: float) -> None:
        """End the epoch after its last batch: judge it, keep it if it is the best, save."""
        progress = self._progress
        if progress.batch < len(self._batches):
            self._journal.look()
            return
        values = {"train_loss": progress.mean_loss}
        validation = self._evaluate("validation")
        if validation is not None:
            values["validation_loss"] = validation.loss
        fitness = values.get("validation_loss", values["train_loss"])
        self._loop.judge(fitness, {**values, "fitness": fitness})
        if progress.end_epoch(self._model.step_number, fitness):
            self._best.keep(self._model)
        self._journal.save()

    # ---- the end ---------------------------------------------------------------------------------

    def _evaluate(self, name: str, metrics=None) -> EvaluationResult | None:
        samples = self._given.samples(name)
        return evaluate_set(self._model, samples, self._given.batch_size, metrics or {})

    def _result(self) -> OptimizationResult:
        """Return the result of the run, whose best parameters are back in the model."""
        model, progress = self._model, self._progress
        module = model.wrapped_model
        features = input_features(module)
        metrics = metrics_of(module)
        train, validation, test = (self._evaluate(name, metrics) for name in SETS)
        assert train is not None and progress.best is not None
        noted = validation or train
        parts_of(model).history.note_evaluation(model.step_number, noted.loss, noted.metrics)
        return OptimizationResult(
            model,
            progress.best.loss,
            model.step_number - progress.first_step,
            tuple(progress.fitness_history),
            train,
            validation,
            test,
            None if features is None else tuple(features.active),
        )


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
    with Measurement(parts_of(model).engine, metrics or {}, loss) as measured:
        for start in range(0, num_samples(samples[0]), batch_size):
            x, y = (rows(tree, slice(start, start + batch_size)) for tree in samples)
            measured.add(own_part(model.mesh, x), own_part(model.mesh, y))
    return EvaluationResult(measured.loss, measured.samples, measured.metrics)
