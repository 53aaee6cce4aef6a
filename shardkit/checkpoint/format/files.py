r"""Bytes on disk: written and made durable, read in parts by a few threads, never through links.

    write_arrays    memory --checksum, pwrite--> page cache --advice, fsync--> disk
                                                    \__ read back and compared while the disk works

Nothing here knows HDF5: where bytes belong is said by others.
"""

import errno
import os
import stat
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy
import xxhash

from ...array.copies import Copies
from ...errors import CheckpointError
from .stored import SEGMENT_BYTES, cut

READERS = 3  # threads of one rank: while one waits for the disk, others compute checksums
READER_BYTES = 8 << 20  # less than this is not worth another thread
OPEN_FILES = 8  # of each reader
EARLY_BYTES = 16 << 20  # when so much is written, the disk may begin


def crc32(view, before: int = 0) -> int:
    """CRC-32 of these bytes, after those that gave `before`."""
    return zlib.crc32(view, before)


def as_text(number: int) -> str:
    """A CRC-32 as it is written down."""
    return f"{number:08x}"


def checksum(view) -> str:
    """XXH3 of the bytes of a segment, 64 bits, as it is written down; ten times as fast as
    CRC-32.
    """
    return xxhash.xxh3_64_hexdigest(view)


# ---- writing -------------------------------------------------------------------------------------


class Cancelled(Exception):
    """Somebody else failed, so there is no use in writing on."""


def write_arrays(
    path: Path, parts, cancelled: threading.Event | None = None, copies: Copies | None = None
) -> list[tuple[str, ...]]:
    """Write arrays into an existing file; returns the checksums of their segments when all is on
    disk.

    parts      (at, array) each: byte of the file, 1-D array, in host or GPU memory, that nobody
               changes meanwhile
    cancelled  looked at between segments
    copies     how arrays come from a GPU
    Errors: OSError, CheckpointError if the file then holds something else, Cancelled.
    """
    written, sent = [], 0
    with _descriptor(path, os.O_RDWR) as descriptor:
        for at, array in parts:
            written.append([])
            for start, view in _segments(array, cancelled, copies or Copies()):
                written[-1].append((at + start, len(view), checksum(view)))
                _write_all(descriptor, view, at + start)
                stop = at + start + len(view)
                if stop - sent >= EARLY_BYTES:
                    _begin_writing_back(descriptor, sent, stop)
                    sent = stop
        return _settle(path, descriptor, written, cancelled)


def _begin_writing_back(descriptor: int, start: int, stop: int) -> None:
    """Let the disk begin with these bytes, without waiting for it: what this advice does on Linux
    for what is not clean yet.

    A hint: only fsync tells that bytes are on disk, and whether that failed at any time.
    """
    os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)


def _settle(path: Path, descriptor: int, written, cancelled) -> list[tuple[str, ...]]:
    """Wait until the disk has everything, and read back meanwhile what was written; the checksums
    of each array.

    written  a list for each array, of (byte of the file, number of bytes, checksum) for each
             segment
    """
    with ThreadPoolExecutor(1) as disk:
        synced = disk.submit(os.fsync, descriptor)
        window = memoryview(bytearray(SEGMENT_BYTES))
        for segment in chain.from_iterable(written):
            _look(cancelled)
            _compare(path, descriptor, window, *segment)
        synced.result()
    return [tuple(wanted for *_, wanted in segments) for segments in written]


def write_parts(path: Path, num_bytes: int, parts: dict[int, bytes]) -> None:
    """Make a file of this size with {at: bytes} in it and zeros between them. It is not yet on disk
    when this returns.
    """
    with _descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        os.ftruncate(descriptor, num_bytes)
        for at, content in parts.items():
            _write_all(descriptor, memoryview(content)[: num_bytes - at], at)


@contextmanager
def _descriptor(path: Path, flags: int):
    """An open file; an OSError inside that names none, as those of a full disk do, names this
    one.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        os.close(descriptor)


def _segments(array, cancelled, copies):
    """(start, bytes) of each segment of a 1-D array."""
    size = array.dtype.itemsize
    spans = [(start // size, stop // size) for start, stop in cut(0, array.size * size)]
    for (start, _), part in zip(spans, copies.parts(array, spans)):
        _look(cancelled)
        yield start * size, bytes_of(part)


def bytes_of(array) -> memoryview:
    """The memory of a contiguous NumPy array."""
    return memoryview(array.view(numpy.uint8))


def _write_all(descriptor: int, view: memoryview, at: int) -> None:
    while len(view):
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _compare(
    path: Path, descriptor: int, window: memoryview, at: int, num_bytes: int, wanted: str
) -> None:
    """Errors: CheckpointError unless these bytes of the file have this checksum."""
    back = window[:num_bytes]
    if _read_all(descriptor, back, at) < num_bytes or checksum(back) != wanted:
        raise CheckpointError(
            f"{path}: bytes {at} to {at + num_bytes} are not what was written there; is another job writing "
            "into the same folder?"
        )


def _look(cancelled: threading.Event | None) -> None:
    if cancelled is not None and cancelled.is_set():
        raise Cancelled


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
        except OSError as error:  # some file systems have nothing to wait for in a folder
            if not (error.errno in (errno.EINVAL, errno.ENOTSUP) and path.is_dir()):
                raise


def make_folder(path: Path) -> None:
    """Make the folder, and those above it that are missing; their names are on disk when this
    returns.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def write_text(path: Path, text: str) -> None:
    """A file of this text, on disk."""
    path.write_text(text, encoding="utf-8")
    sync(path)


# ---- reading -------------------------------------------------------------------------------------


@contextmanager
def _damage(path: Path):
    """A file that cannot be read is a damaged checkpoint; one that may not be read is the caller's
    to mend.
    """
    try:
        yield
    except PermissionError:
        raise
    except OSError as error:
        what = (
            "is a link"
            if error.errno == errno.ELOOP
            else f"cannot be read: {error.strerror or error}"
        )
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
    """Reads ranges of the files in one folder. For one thread.

    copies   how values go to a GPU
    """

    def __init__(self, folder: Path, copies: Copies | None = None):
        self.folder, self.copies = folder, copies or Copies()
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
        """Fill the view from byte `at` of the file. Errors: CheckpointError if it cannot be read or
        is too short.
        """
        path = self.folder / file
        if file not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._close_all()
            self._open[file] = open_regular(path)
        with _damage(path):
            come = _read_all(self._open[file], view, at)
        if come < len(view):
            raise CheckpointError(
                f"{path} ends at byte {at + come}, but the manifest says that byte {at + len(view) - 1} is "
                "in use"
            )

    def crc32(self, file: str, ranges) -> str:
        """CRC-32 of these byte ranges of the file, one after the other, as text."""
        total = 0
        for start, stop in ranges:
            for low in range(start, stop, SEGMENT_BYTES):
                view = self.window[: min(SEGMENT_BYTES, stop - low)]
                self.read(file, low, view)
                total = crc32(view, total)
        return as_text(total)


def read_all(
    folder: Path, tasks, num_bytes: int, num_readers: int = READERS, copies: Copies | None = None
) -> None:
    """Call each of `tasks` with a Reader, on a few threads if there is much to read; all are done
    when this returns.

    tasks      functions of a Reader, taken one by one, so that they may come from a generator
    num_bytes  about what they read together
    copies     how values go to a GPU; of one thread, so num_readers is 1 then
    Errors: that of the first task that fails; later ones are then left out.
    """
    tasks, lock = iter(tasks), threading.Lock()
    failed = threading.Event()

    def take():
        with lock:
            return None if failed.is_set() else next(tasks, None)

    def work():
        with Reader(folder, copies) as reader:
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
