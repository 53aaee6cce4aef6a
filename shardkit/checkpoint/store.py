"""The folder of a run's checkpoints: written under another name, checked, renamed; the newest valid one is found again.

    checkpoints/
      step-00000100/   manifest.json  index.h5  rank-00000.h5 ...
      step-00000200/
      step-00000300.tmp/      being written, or left by a job that died: never read, removed by the next save of that step
      newest                  text: step-00000200
"""
import json
import os
import re
import shutil
from pathlib import Path

from ..comm import CommunicationBackend, collectively
from ..errors import CheckpointError, PeerError
from .hdf5 import INDEX_NAME, rank_file_name, write_boxes, write_index
from .load import Checkpoint, verify_together
from .manifest import FORMAT, MANIFEST_NAME, VERSION, file_record, tensor_table

_STEP_FOLDER = re.compile(r"step-(\d{8,})")


class CheckpointStore:
    """The checkpoints in one folder."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.skipped: list[str] = []        # why newest_valid() passed over others

    def steps(self) -> list[Path]:
        """The folders of finished checkpoints, oldest first; whether they are valid is another question."""
        if not self.folder.is_dir():
            return []
        return sorted((p for p in self.folder.iterdir() if _STEP_FOLDER.fullmatch(p.name)),
                      key=lambda p: int(_STEP_FOLDER.fullmatch(p.name)[1]))

    # ---- writing -------------------------------------------------------------------------------------------------

    def save(self, owned, backend: CommunicationBackend, description: dict, *, keep: int | None = None) -> str:
        """Write a checkpoint and return its folder. Collective over `backend`.

        owned        (tensor path, Piece, 1-D array) each: over all ranks these must tile every tensor exactly once
        description  goes into the manifest; "step" names the folder
        keep         delete older ones but this many
        Errors, on all ranks: OSError, CheckpointError. The folder of this step is then as it was before.
        """
        final = self.folder / f"step-{description['step']:08d}"
        temporary = final.with_name(final.name + ".tmp")
        try:
            with collectively(backend):
                if backend.rank == 0:
                    shutil.rmtree(temporary, ignore_errors=True)
                    temporary.mkdir(parents=True)
            with collectively(backend):
                boxes, record = _write_rank_file(temporary / rank_file_name(backend.rank), owned)
            everyones = backend.gather_object((boxes, record), 0)
            with collectively(backend):
                if backend.rank == 0:
                    _write_index_and_manifest(temporary, everyones, description)
                    _replace(temporary, final)
                    _write_atomically(self.folder / "newest", final.name + "\n")
                    self._delete_old(keep)
        except BaseException:
            if backend.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
            raise
        return str(final)

    def _delete_old(self, keep: int | None) -> None:
        for folder in self.steps()[:-keep] if keep else []:
            shutil.rmtree(folder)

    # ---- finding -------------------------------------------------------------------------------------------------

    def newest_valid(self, backend: CommunicationBackend) -> Checkpoint:
        """The newest checkpoint that is complete and whose checksums hold. Collective over `backend`.

        `skipped` tells afterwards which newer ones were passed over, and why.
        Errors, on all ranks: FileNotFoundError if there is none, PermissionError, CheckpointError if none is valid.
        """
        self.skipped = []
        with collectively(backend):
            names = self._candidates() if backend.rank == 0 else None
        for name in backend.broadcast_object(names, 0):
            try:
                with collectively(backend):
                    checkpoint = Checkpoint(self.folder / name)
                verify_together(checkpoint, backend)
                return checkpoint
            except (CheckpointError, PeerError) as error:
                self.skipped.append(str(error))
        raise CheckpointError(f"no valid checkpoint in {self.folder}: " + "; ".join(self.skipped))

    def _candidates(self) -> list[str]:
        if not self.folder.exists():
            raise FileNotFoundError(f"no checkpoint folder {self.folder}")
        names = [path.name for path in reversed(self.steps())]
        if not names:
            raise FileNotFoundError(f"no checkpoints in {self.folder}")
        return names


def _write_rank_file(path: Path, owned):
    boxes = write_boxes(path, owned)
    _sync(path)
    return boxes, (path.name, file_record(path))


def _write_index_and_manifest(folder: Path, everyones, description: dict) -> None:
    boxes = [box for part, _ in everyones for box in part]
    files = dict(record for _, record in everyones)
    tensors = tensor_table(boxes)
    index = folder / INDEX_NAME
    write_index(index, boxes, {"format": FORMAT, "version": VERSION, "step": description["step"],
                               "mesh": json.dumps(description.get("mesh", {}))})
    _sync(index)
    files[INDEX_NAME] = file_record(index)
    manifest = {"format": FORMAT, "version": VERSION, **description, "files": files, "tensors": tensors}
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _sync(folder / MANIFEST_NAME)
    _sync(folder)


def _replace(temporary: Path, final: Path) -> None:
    """Rename into place; what was there under that name is put aside first and deleted last."""
    old = final.with_name(final.name + ".old.tmp")
    if final.exists():
        final.rename(old)
    temporary.rename(final)
    _sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    _sync(temporary)
    temporary.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until the file, or the names in the folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
