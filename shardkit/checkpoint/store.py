"""The folder of a run's checkpoints: written under another name, checked, renamed; the newest valid
one is found again.

    checkpoints/
      step-00000100/   manifest.json  index.h5  rank-00000.h5 ...
      step-00000200/
      step-00000300.tmp/      being written, or left by a job that died: not read, removed by the
                              next save
      newest                  text: step-00000200

A step that is saved again is put aside as step-00000200.old until the new one has its name. A job
that dies in between leaves step-00000200.tmp, complete, and step-00000200.old: both are read, and
the next save goes on where it stopped.
"""

import re
import shutil
import warnings
from pathlib import Path

from ..array.copies import Copies
from ..comm import CommunicationBackend, collectively
from ..errors import CheckpointError
from .fit import model_shapes
from .format.files import make_folder, sync, write_text
from .format.manifest import MANIFEST_NAME
from .load import Checkpoint, verify_together
from .saving import Retention, Saving

_STEP = re.compile(r"step-(\d{8,})")
_LEFTOVER = re.compile(r"step-(\d{8,})(\.deleted)?\.tmp")
_ASIDE = re.compile(r"step-(\d{8,})\.old")


class CheckpointStore:
    """The checkpoints in one folder.

    copies       how arrays come from a GPU and go there: those of its Device; None: each by itself
    name         of the only one that is loaded; None: the newest valid one is
    companions   {name: content} of files that each checkpoint which is saved gets too
                 (companions.py)
    """

    def __init__(
        self,
        folder,
        copies: Copies | None = None,
        *,
        name: str | None = None,
        companions: dict[str, bytes] | None = None,
    ):
        self.folder, self._name, self.companions = Path(folder), name, companions or {}
        self.copies = copies or Copies()
        self.skipped: list[str] = []  # why the last search for a valid one passed over others

    def folder_of(self, step: int) -> Path:
        """Where the checkpoint of this step is."""
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[Path]:
        """The folders of finished checkpoints, oldest first; whether they are valid is another
        question.
        """
        return [path for path in self._all() if path.suffix != ".tmp"]

    def _all(self) -> list[Path]:
        """All that a loader may look at, the best last: a step, or what a job that died left in the
        middle of a replacement.
        """
        found = {}
        for path in self._named(_STEP):
            found[_step(path), 3] = path
        for aside in self._named(_ASIDE):
            step = _step(aside)
            found[step, 1] = aside
            complete = aside.with_suffix(".tmp")
            if (step, 3) not in found and complete.is_dir():
                found[step, 2] = complete
        return [found[key] for key in sorted(found)]

    def _named(self, pattern) -> list[Path]:
        return (
            [p for p in self.folder.iterdir() if pattern.fullmatch(p.name)]
            if self.folder.is_dir()
            else []
        )

    # ---- writing ---------------------------------------------------------------------------------

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
        keep         delete older ones but this many
        keep_every   and but those of steps that this divides
        Errors, on all ranks: OSError, CheckpointError. The folder of this step is then as it was
        before.
        """
        return Saving(self, backend, description, Retention(keep, keep_every)).save_at_once(owned)

    def begin(self, temporary: Path) -> None:
        """Make this folder, after whatever a job that died has left is cleared up. On one rank.

        Errors: CheckpointError if the store is a checkpoint.
        """
        if (self.folder / MANIFEST_NAME).exists():
            raise CheckpointError(
                f"{self.folder} is a checkpoint itself; pass the folder that holds it, or another one"
            )
        make_folder(self.folder)
        for aside in self._named(_ASIDE):
            self._settle(aside)
        for leftover in self._named(_LEFTOVER):
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir()

    def _settle(self, aside: Path) -> None:
        """End a replacement that was interrupted: with the new one if it is complete, else with the
        one put aside.
        """
        final, temporary = aside.with_suffix(""), aside.with_suffix(".tmp")
        if not final.exists():
            (aside if _complete(temporary) is None else temporary).rename(final)
            sync(self.folder)
        shutil.rmtree(aside, ignore_errors=True)

    def check_replaced(self, new: Checkpoint, final: Path) -> None:
        """Errors: CheckpointError if a checkpoint of another model has this name. On one rank."""
        old = _complete(final)
        if old is not None and not _are_of_one_model(old, new):
            raise CheckpointError(
                f"{final} is of another model, and would be lost; choose another folder, or move it away"
            )

    def publish(self, temporary: Path, final: Path) -> None:
        """Give a complete checkpoint its name, and make it the newest. On one rank."""
        pointer, aside = self.folder / "newest.tmp", final.with_suffix(".old")
        write_text(pointer, final.name + "\n")  # first, since it needs room on the disk
        if final.exists():
            final.rename(aside)
        try:
            temporary.rename(final)
        except OSError:
            if aside.exists():
                aside.rename(final)
            raise
        pointer.rename(self.folder / "newest")
        sync(self.folder)
        shutil.rmtree(aside, ignore_errors=True)

    def delete_old(self, newest: Path, retention: Retention) -> None:
        """Delete the checkpoints that need not stay; a warning tells what could not be deleted. On
        one rank.

        Only what is older than `newest`, which was just written and compared, is looked at. A
        damaged one does not count as one that is kept, so that valid ones are not deleted for it.
        Those of other models are left alone.
        """
        if retention.keep is None:
            return
        num_kept, new = 1, Checkpoint(newest)
        for folder in reversed(
            [folder for folder in self.steps() if _step(folder) < _step(newest)]
        ):
            if num_kept < retention.keep:
                old = _complete(folder)
                num_kept += old is not None and _are_of_one_model(old, new)
            elif retention.every is None or _step(folder) % retention.every:
                self._delete(folder, new)

    def _delete(self, folder: Path, new: Checkpoint) -> None:
        old = _complete(folder)
        if old is not None and not _are_of_one_model(old, new):
            return
        try:
            shutil.rmtree(folder.rename(folder.with_name(folder.name + ".deleted.tmp")))
        except OSError as error:  # the new one is there all the same
            warnings.warn(f"the old checkpoint {folder} was not deleted: {error}", stacklevel=3)

    # ---- finding ---------------------------------------------------------------------------------

    def newest_valid(self, backend: CommunicationBackend) -> Checkpoint:
        """The newest checkpoint that is complete and whose checksums hold. Collective over
        `backend`.

        `skipped` tells afterwards which newer ones were passed over, and why.
        Errors, on all ranks: FileNotFoundError if there is none, PermissionError, CheckpointError
        if none is valid.
        """
        return self._newest_that(lambda checkpoint: verify_together(checkpoint, backend), backend)

    def load_newest(
        self, owned, backend: CommunicationBackend, check, *, expendable: bool
    ) -> Checkpoint:
        """Fill the owned arrays from the newest valid checkpoint, and return that. Collective over
        `backend`.

        owned       (tensor path, Piece, 1-D array) each
        check       function (Checkpoint): raises if it does not go with the model, and is then not
                    passed over
        expendable  the arrays may hold anything after an error: each byte is then read once, and
                    verified on the way. Otherwise everything is verified before anything is filled.
        Errors: as newest_valid.
        """

        def load(checkpoint: Checkpoint):
            if expendable:
                return checkpoint.read_verified(owned, backend, self.copies)
            verify_together(checkpoint, backend)
            with collectively(backend):
                checkpoint.read_into(owned, self.copies)

        return self._newest_that(load, backend, check)

    def _newest_that(
        self, is_good, backend: CommunicationBackend, check=lambda checkpoint: None
    ) -> Checkpoint:
        """The newest complete checkpoint on which `is_good`, which is collective, raises no
        CheckpointError.
        """
        with collectively(backend):
            found = self.candidates() if backend.rank == 0 else None
        names, self.skipped = backend.broadcast_object(found, 0)
        refusals: list[tuple[Checkpoint, CheckpointError]] = []
        for name in names:
            try:
                checkpoint = Checkpoint.opened_together(self.folder / name, backend)
            except CheckpointError as error:
                self.skipped.append(str(error))
                continue
            refusal = _refusal(check, checkpoint, backend)
            if refusal is not None:
                refusals.append((checkpoint, refusal))
                continue
            self._pass_over(refusals, backend)
            try:
                is_good(checkpoint)
                return checkpoint
            except CheckpointError as error:
                self.skipped.append(str(error))
        raise self._in_context(refusals[0][1]) if refusals else self.no_valid_one(self.skipped)

    def _pass_over(self, refusals: list, backend: CommunicationBackend) -> None:
        """Pass over checkpoints of other models that are damaged. Collective. Errors: why the
        newest valid one was refused.

        Only an older one that goes with the model makes it worth to read them.
        """
        while refusals:
            checkpoint, refusal = refusals.pop(0)
            try:
                verify_together(checkpoint, backend)
            except CheckpointError as error:
                self.skipped.append(str(error))
                continue
            raise self._in_context(refusal)

    def _in_context(self, refusal: CheckpointError) -> CheckpointError:
        """The same, and why this one was looked at."""
        return CheckpointError("; passed over: ".join([str(refusal), *self.skipped]))

    def no_valid_one(self, reasons: list[str]) -> CheckpointError:
        """What there is to say if none can be loaded."""
        return CheckpointError(f"no valid checkpoint in {self.folder}: " + "; ".join(reasons))

    def candidates(self) -> tuple[list[str], list[str]]:
        """The names of those to try, and why others are not tried. Errors: FileNotFoundError if
        there are none.
        """
        if self._name is not None:
            return [self._name], []
        if not self.folder.exists():
            raise FileNotFoundError(f"no checkpoint folder {self.folder}")
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"no checkpoints: {self.folder} is a file; wanted a folder of checkpoints, or one of them"
            )
        names = [path.name for path in reversed(self._all())]
        if not names:
            raise FileNotFoundError(f"no checkpoints in {self.folder}")
        unfinished = sorted(
            path for path in self._named(_LEFTOVER) if _LEFTOVER.fullmatch(path.name)[2] is None
        )
        return names, [
            f"{path} was never finished: its writing was cut short"
            for path in unfinished
            if path.name not in names
        ]


def _refusal(
    check, checkpoint: Checkpoint, backend: CommunicationBackend
) -> CheckpointError | None:
    """Why it does not go with the model, the same on all ranks, or None. Collective."""
    try:
        with collectively(backend):
            check(checkpoint)
    except CheckpointError as error:
        return error
    return None


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-").partition(".")[0])


def _complete(folder: Path) -> Checkpoint | None:
    """The checkpoint, if its manifest says all that it must, and all files are there in the right
    size.
    """
    try:
        return Checkpoint(folder)
    except (CheckpointError, OSError):
        return None


def _are_of_one_model(a: Checkpoint, b: Checkpoint) -> bool:
    """True if parameters have the same names and shapes; which optimizer rule keeps state does not
    matter.
    """
    return model_shapes(a.shapes) == model_shapes(b.shapes)
