"""Candidates: the checkpoints that a path means, and the first of them that is good.

    a checkpoint                      itself: it is taken, or refused
    a folder of them, a run folder    those in it, the newest first, or as was chosen (choice.py)
    several folders of them           those of all together

One rank looks into the folders, once; then all try the same ones, one after the other.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..errors import CheckpointError, ConfigurationError
from ..files.paths import usable_path
from .choice import NEWEST, Chosen, Taken, Which, choose, step_of
from .fit import Wanted
from .format.manifest import MANIFEST_NAME
from .load import Checkpoint, verify_together

_STEP = re.compile(r"step-(\d{8,})")
LEFTOVER = re.compile(r"step-(\d{8,})(\.deleted)?\.tmp")
ASIDE = re.compile(r"step-(\d{8,})\.old")


# ---- folders -------------------------------------------------------------------------------------


def named(folder: Path, pattern: re.Pattern) -> list[Path]:
    """Return what is in a folder under such names; nothing if there is no folder."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if pattern.fullmatch(path.name)]


def steps_in(folder: Path) -> list[Path]:
    """Return the folders of finished checkpoints, valid or not, oldest first."""
    return [path for path in reversed(_readable(folder)) if path.suffix != ".tmp"]


def _readable(*folders: Path) -> list[Path]:
    """Return what a loader may look at in these folders, the newest first.

    These are the steps, and what a job that died left in the middle of a replacement: the old
    checkpoint, and the new one if that is complete but for its name.
    """
    found: list[tuple[int, int, Path]] = []
    for folder in folders:
        steps, asides = named(folder, _STEP), named(folder, ASIDE)
        new = [path.with_suffix(".tmp") for path in asides if path.with_suffix("") not in steps]
        found += [(step_of(path), 3, path) for path in steps]
        found += [(step_of(path), 2, path) for path in new if path.is_dir()]
        found += [(step_of(path), 1, path) for path in asides]
    found.sort(key=lambda each: each[:2], reverse=True)  # stable: the first folder's come first
    return [path for *_, path in found]


def locate(path) -> tuple[Path, str | None]:
    """Return (folder of checkpoints, name of the one that is meant) for a path.

    path   a checkpoint, a folder of them or a run folder; what holds checkpoints itself is no run
           folder
    The name is None if the newest valid one is meant.
    """
    path = Path(usable_path(path))
    if steps_in(path):
        return path, None
    if path.is_dir():
        if re.fullmatch(r"step-\d+", path.name) or (path / MANIFEST_NAME).exists():
            return path.parent, path.name
    inside = path / "checkpoints"
    return (inside if inside.is_dir() else path), None


def _existing(folders: Sequence[Path]) -> list[Path]:
    """Return what is readable. Errors: FileNotFoundError if nothing is, which says why."""
    found = _readable(*folders)
    if found:
        return found
    (first, *others) = folders
    if others or first.is_dir():
        raise FileNotFoundError(f"no checkpoints in {', '.join(map(str, folders))}")
    if first.exists():
        raise FileNotFoundError(
            f"no checkpoints: {first} is a file; wanted a folder of checkpoints, or one of them"
        )
    raise FileNotFoundError(f"no checkpoint folder {first}")


def _unfinished(folder: Path) -> list[str]:
    """Return why what else is in a folder is not tried."""
    found = [path for path in named(folder, LEFTOVER) if ".deleted" not in path.suffixes]
    return [
        f"{path} was never finished: its writing was cut short"
        for path in sorted(found)
        if path not in _readable(folder)
    ]


# ---- the first that is good ----------------------------------------------------------------------


def _no_values(checkpoint: Checkpoint, fit: Any) -> None:
    """Take a checkpoint for good without reading its values."""


@dataclass
class Candidates:
    """The checkpoints that a path means.

    where     the folder that they are in, for errors
    folders   of those to try, the first of them first
    skipped   why others were passed over, first those that are not tried
    chosen    which of several; None: the path is that of one
    """

    where: Path
    folders: list[Path]
    skipped: list[str]
    chosen: Chosen | None = None

    @classmethod
    def at(cls, path, which: Which = NEWEST) -> "Candidates":
        """Look at a path, as locate() takes it, or into a tuple of folders. On one rank.

        which   of several, see choice.py
        Errors: FileNotFoundError if there is none, CheckpointError if none was meant;
        ConfigurationError if there is one checkpoint and nothing to choose.
        """
        name = None
        if isinstance(path, tuple):
            folders = list(map(Path, path))
        else:
            *folders, name = locate(path)
        where = folders[0]
        if name is not None:
            return cls(where, [_the_one(where / name, which)], [])
        chosen = choose(which, _existing(folders), str(where))
        tells_all = len(folders) == 1 and chosen.which == NEWEST
        unfinished = _unfinished(where) if tells_all else []
        return cls(where, chosen.folders, unfinished + chosen.passed_over, chosen)

    def first_valid(self, backend: CommunicationBackend) -> Checkpoint:
        """Return the first checkpoint that is complete and whose checksums hold. Collective."""
        return self.first_good(backend, lambda found, fit: verify_together(found, backend))[0]

    def first_good(
        self,
        backend: CommunicationBackend,
        read: Callable[[Checkpoint, Any], None] = _no_values,
        wanted: Wanted | None = None,
    ) -> tuple[Checkpoint, Any]:
        """Return the first checkpoint that is complete and good, and its fit. Collective.

        read      function (checkpoint, its fit), collective: raises CheckpointError if the values
                  are damaged
        wanted    by a model: a checkpoint that does not go with it is refused, not passed over,
                  unless it is damaged. None: by nobody, and there is no fit
        Errors, on all ranks: PermissionError, CheckpointError if none is good, or the first valid
        one is refused.
        """
        refused: list[tuple[Checkpoint, CheckpointError]] = []
        for folder in self.folders:
            try:
                checkpoint = Checkpoint.opened_together(folder, backend)
            except CheckpointError as error:
                self.skipped.append(str(error))
                continue
            try:
                with collectively(backend):
                    fit = None if wanted is None else checkpoint.fit(wanted)
            except CheckpointError as error:
                refused.append((checkpoint, error))
                continue
            self._pass_over(refused, backend)
            try:
                read(checkpoint, fit)
                return checkpoint, fit
            except CheckpointError as error:
                self.skipped.append(str(error))
        if refused:
            raise self._in_context(refused[0][1])
        raise CheckpointError(f"no valid checkpoint in {self.where}: " + "; ".join(self.skipped))

    def _pass_over(self, refused: list, backend: CommunicationBackend) -> None:
        """Pass over refused checkpoints that are damaged. Collective.

        They are read only when an older one goes with the model.
        Errors: why the newest valid one of them was refused.
        """
        while refused:
            checkpoint, refusal = refused.pop(0)
            try:
                verify_together(checkpoint, backend)
            except CheckpointError as error:
                self.skipped.append(str(error))
                continue
            raise self._in_context(refusal)

    def _in_context(self, refusal: CheckpointError) -> CheckpointError:
        """Return this refusal with the reasons why newer ones were passed over."""
        return CheckpointError("; passed over: ".join([str(refusal), *self.skipped]))

    def taken(self, checkpoint: Checkpoint) -> Taken:
        """Say which one this is."""
        if self.chosen is None:
            return Taken()
        return self.chosen.taken(checkpoint.folder, checkpoint.manifest)


def _the_one(folder: Path, which: Which) -> Path:
    """Return the folder. Errors: ConfigurationError if one of several was to be chosen."""
    if which not in (None, NEWEST):
        raise ConfigurationError(
            f"{folder} is one checkpoint, so there is none to choose (checkpoint = {which!r}); "
            "leave that out, or name the folder around it"
        )
    return folder
