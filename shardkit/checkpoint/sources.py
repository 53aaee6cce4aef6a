"""Where weights are loaded from: a checkpoint, a folder of them, or a folder of transformers.

load_model, on all ranks     load_from
generate, convert            find_model
"""

from dataclasses import dataclass

from ..array.copies import Copies
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import by_first
from ..errors import ConfigurationError
from ..files.paths import usable_path
from .candidates import Candidates
from .choice import NEWEST, Taken, Which, checked_choice
from .find import find_chosen
from .fit import Fit, Wanted
from .load import Checkpoint
from .pretrained.folder import TransformersFolder, is_transformers_folder


def find_model(
    path, which: Which = None
) -> tuple[Checkpoint | TransformersFolder, list[str], Taken]:
    """Find a folder of transformers, a checkpoint, or one of several in a folder of them.

    which    of several, see choice.py
    returns  it, why newer or better checkpoints were passed over, and which one it is
    Errors: FileNotFoundError, PermissionError, CheckpointError.
    """
    path, which = usable_path(path), checked_choice(which)
    if is_transformers_folder(path):
        _check_not_chosen(path, which)
        return TransformersFolder(path), [], Taken()
    return find_chosen(path, which)


def _check_not_chosen(path, which: Which) -> None:
    """Raise ConfigurationError if a checkpoint is chosen where there is none."""
    if which not in (None, NEWEST):
        raise ConfigurationError(
            f"{path} is a folder of transformers and has no checkpoint {which!r}; leave the "
            "choice out"
        )


@dataclass(frozen=True)
class Loaded:
    """What a load has taken.

    source    what was read
    fit       of it with the model
    skipped   why newer checkpoints were passed over
    taken     which of several it is
    """

    source: Checkpoint | TransformersFolder
    fit: Fit
    skipped: list[str]
    taken: Taken

    def report(self) -> dict:
        """Return what load_model returns."""
        found = {"skipped": self.skipped, "chosen": self.taken.text}
        return {**self.source.manifest, **found, **self.fit.report()}


def load_from(
    path,
    wanted: Wanted,
    owned,
    backend: CommunicationBackend,
    copies: Copies,
    *,
    expendable: bool,
    which: Which = NEWEST,
) -> Loaded:
    """Fill the owned arrays that a model wants from what is at a path. Collective.

    path        or a tuple of folders, of which the newest valid checkpoint of all is taken
    owned       (tensor path, Piece, 1-D array) each
    expendable  see Checkpoint.read_verified
    which       of several, see choice.py
    Errors, on all ranks: FileNotFoundError, PermissionError, OSError, CheckpointError.
    """

    def look() -> Candidates | None:
        if isinstance(path, tuple) or not is_transformers_folder(path):
            return Candidates.at(path, which)
        _check_not_chosen(path, which)
        return None

    candidates = by_first(backend, look)
    if candidates is None:
        folder = TransformersFolder.opened_together(path, backend)
        return Loaded(folder, folder.load(owned, wanted, backend, copies), [], Taken())
    checkpoint, fit = candidates.first_good(
        backend,
        lambda found, fit: found.read_verified(
            fit.taken(owned), backend, copies, expendable=expendable
        ),
        wanted,
    )
    return Loaded(checkpoint, fit, candidates.skipped, candidates.taken(checkpoint))
