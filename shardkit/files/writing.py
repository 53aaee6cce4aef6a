"""Write files whole, under another name first, and never through a link.

    content --O_EXCL--> .shardkit-3f9a...tmp --rename--> report.html

A link, or anything else, at the final name is replaced by the file, and what the link points to is
untouched. Who has the old file open keeps it. What is appended to is opened without following a
link. The folder may be a link: the user has chosen it.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .removing import remove_file

_PIECE_BYTES = 1 << 20
_TRIES = 10  # to find a name that is free
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SHARED_MEMORY = Path("/dev/shm")  # has ordinary files
_OF_THE_SYSTEM = Path("/dev"), Path("/proc")  # /dev/stdout is written to, and never replaced


def write_whole(path, content: bytes, *, durable: bool = False, mode: int = 0o666) -> None:
    """Write a file: nobody finds half of it, and a link of its name is replaced.

    durable  it is on disk when this returns
    mode     of the file, less the umask
    Errors: OSError, which names the file; nothing has changed then.
    """
    with whole_file(path, durable=durable, mode=mode) as file:
        file.write(content)


@contextmanager
def whole_file(path, *, durable: bool = False, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a file to write to, which gets this name at the end; as write_whole."""
    path = Path(path)
    if _is_of_the_system(path):
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), "ab") as file:
            yield file
        return
    temporary = fresh_file(path, mode)
    try:
        with named_errors(path), open(temporary, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        give_name(temporary, path)
    except BaseException:
        remove_file(temporary)
        raise


def fresh_file(path: Path, mode: int = 0o666) -> Path:
    """Make an empty file beside this one, under a name that nobody had; return its path.

    give_name() ends what begins here. Errors: OSError, which names the file meant.
    """
    with named_errors(path):
        for _ in range(_TRIES - 1):
            try:
                return _made(path, mode)
            except FileExistsError:
                continue
        return _made(path, mode)


def _made(path: Path, mode: int) -> Path:
    temporary = path.with_name(f".shardkit-{os.urandom(8).hex()}.tmp")
    make_empty(temporary, mode)
    return temporary


def make_empty(path: Path, mode: int = 0o666) -> None:
    """Make an empty file. Errors: OSError, FileExistsError if anything has this name."""
    os.close(os.open(path, os.O_WRONLY | _NEW, mode))


def give_name(temporary: Path, path: Path) -> None:
    """Give a file or a folder that shardkit made its name; a file or a link of it is replaced.

    Errors: OSError, which names the name.
    """
    with named_errors(path):
        os.rename(temporary, path)


def move_file(temporary: Path, path: Path) -> None:
    """Give a file that shardkit made its name, which may be on another disk; as give_name."""
    try:
        give_name(temporary, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with open(temporary, "rb") as old, whole_file(path, durable=True) as new:
            shutil.copyfileobj(old, new, _PIECE_BYTES)
        remove_file(temporary)


def check_can_write(path) -> None:
    """Raise OSError if no file of this name can be written; what is there stays as it is."""
    path = Path(path)
    if not _is_of_the_system(path):
        remove_file(fresh_file(path))


def open_new(path: Path) -> IO[bytes]:
    """Return a new empty file of this name, to read and write; one that is there is replaced.

    Who has that one open, or mapped, keeps it. Errors: OSError.
    """
    temporary = fresh_file(path)
    try:
        file = open(temporary, "rb+")
        give_name(temporary, path)
    except BaseException:
        remove_file(temporary)
        raise
    return file


def open_to_append(path: Path) -> IO[str]:
    """Return a text file that lines are added to, made if it is missing; each is written at once.

    What the encoding lacks is written as an escape.

    Errors: OSError, also for a link and for what is no ordinary file (a FIFO has no reader, say).
    """
    how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, how, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _no_ordinary_file(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_ordinary_file(path)
    return open(descriptor, "a", buffering=1, encoding="utf-8", errors="backslashreplace")


def _no_ordinary_file(path: Path) -> OSError:
    return OSError(
        errno.EINVAL, "it is no ordinary file, and links are not followed; move it away", str(path)
    )


@contextmanager
def named_errors(path: Path) -> Iterator[Any]:
    """Let an OSError inside name this file, and not its temporary name."""
    try:
        yield
    except OSError as error:
        if error.filename is None or Path(os.fsdecode(error.filename)).name.startswith(
            ".shardkit-"
        ):
            error.filename = str(path)
            del error.filename2
        raise


def _is_of_the_system(path: Path) -> bool:
    """Return True for /dev/stdout and its like."""
    folder = Path(os.path.realpath(path.parent))
    if _SHARED_MEMORY in (folder, *folder.parents):
        return False
    return any(above in (folder, *folder.parents) for above in _OF_THE_SYSTEM)
