"""Evaluate a run: loss and metrics of one of its checkpoints on any samples, on any mesh.

    samples  | window 0 | window 1 | window 2 | window 3 | ...    of batch.micro_batch samples
    data rank     0          1          0          1

The windows are the same for any number of ranks, so the figures are too (measuring.py). A rank
that has no window in the last round runs along, uncounted.
"""

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from ..checkpoint.choice import Which
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..comm.same import check_same
from ..data.raw.groups import is_frame
from ..data.samples import VALIDATION, Samples, reader_of
from ..errors import ConfigurationError, ShardingWarning
from ..files.paths import usable_path
from ..files.trust import Trust
from ..layout.axes import CHOSEN
from ..layout.mesh_shape import MeshShape
from ..parallel.model.measuring import Measurement
from ..parallel.model.sharded_model import ShardedModel, domain_part, parts_of
from ..task.given import ArraySamples, as_samples, is_indexed
from ..task.task import Task
from .agreement import agreed_folder, samples_alike
from .feed import reading_line
from .folder import has_checkpoints, no_run_in, stored_places, stored_settings
from .model import make_model
from .ranks import makes_groups, num_replicas
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
    """The task and the model of a run, at one of its checkpoints. The constructor is collective.

    given       {"section.key": value} that this evaluation takes instead of the stored settings
    averaged    with the averages that optimizer.ema_decay kept, instead of the weights
    task        of the run; None: it is loaded by the name that the folder gives, if it is trusted
    trust       files that the task of the run may be in, beside what is imported and built in
    checkpoint  which one: see checkpoint/choice.py
    chosen      which one it is, in words
    Errors, on all ranks: ConfigurationError, CheckpointError, FileNotFoundError.
    """

    def __init__(
        self,
        folder: Path,
        given: dict[str, Any],
        backend: CommunicationBackend,
        *,
        averaged: bool = False,
        trust: Trust = Trust(),
        checkpoint: Which = None,
        task: type[Task] | None = None,
    ):
        agreed_folder(folder, backend, averaged=averaged, settings=given)
        with collectively(backend):
            if not has_checkpoints(folder):
                raise no_run_in(folder)
            stored = stored_settings(folder, task, trust)
            settings = on_these_ranks(stored, given, backend.world_size)
            self.task: Task = settings.make_task()
            self.task.open(folder)
        self.backend = backend
        self.window_samples = settings.batch.micro_batch
        checkpoints = stored_places(folder)
        self.model: ShardedModel = make_model(self.task, backend, awaits=checkpoints)
        only = "averaged" if averaged else "model"
        taken = self.model.load_model(checkpoints, only=only, checkpoint=checkpoint)
        self.step: int = taken["step"]
        self.chosen: str = taken["chosen"]

    @classmethod
    def of_model(cls, task: Task, model: ShardedModel) -> "TrainedRun":
        """Return one around a model that is there already."""
        made = cls.__new__(cls)
        made.task, made.model, made.backend = task, model, model.mesh.world
        made.window_samples, made.step = task.settings.batch.micro_batch, model.step_number
        made.chosen = ""
        return made

    def samples(self, given: Any, *, has_targets: bool = True) -> Samples:
        """Return the samples of a source; None: those that the run held out. Collective.

        given   a path, or what else Task.samples_of takes; Samples, arrays (x, y), or x alone
        Errors, on all ranks: ConfigurationError, OSError; ShardingError if ranks give others.
        """
        kind = "a path" if isinstance(given, (str, os.PathLike)) else type(given).__name__
        check_same(self.backend, {"data": kind}, "pass the same data on all ranks")
        with collectively(self.backend):
            found = self._found(given, has_targets)
            if not len(found):
                raise ConfigurationError(f"{given!s:.200} has no samples; wanted one or more")
        samples_alike(found, "given", self.backend)
        line = reading_line(self.model, found)
        if line and self.backend.rank == 0:
            warnings.warn(line, ShardingWarning, stacklevel=2)
        return found

    def _found(self, given, has_targets: bool) -> Samples:
        if given is None:
            return as_samples(self.task.samples(VALIDATION))
        if isinstance(given, (Samples, tuple)) or is_indexed(given):
            return as_samples(given)
        if not has_targets and hasattr(given, "shape") and not is_frame(given):
            return ArraySamples(given, numpy.empty((len(given), 0), numpy.float32))
        source = usable_path(given) if isinstance(given, (str, os.PathLike)) else given
        return self.task.samples_of(source, has_targets=has_targets)

    def windows(self, samples: Samples) -> Iterator[SampleWindow]:
        """Yield the windows of this rank, as many on every rank. Collective."""
        size, mesh = self.window_samples, self.model.mesh
        samples_at, part = reader_of(samples), domain_part(self.model)
        replica, replicas = mesh.sample_part
        num_windows = -(-len(samples) // size)
        for begin in range(0, num_windows, replicas):
            number = min(begin + replica, num_windows - 1)
            first, stop = number * size, min((number + 1) * size, len(samples))
            with collectively(mesh.world):
                x, y = samples_at(numpy.arange(first, stop), part=part)
            yield SampleWindow(first, stop, x, y, number == begin + replica)

    def close(self) -> None:
        """Give memory and communicators back. Collective."""
        self.model.close()


# {axis: what says by hand how its ranks cut blocks or samples}
_BY_HAND = {"pipeline": "parallel.blocks_per_stage", "domain": "parallel.domain_grid"}


def on_these_ranks(
    stored: RunConfiguration, given: dict[str, Any], num_ranks: int
) -> RunConfiguration:
    """Return the settings of a run, changed by those that are given, with a mesh and a global batch
    that so many ranks can share.

    Stages and tensor ranks of the run are kept if they divide the ranks, or were given; so are its
    groups of data ranks, else all data ranks share one copy; and so is how the ranks of an axis cut
    what they have, where they are as many as in the run.
    """
    settings = resumed(stored, given)
    axes = [f"mesh.{axis}" for axis in CHOSEN]
    if num_ranks % MeshShape(**settings.mesh.sizes).size and not given.keys() & set(axes):
        settings = settings.replace(dict.fromkeys(axes, 1))
    left_out = [name for axis, name in _BY_HAND.items() if _differ_along(axis, stored, settings)]
    settings = settings.replace({name: None for name in left_out if name not in given})
    replicas = num_replicas(settings, num_ranks)
    chosen = "parallel.policy", "parallel.shard_ranks"
    if not given.keys() & set(chosen) and not makes_groups(settings, replicas):
        settings = settings.replace({"parallel.policy": "fsdp", "parallel.shard_ranks": None})
    return settings.replace({"batch.sequences": settings.batch.micro_batch * replicas})


def _differ_along(axis: str, a: RunConfiguration, b: RunConfiguration) -> bool:
    """Return True if an axis has another number of ranks in the one than in the other."""
    return a.mesh.sizes[axis] != b.mesh.sizes[axis]


def evaluate(run: TrainedRun, samples: Samples) -> Figures:
    """Return loss and metrics of all samples, the same on all ranks. Collective."""
    with Measurement(parts_of(run.model).engine, run.task.metrics, run.task.loss) as measured:
        for window in run.windows(samples):
            measured.add(*((window.x, window.y) if window.is_counted else (None, None)))
    return Figures(run.step, measured.samples, measured.loss, measured.metrics)
