"""`shardkit train --run.elastic=true`: the training run of loop.py on the surviving ranks."""

import time
from collections.abc import Iterable
from pathlib import Path

from threadpoolctl import threadpool_limits

from ..comm.failure.agreement import collectively
from ..comm.failure.signals import StopSignals
from ..errors import ConfigurationError
from ..parallel.model.callback import Callback
from .choice import kept_blas, with_blas
from .elastic import ElasticTraining
from .folder import checkpoint_places
from .keeping import LEDGER, KeptFolder
from .log import RankLog
from .loop import RunResult, TrainingRun, agreed, begin_run, counted, prepare_run
from .ranks import check_batch
from .settings import RunConfiguration
from .start import StartClock


def largest_fit(settings: RunConfiguration, num_ranks: int) -> int:
    """Return how many of these ranks can train: whole replicas that divide the global batch.

    0 if none can.
    """
    for num in range(num_ranks, 0, -1):
        try:
            check_batch(settings, num)
            return num
        except ConfigurationError:
            continue
    return 0


class SurvivingRun:
    """A run that continues when ranks die. The constructor is collective over all started ranks.

    start   of this process; None: the start is counted from here
    """

    def __init__(
        self,
        settings: RunConfiguration,
        resume: bool,
        signals: StopSignals,
        callbacks: Iterable[Callback] = (),
        start: StartClock | None = None,
    ):
        self._settings, self._start = settings, start or StartClock()
        self._resume = resume
        self._signals = signals
        self._callbacks = (*callbacks, self._start)
        self._folder = Path(settings.run.folder)
        self._kept = KeptFolder(self._folder)
        self._run: TrainingRun | None = None
        self._log: RankLog | None = None
        self.training = ElasticTraining(
            self._make_model,
            self._work,
            **settings.mesh.sizes,
            num_training=self._agreed_fit,
            checkpoints=checkpoint_places(self._folder, settings.run.fallback_folder),
            every=settings.run.elastic_every,
            timeout=settings.run.timeout,
            ledger=self._folder / LEDGER,
        )
        self._began = time.monotonic()

    def go(self) -> RunResult | None:
        """Train to the end; return None on spare ranks.

        Errors end the job, or end all ranks with SystemExit.
        """
        try:
            with threadpool_limits(self._settings.run.threads):
                return self.training.run()
        finally:
            self._kept.release()
            if self._log is not None:
                self._log.__exit__(None, None, None)

    @property
    def run(self) -> TrainingRun | None:
        """The run of this rank as it is now; None on a spare rank that never trained."""
        return self._run

    @property
    def has_lost_ranks(self) -> bool:
        """True if ranks have died, as far as this one knows."""
        return bool(self.training.num_lost)

    def _agreed_fit(self, num_living: int) -> int:
        """Return how many can train, of ranks that begin the same. Collective over the living."""
        if self.training.is_new:
            self._settings = agreed(self._settings, self.training.backend, resume=self._resume)
        num = largest_fit(self._settings, num_living)
        if num < 1 and self.training.is_new:
            check_batch(self._settings, num_living)  # says why
        return num

    def _make_model(self, backend):
        is_new = self.training.is_new
        if is_new:
            prepare_run(self._settings, backend, self._kept, resume=self._resume)
            self._start.note("data")
        else:
            self._kept.own(backend)
        if self._log is None:
            self._log = RankLog(self._folder, self.training.started_rank)
        if self._run is not None:
            self._run.stream.close()
        reason = self._choose_blas(backend)
        with collectively(backend):
            task = self._left().make_task()
        self._run = TrainingRun(
            task,
            backend,
            self._signals,
            self._log,
            self._kept,
            self._callbacks,
            goes_on=self._resume or not is_new,
            watched=self.training.backend,
        )
        self._run.say(reason)
        if is_new:
            begin_run(self._run, self._settings, resume=self._resume)
        self.training.program.tell_of(self._folder, self._run.doing)
        return self._run.model

    def _choose_blas(self, backend) -> str:
        """Settle the steps of epochs and parallel.blas; return why that one. Collective."""
        with collectively(backend):
            settings = counted(self._settings)
        with collectively(backend):
            task = kept_blas(settings, backend).make_task()
        task, reason = with_blas(task, self._folder, backend)
        self._settings = task.settings
        return reason

    def _left(self) -> RunConfiguration:
        """Return the settings with the rest of the run's own time limit."""
        limit = self._settings.run.time_limit_seconds
        left = limit and max(limit - (time.monotonic() - self._began), 1.0)
        return self._settings.replace({"run.time_limit_seconds": left})

    def _work(self, model, commit) -> RunResult:
        run, training = self._run, self.training
        if training.recoveries:
            run.go_on_with_data()
            run.be_at_step(
                f"step {model.step_number}/{run.settings.run.steps}  {training.recoveries[-1]}"
            )
            run.reporter.record(
                step=model.step_number, recovery_seconds=training.recoveries[-1].seconds
            )
        elif training.why_not:
            run.reporter.line(
                f"run.elastic: {training.why_not}; the job script starts again after a death "
                "(jobs/README.md)"
            )
        return run.go(commit)
