"""The folder of an optimize(): what it has done so far, so that it can go on after an end.

    folder/checkpoints/step-...    the newest two, and that of the best epoch so far of each of
                                   them; each has the EpochProgress that belongs to it

A run that is told to stop between two steps of an epoch goes on with the next batch of that epoch,
on any mesh, and ends with the result that an uninterrupted one has. Where the folder takes no
checkpoint, training goes on, and it is tried again (saves.py).
"""

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy

from ...checkpoint.choice import Validated, step_of
from ...checkpoint.find import find_description
from ...checkpoint.format.files import make_folder
from ...comm.failure.agreement import by_first, collectively
from ...errors import CheckpointError, ShardingWarning
from ...files.paths import usable_path
from ...files.removing import remove_file
from ...files.writing import fresh_file
from ...tree import leaves
from .callback import Callback
from .optimization import SETS, OptimizationInputData
from .patience import Patience
from .saves import LastSave, Saved, Saves
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
    kept              the best one that is on disk, which is another one if that of `best` could not
                      be written; None: there is none
    """

    epoch: int = 0
    batch: int = 0
    total: float = 0.0
    count: int = 0
    fitness_history: list[float] = field(default_factory=list)
    first_step: int = 0
    best: Validated | None = None
    kept: Validated | None = None

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
        here = _validated(fitness, step)
        is_best = here.leads(self.best)
        self.best = here if is_best else self.best
        return is_best

    def kept_with(self, step: int) -> Validated | None:
        """Return the best one that is on disk once the checkpoint of this step is there too."""
        if self.batch or not self.fitness_history:
            return self.kept
        here = _validated(self.fitness_history[-1], step)
        return here if here.leads(self.kept) else self.kept

    def validation(self, step: int) -> dict:
        """Return what the checkpoint of this step says of its fitness, and of the best one, which
        stays.
        """
        ended = self.fitness_history[-1:] if self.batch == 0 else []
        loss = next((fitness for fitness in ended if isfinite(fitness)), None)
        best = self.kept_with(step)
        return {"loss": loss, "best_step": best and best.step}


def _validated(fitness: float, step: int) -> Validated:
    """Return the checkpoint of this step, whose epoch had this fitness."""
    return Validated(fitness, step, Path(f"step-{step:08d}"))


class NoJournal:
    """In place of a Journal: nothing is written."""

    folder = None

    def find(self) -> EpochProgress | None:
        """Begin at the start."""
        return None

    def load_best(self, progress: EpochProgress) -> None:
        """Load nothing."""

    def save(self) -> None:
        """Write nothing."""

    def look(self) -> None:
        """Try nothing again."""

    def finish(self) -> None:
        """Wait for nothing."""


class Journal:
    """The files of one optimize(), and the SaveNews of its saves. Its methods are collective.

    progress    function () -> where the run is now
    patience    is stored, so that those who load may ask for the best
    callbacks   hear of each checkpoint
    is_hurried  function () -> bool: a signal has come that a kill follows soon
    """

    advice = "Make room and call optimize() with this folder again"

    def __init__(
        self,
        folder,
        model: ShardedModel,
        given: OptimizationInputData,
        progress: Callable[[], EpochProgress],
        *,
        patience: Patience,
        callbacks: Callback,
        is_hurried: Callable[[], bool],
    ):
        with collectively(model.mesh.world):
            self.folder = Path(usable_path(folder))
        self._model, self._progress = model, progress
        self._patience, self._callbacks = patience, callbacks
        with collectively(model.mesh.world):
            self._outline = _outline_of(given)
        last = LastSave(is_hurried=is_hurried)
        self._saves = Saves(model, (self._checkpoints,), self, last)

    def find(self) -> EpochProgress | None:
        """Bring the model to where the newest checkpoint is; None if there is none.

        Errors, on all ranks: CheckpointError if it belongs to other data, the model is unchanged
        then, or if nothing can be written into the folder; those of load_model.
        """
        if not by_first(self._model.mesh.world, self._has_run):
            return None
        stored = self._model.load_model(self._checkpoints)["data_position"]["progress"]
        step = self._model.step_number
        self._saves.go_on_from(step, str(self._checkpoints / f"step-{step:08d}"))
        progress = _from_json(stored)
        self._tell_of_lost(progress)
        return progress

    def _has_run(self) -> bool:
        """Return whether there is a run to go on with. On one rank; errors: as find()."""
        self._try_to_write()
        has_run = any(self._checkpoints.glob("step-*[0-9]"))
        if has_run:
            self._check(find_description(self._checkpoints).manifest["data_position"])
        return has_run

    def _try_to_write(self) -> None:
        """Errors: CheckpointError if the folder takes no file: no step is worth training then."""
        try:
            make_folder(self.folder)
            remove_file(fresh_file(self.folder / "checkpoints"))
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} takes no checkpoints: {error}; give optimize() a folder that can "
                "be written to, or None"
            ) from None

    def _tell_of_lost(self, progress: EpochProgress) -> None:
        """Warn if the best epoch so far has no checkpoint."""
        best = progress.best
        lowest = min(filter(isfinite, progress.fitness_history), default=None)
        if lowest is None or best is not None and best.loss <= lowest:
            return
        there = (
            "none is there" if best is None else f"the best that is there is of step {best.step}"
        )
        self._warn(
            f"the checkpoint of the best epoch so far, with a fitness of {lowest:.6g}, could not "
            f"be written into {self._checkpoints}; {there}, and the run goes on with that"
        )

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

    # ---- saves -----------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint that goes on from here, unless it is there already."""
        self._saves.save()

    def look(self) -> None:
        """Try again, if the last checkpoint could not be written some time ago."""
        self._saves.look()

    def finish(self) -> None:
        """Wait until the newest state is on disk. Errors: as Saves.finish()."""
        self._saves.finish()

    def content(self, step: int) -> dict[str, Any]:
        """Return where the run is, with which data, and which epoch is the best that is kept."""
        progress = self._progress()
        return {
            "keep": _KEEP,
            "data_position": {"progress": _to_json(progress, step), "input": self._outline},
            "validation": {**progress.validation(step), "patience": self._patience.limit},
        }

    def paused(self, step: int, seconds: float) -> None:
        """Keep no record of it: training stands still for all of a save."""

    def saved(self, saved: Saved) -> None:
        """Note that a checkpoint is there."""
        progress = self._progress()
        progress.kept = progress.kept_with(saved.step)
        self._callbacks.after_checkpoint(saved.step, saved.folder)

    def failed(self, step: int, text: str) -> None:
        """Warn that the folder takes no checkpoints."""
        self._warn(f"optimize(), step {step}: {text}")

    def healed(self, place: Path) -> None:
        """Say that it takes them again."""
        self._warn(f"{place} can be written again")

    def _warn(self, text: str) -> None:
        """Warn on rank 0; where warnings are errors, raise on all ranks."""
        with collectively(self._model.mesh.world):
            if self._model.rank == 0:
                warnings.warn(text, ShardingWarning, stacklevel=3)


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


def _to_json(progress: EpochProgress, step: int) -> dict:
    """Return the progress with its floats as text: JSON has no NaN.

    Its best is one that is on disk, once the checkpoint of this step is.
    """
    best = progress.kept_with(step)
    own = {name: value for name, value in vars(progress).items() if name != "kept"}
    return {
        **own,
        "total": str(progress.total),
        "fitness_history": [*map(str, progress.fitness_history)],
        "best": best and best.folder.name,
        "fitness": str(best and best.loss),
    }


def _from_json(stored: dict) -> EpochProgress:
    """Return what _to_json() was given."""
    rest = {name: value for name, value in stored.items() if name != "fitness"}
    folder = stored["best"] and Path(stored["best"])
    best = folder and Validated(float(stored["fitness"]), step_of(folder), folder)
    return EpochProgress(
        **{
            **rest,
            "total": float(stored["total"]),
            "fitness_history": [*map(float, stored["fitness_history"])],
            "best": best,
            "kept": best,
        }
    )
