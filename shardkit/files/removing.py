r"""Remove what shardkit has made, and nothing else: the only place of the package that deletes.

    PARTS = {r"\d+\.part": FILE, r"claims-[0-9a-f]+": {r"\d+": FILE}}
    left = remove_folder("tokens.h5.parts", PARTS)         ["notes.txt: not made by shardkit"]

A caller says which names it makes: regular expressions for whole names, and for a folder those of
what is in it. Whatever else lies there stays, with the folders above it. Links are unlinked and
never followed: each folder is opened relative to the one above it, so one that is swapped for a
link in the meantime is not entered. A folder of another user is not entered either.

Only the standard library is imported: wardens use this without the rest of the package.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TEMPORARY = r"\.shardkit-[0-9a-f]{16}\.tmp"  # of files that are being written (writing.py)
FILE: Any = None  # in place of the names in a folder: what has this name is a file
_ANYTHING: Any = object()  # in place of the names: all of them, files and folders
Names = Mapping[str, Any]  # {regular expression of a whole name: FILE, or Names in that folder}
UNKNOWN = "not made by shardkit"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def remove_file(path) -> None:
    """Remove a file or a link that shardkit made; a missing one is gone already. Errors: OSError.

    Of a folder: IsADirectoryError, or PermissionError.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def remove_folder(path, names: Names) -> list[str]:
    """Remove a folder with what has these names in it; return what stayed there, and why.

    A link in its place is unlinked. A missing folder is gone already. No OSError is raised.
    """
    path = Path(path)
    try:
        above = os.open(path.parent, _FOLDER)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [_why(path.name, error)]
    try:
        return _remove(above, path.name, names, path.name)
    finally:
        os.close(above)


def clear_folder(path, names: Names) -> list[str]:
    """Remove what has these names from a folder, which stays; return what else is in it.

    The folder itself may be a link: its user has chosen it. No OSError is raised.
    """
    try:
        folder = os.open(path, _FOLDER)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [_why(os.path.basename(path), error)]
    try:
        above = os.open("..", _FOLDER, dir_fd=folder)
        try:
            return _foreign(folder, above, ".") or _clear(folder, names, "")
        finally:
            os.close(above)
    finally:
        os.close(folder)


def _remove(above: int, name: str, names: Names, shown: str) -> list[str]:
    """Remove an entry of a folder that is open; return what stayed."""
    try:
        kind = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
        if stat.S_ISDIR(kind):
            if names is FILE:
                return [f"{shown}: {UNKNOWN}"]
            left = _enter(above, name, names, shown)
            if not left:
                os.rmdir(name, dir_fd=above)
            return left
        if names not in (FILE, _ANYTHING) and not stat.S_ISLNK(kind):
            return [f"{shown}: {UNKNOWN}"]
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        pass
    except OSError as error:
        return [_why(shown, error)]
    return []


def _enter(above: int, name: str, names: Names, shown: str) -> list[str]:
    """Clear a folder in one that is open. Errors: OSError, also if it has become a link."""
    folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
    try:
        return _foreign(folder, above, shown) or _clear(folder, names, f"{shown}/")
    finally:
        os.close(folder)


def _foreign(folder: int, above: int, shown: str) -> list[str]:
    """Return that a folder is another user's, or nothing.

    Where the file system gives all files one owner, the folder above has the same.
    """
    owner = os.fstat(folder).st_uid
    is_own = owner in (os.geteuid(), os.fstat(above).st_uid)
    return [] if is_own else [f"{shown}: a folder of user {owner}"]


def _clear(folder: int, names: Names, shown: str) -> list[str]:
    """Remove what has these names from a folder that is open; return what stayed."""
    left = []
    for name in sorted(os.listdir(folder)):
        try:
            inner = _inner(names, name)
        except KeyError:
            left.append(f"{shown}{name}: {UNKNOWN}")
        else:
            left += _remove(folder, name, inner, shown + name)
    return left


def _inner(names: Names, name: str):
    """Return FILE, or the names in a folder of this name. Errors: KeyError if it is not known."""
    if names is _ANYTHING:
        return _ANYTHING
    for pattern, inner in names.items():
        if re.fullmatch(pattern, name):
            return inner
    raise KeyError(name)


def _why(shown: str, error: OSError) -> str:
    return f"{shown}: {error.strerror or error}"


def remove_trial(path) -> list[str]:
    """Remove a folder that this job has made under a name of its own, with all that is in it.

    As remove_folder.
    """
    assert Path(path).name.startswith(".shardkit-"), "no folder of a trial"
    return remove_folder(path, _ANYTHING)


def few(left: Iterable[str], most: int = 3) -> str:
    """Return what stayed as a phrase of a message."""
    left = list(left)
    more = f", and {len(left) - most} more" if len(left) > most else ""
    return "; ".join(left[:most]) + more
