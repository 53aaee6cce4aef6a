"""The folder of an optimize(): what it has done so far, so that it can go on after an end.

    folder/checkpoints/step-...    the newest two, with the EpochProgress that belongs to each
    folder/best/step-...           the model at its best epoch so far, and at the one before

A run that is told to stop between two steps of an epoch goes on with the next batch of that epoch,
on any mesh, and ends with the result that an uninterrupted one has.
"""

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy

from ...checkpoint.find import find_description
from ...comm.failure.agreement import collectively
from ...errors import CheckpointError
from ...files.paths import usable_path
from ...tree import leaves
from .optimization import SETS, OptimizationInputData
from .sharded_model import ShardedModel

_KEEP = 2


@dataclass
class EpochProgress:
    """How far an optimize() has come.

    epoch, batch      what is trained next
    total, count      of the epoch so far: the sum of the loss over samples, and the samples
    fitness_history   of the epochs that are done
    first_step        step number of the model when it began
    best, fitness     the checkpoint of the best epoch, and its fitness; None before the first
    """

    epoch: int = 0
    batch: int = 0
    total: float = 0.0
    count: int = 0
    fitness_history: list[float] = field(default_factory=list)
    first_step: int = 0
    best: str | None = None
    fitness: float | None = None

    def end_epoch(self, fitness: float) -> None:
        """Go on to the next epoch."""
        self.fitness_history.append(fitness)
        self.epoch, self.batch = self.epoch + 1, 0
        self.total, self.count = 0.0, 0


class Journal:
    """The files of one optimize(). Its methods are collective."""

    def __init__(self, folder, model: ShardedModel, given: OptimizationInputData):
        with collectively(model.mesh.world):
            self.folder = Path(usable_path(folder))
        self._model = model
        with collectively(model.mesh.world):
            self._outline = _outline_of(given)

    def find(self) -> EpochProgress | None:
        """Bring the model to where the newest checkpoint is; None if there is none.

        Errors, on all ranks: CheckpointError if it belongs to other data, the model is unchanged
        then; those of load_model.
        """
        world = self._model.mesh.world
        has_run = None
        with collectively(world):
            if world.rank == 0:
                has_run = any(self._checkpoints.glob("step-*[0-9]"))
                if has_run:
                    self._check(find_description(self._checkpoints).manifest["data_position"])
        if not world.broadcast_object(has_run, 0):
            return None
        stored = self._model.load_model(self._checkpoints)["data_position"]["progress"]
        return EpochProgress(**_from_json(stored))

    @property
    def _checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def _check(self, stored: dict) -> None:
        """Raise CheckpointError unless a checkpoint was written by an optimize() of this data."""
        if "progress" not in stored:
            raise CheckpointError(
                f"{self._checkpoints} holds checkpoints that no optimize() wrote; give another "
                "folder"
            )
        for name, here in self._outline.items():
            there = stored["input"][name]
            if there != here:
                raise CheckpointError(
                    f"{self.folder} holds a run whose {name} is {there}, but here it is {here}; "
                    "give what it was begun with, or another folder"
                )

    def load_best(self, progress: EpochProgress) -> None:
        """Give the model the parameters of its best epoch."""
        self._model.load_model(self.folder / "best" / progress.best, only="model")

    def save(self, progress: EpochProgress) -> str:
        """Write a checkpoint that goes on from here; return its folder."""
        position = {"progress": _to_json(asdict(progress)), "input": self._outline}
        return self._model.save_model(self._checkpoints, keep=_KEEP, data_position=position)

    def save_best(self, progress: EpochProgress) -> None:
        """Write the model as that of the best epoch so far."""
        progress.best = Path(self._model.save_model(self.folder / "best", keep=_KEEP)).name


def _outline_of(given: OptimizationInputData) -> dict[str, str]:
    """Return what a run that goes on must have again: how it walks, and a hash of each array."""
    outline = {"batch_size": str(given.batch_size), "shuffle_seed": str(given.shuffle_seed)}
    for name in SETS[:2]:  # those that decide what is learned and which epoch is the best
        samples = given.samples(name)
        outline[f"{name} set"] = "absent" if samples is None else _hash_of(samples)
    return outline


def _hash_of(arrays) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in leaves(tuple(arrays)):
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(numpy.ascontiguousarray(array))
    return digest.hexdigest()


def _to_json(progress: dict) -> dict:
    """Return the progress with its floats as text: JSON has no NaN."""
    floats = {name: str(progress[name]) for name in ("total", "fitness")}
    return {**progress, **floats, "fitness_history": [*map(str, progress["fitness_history"])]}


def _from_json(progress: dict) -> dict:
    fitness = progress["fitness"]
    return {
        **progress,
        "total": float(progress["total"]),
        "fitness": None if fitness == "None" else float(fitness),
        "fitness_history": [*map(float, progress["fitness_history"])],
    }
