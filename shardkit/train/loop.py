"""The training run: from a task and its settings to a trained model, its checkpoints, its curve.

    task.prepare, open --> sharded model --> stream --> step, step, ... --> task.finish
                                                           |-> reports, validations, checkpoints

run folder/
  owner.json            which process has the folder to itself, for as long as it lives
  configuration.json    the settings, so that --resume needs none
  data/                 what the task wrote for all ranks: an index of the data
  metrics.jsonl         the curve: one record per report
  ranks.json            the mesh: where each rank is, and on which node
  timeline.json         one step, action by action; see tracing.py
  traces/               what run.trace_steps asks for
  logs/                 one file per rank
  checkpoints/          see checkpoint/store.py
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from threadpoolctl import threadpool_limits

from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..comm.failure.program import Program
from ..comm.failure.signals import StopRequest, StopSignals
from ..comm.same import alike
from ..data.samples import TRAINING, VALIDATION
from ..errors import CheckpointError, StopVoted
from ..parallel.model.callback import Callback, Callbacks
from ..parallel.model.loop import RunLoop
from ..parallel.model.patience import Patience
from ..parallel.model.saves import Saves
from ..parallel.model.sharded_model import parts_of
from ..task.given import as_samples
from ..task.task import Task
from .agreement import SAME_DATA, SAME_SETTINGS, facts_of_samples, facts_of_start, facts_of_task
from .best import Best
from .choice import with_blas
from .feed import reading_line, training_stream
from .folder import check_folder, checkpoint_places, store_settings
from .keeping import LEDGER, KeptFolder
from .log import RankLog, Reporter
from .model import make_model
from .preparing import prepare_data
from .progress import RunReport
from .ranks import check_batch
from .ranks_record import RanksRecord
from .resuming import UNKNOWN_POSITION, DataMarks, changes, schedule_line
from .saves import CheckpointNews
from .settings import RunConfiguration, settled, with_steps
from .start import StartClock
from .stopping import COMPLETING, Stops
from .tracing import Tracing
from .tracking import make_tracker
from .validation import Validation


@dataclass(frozen=True)
class RunResult:
    """How a run ended: its last losses, and what its task showed in the end.

    Parameters
    ----------
    is_interrupted
        It was told to stop, or its time ran out: a checkpoint is there, and --resume goes on.
    """

    steps: int
    train_loss: float | None
    validation_loss: float | None
    shown: str
    is_interrupted: bool = False


def train_run(
    settings: RunConfiguration,
    backend: CommunicationBackend,
    *,
    resume: bool = False,
    program: Program | None = None,
    signals: StopRequest | None = None,
    stream: TextIO | None = None,
    callbacks: Iterable[Callback] = (),
    after: Callable[["TrainingRun"], None] = lambda run: None,
    start: StartClock | None = None,
) -> RunResult:
    """Train, or go on training, the run that the settings describe. Collective over the backend.

    Parameters
    ----------
    program
        Of the abort_on_error around this call, which learns the run folder and the step from here.
    signals
        That end the run early, with a checkpoint.
    stream
        Where its lines for people go; None: standard output.
    callbacks
        Beside those of the run itself.
    after
        Function (run), called when it has ended.
    start
        Of this process; None: the start is counted from here.

    Raises
    ------
    ConfigurationError
        On all ranks, (also CorpusError).
    CheckpointError, OSError, OutOfMemoryError, NonFiniteError
        On all ranks.
    """
    settings, start = agreed(settings, backend, resume=resume), start or StartClock()
    with KeptFolder(Path(settings.run.folder)) as kept:
        how = program, signals, stream, callbacks, after, start
        return _train_in(kept, settings, backend, resume, *how)


def _train_in(
    kept: KeptFolder,
    settings,
    backend,
    resume: bool,
    program,
    signals,
    stream,
    callbacks,
    after,
    start,
) -> RunResult:
    folder = kept.folder
    task = prepare_run(settings, backend, kept, resume=resume)
    start.note("data")
    backend.timeout = settings.run.timeout
    backend.keep_ledger(folder / LEDGER)
    log = RankLog(folder, backend.rank)
    with threadpool_limits(settings.run.threads), log:
        task, reason = with_blas(task, folder, backend)
        signals, callbacks = signals or StopSignals(), [*callbacks, start]
        how = {"goes_on": resume, "stream": stream}
        run = TrainingRun(task, backend, signals, log, kept, callbacks, **how)
        run.say(reason)
        run.say(reading_line(run.model, run.stream.samples))
        begin_run(run, task.settings, resume=resume)
        if program is not None:
            program.tell_of(folder, run.doing)
        result = run.go()
        after(run)
        return result


def agreed(
    settings: RunConfiguration, backend: CommunicationBackend, *, resume: bool
) -> RunConfiguration:
    """Return the settings of the run, settled, if all ranks begin the same. Collective.

    Errors: ConfigurationError on all ranks; ShardingError on all ranks, with what differs: a
    setting, the folder, the software.
    """
    with alike(backend, SAME_SETTINGS) as facts:
        settings = settled(settings)
        facts |= facts_of_start(settings, resume)
    return settings


def prepare_run(
    settings: RunConfiguration, backend: CommunicationBackend, kept: KeptFolder, *, resume: bool
) -> Task:
    """Make the task and its run folder, if these ranks can do the run. Collective.

    The settings of the task have the steps of their epochs.

    Errors: as train_run.
    """
    folder = Path(settings.run.folder)
    with collectively(backend):
        check_batch(settings, backend.world_size)
        task = settings.make_task()
    kept.own(backend)
    with collectively(backend):
        if backend.rank == 0:
            check_folder(folder, resume, settings.task_class)
    prepare_data(task, folder, backend, resume=resume)
    with collectively(backend):
        return counted(settings).make_task()


def counted(settings: RunConfiguration) -> RunConfiguration:
    """Return the settings with the steps of their epochs, of the data of a run that is prepared.

    Errors: as train_run, on this rank alone.
    """
    if settings.run.epochs is None:
        return settings
    task = settings.make_task()
    task.open(Path(settings.run.folder))
    return with_steps(settings, len(as_samples(task.samples(TRAINING))))


def begin_run(run: "TrainingRun", settings: RunConfiguration, *, resume: bool) -> None:
    """Bring a run to its first step, or to that of its newest checkpoint, and write down its
    settings. Collective.

    Not before the model is there: settings that it refuses shall not be those that the next
    --resume finds.
    """
    run.resume() if resume else run.start()
    with collectively(run.backend):
        if run.backend.rank == 0:
            store_settings(run.folder, settings.replace({"run.steps": run.settings.run.steps}))


class Unreadable:
    """In place of an array that could not be read: who takes it as one gets the error.

    The step takes it where an error of one rank is raised on all, without a message more.
    """

    def __init__(self, error: Exception):
        self._error = error

    def __array__(self, dtype=None, copy=None):
        raise self._error


class TrainingRun:
    """One training run in progress, in a folder that is prepared. The constructor is collective.

    Parameters
    ----------
    goes_on
        The model awaits the weights of a checkpoint; otherwise it has its first ones.
    watched
        The backend that keeps the ledger of this rank; None: that of the run.
    stream
        As of train_run.
    """

    def __init__(
        self,
        task: Task,
        backend: CommunicationBackend,
        signals: StopRequest,
        log: RankLog,
        kept: KeptFolder,
        callbacks: Iterable[Callback] = (),
        *,
        goes_on: bool = False,
        watched: CommunicationBackend | None = None,
        stream: TextIO | None = None,
    ):
        self.task, self._kept = task, kept
        self._watched = watched or backend
        self._commit: Callable[[], None] = lambda: None
        settings, is_first = task.settings, backend.rank == 0
        run = settings.run
        with alike(backend, SAME_DATA) as facts:
            task.open(self.folder)
            samples, held_out = map(as_samples, map(task.samples, (TRAINING, VALIDATION)))
            facts |= facts_of_samples(samples, TRAINING) | facts_of_samples(held_out, VALIDATION)
            facts |= facts_of_task(task, callbacks)
            self._marks = DataMarks(
                *(
                    facts[f"the fingerprint of the {part} samples"]
                    for part in (TRAINING, VALIDATION)
                )
            )
            tracks = is_first and run.track is not None
            tracked = [make_tracker(run.track, self.folder, settings)] if tracks else []
            tracing = Tracing(run)
        places = checkpoint_places(self.folder, run.fallback_folder)
        self.model = make_model(task, backend, awaits=places if goes_on else None)
        parts_of(self.model).checkpoints.check()
        self.reporter = Reporter(self.folder, run.steps, log, is_writer=is_first, stream=stream)
        self.stream = training_stream(task, self.model, samples)
        self.validation = Validation(task, self.model, held_out)
        self.report = RunReport(task, self.model, self.stream, self.reporter, log)
        own = [self.report, RanksRecord(), tracing]
        self.callbacks = Callbacks([*own, *tracked, *callbacks], is_first=is_first)
        self.stops = Stops(run, signals)
        patience = Patience(run.patience, (), run.minimum_improvement)
        self.loop = RunLoop(self.model, self.callbacks, patience, **self.stops.questions())
        self.best = Best(run)
        news = CheckpointNews(
            task,
            self.stream,
            self._marks,
            best=self.best,
            note_save=self.stops.note_save,
            reporter=self.reporter,
            callbacks=self.callbacks,
        )
        background = run.asynchronous_checkpoints
        last = self.stops.last_save()
        self.saves = Saves(self.model, places, news, last, background=background)

    @property
    def settings(self) -> RunConfiguration:
        """The settings of the task, with the steps that the run has."""
        return self.task.settings

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return Path(self.settings.run.folder)

    @property
    def backend(self) -> CommunicationBackend:
        """The ranks that train."""
        return self.model.mesh.world

    @property
    def checkpoints(self) -> tuple[Path, ...]:
        """The folders where its checkpoints are, the preferred one first."""
        return self.saves.places

    def doing(self) -> str:
        """Return the step that is under way, in words."""
        return f"step {self.model.step_number + 1}"

    def say(self, line: str) -> None:
        """Report this line on rank 0, unless it is empty."""
        if line:
            self.reporter.line(line)

    def start(self):
        """Be at step 0, with the weights that the settings name, if they do. Collective."""
        self.say(schedule_line(self.settings))
        self.say(self.task.begin(self.model))
        self._take_companions()

    def resume(self):
        """Be where the newest valid checkpoint of the run is. Collective."""
        manifest = self.model.load_model(self.checkpoints)
        for reason in manifest["skipped"]:
            self.reporter.line(f"skipped: {reason}")
        with collectively(self.backend):
            self._marks.check(manifest["data_position"], self.folder / "data")
        self.go_on_with_data()
        self._compare(manifest["data_position"], manifest["samples_seen"])
        self._compare_blas(manifest.get("blas"))
        self._compare_companions()
        self._take_companions()
        self.saves.go_on_from(self.model.step_number, str(self.checkpoints[0].parent))
        self.be_at_step(f"resumed at step {self.model.step_number}")

    def go_on_with_data(self) -> None:
        """Read on where the state that was loaded has read to, for the rest of the epochs.
        Collective.
        """
        with collectively(self.backend):
            self.stream.go_on_from(parts_of(self.model).checkpoints.data_position)
            if self.settings.run.epochs is None:
                return
            step, epochs = self.model.step_number, self.settings.run.epochs
            steps = self.stream.position.num_steps(step, epochs)
            self.task.settings = self.settings.replace({"run.steps": steps})
        self.reporter.total(steps)

    def _compare(self, before: dict, samples_seen: int):
        """Say what has changed since a checkpoint, and what that does. Collective.

        before   its data_position
        Errors, on all ranks: ConfigurationError, CheckpointError.
        """
        told = before.get("settings", {})
        lines = []
        with collectively(self.backend):
            if "epoch" not in before and samples_seen != self.stream.position.first:
                lines.append(UNKNOWN_POSITION)
            lines += [*self._marks.changes(before), *changes(told, self.settings)]
            lines.append(schedule_line(self.settings, told))
        for line in lines:
            self.say(line)

    def _compare_blas(self, before: str | None):
        now = self.settings.parallel.blas
        if before not in (None, now):
            self.say(
                f"products by parallel.blas={now} from here on, by {before} before: the bits are "
                "not those of a run that kept to one"
            )

    def _compare_companions(self):
        """Refuse other companions than those of the checkpoint: a scaling of other rows, say."""
        with collectively(self.backend):
            stored = parts_of(self.model).checkpoints.companions
            for name, content in self.task.companions().items():
                if stored.get(name, content) != content:
                    raise CheckpointError(
                        f"{name} of {self.folder} is not the one that its checkpoints were trained "
                        f"with, which they hold; restore it, or start a new run"
                    )

    def _take_companions(self):
        with collectively(self.backend):
            parts_of(self.model).checkpoints.add_companions(self.task.companions())

    def be_at_step(self, why: str):
        """Report that the model is at another step now, and end the curve there. Collective."""
        with collectively(self.backend):
            self.reporter.drop_records_after(self.model.step_number)
        self.reporter.line(why)

    def _listen(self):
        """From now on time and validations count, with those before a run that goes on."""
        losses = self.reporter.validation_losses() if self.backend.rank == 0 else None
        self.stops.begin(self.backend)
        self.best.find(self.checkpoints, self.model.step_number, self.backend)
        self.loop.go_on_after(self.backend.broadcast_object(losses, 0))

    def go(self, commit: Callable[[], None] = lambda: None) -> RunResult:
        """Train to the last step, then let the task show it; or stop before, as the ranks vote.

        commit   called after each step
        """
        self._commit = commit
        self._listen()
        self.callbacks.at_start(self)
        self._kept.remember()
        with self.stream, self.reporter:
            stop = self.loop.go(self)
            if stop is not None:
                self._say_why(stop.reasons)
                self._save()
            self.saves.finish()
            self.say(self.best.text(self.saves.written, self.reporter.lowest_validation()))
        is_interrupted = stop is not None and stop.reasons not in COMPLETING
        if is_interrupted:
            self.reporter.line(
                f"stopped with a checkpoint of step {self.model.step_number}; to go on: shardkit "
                f"train --resume --run.folder={self.folder}"
            )
        if self.loop.validation_loss is None and not is_interrupted:
            self._validate()
        self.report.report_memory()
        shown = "" if is_interrupted else self._finish()
        losses = self.loop.train_loss, self.loop.validation_loss
        result = RunResult(self.model.step_number, *losses, shown, is_interrupted)
        self.callbacks.at_end(result)
        self.reporter.close()
        return result

    @property
    def is_over(self) -> bool:
        """True after the last step."""
        return self.model.step_number >= self.settings.run.steps

    def step(self) -> float:
        """Train one step and return its loss. Errors: StopVoted, on all ranks."""
        loss = self.model.train(*self._batch(self.model.step_number))
        self._commit()
        self.saves.look()
        return loss

    def _batch(self, step: int):
        """Return this rank's part of a batch; one that cannot be read fails inside of the step."""
        try:
            with parts_of(self.model).engine.listening.span("data"):
                return self.stream.batch(step)
        except StopVoted:  # on all ranks: a stream has ended
            raise
        except Exception as error:
            unreadable = Unreadable(error)
            return unreadable, unreadable

    def after_step(self, loss: float) -> None:
        """Report, validate and save where it is time for it."""
        run, step = self.settings.run, self.model.step_number
        is_last = step == run.steps
        if step % run.report_every == 0 or is_last:
            self.callbacks.after_report(step, self.report.speed(step, loss))
        began, is_best = time.perf_counter(), False
        if step % run.validate_every == 0 or is_last:
            is_best = self.best.note(step, self._validate())
        if step % run.checkpoint_every == 0 or is_last or is_best:
            self._save()
        self.report.leave_out(time.perf_counter() - began)

    def _save(self):
        """Write a checkpoint, into a folder that is whole. Collective."""
        has_saved = self.saves.newest is not None
        self.say(self._kept.mend(self.backend, self._watched, has_saved=has_saved))
        self.saves.save()

    def _validate(self) -> float:
        with parts_of(self.model).engine.listening.span("validation"):
            loss, metrics = self.validation.measure()
        values = {"validation_loss": loss, **self.task.loss_record(loss), **metrics}
        self.loop.judge(loss, values)
        return loss

    def _finish(self) -> str:
        shown = self.task.finish(self.model)
        if shown:
            self.reporter.line(shown)
        return shown

    def _say_why(self, reasons: Iterable[str]):
        """One line on what was decided, and by whom. Collective."""
        why = self.stops.reasons(reasons, self.loop.patience, self.backend)
        self.reporter.line(
            f"step {self.model.step_number}/{self.settings.run.steps}  stopping: {why}"
        )
