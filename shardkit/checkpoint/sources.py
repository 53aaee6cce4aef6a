"""Where weights are loaded from: a checkpoint, a folder of them, or a folder of transformers.

load_model, on all ranks     load_from
generate, convert            find_model
"""

from ..array.copies import Copies
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..errors import ConfigurationError
from ..files.paths import usable_path
from .choice import NEWEST, Taken, Which, checked_choice
from .find import find_chosen
from .fit import Fit, Wanted
from .load import Checkpoint
from .pretrained.folder import TransformersFolder, is_transformers_folder
from .store import CheckpointStore, taken_from


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


def load_from(
    path,
    wanted: Wanted,
    owned,
    backend: CommunicationBackend,
    copies: Copies,
    *,
    expendable: bool,
    which: Which = NEWEST,
) -> tuple[Checkpoint | TransformersFolder, Fit, list[str], Taken]:
    """Fill the owned arrays that a model wants from what is at a path. Collective.

    path        or a tuple of folders, of which the newest valid checkpoint of all is taken
    owned       (tensor path, Piece, 1-D array) each
    expendable  see CheckpointStore.load_newest
    which       of several, see choice.py
    returns     what was read, how it fits, why newer checkpoints were passed over, and which one it
                is
    Errors, on all ranks: FileNotFoundError, PermissionError, OSError, CheckpointError.
    """
    with collectively(backend):
        is_one = backend.rank == 0 and not isinstance(path, tuple)
        is_folder = is_one and is_transformers_folder(path)
        if is_folder:
            _check_not_chosen(path, which)
    if backend.broadcast_object(is_folder, 0):
        folder = TransformersFolder.opened_together(path, backend)
        folder.load(owned, backend, lambda found: found.fit(wanted), copies)
        return folder, folder.fit(wanted), [], Taken()
    store = CheckpointStore.found(path, backend, copies=copies, which=which)
    checkpoint = store.load_newest(
        owned, backend, lambda found: found.fit(wanted), expendable=expendable
    )
    return checkpoint, checkpoint.fit(wanted), store.skipped, taken_from(store, checkpoint)
