"""Find the checkpoint that a path means, on one process. load_model searches in the same way, on
all ranks (candidates.py).
"""

from collections.abc import Sequence
from pathlib import Path

from ..comm.threads.backend import run_ranks
from ..errors import CheckpointError
from .candidates import Candidates, steps_in
from .choice import NEWEST, Taken, Validated, Which, best_of, step_of
from .format.files import read_whole
from .format.manifest import MANIFEST_NAME, MOST_BYTES, parse_object
from .load import Checkpoint


def find_checkpoint(path) -> tuple[Checkpoint, list[str]]:
    """Find the checkpoint at this path, or the newest valid one in a folder of them.

    path     a checkpoint, a folder of checkpoints or a run folder
    returns  the checkpoint, whose checksums hold, and why newer ones were passed over
    Errors: FileNotFoundError, PermissionError, CheckpointError.
    """
    checkpoint, skipped, _ = find_chosen(path, NEWEST)
    return checkpoint, skipped


def find_chosen(path, which: Which) -> tuple[Checkpoint, list[str], Taken]:
    """Return find_checkpoint(), and which of several it is."""
    candidates = Candidates.at(path, which)
    checkpoint = run_ranks(1, candidates.first_valid)[0]
    return checkpoint, candidates.skipped, candidates.taken(checkpoint)


def best_among(places: Sequence[Path], most_steps: int | None = None) -> Validated | None:
    """Return the best of the finished checkpoints in these folders; None if none was validated.

    most_steps   later ones do not count; None: all do
    """
    return best_of(_finished(places), most_steps)


def newest_among(places: Sequence[Path]) -> Path | None:
    """Return the newest of the finished checkpoints in these folders, valid or not."""
    return max(_finished(places), key=step_of, default=None)


def _finished(places: Sequence[Path]) -> list[Path]:
    return [path for place in places for path in steps_in(place)]


def find_description(path) -> Checkpoint:
    """Find the checkpoint whose model is that of the newest valid one.

    Checksums of values are compared only where the checkpoints are of several models; if all are of
    one, any of them describes it.
    Errors: CheckpointError if there is none, PermissionError.
    """
    try:
        candidates = Candidates.at(path)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{error}; pass the folder that save_model() was given, or one of its step folders"
        ) from None
    models = [model for model in map(_stored_model, candidates.folders) if model is not None]
    if any(model != models[0] for model in models):
        return run_ranks(1, candidates.first_valid)[0]
    return run_ranks(1, candidates.first_good)[0][0]


def _stored_model(folder: Path) -> dict | None:
    """Return the "model" entry of a manifest, or None if it cannot be read."""
    try:
        content = read_whole(folder / MANIFEST_NAME, MOST_BYTES)
        return parse_object(content).get("model")
    except (CheckpointError, OSError):
        return None
