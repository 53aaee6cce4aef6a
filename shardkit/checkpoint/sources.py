"""Where weights are loaded from: a checkpoint, a folder of them, or a folder of transformers.

load_model, on all ranks     load_from
generate, convert            find_model
"""

from ..array.copies import Copies
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from .find import find_checkpoint
from .fit import Fit, Wanted
from .load import Checkpoint
from .pretrained.folder import TransformersFolder, is_transformers_folder
from .store import CheckpointStore


def find_model(path) -> tuple[Checkpoint | TransformersFolder, list[str]]:
    """Find a folder of transformers, a checkpoint, or the newest valid one in a folder of them.

    returns  it, and why newer checkpoints were passed over
    Errors: FileNotFoundError, PermissionError, CheckpointError.
    """
    if is_transformers_folder(path):
        return TransformersFolder(path), []
    return find_checkpoint(path)


def load_from(
    path,
    wanted: Wanted,
    owned,
    backend: CommunicationBackend,
    copies: Copies,
    *,
    expendable: bool,
) -> tuple[Checkpoint | TransformersFolder, Fit, list[str]]:
    """Fill the owned arrays that a model wants from what is at a path. Collective.

    path        or a tuple of folders, of which the newest valid checkpoint of all is taken
    owned       (tensor path, Piece, 1-D array) each
    expendable  see CheckpointStore.load_newest
    returns     what was read, how it fits, and why newer checkpoints were passed over
    Errors, on all ranks: FileNotFoundError, PermissionError, OSError, CheckpointError.
    """
    with collectively(backend):
        is_one = backend.rank == 0 and not isinstance(path, tuple)
        is_folder = is_one and is_transformers_folder(path)
    if backend.broadcast_object(is_folder, 0):
        folder = TransformersFolder.opened_together(path, backend)
        folder.load(owned, backend, lambda found: found.fit(wanted), copies)
        return folder, folder.fit(wanted), []
    store = CheckpointStore.found(path, backend, copies)
    checkpoint = store.load_newest(
        owned, backend, lambda found: found.fit(wanted), expendable=expendable
    )
    return checkpoint, checkpoint.fit(wanted), store.skipped
