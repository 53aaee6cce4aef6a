"""Who could have written a file that is executed, such as a compiled kernel.

owner      this user, root, or whoever owns this package: all of them can run code here anyway
writable   by the owner; by a group only where that is the user's own, or can change the package
"""

import functools
import grp
import os
import pwd
import stat
from pathlib import Path

from ..errors import FileError
from .reading import opened

_PACKAGE = Path(__file__).resolve().parents[1]


def can_be_trusted(found: os.stat_result) -> bool:
    """Return True unless somebody could write this file or folder who cannot run code here."""
    package = _PACKAGE.stat()
    if found.st_uid not in (os.getuid(), 0, package.st_uid) or found.st_mode & stat.S_IWOTH:
        return False
    if not found.st_mode & stat.S_IWGRP:
        return True
    changes_package = package.st_mode & stat.S_IWGRP and found.st_gid == package.st_gid
    return bool(changes_package) or _is_own_group(found.st_gid)


def read_trusted(path: Path) -> bytes | None:
    """Return the content of a regular file that can be trusted, in a folder that can be; or None.

    Links are not followed.
    """
    try:
        if not can_be_trusted(path.parent.stat()):
            return None
        with opened(path, follows_links=False) as file:
            return file.read() if can_be_trusted(os.fstat(file.fileno())) else None
    except (OSError, FileError):
        return None


@functools.cache
def _is_own_group(group: int) -> bool:
    """Return True for the group of this user alone: of its name, with nobody else in it."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
        found = grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}
