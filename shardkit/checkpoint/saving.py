"""Save: from what the ranks own to a folder that is whole, checked and on disk.

    Saving(...)       rank 0 makes step-00000100.tmp/                          collective
    file              each rank its file (rank_file.py), on disk, read back and compared
    gather            rank 0 learns what all have written                      collective
    publish           rank 0: coverage, manifest; rename; pointer; old ones go

save() does all of it; background.py writes and publishes in a thread while training goes on.

The index needs only what all have laid out. So in save() the last rank writes it, before its values
and while the disk is busy with those of others; in the background rank 0 does before it publishes.
"""

import errno
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ..array.backend import to_host
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import agree, collectively
from ..errors import CheckpointError
from ..files.ownership import Ownership
from ..files.removing import FILE, TEMPORARY, remove_folder
from ..layout.piece import Piece
from .format.companions import NAMES as COMPANION_NAMES
from .format.companions import write_companions
from .format.description import check_description, storable
from .format.files import sync
from .format.hdf5 import INDEX_NAME, load_library, write_index
from .format.manifest import (
    FORMAT,
    MANIFEST_NAME,
    MOST_BYTES,
    MOST_LISTED_RANKS,
    VERSION,
    listed_bytes,
    tensor_table,
    write_manifest,
)
from .format.parts import Summary, are_whole, tables_of
from .format.stored import StoredBox
from .load import Checkpoint
from .rank_file import RankFile, file_record

NAMES = {  # of all files in the folder of a checkpoint, which are removed with it
    re.escape(MANIFEST_NAME): FILE,
    re.escape(INDEX_NAME): FILE,
    r"rank-\d{5,}\.h5": FILE,
    "|".join(map(re.escape, COMPANION_NAMES)): FILE,
    TEMPORARY: FILE,
}


@dataclass(frozen=True)
class Retention:
    """A rule for which older checkpoints stay when a new one is there.

    keep        the newest ones, the new one counted; None: all
    every       those whose step is a multiple of it stay too; None: no others
    """

    keep: int | None = None
    every: int | None = None

    def spares(self, step: int) -> bool:
        """Return True if the checkpoint of this step is never deleted."""
        return self.every is not None and step % self.every == 0

    def check(self) -> None:
        """Raise CheckpointError on no count, and on `every` alone, which would do nothing."""
        for name, number in (("keep", self.keep), ("keep_every", self.every)):
            is_count = isinstance(number, Integral) and not isinstance(number, bool) and number >= 1
            if number is not None and not is_count:
                raise CheckpointError(
                    f"{name} = {number!r}; wanted None or an integer of at least 1"
                )
        if self.every is not None and self.keep is None:
            raise CheckpointError(
                f"keep_every = {self.every} without keep: nothing is deleted then; "
                "set keep too, to 1 or more"
            )


class Saving:
    """One checkpoint on its way to disk. Making it is collective: the temporary folder is made.

    owned   (tensor path, Piece, 1-D array) each, of this rank
    Errors, on all ranks: CheckpointError, OSError; nothing has changed then.
    """

    def __init__(
        self, store, backend: CommunicationBackend, owned, description: dict, retention: Retention
    ):
        self.backend = backend
        self._store = store
        self._retention = retention
        self._scalars: dict[str, float | int] = {}  # values of tensors of shape ()
        with collectively(backend):
            load_library()  # on all ranks at once, and not in the thread that writes
            self._description = storable(description)
            check_description(self._description)
            retention.check()
            forms = [self._form(*part) for part in owned]
        self._is_tabled = agree(backend, self._is_long(forms))
        self.folder = store.folder_of(description["step"])
        self._temporary = self.folder.with_name(self.folder.name + ".tmp")
        self._owned: Ownership | None = None
        with collectively(backend):
            if backend.rank == 0:
                self._owned = store.begin(self._temporary)
        self.file = RankFile(self._temporary, store, backend, forms, self._is_tabled)
        self._records: dict[str, dict] = {}  # what the manifest says about files of this rank
        self._gathered: Any = None  # on one rank: boxes, records and scalars of all ranks

    def save(self, owned) -> str:
        """Write and publish the checkpoint; return its folder. Collective.

        owned  as before; gone through again, so that arrays may be made one at a time
        """
        with self.removed_on_error():
            with collectively(self.backend):
                self.file.lay_out()
            self.file.share()
            if not self._is_tabled:
                self.gather(self.backend.world_size - 1)
            with collectively(self.backend):
                self.write_index()
                self.file.write(owned)
            self.file.collect()
            if self._is_tabled:
                with collectively(self.backend):
                    self.file.add_table()
            self.gather()
            with collectively(self.backend):
                self.publish()
        return str(self.folder)

    @contextmanager
    def removed_on_error(self):
        """Remove everything of this checkpoint if the body raises."""
        try:
            yield
        except BaseException as error:
            if self._owned is not None and self._owned.holds():
                remove_folder(self._temporary, NAMES)
            self.release()
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                error = self._with_advice(error)
            raise error

    def _with_advice(self, error: OSError) -> OSError:
        """Return the same error of a full disk with what to do."""
        other = OSError(
            error.errno,
            f"{error.strerror}; {self.folder} was given up, and those before it are untouched; "
            "make room, or keep fewer checkpoints; no room for",
            error.filename,
        )
        other.__cause__ = error.__cause__
        return other.with_traceback(error.__traceback__)

    def _form(self, tensor: str, piece: Piece, array) -> tuple:
        """Return (tensor path, Piece, dtype), and note the value of a scalar."""
        if piece.global_shape == ():
            self._scalars[tensor] = to_host(array)[0].item()
        return tensor, piece, str(array.dtype)

    def _is_long(self, forms) -> bool:
        """Return True if a manifest has no room for a list, had all ranks as many boxes."""
        num_ranks = self.backend.world_size
        own_bytes = sum(listed_bytes(*form) for form in forms)
        return num_ranks > MOST_LISTED_RANKS or 2 * num_ranks * own_bytes > MOST_BYTES

    def gather(self, root: int = 0) -> None:
        """Send what was laid out or written to one rank. Collective."""
        boxes = self.file.boxes
        summary = Summary.of(boxes) if boxes is not None and self._is_tabled else boxes
        own = summary, self.file.records | self._records, self._scalars
        self._gathered = self.backend.gather_object(own, root)

    def write_index(self) -> None:
        """Write the index on the rank that gathered; nothing on others. No communication.

        Many files have none: an index lists all boxes, and each file describes its own.
        """
        if self._gathered is None or self._is_tabled:
            return
        index = self._temporary / INDEX_NAME
        write_index(
            index,
            self._all_boxes(),
            {tensor: value for *_, part in self._gathered for tensor, value in part.items()},
            {"format": FORMAT, "version": VERSION},
            {"step": self._description["step"], "mesh": json.dumps(self._description["mesh"])},
        )
        sync(index)
        self._records[INDEX_NAME] = file_record(index, [])

    def publish(self) -> None:
        """Check that all is there, and make it what the next load finds; on rank 0.

        No communication. Called once all have written.
        Errors: CheckpointError if the boxes do not tile every tensor, or rank 0 does not see the
        files of all.
        """
        if self._gathered is None:
            return
        assert self._owned is not None
        self._owned.check()
        records = {name: record for _, part, _ in self._gathered for name, record in part.items()}
        records |= self._records
        records |= write_companions(self._temporary, self._store.companions)
        write_manifest(self._temporary, self._description, records, *self._tables())
        sync(self._temporary)
        self._store.check_replaced(self._checked(), self.folder)
        self._store.publish(self._temporary, self.folder)
        self._store.delete_old(self.folder, self._retention)
        self.release()

    def release(self) -> None:
        """Let others save into the folder; a second call does nothing. No communication."""
        if self._owned is not None:
            self._owned.release()
            self._owned = None

    def _tables(self) -> tuple:
        """Return what the manifest says about tensors. Errors: CheckpointError."""
        if self._is_tabled:
            return tables_of(self._of_files())
        return (tensor_table(self._all_boxes()),)

    def _all_boxes(self) -> list[StoredBox]:
        return [box for boxes in self._of_files() for box in boxes]

    def _of_files(self) -> list:
        """Return the boxes of each file, or their summary."""
        return [boxes for boxes, *_ in self._gathered if boxes is not None]

    def _checked(self) -> Checkpoint:
        """Open what was written. Errors: CheckpointError if its boxes leave out something."""
        found = self._read_back()
        if self._is_tabled and not are_whole(found.manifest["tensors"], self._of_files()):
            found.check_boxes()
            raise CheckpointError(
                f"{self._temporary}: the boxes that the ranks wrote do not make every tensor whole"
            )
        return found

    def _read_back(self) -> Checkpoint:
        """Open what was written as a loader does."""
        try:
            return Checkpoint(self._temporary)
        except CheckpointError as error:
            raise CheckpointError(
                f"what was written cannot be read back: {error}; is {self._store.folder} on a file "
                "system that all ranks share?"
            ) from None
