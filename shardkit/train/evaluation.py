"""Evaluate a run: loss and metrics of its newest checkpoint on any samples, on any mesh.

    samples  | window 0 | window 1 | window 2 | window 3 | ...    of batch.micro_batch samples
    data rank     0          1          0          1

The windows are the same for any number of ranks, and what they add up is exact, so the figures
are too (task/metrics.py). A rank that has no window in the last round runs along, uncounted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from ..comm.backend import CommunicationBackend
from ..comm.collectives.ordered import ordered_sum
from ..comm.failure.agreement import collectively
from ..data.samples import Samples
from ..errors import ConfigurationError
from ..nn.autograd import Tensor, no_grad
from ..nn.loss import as_loss
from ..parallel.model.sharded_model import ShardedModel
from ..task.metrics import LANES, exact_lanes, exact_value
from ..task.task import VALIDATION, Task
from .folder import has_checkpoints, stored_settings
from .model import make_model
from .ranks import num_replicas
from .settings import RunConfiguration, resumed


@dataclass(frozen=True)
class Figures:
    """What was measured: the mean loss, and the metrics by name, on so many samples."""

    step: int
    samples: int
    loss: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class SampleWindow:
    """Samples [first, stop) of a source, which this rank computes; others may do so too.

    is_counted  False if this rank only runs along
    """

    first: int
    stop: int
    x: Any
    y: Any
    is_counted: bool


class TrainedRun:
    """The task and the model of a run, at its newest valid checkpoint. The constructor is
    collective.

    given   {"section.key": value} that this evaluation takes instead of the stored settings
    Errors, on all ranks: ConfigurationError, CheckpointError, FileNotFoundError.
    """

    def __init__(self, folder: Path, given: dict[str, Any], backend: CommunicationBackend):
        with collectively(backend):
            if not has_checkpoints(folder):
                raise ConfigurationError(
                    f"{folder} holds no run with a checkpoint; wanted the folder of a run"
                )
            stored = stored_settings(folder)
            settings = on_these_ranks(resumed(stored, given), given, backend.world_size)
            self.task: Task = settings.make_task()
            self.task.open(folder)
        self.backend = backend
        self.window_samples = settings.batch.micro_batch
        self.model: ShardedModel = make_model(self.task, backend)
        self.step: int = self.model.load_model(folder / "checkpoints", only="model")["step"]

    @classmethod
    def of_model(cls, task: Task, model: ShardedModel) -> "TrainedRun":
        """Return one around a model that is there already."""
        made = cls.__new__(cls)
        made.task, made.model, made.backend = task, model, model.mesh.world
        made.window_samples, made.step = task.settings.batch.micro_batch, model.step_number
        return made

    def samples(self, path: str | None, *, has_targets: bool = True) -> Samples:
        """Return the samples of a source; None: those that the run held out. Collective.

        Errors, on all ranks: ConfigurationError, OSError.
        """
        with collectively(self.backend):
            if path is None:
                found = self.task.samples(VALIDATION)
            else:
                found = self.task.samples_of(path, has_targets=has_targets)
            if not len(found):
                raise ConfigurationError(f"{path} has no samples; wanted one or more")
        return found

    def windows(self, samples: Samples) -> Iterator[SampleWindow]:
        """Yield the windows of this rank, as many on every rank. Collective."""
        size, mesh = self.window_samples, self.model.mesh
        replica, replicas = mesh.coordinates.data, mesh.size("data")
        num_windows = -(-len(samples) // size)
        for begin in range(0, num_windows, replicas):
            number = min(begin + replica, num_windows - 1)
            first, stop = number * size, min((number + 1) * size, len(samples))
            with collectively(mesh.world):
                x, y = samples.read(numpy.arange(first, stop))
            yield SampleWindow(first, stop, x, y, number == begin + replica)

    def close(self) -> None:
        """Give memory and communicators back. Collective."""
        self.model.close()


def on_these_ranks(
    settings: RunConfiguration, given: dict[str, Any], num_ranks: int
) -> RunConfiguration:
    """Return the settings with a mesh and a global batch that so many ranks can share.

    Stages and tensor ranks of the run are kept if they divide the ranks, or were given.
    """
    axes = ("mesh.pipeline", "mesh.tensor")
    if num_ranks % (settings.mesh.pipeline * settings.mesh.tensor) and not given.keys() & set(axes):
        settings = settings.replace(dict.fromkeys(axes, 1))
    replicas = num_replicas(settings, num_ranks)
    return settings.replace({"batch.sequences": settings.batch.micro_batch * replicas})


def evaluate(run: TrainedRun, samples: Samples) -> Figures:
    """Return loss and metrics of all samples, the same on all ranks. Collective."""
    measured = _with_metrics if run.task.metrics else _loss_alone
    loss, metrics = measured(run, samples)
    return Figures(run.step, len(samples), loss, metrics)


def _loss_alone(run: TrainedRun, samples: Samples) -> tuple[float, dict[str, float]]:
    """Return the mean loss; predictions stay where they are made."""
    total, items = [], 0.0
    for window in run.windows(samples):
        of_round = run.model.engine.evaluation.total_loss(
            window.x, window.y, is_counted=window.is_counted
        )
        total.append(of_round[0])
        items += of_round[1]
    return exact_value(exact_lanes(total)) / items if items else float("nan"), {}


def _with_metrics(run: TrainedRun, samples: Samples) -> tuple[float, dict[str, float]]:
    """Return the mean loss and the metrics, from predictions."""
    metrics, model = run.task.metrics, run.model
    loss = as_loss(run.task.loss or model.wrapped_model.loss)
    vectors: list[numpy.ndarray] = []
    for window in run.windows(samples):
        prediction = model.predict(window.x)
        with collectively(model.mesh.world), no_grad():
            total = float(loss.total(Tensor(prediction), window.y).item())
            added = [numpy.array([*exact_lanes(total), loss.count(window.y)])]
            added += [metric.sums(prediction, window.y) for metric in metrics.values()]
        if not window.is_counted:
            added = [numpy.zeros_like(vector) for vector in added]
        vectors = [a + b for a, b in zip(vectors, added)] or added
    sums = [ordered_sum(model.mesh.group("data"), vector) for vector in vectors]
    items = sums[0][LANES]
    mean = exact_value(sums[0][:LANES]) / items if items else float("nan")
    return mean, {name: metrics[name].value(s) for name, s in zip(metrics, sums[1:])}
