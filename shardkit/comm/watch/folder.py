"""The temporary folder of a job on one node. Its last user removes it, or the next job does.

    shardkit-job-1000-.../alive                         each user holds a shared lock on this file
                          roll, node-00000.ledger, ...

The kernel drops the lock of a process that ends in any way. So a process that gets an exclusive
lock knows that nobody uses the folder any more, even across containers. On a file system without
locks, the folders of killed jobs stay.
"""

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from ...files.removing import FILE, TEMPORARY, clear_folder, remove_file, remove_folder
from ...files.writing import write_whole

PREFIX = "shardkit-job-"
LOCK_NAME, SEGMENTS_NAME = "alive", "segments-{}"
SHARED_MEMORY = Path("/dev/shm")
_TRIES = 100  # to open a folder that others remove
_OF_LIBRARIES = ("mpich_shm_", "sm_segment.", "vader_segment.")
LOOK_NAME, LOOK_NAMES = "look-{:08x}", {r"look-[0-9a-f]{8}": FILE}
STACKS_FOLDER, STACKS_NAME = "stacks", "rank-{:05d}.stacks"  # made when a job hangs
_STACKS = r"rank-\d{5,}\.stacks"
LEDGER_NAMES = {  # in a folder of ledgers
    rf"node-\d{{5,}}\.ledger|rank-\d{{5,}}\.ledger|{_STACKS}|hang": FILE,  # also of older versions
    STACKS_FOLDER: {_STACKS: FILE, TEMPORARY: FILE},
    TEMPORARY: FILE,
    **LOOK_NAMES,
}
_NAMES = {  # what ranks and wardens make in that of a job, beside the lock
    "roll|reported|ended": FILE,
    r"segments-\d+|note-\d+-\d{5,}|ledger-\d{5,}|closing-[0-9a-f]{8}-\d{5,}": FILE,
    **LEDGER_NAMES,
}


class JobFolder:
    """A folder, held by this process."""

    def __init__(self, path: Path, lock: int):
        self.path, self._lock = path, lock

    @classmethod
    def open(cls, path) -> "JobFolder":
        """Open the folder, made if missing, emptied if nobody uses it. Errors: OSError."""
        path = Path(path)
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError):  # another process removed the folder in between
                return cls(path, _held(path))
        return cls(path, _held(path))

    def close(self) -> None:
        """Release the folder and remove it if nobody else uses it; a second call does nothing."""
        if self._lock is None:
            return
        os.close(self._lock)
        self._lock = None
        remove_if_abandoned(self.path)


def remove_abandoned(above) -> None:
    """Remove the folders of this user's jobs there that nobody uses any more."""
    for path in Path(above).glob(f"{PREFIX}{os.getuid()}-*"):
        remove_if_abandoned(path)


def remove_if_abandoned(path) -> None:
    """Remove this folder if no process uses it; files that cannot be removed stay."""
    try:
        _check_own(path)
        lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if _has_alone(lock):
            _remove_segments(path)
            remove_folder(path, {LOCK_NAME: FILE, **_NAMES})
    finally:
        os.close(lock)


def note_segments(folder) -> None:
    """Note the shared memory of the MPI library, which removes it only in MPI_Finalize."""
    paths = {line.split()[-1] for line in memory_map() if f" {SHARED_MEMORY}/" in line}
    mine = [
        path for path in map(Path, paths) if path.name.startswith(_OF_LIBRARIES) and path.exists()
    ]
    if mine:
        text = "".join(f"{path.stat().st_ino} {path.name}\n" for path in mine)
        write_whole(Path(folder) / SEGMENTS_NAME.format(os.getpid()), text.encode())


def memory_map() -> list[str]:
    """Return what lies where in the memory of this process; nothing on a system without /proc."""
    try:
        return Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []


def _held(path: Path) -> int:
    """Return a shared lock on the folder. Errors: FileNotFoundError if it is removed meanwhile."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_own(path)
    lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if _has_alone(lock) and _is_same(path / LOCK_NAME, lock):
            _remove_segments(path)
            clear_folder(path, _NAMES)
        _share(lock)
        if not _is_same(path / LOCK_NAME, lock):
            raise FileNotFoundError(f"{path} was removed")
    except BaseException:
        os.close(lock)
        raise
    return lock


def _remove_segments(folder):
    """Remove the shared memory of a killed job, unless another job has reused its name."""
    for note in folder.glob(SEGMENTS_NAME.format("*")):
        for line in note.read_text().splitlines():
            inode, _, name = line.partition(" ")
            path = SHARED_MEMORY / name
            try:
                is_same = os.lstat(path).st_ino == int(inode) and "/" not in name
                if name.startswith(_OF_LIBRARIES) and is_same:
                    remove_file(path)
            except (OSError, ValueError):  # it is gone already, or the note is damaged
                continue


def _check_own(path):
    """Check that this is a folder of this user and not a link. Errors: PermissionError."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(
            f"{path} is not a folder of user {os.getuid()}; remove it, or set TMPDIR to another "
            "folder"
        )


def _has_alone(lock) -> bool:
    """Try to take the exclusive lock, and return whether this process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _share(lock):
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError:  # a file system without locks
        pass


def _is_same(path, file) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
