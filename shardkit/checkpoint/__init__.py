"""Checkpoints: N-D boxes in HDF5, one file per writer, an index that shows every tensor whole,
written atomically.
"""

from .find import find_checkpoint
from .format.image import load_image, make_image
from .load import Checkpoint
from .saving import PendingCheckpoint, Retention, Saver
from .store import CheckpointStore

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "PendingCheckpoint",
    "Retention",
    "Saver",
    "find_checkpoint",
    "load_image",
    "make_image",
]
