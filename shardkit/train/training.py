"""sk.Training: run the training loop of `shardkit train` from your own script.

    training = sk.Training(model, (training_rows, validation_rows), folder="runs/surrogate",
                           settings={"run.steps": 2000, "batch.sequences": 256, "run.patience": 5})
    training.run()                          # mpiexec -n 4 python script.py; the same to go on
    training.predict(new_rows, "out.h5")

It has signals and the end of the job's time (a checkpoint, then exit code 75), resuming on any
mesh, validation, early stop, reports, callbacks and elastic runs; `shardkit render ... -- python
script.py` writes its job script.
"""

import atexit
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO, cast

from ..annotations import FilePath
from ..checkpoint.choice import Which
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..comm.failure.program import abort_on_error
from ..comm.failure.signals import StopRequest, StopSignals
from ..comm.mpi.backend import MPICommunicationBackend
from ..comm.same import alike, check_same, facts_of
from ..data.raw.groups import is_frame
from ..errors import ConfigurationError, ShardingError, ShardkitError, StopVoted
from ..files.notes import settle_output
from ..files.paths import lasting_path, usable_path
from ..nn.module import Module
from ..parallel.model.callback import Callback
from ..parallel.model.sharded_model import ShardedModel
from ..refusal import check_made, check_usable
from ..task.given import task_of
from ..task.load import SCRIPT, load_task, on_frame
from ..task.task import Task
from .agreement import SAME_SETTINGS, facts_of_place
from .evaluation import Figures, TrainedRun, evaluate
from .folder import has_checkpoints, stored_settings
from .loop import RunResult, TrainingRun, train_run
from .prediction import check_output, predict
from .settings import RunConfiguration, configuration_of, first_settings, resumed
from .survivors import SurvivingRun


class Training:
    """A run of a script's own.

    Parameters
    ----------
    task
        A class derived from Task, or the name of a task; or an nn.Module, or a function that
        returns one.
    data
        Of a module: (training, validation) or what both are taken from; each is Samples or a pair
        of arrays x, y [n, ...]. A Task has data of its own; of "table", or a class derived from
        TableTask, it may be a frame of pandas, polars, xarray or pyarrow.
    folder
        Of the run: checkpoints, curve, logs; a run that is there goes on.
    settings
        {"section.key": value}, as `shardkit train --help` lists them.
    loss, metrics, companions
        Of a module; a Task has its own.
    callbacks
        See Callback.
    backend
        None: MPI. An error then ends the job with one message and an exit code, as it does for
        `shardkit train`; with a backend of one's own it is raised.

    Raises
    ------
    ConfigurationError
        On anything else; with several ranks on all of them, from run().
    """

    def __init__(
        self,
        task: str | type[Task] | Module | Callable[[], Module],
        data: Any = None,
        *,
        folder: FilePath,
        settings: dict[str, Any] | None = None,
        loss: Any = None,
        metrics: dict[str, Any] | None = None,
        companions: dict[str, bytes] | None = None,
        callbacks: Iterable[Callback] = (),
        backend: CommunicationBackend | None = None,
    ) -> None:
        self._given = {"run.folder": lasting_path(folder), "run.task": SCRIPT, **(settings or {})}
        self._callbacks = tuple(callbacks)
        self._backend = backend
        self._run: TrainingRun | None = None
        self._is_elsewhere = False  # the model is at another checkpoint than after run()
        parts = {"loss": loss, "metrics": metrics, "companions": companions}
        num_ranks = None if backend is None else backend.world_size
        check_made(self, lambda: self._configure(task, {"data": data, **parts}), num_ranks)

    def _configure(self, task, own: dict):
        """Set the configuration. Errors: ConfigurationError."""
        if isinstance(task, str):
            self._given["run.task"], task = task, load_task(task)
        if isinstance(task, type) and issubclass(task, Task):
            if is_frame(own["data"]):
                task = on_frame(task, own.pop("data"))
            for name, value in own.items():
                if value is not None:
                    raise ConfigurationError(
                        f"Training({task.__name__}, {name}=...): a Task has its own {name}; leave "
                        "it out, or pass a model instead of the task"
                    )
        else:
            task = task_of(cast("Module | Callable[[], Module]", task), **own)
        self._configuration = configuration_of(task)

    # ---- training --------------------------------------------------------------------------------

    def run(self) -> RunResult:
        """Train to the end, from the newest checkpoint in the folder if there is one. Collective.

        A run that is told to stop saves and ends the program with exit code 75; start it again to
        go on.

        Notes
        -----
        Errors, on all ranks: those of train_run.
        """
        signals = StopSignals().listen()
        if self._backend is not None:
            return self._train(self._backend, signals)
        is_elastic, error = self._is_elastic()
        if is_elastic:
            result = self._train_elastic(signals)
        else:
            self._backend = MPICommunicationBackend()
            self._backend.initialize()
            with abort_on_error(self._backend) as program:
                how = {"program": program, "error": error}
                result = self._train(self._backend, signals, **how)
        if result.is_interrupted:
            signals.ignore()
            settle_output()
            raise SystemExit(StopVoted.exit_code)
        return result

    def run_among(self, signals: StopRequest, stream: TextIO | None = None) -> RunResult:
        """Train as run(), in a program of several runs, whose signals are its own. Collective over
        the backend that was given.

        Parameters
        ----------
        signals
            What asks the run to stop: it saves then, and this method returns.
        stream
            Where the lines for people go; None: standard output.

        Notes
        -----
        Errors, on all ranks: those of train_run.
        """
        if self._backend is None:
            raise ShardingError("one of several runs needs the ranks it has: pass backend=")
        return self._train(self._backend, signals, stream=stream)

    def _is_elastic(self) -> tuple[bool, Exception | None]:
        """Return run.elastic, and what is wrong with the settings, for all ranks to raise."""
        try:
            check_usable(self)
            return self._settings(has_checkpoints(self._folder)).run.elastic, None
        except (ShardkitError, OSError) as error:
            return False, error

    def _train(
        self, backend, signals, *, program=None, stream=None, error: Exception | None = None
    ) -> RunResult:
        if not backend.is_initialized:
            backend.initialize()
        with alike(backend, SAME_SETTINGS) as facts:
            check_usable(self)
            if error is not None:
                raise error
            facts |= facts_of_place(self._folder)
            has_run = has_checkpoints(self._folder) if backend.rank == 0 else None
        resume = backend.broadcast_object(has_run, 0)
        with collectively(backend):
            settings = self._settings(resume)
        result = train_run(
            settings,
            backend,
            resume=resume,
            program=program,
            signals=signals,
            stream=stream,
            callbacks=self._callbacks,
            after=self._keep,
        )
        self._end_at_best(result)
        return result

    def _train_elastic(self, signals) -> RunResult:
        resume = has_checkpoints(self._folder)
        surviving = SurvivingRun(self._settings(resume), resume, signals, self._callbacks)
        result = surviving.go()
        if surviving.has_lost_ranks:
            atexit.register(_leave)
        if result is None:  # a spare rank, which has nothing to go on with
            raise SystemExit(0)
        assert surviving.run is not None
        self._keep(surviving.run)
        self._end_at_best(result)
        return result

    @property
    def _folder(self) -> Path:
        return Path(usable_path(self._given["run.folder"]))

    def _settings(self, resume: bool) -> RunConfiguration:
        if not resume:
            return first_settings(self._configuration, self._given)
        return resumed(stored_settings(self._folder, self._configuration.task_class), self._given)

    def _keep(self, run: TrainingRun) -> None:
        self._run, self._is_elsewhere = run, False

    def _end_at_best(self, result: RunResult) -> None:
        """Give the model the state of its best checkpoint, after a run with a patience."""
        run = self._finished()
        if run.settings.run.patience is None or result.is_interrupted:
            return
        if run.best.found is not None and run.best.found.step != run.model.step_number:
            self._go_to(None)

    # ---- afterwards ------------------------------------------------------------------------------

    @property
    def model(self) -> ShardedModel:
        """The trained model: after run() at its last step, where run.patience is set at its best
        checkpoint; after evaluate() and predict() at the one that they were given.

        Raises
        ------
        ShardingError
            Before run().
        """
        return self._finished().model

    def evaluate(self, data: Any = None, checkpoint: str | int | None = None) -> Figures:
        """Return loss and metrics of samples; None: of the held-out ones. Collective.

        Parameters
        ----------
        data
            Samples, a pair of arrays (x, y), or what Task.samples_of takes: a path, or a frame of
            a table.
        checkpoint
            "best", whose validation had the lowest loss; "newest"; a step that is kept; None: the
            best where run.patience is set, else the newest.
        """
        run = self._trained(checkpoint)
        return evaluate(run, run.samples(data))

    def predict(
        self, data: Any, output: FilePath, checkpoint: str | int | None = None
    ) -> dict[str, tuple[int, ...]]:
        """Write the outputs for all samples into an HDF5 file; return {dataset: shape}. Collective.

        Parameters
        ----------
        data
            As for evaluate(), or x alone. The ranks write in parallel, and the file is the same for
            any number of them.
        output
            The HDF5 file to write.
        checkpoint
            As for evaluate().
        """
        run = self._trained(checkpoint)
        with collectively(run.backend):
            path = Path(usable_path(output))
            check_output(path)
        check_same(run.backend, facts_of({"output": str(path.resolve())}))
        return predict(run, run.samples(data, has_targets=False), path)

    def restored(self, checkpoint: str | int | None = None) -> TrainedRun:
        """Return the run that the folder holds, on the ranks that were given; run() need not be
        called. Collective. Close it afterwards.

        Parameters
        ----------
        checkpoint
            As for evaluate().
        """
        if self._backend is None:
            raise ShardingError("a run that is restored needs ranks: pass backend=")
        check_usable(self)
        task = self._configuration.task_class
        return TrainedRun(self._folder, {}, self._backend, task=task, checkpoint=checkpoint)

    def _trained(self, checkpoint: Which) -> TrainedRun:
        """Return the run with its model at this checkpoint. Collective."""
        run = self._finished()
        if checkpoint is not None or self._is_elsewhere:
            self._go_to(checkpoint)
            self._is_elsewhere = checkpoint is not None
        return TrainedRun.of_model(run.task, run.model)

    def _go_to(self, checkpoint: Which) -> None:
        """Give the model the state of this checkpoint, and say which it is. Collective."""
        run, before = self._finished(), self._finished().model.step_number
        taken = run.model.load_model(run.checkpoints, checkpoint=checkpoint)
        if taken["step"] != before:
            run.say(f"the model is at the {taken['chosen']}")

    def _finished(self) -> TrainingRun:
        if self._run is None:
            raise ShardingError("this training has no model yet; call run() first")
        return self._run


def _leave() -> None:
    """End the process before MPI waits for dead ranks."""
    settle_output()
    os._exit(0)
