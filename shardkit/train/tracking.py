"""run.track: the curve of a run in TensorBoard, Weights & Biases or MLflow, from rank 0.

Each is a callback; its library is imported when a run that names it starts. A run that goes on
continues its curve. A library that fails does not end the run: see Patient.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, InputError
from ..files.notes import Notes, read_note, tell
from ..files.reading import parsed_json, wanted
from ..parallel.model.callback import Callback

_ID_FILE = "tracking.json"  # in the run folder: under which name a tracker knows the run
_MOST_WAITING = 10_000  # points of a curve that are kept for a tracker that fails
_RETRY_SECONDS = 30.0  # from a failure until it is asked again
_PATIENCE = 20  # times as long as the failure took, if that is more: the other ranks wait
_END_SECONDS = 60.0  # that it may take to end its curve
_MOST_EVENTS = 1 << 30  # that wait for the disk: the library blocks for ever where more would


class Tracker:
    """What a library is told of a run: its start, the numbers of steps, its end. May raise."""

    def at_start(self, run) -> None:
        """Begin a curve, or go on with it."""
        raise NotImplementedError

    def write(self, step: int, values: dict[str, float]) -> None:
        """Write these numbers of a step."""
        raise NotImplementedError

    def at_end(self, result) -> None:
        """End the curve."""
        raise NotImplementedError


class TensorBoard(Tracker):
    """Event files in the run folder, under tensorboard."""

    def __init__(self, folder: Path, settings):
        from tensorboardX import SummaryWriter

        self._make = SummaryWriter
        self._folder = str(folder / "tensorboard")

    def at_start(self, run):
        first = run.model.step_number + 1  # also in the file's name, which else has only seconds
        self._writer = self._make(
            self._folder, purge_step=first, filename_suffix=f".{first}", max_queue=_MOST_EVENTS
        )

    def write(self, step, values):
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def at_end(self, result):
        self._writer.close()


class WeightsAndBiases(Tracker):
    """A run of the project that WANDB_PROJECT names, in the mode of WANDB_MODE."""

    def __init__(self, folder: Path, settings):
        import wandb

        self._wandb, self._folder, self._settings = wandb, folder, settings

    def at_start(self, run):
        self._run = self._wandb.init(
            name=self._folder.name,
            dir=str(self._folder),
            config=self._settings.to_dict(),
            id=_known_id(self._folder),
            resume="allow",
        )
        _keep_id(self._folder, self._run.id)

    def write(self, step, values):
        self._run.log(values, step=step)

    def at_end(self, result):
        self._run.finish()


class MLflow(Tracker):
    """A run on the server, or in the folder, that MLFLOW_TRACKING_URI names."""

    def __init__(self, folder: Path, settings):
        import mlflow

        self._mlflow, self._folder, self._settings = mlflow, folder, settings

    def at_start(self, run):
        known = _known_id(self._folder)
        begun = self._mlflow.start_run(run_id=known, run_name=self._folder.name)
        if known is None:
            _keep_id(self._folder, begun.info.run_id)
            self._mlflow.log_params(
                {name: self._settings.value(name) for name in self._settings.keys()}
            )

    def write(self, step, values):
        self._mlflow.log_metrics(values, step=step)

    def at_end(self, result):
        self._mlflow.end_run()


TRACKERS = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


class Patient(Callback):
    """A tracker that never ends the run: what it does not take waits, and it is asked again."""

    def __init__(self, name: str, tracker: Tracker):
        self._name, self._tracker = name, tracker
        self._waiting: deque[tuple[int, dict]] = deque(maxlen=_MOST_WAITING)
        self._run: Any = None
        self._has_started = False
        self._failure: str | None = None
        self._next_try = 0.0

    def at_start(self, run):
        self._run = run
        self._send()

    def after_report(self, step, values):
        self._waiting.append((step, values))
        self._send()

    def after_validation(self, step, values):
        self.after_report(step, values)

    def at_end(self, result):
        self._next_try = 0.0
        self._send()
        if self._waiting:
            tell(f"warning: {self._named}: {len(self._waiting):,} points were never written")
        if self._has_started:
            self._end(result)

    def _send(self):
        began = time.monotonic()
        if began < self._next_try:
            return
        try:
            if not self._has_started:
                self._tracker.at_start(self._run)
                self._has_started = True
            while self._waiting:
                self._tracker.write(*self._waiting[0])
                self._waiting.popleft()
        except Exception as error:
            self._fail(error, time.monotonic() - began)
        else:
            if self._failure is not None:
                tell(f"{self._named} is written again")
            self._failure = None

    def _end(self, result):
        """End the curve, without waiting for ever for a library that stands still."""
        errors: list[Exception] = []
        work = _caught(lambda: self._tracker.at_end(result), errors)
        thread = threading.Thread(target=work, name="shardkit tracker", daemon=True)
        thread.start()
        thread.join(_END_SECONDS)
        if thread.is_alive():
            errors.append(TimeoutError(f"it did not end within {_END_SECONDS:g} s"))
        for error in errors:
            self._fail(error)

    def _fail(self, error: Exception, seconds: float = 0.0):
        self._next_try = time.monotonic() + max(_RETRY_SECONDS, _PATIENCE * seconds)
        if self._failure is None:
            self._failure = f"{type(error).__name__}: {error}"
            tell(
                f"warning: {self._named} cannot be written: {self._failure}; training goes on, and "
                "metrics.jsonl has the curve"
            )

    @property
    def _named(self) -> str:
        return f"the curve of run.track = {self._name!r}"


def _caught(work: Callable[[], None], errors: list[Exception]) -> Callable[[], None]:
    """Return a function that does the work and adds its error to these."""

    def run():
        try:
            work()
        except Exception as error:
            errors.append(error)

    return run


def make_tracker(name: str, folder: Path, settings) -> Patient:
    """Return the tracker of this name. Errors: ConfigurationError if it is not installed."""
    try:
        return Patient(name, TRACKERS[name](folder, settings))
    except ImportError as error:
        raise ConfigurationError(
            f"run.track = {name!r} needs {error.name}, which is not installed; install "
            f'"shardkit[{name}]", or leave run.track out'
        ) from None


def _known_id(folder: Path) -> str | None:
    """Return the name that the tracker gave the run when it started; None if it did not yet."""
    path = folder / _ID_FILE
    text = read_note(path)
    if not text:
        return None
    try:
        return wanted(parsed_json(text.encode(), path).get("id"), str, path, "id")
    except InputError as error:
        tell(f"warning: {error}; the tracker begins a new run")
        return None


def _keep_id(folder: Path, own: str) -> None:
    notes = Notes()
    notes.write(folder / _ID_FILE, json.dumps({"id": own}))
    notes.close()
