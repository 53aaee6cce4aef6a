"""One optimize(): epochs until it is over, its files, and how it ends.

Journal --EpochProgress--> Epochs.train --fitness--> best epoch kept, checkpoint --> next epoch
"""

import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...comm.failure.agreement import collectively
from ...comm.failure.signals import StopSignals
from ...errors import ShardingWarning, StopVoted
from .callback import Callback
from .epochs import BestEpoch, Epochs, is_better
from .journal import EpochProgress, Journal
from .optimization import OptimizationInputData, OptimizationResult
from .sharded_model import ShardedModel


@dataclass(frozen=True)
class StartedOptimization:
    """What callbacks are given at the start."""

    model: ShardedModel
    folder: Path | None


class Optimization:
    """One run over given samples. Every method is collective, and so is the constructor.

    step     completes the step of a batch whose gradients are only accumulated
    folder   None: nothing is written
    """

    def __init__(
        self,
        model: ShardedModel,
        given: OptimizationInputData,
        step: Callable,
        folder,
        callbacks: Callback,
    ):
        self._model, self._given = model, given
        self._step, self._callbacks = step, callbacks
        self._journal = None if folder is None else Journal(folder, model, given)
        self._best = BestEpoch()

    def run(
        self, is_over: Callable[[EpochProgress], bool], stop: Callable[[], bool] | None
    ) -> OptimizationResult:
        """Train to the end, or to where the ranks are asked to stop.

        is_over   asked before each epoch, collective
        stop      as of ShardedOptimizer.optimize()
        """
        if self._journal is None:
            return self._go(is_over, stop)
        signals = StopSignals()
        if threading.current_thread() is threading.main_thread():
            signals.listen()
        asked = stop or (lambda: False)
        try:
            result = self._go(is_over, lambda: signals.is_raised() or asked())
        except StopVoted:
            sys.stdout.flush()
            raise SystemExit(StopVoted.exit_code) from None  # more signals change nothing
        except BaseException:
            signals.leave()
            raise
        signals.leave()
        return result

    def _go(self, is_over, stop) -> OptimizationResult:
        model = self._model
        epochs = Epochs(model, self._given, self._step, self._callbacks, stop)
        with collectively(model.mesh.world):
            epochs.check()
        left_out = self._given.left_out()
        if left_out is not None and model.rank == 0:
            warnings.warn(left_out, ShardingWarning, stacklevel=4)
        progress = self._begin()
        folder = None if self._journal is None else self._journal.folder
        self._callbacks.at_start(StartedOptimization(model, folder))
        while progress.epoch < self._given.epochs and not is_over(progress):
            try:
                fitness = epochs.train(progress)
            except StopVoted:
                self._save(progress)
                raise
            self._end_epoch(progress, fitness)
        self._best.put_back(model)
        result = epochs.result(progress)
        self._callbacks.at_end(result)
        return result

    def _begin(self) -> EpochProgress:
        """Return where the run is: at its start, or at the newest checkpoint of its folder."""
        progress = None if self._journal is None else self._journal.find()
        if progress is None:
            return EpochProgress(first_step=self._model.step_number)
        if progress.best is not None:
            here = self._model.serialize()
            self._journal.load_best(progress)
            self._best.keep(self._model)
            self._model.deserialize(here)
        return progress

    def _end_epoch(self, progress: EpochProgress, fitness: float) -> None:
        progress.end_epoch(fitness)
        if is_better(fitness, progress.fitness):
            progress.fitness = fitness
            self._best.keep(self._model)
            if self._journal is not None:
                self._journal.save_best(progress)
        self._save(progress)

    def _save(self, progress: EpochProgress) -> None:
        if self._journal is not None:
            written = self._journal.save(progress)
            self._callbacks.after_checkpoint(self._model.step_number, written)
