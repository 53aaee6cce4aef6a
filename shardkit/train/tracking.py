"""run.track: the curve of a run in TensorBoard, Weights & Biases or MLflow, from rank 0.

Each is a callback; its library is imported when a run that names it starts. A run that goes on
continues its curve.
"""

import json
from pathlib import Path

from ..errors import ConfigurationError
from ..files.reading import read_json, wanted
from ..parallel.model.callback import Callback

_ID_FILE = "tracking.json"  # in the run folder: under which name a tracker knows the run


class Tracker(Callback):
    """The numbers of reports and validations, handed to write()."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Write these numbers of a step."""
        raise NotImplementedError

    def after_report(self, step, values):
        self.write(step, values)

    def after_validation(self, step, values):
        self.write(step, values)


class TensorBoard(Tracker):
    """Event files in the run folder, under tensorboard."""

    def __init__(self, folder: Path, settings):
        from tensorboardX import SummaryWriter

        self._make = SummaryWriter
        self._folder = str(folder / "tensorboard")

    def at_start(self, run):
        first = run.model.step_number + 1  # also in the file's name, which else has only seconds
        self._writer = self._make(self._folder, purge_step=first, filename_suffix=f".{first}")

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


def make_tracker(name: str, folder: Path, settings) -> Tracker:
    """Return the tracker of this name. Errors: ConfigurationError if it is not installed."""
    try:
        return TRACKERS[name](folder, settings)
    except ImportError as error:
        raise ConfigurationError(
            f"run.track = {name!r} needs {error.name}, which is not installed; install "
            f'"shardkit[{name}]", or leave run.track out'
        ) from None


def _known_id(folder: Path) -> str | None:
    """Return the name that the tracker gave the run when it started; None if it did not yet."""
    path = folder / _ID_FILE
    if not path.exists():
        return None
    return wanted(read_json(path).get("id"), str, path, "id")


def _keep_id(folder: Path, own: str) -> None:
    (folder / _ID_FILE).write_text(json.dumps({"id": own}))
