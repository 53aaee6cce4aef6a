"""Choice: which of several checkpoints is meant.

    "newest"   the last one that is valid
    "best"     the one whose validation had the lowest loss, the earlier of two that are equal
    100        that of step 100
    None       the best where the run had a patience (run.patience), else the newest

What decides stands in the manifest of each: its "validation" has the loss that was measured at its
step, and the patience of the run. So a folder that is copied, or has lost its best one, tells the
truth about what is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TypeAlias

from ..arguments import is_integer
from ..errors import CheckpointError, ConfigurationError
from .format.manifest import read_manifest

BEST, NEWEST = "best", "newest"
Which: TypeAlias = str | int | None


def checked_choice(which: Which) -> Which:
    """Return what a caller chose. Errors: ConfigurationError if it means nothing."""
    if which in (None, BEST, NEWEST) and not isinstance(which, int):
        return which
    if is_integer(which, at_least=0):
        return int(which or 0)
    raise ConfigurationError(
        f'checkpoint = {which!r:.100}; wanted "{BEST}", "{NEWEST}", a step, or None'
    )


def validation_loss(manifest: dict) -> float | None:
    """Return the loss that was measured at the step of a checkpoint; None if none was."""
    return (manifest.get("validation") or {}).get("loss")


@dataclass(frozen=True)
class Validated:
    """A checkpoint whose step was validated."""

    loss: float
    step: int
    folder: Path

    @property
    def rank(self) -> tuple[bool, float, int]:
        """The lowest loss first, NaN last; of equal ones the earliest step."""
        is_number = not isnan(self.loss)
        return not is_number, self.loss if is_number else 0.0, self.step

    def leads(self, other: "Validated | None") -> bool:
        """Return True if it is better than the other, or there is no other."""
        return other is None or self.rank < other.rank


def best_of(folders: Sequence[Path], most_steps: int | None = None) -> Validated | None:
    """Return the best of these checkpoints; None if none of them was validated."""
    return min(validated(folders, most_steps)[0], key=lambda found: found.rank, default=None)


def validated(
    folders: Sequence[Path], most_steps: int | None = None
) -> tuple[list[Validated], list[str]]:
    """Return those checkpoints that were validated, and why some of them cannot be read.

    most_steps   later ones do not count; None: all do
    """
    found, unreadable = [], []
    for folder in folders:
        try:
            manifest = read_manifest(folder)
        except (CheckpointError, OSError) as error:
            unreadable.append(str(error))
            continue
        loss, step = validation_loss(manifest), manifest["step"]
        if loss is not None and (most_steps is None or step <= most_steps):
            found.append(Validated(loss, step, folder))
    return found, unreadable


@dataclass(frozen=True)
class Taken:
    """Which of several checkpoints was taken, in words; "" where there was one to take."""

    text: str = ""
    is_newest: bool = True


@dataclass(frozen=True)
class Chosen:
    """The folders to try, the first of them first.

    which        as what they were chosen: None is settled
    newest       the step of the newest of all
    passed_over  why better ones are not among them
    """

    which: Which
    folders: list[Path]
    newest: int
    passed_over: list[str]

    def taken(self, folder: Path, manifest: dict) -> "Taken":
        """Say which checkpoint was taken, and as what."""
        step, loss = manifest["step"], validation_loss(manifest)
        measured = "" if loss is None else f", validation loss {loss:.6g}"
        newest = "" if step == self.newest else f"; the newest is of step {self.newest}"
        what = f", the {self.which}" if isinstance(self.which, str) else ""
        text = f"checkpoint of step {step}{what}{measured}{newest} ({folder})"
        return Taken(text, step == self.newest)


def choose(which: Which, folders: Sequence[Path], where: str) -> Chosen:
    """Choose among these checkpoints, the newest first.

    where    they are, for errors
    Errors: CheckpointError if none is what was asked for, with the steps that are there.
    """
    steps = {folder: step_of(folder) for folder in folders}
    newest = steps[folders[0]]
    asked = which
    if which is None:
        which = BEST if _has_patience(folders) else NEWEST
    if which == NEWEST:
        return Chosen(which, list(folders), newest, [])
    if isinstance(which, int):
        of_step = [folder for folder in folders if steps[folder] == which]
        if not of_step:
            raise CheckpointError(
                f"there is no checkpoint of step {which} in {where}; there "
                f"{_are(sorted(set(steps.values())))}"
            )
        return Chosen(which, of_step, newest, [])
    found, unreadable = validated(folders)
    if found:
        ranked = [each.folder for each in sorted(found, key=lambda each: each.rank)]
        return Chosen(BEST, ranked, newest, unreadable)
    if asked is None:  # the run ended, or was ended, before its first validation
        return Chosen(NEWEST, list(folders), newest, [])
    raise CheckpointError(
        f"no checkpoint in {where} was validated at its step, so none is the best; there "
        f"{_are(sorted(set(steps.values())))}: take {NEWEST}, or one of them by its step"
    )


def _has_patience(folders: Sequence[Path]) -> bool:
    """Return True if the newest one that can be read is of a run with a patience."""
    for folder in folders:
        try:
            return bool((read_manifest(folder).get("validation") or {}).get("patience"))
        except (CheckpointError, OSError):
            continue
    return False


def step_of(folder: Path) -> int:
    """Return the step in the name of a checkpoint's folder."""
    return int(folder.name.removeprefix("step-").partition(".")[0])


def _are(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[-20:]))
    more = "..., " if len(steps) > 20 else ""
    return f"{'is' if len(steps) == 1 else 'are'} {more}{shown}"
