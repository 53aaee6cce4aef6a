"""Tables: files whose rows are numbers, read in place.

    file --Field by Field--> read(row numbers, parts) --> one array for each part

A table knows which fields its file has and how to read any rows of them. It does not know which
columns are features and which are targets (tables.py).
"""

import hashlib
import threading
from abc import ABC, abstractmethod
from pathlib import Path

import numpy

from ..files.reading import bytes_of, opened
from .columns import Columns, Field

_BLOCK_BYTES = 1 << 16
_NUM_BLOCKS = 64


class Table(ABC):
    """The rows of one file.

    path        of the file
    fields      {name: Field}, in the order of the file
    """

    def __init__(self, path: Path, fields: dict[str, Field]):
        self.path, self.fields = path, fields
        self._one_reader = threading.Lock()

    def read(self, numbers, parts: tuple[Columns, ...]) -> list[numpy.ndarray]:
        """Return these rows, in this order, of each part. Threads take turns.

        Training and validation rows may be of one table, and be read by two threads.

        numbers  [n] int64 row numbers, each in range; some may be equal
        returns  fresh arrays [n, *shape of the field], or [n, width] of a part that is not whole,
                 in the dtype of the file and the byte order of this machine
        Errors: ConfigurationError with line and column on what is no number; OSError.
        """
        with self._one_reader:
            return self._values(numbers, parts)

    @abstractmethod
    def _values(self, numbers, parts: tuple[Columns, ...]) -> list[numpy.ndarray]:
        """Do what read() says, for one thread at a time: what was read last may be kept."""

    def run_length(self, parts: tuple[Columns, ...]) -> int:
        """Return how many neighbors of these parts lie together in the file."""
        return 1

    def row_text(self, number: int) -> str:
        """Return where a row stands, for messages."""
        return f"row {number}"

    def fingerprint(self) -> str:
        """Return a hash of the file's size and of blocks all over it; it has no path in it."""
        return file_fingerprint(self.path)


def file_fingerprint(path: Path) -> str:
    """Return a hash, in hex, of a file's size and of at most 64 blocks of 64 KiB all over it."""
    with opened(path) as file:
        size = bytes_of(file)
        digest = hashlib.blake2b(b"%d:" % size, digest_size=16)
        last = max(size - _BLOCK_BYTES, 0)
        for block in range(min(_NUM_BLOCKS, size // _BLOCK_BYTES + 1)):
            file.seek(last * block // max(_NUM_BLOCKS - 1, 1) if size > _BLOCK_BYTES else 0)
            digest.update(file.read(_BLOCK_BYTES))
        file.seek(last)
        digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()
