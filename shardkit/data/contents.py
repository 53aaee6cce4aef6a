"""What files and arrays hold: a hash of every byte, made once, believed while a file is untouched.

    file --16 MiB at a time--> XXH3 of each block --> hash          made when a run starts
         \\--size, times, inode--> stamp                             compared when it goes on

A file of the same stamp is not read again; one of another stamp is, and its hash tells whether it
was changed or only copied. A file that was written in the seconds before it was read has no stamp:
what comes after it may have the same time.
"""

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import product
from math import prod
from pathlib import Path

import numpy

from ..checkpoint.format.files import checksum
from ..errors import CorpusError, FileError, InputError
from ..files.reading import opened, read_json, understood, wanted
from ..files.writing import write_whole

CONTENTS = "contents.json"  # in the data folder of a run
Stamp = tuple[int, ...]  # size, time of the content, time of the file, inode
_BLOCK_BYTES = 1 << 24
_MOST_ARRAY_BYTES = 1 << 30  # of an array that is not in memory, beyond which blocks are left out
_SETTLED_SECONDS = 2  # after which a change has another time, on any file system
_MOST_FILE_BYTES = 1 << 28


def stamp_of(descriptor_or_path) -> Stamp:
    """Return what another content of a file would change, as far as the system notes it."""
    about = os.stat(descriptor_or_path)
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino


def content_of(
    *paths, error: type[FileError] = CorpusError, work: Callable[[], None] = lambda: None
) -> str:
    """Return a hash, in hex, of all bytes of these files.

    work   called after each block
    Errors: OSError; `error` where one of them is no ordinary file, or changes meanwhile.
    """
    digest = blake2b(digest_size=16)
    blocks = _Blocks()
    for path in paths:
        with opened(path, error=error) as file:
            before = stamp_of(file.fileno())
            for at in range(0, before[0], _BLOCK_BYTES):
                digest.update(blocks.checksum(file.fileno(), at, before[0]))
                work()
            digest.update(_end(before[0]))
            if stamp_of(file.fileno())[:2] != before[:2]:
                raise error(f"{path} was changed while it was read; try again", path)
    return digest.hexdigest()


def content_of_stream(file, work: Callable[[], None] = lambda: None) -> str:
    """Return what content_of says of a file that holds what a binary file object reads."""
    digest, size = blake2b(digest_size=16), 0
    while block := file.read(_BLOCK_BYTES):
        digest.update(checksum(block).encode())
        size += len(block)
        work()
    digest.update(_end(size))
    return digest.hexdigest()


def _end(size: int) -> bytes:
    return b":%d;" % size


class _Blocks:
    """Reads blocks of files into one buffer; holes, which read as zeros, are passed over."""

    def __init__(self):
        self._buffer = memoryview(bytearray(0))
        self._of_zeros: dict[int, bytes] = {}

    def checksum(self, descriptor: int, at: int, size: int) -> bytes:
        """Return the checksum of the block at a byte of a file of this size. Errors: OSError."""
        count = min(_BLOCK_BYTES, size - at)
        if _next_written(descriptor, at, size) >= at + count:
            if count not in self._of_zeros:
                self._of_zeros[count] = checksum(bytes(count)).encode()
            return self._of_zeros[count]
        if len(self._buffer) < count:
            self._buffer = memoryview(bytearray(count))
        found, done = self._buffer[:count], 0
        while done < count and (more := os.preadv(descriptor, [found[done:]], at + done)):
            done += more
        return checksum(found[:done]).encode()


def _next_written(descriptor: int, at: int, size: int) -> int:
    """Return the byte from `at` on where a file has content and no hole; its size if none has."""
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        return size if error.errno == errno.ENXIO else at


def content_of_array(array) -> str:
    """Return a hash, in hex, of the shape, dtype and values of an array, or what is indexed so.

    Of one that is not in memory at most 1 GiB is read: the first and the last rows, and some in
    equal steps between them.
    """
    digest = blake2b(f"{tuple(array.shape)} {array.dtype}".encode(), digest_size=16)
    pieces = list(_pieces(array.shape[1:], array.dtype.itemsize))
    for (first, stop), inside in product(_blocks_of(array), pieces):
        block = numpy.ascontiguousarray(array[(slice(first, stop), *inside)])
        digest.update(checksum(block.reshape(-1).view(numpy.uint8)).encode())
    return digest.hexdigest()


def _pieces(shape, item_bytes: int) -> Iterator[tuple[slice, ...]]:
    """Yield where the pieces of a row of this shape are, of at most the bytes of a block each."""
    if prod(shape) * item_bytes <= _BLOCK_BYTES or not shape:
        yield ()
        return
    step = max(_BLOCK_BYTES // (prod(shape[1:]) * item_bytes), 1)
    for first in range(0, shape[0], step):
        for inside in _pieces(shape[1:] if step == 1 else (), item_bytes):
            yield (slice(first, first + step), *inside)


def _blocks_of(array) -> Iterator[tuple[int, int]]:
    rows = array.shape[0]
    row_bytes = max(array.dtype.itemsize * numpy.prod(array.shape[1:], dtype=object), 1)
    step = max(_BLOCK_BYTES // row_bytes, 1)
    count = -(-rows // step)
    most = count
    if not isinstance(array, numpy.ndarray):
        most = min(count, max(_MOST_ARRAY_BYTES // (step * row_bytes), 2))
    for number in range(most):
        block = (count - 1) * number // max(most - 1, 1)
        yield block * step, min((block + 1) * step, rows)


class Contents:
    """Hashes of files that are known, with their stamps.

    known  {path: (stamp or None, hash)}
    """

    def __init__(self, known: dict[str, tuple[Stamp | None, str]] | None = None):
        self._known = dict(known or {})

    def of(self, path) -> str:
        """Return the hash of a file, which is read if it was touched. Errors: as content_of."""
        name, stamp = _name(path), stamp_of(path)
        known = self._known.get(name)
        if known is None or known[0] != stamp:
            found = content_of(path, error=InputError)
            self._known[name] = _settled(stamp), found
        return self._known[name][1]

    def check(self, path) -> None:
        """Refuse a file that is known, and holds something else now. Errors: InputError."""
        name = _name(path)
        if name in self._known and self._known[name][1] != self.of(path):
            raise InputError(
                f"{path} is not what this run was trained on, since it was changed; restore it, or "
                "start another run",
                path,
            )

    def check_given(self, name: str, content: str) -> None:
        """Note the hash of what is no file; refuse it if another was noted. Errors: InputError."""
        if self._known.setdefault(name, (None, content))[1] != content:
            raise InputError(
                f"{name} is not what this run was trained on; give the same rows, or start another "
                "run",
                name,
            )

    def store(self, folder: Path) -> None:
        """Write it into the data folder of a run. Errors: OSError."""
        write_whole(folder / CONTENTS, json.dumps(self._known, indent=0).encode())

    @classmethod
    def stored(cls, folder: Path) -> "Contents":
        """Return what store() wrote; without files where there is none. Errors: InputError."""
        path = folder / CONTENTS
        try:
            table = read_json(path, _MOST_FILE_BYTES)
        except FileNotFoundError:
            return cls()
        with understood(path):
            known = {name: (parsed_stamp(s), h) for name, (s, h) in table.items()}
        for name, (_, found) in known.items():
            wanted(found, str, path, name)
        return cls(known)


def settled_stamp(path) -> Stamp | None:
    """Return the stamp of a file; None if a later change might have the same one."""
    return _settled(stamp_of(path))


def _settled(stamp: Stamp) -> Stamp | None:
    return stamp if max(stamp[1:3]) < time.time_ns() - _SETTLED_SECONDS * 10**9 else None


def parsed_stamp(values) -> Stamp | None:
    """Return a stamp as a file holds it. Errors: ValueError."""
    if values is None:
        return None
    if not isinstance(values, list) or [type(value) for value in values] != [int] * 4:
        raise ValueError(f"a stamp is {values!r:.100}; wanted four integers")
    return tuple(values)


def _name(path) -> str:
    return str(Path(path).resolve())
