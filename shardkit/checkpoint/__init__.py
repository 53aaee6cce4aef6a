"""Checkpoints: N-D boxes in HDF5, one file per writer, an index that shows every tensor whole, written atomically."""
from .image import load_image, make_image
from .load import Checkpoint
from .store import CheckpointStore

__all__ = ["Checkpoint", "CheckpointStore", "load_image", "make_image"]
