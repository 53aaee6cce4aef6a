"""From a path that a user typed to the checkpoint that is meant."""
import re
from pathlib import Path

from ..comm import run_ranks
from .load import Checkpoint
from .manifest import MANIFEST_NAME
from .store import CheckpointStore


def is_checkpoint(path) -> bool:
    """True if the folder is one checkpoint, whole or damaged, and not a folder of them."""
    path = Path(path)
    return path.is_dir() and (bool(re.fullmatch(r"step-\d+", path.name)) or (path / MANIFEST_NAME).exists())


def checkpoint_store(path) -> CheckpointStore:
    """The store at this path: the folder itself, or `checkpoints` inside a run folder."""
    inside = Path(path) / "checkpoints"
    return CheckpointStore(inside if inside.is_dir() else path)


def find_checkpoint(path) -> tuple[Checkpoint, list[str]]:
    """The checkpoint in this folder, or the newest valid one of a store or run folder; and why newer ones were passed over.

    Its checksums hold. On this process alone, without communication.
    Errors: FileNotFoundError, PermissionError, CheckpointError.
    """
    if is_checkpoint(path):
        checkpoint = Checkpoint(path)
        checkpoint.verify()
        return checkpoint, []
    store = checkpoint_store(path)
    return run_ranks(1, store.newest_valid)[0], store.skipped
