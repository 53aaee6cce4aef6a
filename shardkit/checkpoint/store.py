"""The folder of a run's checkpoints: write under a temporary name, check, and rename. The newest
valid one is found again by candidates.py.

    checkpoints/
      step-00000100/   manifest.json  index.h5  rank-00000.h5 ...
      step-00000200/
      step-00000300.tmp/      being written, or left by a job that died: not read, removed by the
                              next save
      newest                  text: step-00000200
      owner.json              who is saving; another one is refused (files/ownership.py)

A step that is saved again is put aside as step-00000200.old until the new one has its name. A job
that dies in between leaves step-00000200.tmp, complete, and step-00000200.old: both are read, and
the next save ends the replacement.
"""

import os
import re
import warnings
from pathlib import Path

from ..array.copies import Copies
from ..comm.backend import CommunicationBackend
from ..errors import CheckpointError, ConfigurationError
from ..files.ownership import Ownership
from ..files.removing import TEMPORARY, few, remove_file, remove_folder
from ..files.writing import give_name, whole_file
from .candidates import ASIDE, LEFTOVER, named, steps_in
from .choice import step_of
from .format.files import make_folder, sync
from .format.manifest import MANIFEST_NAME
from .load import Checkpoint
from .paths import of_model
from .saving import NAMES, Retention, Saving

_ADVICE = "both would save there: wait until it has saved, or choose another folder"


class CheckpointStore:
    """The checkpoints in one folder.

    copies       how arrays come from a GPU and go there: those of its Device; None: each by itself
    companions   {name: content} of files that every new checkpoint also gets (companions.py)
    team         the ranks that write one file together; None: each writes its own
    """

    def __init__(
        self,
        folder,
        *,
        copies: Copies | None = None,
        companions: dict[str, bytes] | None = None,
        team: CommunicationBackend | None = None,
    ):
        self.folder = Path(folder)
        self.copies = copies or Copies()
        self.companions = companions or {}
        self.team = team

    def folder_of(self, step: int) -> Path:
        """Return where the checkpoint of this step is."""
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[Path]:
        """Return the folders of finished checkpoints, valid or not, oldest first."""
        return steps_in(self.folder)

    def save(
        self,
        owned,
        backend: CommunicationBackend,
        description: dict,
        *,
        keep: int | None = None,
        keep_every: int | None = None,
    ) -> str:
        """Write a checkpoint and return its folder. Collective over `backend`.

        owned        (tensor path, Piece, 1-D array) each: over all ranks these must tile every
                     tensor exactly once
        description  goes into the manifest (see check_description); "step" names the folder
        keep         number of checkpoints to keep; None: all
        keep_every   steps that are multiples of this are kept too
        Errors, on all ranks: OSError, CheckpointError. The folder of this step is then as it was
        before.
        """
        retention = Retention(keep, keep_every)
        return Saving(self, backend, owned, description, retention).save(owned)

    def begin(self, temporary: Path) -> Ownership:
        """Clear up what a job that died has left, and make this folder. On one rank.

        returns   what keeps others from saving there, until it is released
        Errors: CheckpointError if the store is a checkpoint, or another process is saving there.
        """
        if (self.folder / MANIFEST_NAME).exists():
            raise CheckpointError(
                f"{self.folder} is a checkpoint itself; pass the folder that holds it, or another "
                "one"
            )
        make_folder(self.folder)
        try:
            owned = Ownership.take(self.folder, _ADVICE)
        except ConfigurationError as error:
            raise CheckpointError(str(error)) from None
        try:
            self._clear_up(temporary)
            temporary.mkdir()
        except BaseException:
            owned.release()
            raise
        return owned

    def _clear_up(self, temporary: Path) -> None:
        for aside in named(self.folder, ASIDE):
            self._end_replacement(aside)
        for pointer in named(self.folder, re.compile(TEMPORARY)):
            if pointer.is_file():
                remove_file(pointer)
        for leftover in named(self.folder, LEFTOVER):
            left = remove_folder(leftover, NAMES)
            if left and leftover == temporary:
                raise CheckpointError(
                    f"{temporary} holds what is no part of a checkpoint ({few(left)}), and a new "
                    "one has no place there; move it away"
                )

    def _end_replacement(self, aside: Path) -> None:
        """Give the step's name to the new checkpoint if it is complete, else to the old one."""
        final = aside.with_suffix("")
        temporary = aside.with_suffix(".tmp")
        if not final.exists():
            give_name(aside if _complete(temporary) is None else temporary, final)
            sync(self.folder)
        remove_folder(aside, NAMES)

    def check_replaced(self, new: Checkpoint, final: Path) -> None:
        """Refuse to replace a checkpoint of another model with CheckpointError. On one rank."""
        old = _complete(final)
        if old is not None and not _are_of_one_model(old, new):
            raise CheckpointError(
                f"{final} is of another model, and would be lost; choose another folder, or move "
                "it away"
            )

    def publish(self, temporary: Path, final: Path) -> None:
        """Give a complete checkpoint its name, and make it the newest. On one rank."""
        aside = final.with_suffix(".old")
        with whole_file(self.folder / "newest") as pointer:
            pointer.write(f"{final.name}\n".encode())
            pointer.flush()
            os.fsync(pointer.fileno())  # first, since it needs room on the disk
            if final.exists():
                give_name(final, aside)
            try:
                give_name(temporary, final)
            except OSError:
                if aside.exists():
                    give_name(aside, final)
                raise
        sync(self.folder)
        self._say_what_stays(aside)

    def delete_old(self, newest: Path, retention: Retention) -> None:
        """Delete the checkpoints that need not stay; warn of those that cannot be. On one rank.

        Only what is older than `newest`, which was just written and compared, is looked at. A
        damaged one does not count as one that is kept, so that valid ones are not deleted for it.
        Those of other models are left alone, and so is the best one that `newest` or another of the
        `keep` newest names: a run goes on from that one if `newest` turns out to be damaged.
        """
        if retention.keep is None:
            return
        new = Checkpoint(newest)
        kept = [new]
        older = [folder for folder in self.steps() if step_of(folder) < step_of(newest)]
        for folder in reversed(older):
            if len(kept) < retention.keep:
                old = _complete(folder)
                if old is not None and _are_of_one_model(old, new):
                    kept.append(old)
            elif not _is_best_of(kept, folder) and not retention.spares(step_of(folder)):
                self._delete(folder, new)

    def _delete(self, folder: Path, new: Checkpoint) -> None:
        old = _complete(folder)
        if old is not None and not _are_of_one_model(old, new):
            return
        deleted = folder.with_name(folder.name + ".deleted.tmp")
        try:
            give_name(folder, deleted)
        except OSError as error:  # the new one is there all the same
            warnings.warn(f"the old checkpoint {folder} was not deleted: {error}", stacklevel=3)
        else:
            self._say_what_stays(deleted)

    def _say_what_stays(self, old: Path) -> None:
        """Remove an old checkpoint; warn of what is in it and was not made by shardkit."""
        left = remove_folder(old, NAMES)
        if left:
            warnings.warn(f"of an old checkpoint stays {old.parent}: {few(left)}", stacklevel=4)


def _complete(folder: Path) -> Checkpoint | None:
    """Return the checkpoint, or None if its manifest or files do not say or hold all they must."""
    try:
        return Checkpoint(folder)
    except (CheckpointError, OSError):
        return None


def _is_best_of(checkpoints: list[Checkpoint], folder: Path) -> bool:
    """Return True if one of these names the checkpoint in the folder as the best of its run."""
    validations = [checkpoint.manifest.get("validation") or {} for checkpoint in checkpoints]
    return step_of(folder) in [validation.get("best_step") for validation in validations]


def _are_of_one_model(a: Checkpoint, b: Checkpoint) -> bool:
    """Return True if parameters have the same names and shapes; optimizer state may differ."""
    return of_model(a.shapes) == of_model(b.shapes)
