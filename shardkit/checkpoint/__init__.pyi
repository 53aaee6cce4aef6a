# Written by packaging/stubs.py, from the table in __init__.py.
from .background import (
    PendingCheckpoint as PendingCheckpoint,
    Saver as Saver,
)
from .find import find_checkpoint as find_checkpoint
from .image import (
    load_image as load_image,
    make_image as make_image,
)
from .load import Checkpoint as Checkpoint
from .models import from_checkpoint as from_checkpoint
from .saving import Retention as Retention
from .store import CheckpointStore as CheckpointStore
