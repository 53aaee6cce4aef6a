r"""Bytes on disk: written and made durable, read in parts by a few threads, never through links.

    write_arrays    memory --pwrite--> page cache --fsync--> disk
                       \__ compared while the disk works __/

Nothing here knows HDF5: where bytes belong is said by others.
"""
import errno
import os
import stat
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy

from ..array.backend import to_host
from ..errors import CheckpointError
from .stored import SEGMENT_BYTES, cut

READERS = 3                     # threads of one rank: while one waits for the disk, others compute checksums
READER_BYTES = 8 << 20          # less than this is not worth another thread
OPEN_FILES = 8                  # of each reader


def checksum(view, before: int = 0) -> int:
    """CRC-32 of these bytes, after those that gave `before`."""
    return zlib.crc32(view, before)


def as_text(number: int) -> str:
    """A checksum as it is written down."""
    return f"{number:08x}"


# ---- writing -----------------------------------------------------------------------------------------------------

class Cancelled(Exception):
    """Somebody else failed, so there is no use in writing on."""


def write_arrays(path: Path, parts, cancelled: threading.Event | None = None, meanwhile=None) -> list[tuple[str, ...]]:
    """Write arrays into an existing file; returns the checksums of their segments when all is on disk.

    parts      function () -> (at, array) each: byte of the file, 1-D array, in host or GPU memory, that nobody changes
               meanwhile; called twice, so that arrays may be made when their turn comes
    cancelled  looked at between segments
    meanwhile  function () called while the disk works
    Errors: OSError, Cancelled, and those of settle().
    """
    with _descriptor(path, os.O_RDWR) as descriptor:
        for at, array in parts():
            for start, view in _segments(array, cancelled):
                _write_all(descriptor, view, at + start)
    return settle(path, parts, cancelled, meanwhile)


def settle(path: Path, parts, cancelled: threading.Event | None = None, meanwhile=None) -> list[tuple[str, ...]]:
    """Wait until a file is on disk, and meanwhile read it back and compare it with memory; arguments as write_arrays.

    returns  the checksums of the segments of each array
    Errors: OSError, CheckpointError if the file holds something else than memory, Cancelled.
    """
    with _descriptor(path, os.O_RDWR) as descriptor, ThreadPoolExecutor(1) as disk:
        synced = disk.submit(os.fsync, descriptor)
        window = memoryview(bytearray(SEGMENT_BYTES))
        sums = [tuple(_compared(path, descriptor, view, at + start, window) for start, view in _segments(array, cancelled))
                for at, array in parts()]
        if meanwhile is not None:
            meanwhile()
        synced.result()
    return sums


def write_parts(path: Path, num_bytes: int, parts: dict[int, bytes]) -> None:
    """Make a file of this size with {at: bytes} in it and zeros between them. It is not yet on disk when this returns."""
    with _descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        os.ftruncate(descriptor, num_bytes)
        for at, content in parts.items():
            _write_all(descriptor, memoryview(content)[:num_bytes - at], at)


@contextmanager
def _descriptor(path: Path, flags: int):
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _segments(array, cancelled):
    """(start, bytes) of each segment of a 1-D array."""
    size = array.dtype.itemsize
    for start, stop in cut(0, array.size * size):
        if cancelled is not None and cancelled.is_set():
            raise Cancelled
        yield start, bytes_of(numpy.ascontiguousarray(to_host(array[start // size:stop // size])))


def bytes_of(array) -> memoryview:
    """The memory of a contiguous NumPy array."""
    return memoryview(array.view(numpy.uint8))


def _write_all(descriptor: int, view: memoryview, at: int) -> None:
    while len(view):
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _compared(path, descriptor, view, at, window) -> str:
    """The checksum of the view, which stands at this byte of the file."""
    back = window[:len(view)]
    if _read_all(descriptor, back, at) < len(view) or not _are_equal(back, view):
        raise CheckpointError(f"{path}: bytes {at} to {at + len(view)} are not what was written there; is another job writing "
                              "into the same folder?")
    return as_text(checksum(view))


def _are_equal(a: memoryview, b: memoryview) -> bool:
    """Whether the bytes are the same; by words, which takes a third of the time."""
    words = len(a) // 8 * 8
    return a[words:] == b[words:] and numpy.array_equal(numpy.frombuffer(a[:words], numpy.uint64),
                                                        numpy.frombuffer(b[:words], numpy.uint64))


def _read_all(descriptor: int, view: memoryview, at: int) -> int:
    """Fill the view, or stop at the end of the file; returns how many bytes came."""
    come = 0
    while come < len(view):
        new = os.preadv(descriptor, [view[come:]], at + come)
        if new == 0:
            break
        come += new
    return come


def sync(path: Path) -> None:
    """Wait until the file, or the names in the folder, are on disk."""
    with _descriptor(path, os.O_RDONLY) as descriptor:
        try:
            os.fsync(descriptor)
        except OSError as error:    # some file systems have nothing to wait for in a folder
            if not (error.errno in (errno.EINVAL, errno.ENOTSUP) and path.is_dir()):
                raise


def make_folder(path: Path) -> None:
    """Make the folder, and those above it that are missing; their names are on disk when this returns."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def write_text(path: Path, text: str) -> None:
    """A file of this text, on disk."""
    path.write_text(text, encoding="utf-8")
    sync(path)


# ---- reading -----------------------------------------------------------------------------------------------------

@contextmanager
def _damage(path: Path):
    """A file that cannot be read is a damaged checkpoint; one that may not be read is the caller's to mend."""
    try:
        yield
    except PermissionError:
        raise
    except OSError as error:
        what = "is a link" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror or error}"
        raise CheckpointError(f"{path} {what}") from None


def open_regular(path: Path) -> int:
    """A descriptor to read an ordinary file, not a link, pipe or folder.

    Errors: CheckpointError, PermissionError.
    """
    with _damage(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is not an ordinary file")
    return descriptor


def file_bytes(path: Path) -> int:
    """Size of an ordinary file. Errors: as open_regular."""
    descriptor = open_regular(path)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


class Reader:
    """Reads ranges of the files in one folder. For one thread."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._window: memoryview | None = None
        self._open: dict[str, int] = {}

    @property
    def window(self) -> memoryview:
        """SEGMENT_BYTES to read into, when there is no better place."""
        if self._window is None:
            self._window = memoryview(numpy.empty(SEGMENT_BYTES, numpy.uint8))
        return self._window

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._close_all()

    def _close_all(self):
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def read(self, file: str, at: int, view: memoryview) -> None:
        """Fill the view from byte `at` of the file. Errors: CheckpointError if it cannot be read or is too short."""
        path = self.folder / file
        if file not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._close_all()
            self._open[file] = open_regular(path)
        with _damage(path):
            come = _read_all(self._open[file], view, at)
        if come < len(view):
            raise CheckpointError(f"{path} ends at byte {at + come}, but the manifest says that byte {at + len(view) - 1} is "
                                  "in use")

    def checksum(self, file: str, ranges) -> str:
        """CRC-32 of these byte ranges of the file, one after the other."""
        total = 0
        for start, stop in ranges:
            for low in range(start, stop, SEGMENT_BYTES):
                view = self.window[:min(SEGMENT_BYTES, stop - low)]
                self.read(file, low, view)
                total = checksum(view, total)
        return as_text(total)


def read_all(folder: Path, tasks, num_bytes: int, num_readers: int = READERS) -> None:
    """Call each of `tasks` with a Reader, on a few threads if there is much to read; all are done when this returns.

    tasks      functions of a Reader, taken one by one, so that they may come from a generator
    num_bytes  about what they read together
    Errors: that of the first task that fails; later ones are then left out.
    """
    tasks, lock = iter(tasks), threading.Lock()
    failed = threading.Event()

    def take():
        with lock:
            return None if failed.is_set() else next(tasks, None)

    def work():
        with Reader(folder) as reader:
            try:
                while (task := take()) is not None:
                    task(reader)
            except BaseException:
                failed.set()
                raise

    num_readers = min(num_readers, 1 + num_bytes // READER_BYTES)
    if num_readers == 1:
        return work()
    with ThreadPoolExecutor(num_readers) as pool:
        for future in [pool.submit(work) for _ in range(num_readers)]:
            future.result()
