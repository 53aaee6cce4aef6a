r"""Write bytes to disk durably, compute their checksums, and open files without following links.

    write_arrays    memory --checksum, pwrite--> page cache --advice, fsync--> disk
                                                    \__ read back and compared while the disk works

Nothing here knows HDF5: the caller says where bytes belong. reads.py reads them again.
"""

import errno
import os
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
from ...files import reading
from .stored import SEGMENT_BYTES, cut

EARLY_BYTES = 16 << 20  # when so much is written, the disk may begin


# ---- checksums -----------------------------------------------------------------------------------


def crc32(view, before: int = 0) -> int:
    """Return the CRC-32 of these bytes, after those that gave `before`."""
    return zlib.crc32(view, before)


def as_text(number: int) -> str:
    """Return a CRC-32 as a manifest writes it."""
    return f"{number:08x}"


def checksum(view) -> str:
    """Return the 64-bit XXH3 of a segment as a manifest writes it; ten times as fast as CRC-32."""
    return xxhash.xxh3_64_hexdigest(view)


# ---- writing -------------------------------------------------------------------------------------


class Cancelled(Exception):
    """Another rank failed, so there is no use in writing on."""


def write_arrays(
    path: Path, parts, cancelled: threading.Event | None = None, copies: Copies | None = None
) -> list[tuple[str, ...]]:
    """Write arrays into an existing file; return the checksums of their segments.

    All is on disk, and was read back, when this returns.
    parts      (at, array) each: byte of the file, 1-D array, in host or GPU memory, that nobody
               changes meanwhile
    cancelled  looked at between segments
    copies     how arrays come from a GPU
    Errors: OSError, CheckpointError if the file then holds something else, Cancelled.
    """
    written = []
    sent = 0
    with _descriptor(path, os.O_RDWR | os.O_NOFOLLOW) as descriptor:
        for at, array in parts:
            written.append([])
            for start, view in _segments(array, cancelled, copies or Copies()):
                written[-1].append((at + start, len(view), checksum(view)))
                _write_fully(descriptor, view, at + start)
                stop = at + start + len(view)
                if stop - sent >= EARLY_BYTES:
                    _begin_writing_back(descriptor, sent, stop)
                    sent = stop
        return _settle(path, descriptor, written, cancelled)


def _segments(array, cancelled, copies):
    """Yield (start, bytes) of each segment of a 1-D array."""
    size = array.dtype.itemsize
    spans = [(start // size, stop // size) for start, stop in cut(0, array.size * size)]
    for (start, _), part in zip(spans, copies.parts(array, spans)):
        _check_not_cancelled(cancelled)
        yield start * size, bytes_of(part)


def bytes_of(array) -> memoryview:
    """Return the memory of a contiguous NumPy array."""
    return memoryview(array.view(numpy.uint8))


def _begin_writing_back(descriptor: int, start: int, stop: int) -> None:
    """Let the disk begin with these bytes, without waiting: what this advice does on Linux.

    A hint: only fsync tells that bytes are on disk, and whether that failed at any time.
    """
    os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)


def _settle(path: Path, descriptor: int, written, cancelled) -> list[tuple[str, ...]]:
    """Wait until the disk has everything, and meanwhile read back what was written.

    written  a list for each array, of (byte of the file, number of bytes, checksum) for each
             segment
    returns  the checksums of each array
    """
    with ThreadPoolExecutor(1) as disk:
        synced = disk.submit(os.fsync, descriptor)
        window = memoryview(bytearray(SEGMENT_BYTES))
        for segment in chain.from_iterable(written):
            _check_not_cancelled(cancelled)
            _compare(path, descriptor, window, *segment)
        synced.result()
    return [tuple(wanted for *_, wanted in segments) for segments in written]


def _compare(
    path: Path, descriptor: int, window: memoryview, at: int, num_bytes: int, wanted: str
) -> None:
    """Raise CheckpointError unless these bytes of the file have this checksum."""
    back = window[:num_bytes]
    if read_fully(descriptor, back, at) < num_bytes or checksum(back) != wanted:
        raise CheckpointError(
            f"{path}: bytes {at} to {at + num_bytes} are not what was written there; "
            "is another job writing into the same folder?"
        )


def _check_not_cancelled(cancelled: threading.Event | None) -> None:
    if cancelled is not None and cancelled.is_set():
        raise Cancelled


def write_parts(path: Path, num_bytes: int, parts: dict[int, bytes]) -> None:
    """Make a file of {at: bytes} with zeros between them. It need not be on disk yet on return."""
    with _descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW) as descriptor:
        os.ftruncate(descriptor, num_bytes)
        for at, content in parts.items():
            _write_fully(descriptor, memoryview(content)[: num_bytes - at], at)


def make_folder(path: Path) -> None:
    """Make the folder and its missing parents; their names are on disk when this returns."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def sync(path: Path) -> None:
    """Wait until the file, or the names in the folder, are on disk."""
    with _descriptor(path, os.O_RDONLY) as descriptor:
        try:
            os.fsync(descriptor)
        except OSError as error:  # some file systems have nothing to wait for in a folder
            if not (error.errno in (errno.EINVAL, errno.ENOTSUP) and path.is_dir()):
                raise


@contextmanager
def _descriptor(path: Path, flags: int):
    """Open a file; an OSError inside that names no file, as on a full disk, names this one."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        os.close(descriptor)


def _write_fully(descriptor: int, view: memoryview, at: int) -> None:
    while len(view):
        written = os.pwrite(descriptor, view, at)
        view = view[written:]
        at += written


# ---- opening and reading -------------------------------------------------------------------------


@contextmanager
def damage_of(path: Path):
    """Turn an OSError into CheckpointError: a file that cannot be read is a damaged checkpoint.

    PermissionError stays: the user can mend that.
    """
    try:
        yield
    except PermissionError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}", path) from None


def open_regular(path: Path) -> int:
    """Return a descriptor to read an ordinary file, not a link, pipe or folder.

    Errors: CheckpointError, PermissionError.
    """
    with damage_of(path):
        return reading.open_regular(path, error=CheckpointError, follows_links=False)


def read_whole(path: Path, most: int) -> bytes:
    """Return the content of an ordinary file of at most so many bytes. Errors: as open_regular."""
    with damage_of(path):
        return reading.read_bytes(path, most, error=CheckpointError, follows_links=False)


def file_bytes(path: Path) -> int:
    """Return the size of an ordinary file. Errors: as open_regular."""
    descriptor = open_regular(path)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def read_fully(descriptor: int, view: memoryview, at: int) -> int:
    """Fill the view, or stop at the end of the file; return how many bytes were read."""
    num_read = 0
    while num_read < len(view):
        new = os.preadv(descriptor, [view[num_read:]], at + num_read)
        if new == 0:
            break
        num_read += new
    return num_read
