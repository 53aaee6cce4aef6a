"""A temporary folder of a job on one node, which is removed by whoever leaves it last, or by the
next job that starts there.

    shardkit-job-1000-.../alive     every process that uses the folder holds a shared lock on this
                                    file
                          roll, rank-00000.ledger, ...

The kernel drops the lock of a process that ends in any way. So whoever gets the lock for itself
alone knows that nobody uses the folder any more, in whatever container or under whatever number the
others ran. Where the file system knows no locks, folders of killed jobs stay.
"""

import fcntl
import os
import shutil
import stat
from pathlib import Path

PREFIX = "shardkit-job-"
LOCK_NAME, SEGMENTS_NAME = "alive", "segments-{}"
SHARED_MEMORY = Path("/dev/shm")
_OF_LIBRARIES = ("mpich_shm_", "sm_segment.", "vader_segment.")


class JobFolder:
    """A folder, held by this process."""

    def __init__(self, path: Path, lock: int):
        self.path, self._lock = path, lock

    @classmethod
    def open(cls, path) -> "JobFolder":
        """The folder, made if it is missing, and emptied if nobody uses it. Errors: OSError."""
        path = Path(path)
        while True:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_own(path)
            try:
                lock = os.open(
                    path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
                )
            except FileNotFoundError:  # somebody removed the folder in between
                continue
            if _has_alone(lock):
                _remove_segments(path)
                _empty(path)
            _share(lock)
            if _is_same(path / LOCK_NAME, lock):
                return cls(path, lock)
            os.close(lock)

    def close(self) -> None:
        """Let go of the folder, and remove it if nobody else uses it; a second call does
        nothing.
        """
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
    """Remove this folder if no living process uses it; what cannot be removed stays."""
    try:
        _check_own(path)
        lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if _has_alone(lock):
            _remove_segments(path)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def note_segments(folder) -> None:
    """Write down which memory this process shares by the MPI library: the library removes it at the
    end only.
    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # a system that does not tell
        return
    paths = {line.split()[-1] for line in lines if f" {SHARED_MEMORY}/" in line}
    mine = [
        path for path in map(Path, paths) if path.name.startswith(_OF_LIBRARIES) and path.exists()
    ]
    if mine:
        text = "".join(f"{path.stat().st_ino} {path.name}\n" for path in mine)
        (Path(folder) / SEGMENTS_NAME.format(os.getpid())).write_text(text)


def _remove_segments(folder):
    """Remove the shared memory of a job that was killed, if it is still the same."""
    for note in folder.glob(SEGMENTS_NAME.format("*")):
        for line in note.read_text().splitlines():
            inode, _, name = line.partition(" ")
            path = SHARED_MEMORY / name
            try:
                if name.startswith(_OF_LIBRARIES) and os.stat(path).st_ino == int(inode):
                    path.unlink()
            except OSError:  # it is gone, as it should be
                continue


def _check_own(path):
    """Errors: PermissionError unless it is a folder of this user, and no link to one."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(
            f"{path} is not a folder of user {os.getuid()}; remove it, or set TMPDIR to another folder"
        )


def _has_alone(lock) -> bool:
    """Take the lock for this process alone, if nobody has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _share(lock):
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError:  # no locks on this file system
        pass


def _is_same(path, file) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _empty(path):
    for entry in path.iterdir():
        if entry.name != LOCK_NAME:
            entry.unlink(missing_ok=True)
