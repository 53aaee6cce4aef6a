"""Memory of a file that is written: its blocks exist before it is mapped.

On a full disk a write to mapped memory without a block behind it ends the process by SIGBUS.
"""

import errno
import mmap
import os
from pathlib import Path

from .writing import named_errors, open_new

_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # this file system has none


def new_map(path: Path, num_bytes: int) -> mmap.mmap:
    """Return the memory, all zeros, of a new file of this name; one that is there is replaced.

    Errors: OSError, which names the file, if there is no room; it is then empty.
    """
    with open_new(path) as file, named_errors(path):
        try:
            _allocate(file.fileno(), num_bytes)
            return mmap.mmap(file.fileno(), num_bytes)
        except OSError:
            file.truncate(0)
            raise


def _allocate(descriptor: int, num_bytes: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        if error.errno not in _NO_ALLOCATION:
            raise
        rest = bytes(num_bytes)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
