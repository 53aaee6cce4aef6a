"""Save models in checkpoints, find the newest valid one, and load it under any mesh.

A checkpoint is a folder of HDF5 files, one per writing rank, with an index that shows every tensor
whole and a manifest of checksums (FORMAT.md). It is written under a temporary name and renamed.
    format/       what is on disk
    pretrained/   folders of transformers, which are loaded like checkpoints
    tools/        what the commands convert, describe and compare
models.py adds from_checkpoint() to the classes of nn.
"""

from .background import PendingCheckpoint, Saver
from .find import find_checkpoint
from .image import load_image, make_image
from .load import Checkpoint
from .models import from_checkpoint
from .saving import Retention
from .store import CheckpointStore

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "PendingCheckpoint",
    "Retention",
    "Saver",
    "find_checkpoint",
    "from_checkpoint",
    "load_image",
    "make_image",
]
