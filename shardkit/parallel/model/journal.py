"""The folder of an optimize(): what it has done so far, so that it can go on after an end.

    folder/checkpoints/step-...    the newest two, and that of the best epoch so far of each of
                                   them; each has the EpochProgress that belongs to it

A run that is told to stop between two steps of an epoch goes on with the next batch of that epoch,
on any mesh, and ends with the result that an uninterrupted one has.
"""

import hashlib
from dataclasses import field
from math import isfinite
from pathlib import Path

import numpy

from ...checkpoint.choice import Validated, step_of
from ...checkpoint.find import find_description
from ...comm.failure.agreement import collectively
from ...errors import CheckpointError
from ...files.paths import usable_path
from ...tree import leaves
from ...values import dataclass
from .optimization import SETS, OptimizationInputData
from .patience import Patience
from .sharded_model import ShardedModel

_KEEP = 2
_BEST = "best"  # in the folder; older releases wrote the best epoch there


@dataclass
class EpochProgress:
    """How far an optimize() has come.

    epoch, batch      what is trained next
    total, count      of the epoch so far: the sum of the loss over samples, and the samples
    fitness_history   of the epochs that are done
    first_step        step number of the model when it began
    best              the checkpoint of the best epoch, and its fitness; None before the first
    """

    epoch: int = 0
    batch: int = 0
    total: float = 0.0
    count: int = 0
    fitness_history: list[float] = field(default_factory=list)
    first_step: int = 0
    best: Validated | None = None

    def add(self, loss: float, samples: int) -> None:
        """Go on to the next batch, after one of this loss before its step."""
        self.total += samples * loss
        self.count += samples
        self.batch += 1

    @property
    def mean_loss(self) -> float:
        """Over the samples of the epoch so far."""
        return self.total / self.count

    def end_epoch(self, step: int, fitness: float) -> bool:
        """Go on to the next epoch; return True if the one that ends at this step is the best."""
        self.fitness_history.append(fitness)
        self.epoch, self.batch = self.epoch + 1, 0
        self.total, self.count = 0.0, 0
        here = Validated(fitness, step, Path(f"step-{step:08d}"))
        is_best = here.leads(self.best)
        self.best = here if is_best else self.best
        return is_best

    def validation(self) -> dict:
        """Return what a checkpoint says of its fitness, and of the best one, which stays."""
        ended = self.fitness_history[-1:] if self.batch == 0 else []
        loss = next((fitness for fitness in ended if isfinite(fitness)), None)
        return {"loss": loss, "best_step": self.best and self.best.step}


class Journal:
    """The files of one optimize(). Its methods are collective.

    patience   is stored, so that those who load may ask for the best
    """

    def __init__(
        self, folder, model: ShardedModel, given: OptimizationInputData, patience: Patience
    ):
        with collectively(model.mesh.world):
            self.folder = Path(usable_path(folder))
        self._model, self._patience = model, patience
        self._newest: int | None = None  # step of the newest
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
        self._newest = self._model.step_number
        return _from_json(stored)

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
        places = self._checkpoints, self.folder / _BEST
        self._model.load_model(places, only="model", checkpoint=progress.best.step)

    def save(self, progress: EpochProgress) -> str | None:
        """Write a checkpoint that goes on from here, and return its folder; None if it is there
        already.
        """
        if self._model.step_number == self._newest:
            return None
        position = {"progress": _to_json(progress), "input": self._outline}
        validation = {**progress.validation(), "patience": self._patience.limit}
        written = self._model.save_model(
            self._checkpoints, keep=_KEEP, data_position=position, validation=validation
        )
        self._newest = self._model.step_number
        return written


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


def _to_json(progress: EpochProgress) -> dict:
    """Return the progress with its floats as text: JSON has no NaN."""
    best = progress.best
    return {
        **vars(progress),
        "total": str(progress.total),
        "fitness_history": [*map(str, progress.fitness_history)],
        "best": best and best.folder.name,
        "fitness": str(best and best.loss),
    }


def _from_json(stored: dict) -> EpochProgress:
    """Return what _to_json() was given."""
    rest = {name: value for name, value in stored.items() if name != "fitness"}
    best = stored["best"] and Path(stored["best"])
    return EpochProgress(
        **{
            **rest,
            "total": float(stored["total"]),
            "fitness_history": [*map(float, stored["fitness_history"])],
            "best": best and Validated(float(stored["fitness"]), step_of(best), best),
        }
    )
