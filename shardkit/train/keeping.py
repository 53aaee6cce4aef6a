"""A run keeps its folder: it is this run's alone, and is mended where it was emptied in mid-run.

    start     owner.json: another run is refused, with both named (files/ownership.py)
    save      is it still ours? is anything gone? what the next --resume needs is written again
    end       owner.json is removed

Scratch file systems remove what is old, while a run goes on. What a run can be resumed with is
small, and rank 0 has it in memory: settings, description and index of the data, tokenizer.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from ..checkpoint.format.companions import NAMES as COMPANION_NAMES
from ..checkpoint.format.files import make_folder
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..files.notes import tell
from ..files.ownership import OWNER_NAME, Ownership
from ..files.reading import read_bytes
from ..files.removing import remove_folder
from ..files.writing import write_whole
from .folder import has_checkpoints

LEDGER = "ledger"
MOST_BYTES = 1 << 26  # of each file that is kept in memory
_NAMES = ("configuration.json", "ranks.json", "timeline.json", "tracking.json", *COMPANION_NAMES)
_CURVE = "metrics.jsonl"
_ADVICE = (
    "a run has its folder to itself: wait until that one has ended, end one of the two, or choose "
    "another --run.folder"
)


class KeptFolder:
    """The folder of one run. A context manager, inside of which the run has it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._run = os.urandom(8).hex()
        self._owned: Ownership | None = None  # on rank 0
        self._is_new = False
        self._content: dict[str, bytes] = {}  # of small files, by their names in the folder
        self._curve: int | None = None  # the inode of metrics.jsonl

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.release()

    def own(self, backend: CommunicationBackend) -> None:
        """Have the folder for this run alone, from now on. Collective.

        A run whose ranks have changed calls it again.
        Errors, on all ranks: ConfigurationError if another run has it, OSError.
        """
        self._run = backend.broadcast_object(self._run, 0)
        with collectively(backend):
            if backend.rank == 0 and self._owned is None:
                self._is_new = not self.folder.exists()
                make_folder(self.folder)
                self._owned = Ownership.take(self.folder, _ADVICE, run=self._run, say=tell)

    def release(self) -> None:
        """Leave the folder to others; a second call does nothing. No communication."""
        if self._owned is not None:
            self._owned.release()
            self._owned = None
            if self._is_new:  # a run that could not begin leaves no empty one
                remove_folder(self.folder, {})

    # ---- emptied in mid-run ----------------------------------------------------------------------

    def remember(self) -> None:
        """Take what a resumed run needs into memory, on rank 0. No communication."""
        if self._owned is None:
            return
        for name in self._present():
            path = self.folder / name
            if path.stat().st_size <= MOST_BYTES:
                self._content[name] = read_bytes(path, MOST_BYTES)
        self._curve = _inode(self.folder / _CURVE)

    def mend(
        self, backend: CommunicationBackend, watched: CommunicationBackend, *, has_saved: bool
    ) -> str:
        """Write again what is gone from the folder; return a warning, or "" if nothing is.
        Collective.

        watched     the backend that keeps the ledger of this rank
        has_saved   the run has written a checkpoint there
        Errors, on all ranks: ConfigurationError if another run has the folder now.
        """
        warning = ""
        with collectively(backend):
            if self._owned is not None:
                try:
                    warning = self._mend(self._owned, has_saved)
                except OSError as error:  # the save that follows has the same trouble
                    tell(f"warning: {self.folder} cannot be looked after: {error}")
            ledger = watched.progress.kept
            if ledger is not None and ledger.is_lost:
                watched.keep_ledger(self.folder / LEDGER)
        return warning

    def _mend(self, owned: Ownership, has_saved: bool) -> str:
        make_folder(self.folder)
        lost = [OWNER_NAME] * owned.check()
        again = [name for name in self._content if not (self.folder / name).exists()]
        for name in again:
            make_folder((self.folder / name).parent)
            write_whole(self.folder / name, self._content[name])
        if again:
            is_other = self._curve not in (None, _inode(self.folder / _CURVE))
            lost += again + [_CURVE] * is_other
            lost += ["checkpoints"] * (has_saved and not has_checkpoints(self.folder))
        self.remember()
        if not lost:
            return ""
        rest = [name for name in lost if name not in (*again, OWNER_NAME)]
        gone = f"; {' and '.join(rest)} before this step cannot be brought back" if rest else ""
        return (
            f"warning: {self.folder} was emptied while the run went on: {', '.join(lost)} had "
            f"gone. What a resumed run needs is written again, with the next checkpoint{gone}"
        )

    def _present(self) -> Iterator[str]:
        """Yield the names of files that the run can be resumed with."""
        yield from (name for name in _NAMES if (self.folder / name).is_file())
        for path in sorted((self.folder / "data").glob("*")):
            if path.is_file():
                yield f"data/{path.name}"


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
