"""Memory of a part of a file that is written: its blocks exist before it is mapped.

On a full disk a write to mapped memory without a block behind it ends the process by SIGBUS.
"""

import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from .removing import remove_file
from .writing import named_errors

_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # this file system has none
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class MappedPart:
    """A part of a file in memory, and the file that it is of."""

    memory: mmap.mmap
    file: os.stat_result

    def is_at(self, path: Path) -> bool:
        """Return True if the file still has this name."""
        try:
            return os.path.samestat(os.stat(path), self.file)
        except OSError:
            return False


def map_part(path: Path, start: int, num_bytes: int) -> MappedPart:
    """Return a part of a file.

    The file is made if it is missing, and grows where it is too short: several processes may do
    so at once, each for a part of its own. The part has what stood there, zeros where it is new.
    A link of the name is replaced.
    start   a multiple of the size of a page
    Errors: OSError, which names the file, if there is no room.
    """
    with named_errors(path):
        file = _open(path)
        try:
            _allocate(file, start, num_bytes)
            return MappedPart(mmap.mmap(file, num_bytes, offset=start), os.fstat(file))
        finally:
            os.close(file)


def _open(path: Path) -> int:
    if path.is_symlink():
        remove_file(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | _SAFELY, 0o666)


def _allocate(file: int, start: int, num_bytes: int) -> None:
    try:
        os.posix_fallocate(file, start, num_bytes)
    except OSError as error:
        if error.errno not in _NO_ALLOCATION:
            raise
        rest = bytes(num_bytes)
        while rest:
            written = os.pwrite(file, rest, start)
            rest, start = rest[written:], start + written
