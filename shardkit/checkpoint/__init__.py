"""Save models in checkpoints, find the newest valid one, and load it under any mesh.

A checkpoint is a folder of HDF5 files, one per writing rank, with an index that shows every tensor
whole and a manifest of checksums (FORMAT.md). It is written under a temporary name and renamed.
    format/       what is on disk
    pretrained/   folders of transformers, which are loaded like checkpoints
    tools/        what the commands convert, describe and compare
models.py adds from_checkpoint() to the classes of nn.
"""

from ..public import public_names

__getattr__, __dir__, __all__ = public_names(
    __name__,
    {
        "background": "PendingCheckpoint Saver",
        "find": "find_checkpoint",
        "image": "load_image make_image",
        "load": "Checkpoint",
        "models": "from_checkpoint",
        "saving": "Retention",
        "store": "CheckpointStore",
    },
)
