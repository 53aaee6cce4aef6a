"""The folder of a run's checkpoints: write under a temporary name, check, rename, and find the
newest valid one again.

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
from typing import Any

from ..array.copies import Copies
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..errors import CheckpointError, ConfigurationError
from ..files.ownership import Ownership
from ..files.paths import usable_path
from ..files.removing import TEMPORARY, few, remove_file, remove_folder
from ..files.writing import give_name, whole_file
from .choice import NEWEST, Chosen, Taken, Which, choose, step_of
from .format.files import make_folder, sync
from .format.manifest import MANIFEST_NAME
from .load import Checkpoint, verify_together
from .paths import of_model
from .saving import NAMES, Retention, Saving

_STEP = re.compile(r"step-(\d{8,})")
_LEFTOVER = re.compile(r"step-(\d{8,})(\.deleted)?\.tmp")
_ASIDE = re.compile(r"step-(\d{8,})\.old")
_ADVICE = "both would save there: wait until it has saved, or choose another folder"


def locate(path) -> tuple[Path, str | None]:
    """Return (folder of checkpoints, name of the one that is meant) for a path.

    path   a checkpoint, a folder of them or a run folder; what holds checkpoints itself is no run
           folder
    The name is None if the newest valid one is meant.
    """
    path = Path(usable_path(path))
    if CheckpointStore(path).steps():
        return path, None
    if path.is_dir():
        if re.fullmatch(r"step-\d+", path.name) or (path / MANIFEST_NAME).exists():
            return path.parent, path.name
    inside = path / "checkpoints"
    return (inside if inside.is_dir() else path), None


class CheckpointStore:
    """The checkpoints in one folder.

    name         of the only one that is loaded; None: the newest valid one is
    elsewhere    folders whose checkpoints are looked for too; nothing is written there
    which        of several is loaded, see choice.py
    copies       how arrays come from a GPU and go there: those of its Device; None: each by itself
    companions   {name: content} of files that every new checkpoint also gets (companions.py)
    """

    def __init__(
        self,
        folder,
        name: str | None = None,
        *,
        copies: Copies | None = None,
        companions: dict[str, bytes] | None = None,
        elsewhere: tuple[Path, ...] = (),
        which: Which = NEWEST,
    ):
        self.folder = Path(folder)
        self._elsewhere = elsewhere
        self.copies = copies or Copies()
        self.companions = companions or {}
        self.skipped: list[str] = []  # why the last search passed over newer ones
        self.chosen: Chosen | None = None  # by the last search
        self._name, self._which = name, which

    @classmethod
    def found(cls, path, backend: CommunicationBackend, **how) -> "CheckpointStore":
        """Return the store that rank 0 finds, as store_at(). Collective."""
        with collectively(backend):
            found = store_at(path, **how) if backend.rank == 0 else None
        place = None if found is None else (found.folder, found._name, found._elsewhere)
        folder, name, elsewhere = backend.broadcast_object(place, 0)
        return cls(folder, name, elsewhere=elsewhere, **how)

    def folder_of(self, step: int) -> Path:
        """Return where the checkpoint of this step is."""
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[Path]:
        """Return the folders of finished checkpoints, valid or not, oldest first."""
        return [path for path in self._readable() if path.suffix != ".tmp"]

    def _readable(self) -> list[Path]:
        """Return all folders that a loader may look at, the best last.

        These are the steps, and what a job that died left in the middle of a replacement.
        """
        found = self._found()
        return [found[key] for key in sorted(found)]

    def _found(self) -> dict[tuple[int, int], Path]:
        """Return all folders that a loader may look at, by step and how good they are."""
        found = {(step_of(path), 3): path for path in self._named(_STEP)}
        for aside in self._named(_ASIDE):
            step = step_of(aside)
            found[step, 1] = aside
            complete = aside.with_suffix(".tmp")
            if (step, 3) not in found and complete.is_dir():
                found[step, 2] = complete
        return found

    def _named(self, pattern) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return [path for path in self.folder.iterdir() if pattern.fullmatch(path.name)]

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
        keep         number of checkpoints to keep; None: all
        keep_every   steps that are multiples of this are kept too
        Errors, on all ranks: OSError, CheckpointError. The folder of this step is then as it was
        before.
        """
        return Saving(self, backend, description, Retention(keep, keep_every)).save(owned)

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
        for aside in self._named(_ASIDE):
            self._end_replacement(aside)
        for pointer in self._named(re.compile(TEMPORARY)):
            if pointer.is_file():
                remove_file(pointer)
        for leftover in self._named(_LEFTOVER):
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

    # ---- finding ---------------------------------------------------------------------------------

    def load_newest(
        self, owned, backend: CommunicationBackend, check, *, expendable: bool
    ) -> Checkpoint:
        """Fill the owned arrays from the newest valid checkpoint, and return it. Collective.

        owned       (tensor path, Piece, 1-D array) each
        check       function (Checkpoint) -> Fit, which says what is filled; None: everything. It
                    raises CheckpointError if it does not go with the model; the checkpoint is then
                    refused, not passed over
        expendable  the arrays may hold anything after an error: each byte is then read once, and
                    verified on the way. Otherwise everything is verified before anything is filled.
        Errors: as newest_that.
        """

        def load(checkpoint: Checkpoint):
            fit = check(checkpoint)
            taken = owned if fit is None else fit.taken(owned)
            if expendable:
                return checkpoint.read_verified(taken, backend, self.copies)
            verify_together(checkpoint, backend)
            with collectively(backend):
                checkpoint.read_into(taken, self.copies)

        return self.newest_that(load, backend, check)

    def newest_valid(self, backend: CommunicationBackend) -> Checkpoint:
        """Return the newest checkpoint that is complete and whose checksums hold. Collective."""
        return self.newest_that(lambda checkpoint: verify_together(checkpoint, backend), backend)

    def newest_complete(self, backend: CommunicationBackend) -> Checkpoint:
        """Return the newest checkpoint whose files are all there, in their sizes. Collective."""
        return self.newest_that(lambda checkpoint: None, backend)

    def newest_that(
        self, is_good, backend: CommunicationBackend, check=lambda checkpoint: None
    ) -> Checkpoint:
        """Return the newest complete checkpoint that is good. Collective over `backend`.

        is_good   function (Checkpoint), collective: raises CheckpointError if it is damaged
        check     see load_newest
        `skipped` tells afterwards which newer ones were passed over, and why.
        Errors, on all ranks: FileNotFoundError if there is none, PermissionError, CheckpointError
        if none is valid, or the newest valid one is refused.
        """
        with collectively(backend):
            found = self._search() if backend.rank == 0 else None
        names, self.skipped, self.chosen = backend.broadcast_object(found, 0)
        refused: list[tuple[Checkpoint, CheckpointError]] = []
        for name in names:
            try:
                checkpoint = Checkpoint.opened_together(self.folder / name, backend)
            except CheckpointError as error:
                self.skipped.append(str(error))
                continue
            refusal = _refusal(check, checkpoint, backend)
            if refusal is not None:
                refused.append((checkpoint, refusal))
                continue
            self._pass_over(refused, backend)
            try:
                is_good(checkpoint)
                return checkpoint
            except CheckpointError as error:
                self.skipped.append(str(error))
        if refused:
            raise self._in_context(refused[0][1])
        raise CheckpointError(f"no valid checkpoint in {self.folder}: " + "; ".join(self.skipped))

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

    def _search(self) -> tuple[list[str], list[str], Chosen | None]:
        """Return the names of those to try, why others are not tried, and what was chosen.

        Errors: as choose(); ConfigurationError if there is one checkpoint and nothing to choose.
        """
        names, skipped = self.candidates()
        if self._name is not None:
            if self._which not in (None, NEWEST):
                raise ConfigurationError(
                    f"{self.folder / self._name} is one checkpoint, so there is none to choose "
                    f"(checkpoint = {self._which!r}); leave that out, or name the folder around it"
                )
            return names, skipped, None
        folders = {self.folder / name: name for name in names}
        chosen = choose(self._which, list(folders), str(self.folder))
        tried = [folders[folder] for folder in chosen.folders]
        return tried, [*skipped * (chosen.which == NEWEST), *chosen.passed_over], chosen

    def candidates(self) -> tuple[list[str], list[str]]:
        """Return the names of those to try, the newest first, and why others are not tried.

        Those of other folders have their whole paths as names.

        Errors: FileNotFoundError if there are none.
        """
        if self._name is not None:
            return [self._name], []
        if self._elsewhere:
            return self._candidates_of_all()
        if not self.folder.exists():
            raise FileNotFoundError(f"no checkpoint folder {self.folder}")
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"no checkpoints: {self.folder} is a file; wanted a folder of checkpoints, or one "
                "of them"
            )
        names = [path.name for path in reversed(self._readable())]
        if not names:
            raise FileNotFoundError(f"no checkpoints in {self.folder}")
        unfinished = [path for path in self._named(_LEFTOVER) if ".deleted" not in path.suffixes]
        return names, [
            f"{path} was never finished: its writing was cut short"
            for path in sorted(unfinished)
            if path.name not in names
        ]

    def _candidates_of_all(self) -> tuple[list[str], list[str]]:
        """Return candidates() of this folder and the others together."""
        stores = [CheckpointStore(folder) for folder in (self.folder, *self._elsewhere)]
        found = [entry for store in stores for entry in store._found().items()]
        if not found:
            places = ", ".join(str(store.folder) for store in stores)
            raise FileNotFoundError(f"no checkpoints in {places}")
        found.sort(reverse=True, key=lambda entry: entry[0])  # stable: this folder's come first
        return [str(path.absolute()) for _, path in found], []


def store_at(path, **how) -> CheckpointStore:
    """Return the store at this path (see locate), or at a tuple of folders of checkpoints."""
    if isinstance(path, tuple):
        return CheckpointStore(path[0], elsewhere=tuple(map(Path, path[1:])), **how)
    return CheckpointStore(*locate(path), **how)


def taken_from(store: CheckpointStore, checkpoint: Checkpoint) -> Taken:
    """Return which one the last search took."""
    if store.chosen is None:
        return Taken()
    return store.chosen.taken(checkpoint.folder, checkpoint.manifest)


def warn_of_skipped(checkpoint: Any, skipped: list[str]) -> None:
    """Warn the user of load_model() if newer checkpoints were passed over."""
    if skipped:
        reasons = "; ".join(skipped)
        warnings.warn(f"{checkpoint.folder} is taken; passed over: {reasons}", stacklevel=4)


def _refusal(
    check, checkpoint: Checkpoint, backend: CommunicationBackend
) -> CheckpointError | None:
    """Return why it does not go with the model, the same on all ranks, or None. Collective."""
    try:
        with collectively(backend):
            check(checkpoint)
    except CheckpointError as error:
        return error
    return None


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
