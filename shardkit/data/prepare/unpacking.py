"""Compressed inputs: unpacked once, beside the parts, since no block can begin in their middle.

    corpus.jsonl.gz --one rank--> tokens.h5.parts/<key>.unpacked --> blocks, as of any other file

The ranks share the files. What was unpacked stays until the job has ended, through any kill; its
key depends on the compressed file (name, size and time), which messages name too.
"""

import bz2
import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

from ...errors import CorpusError
from ...files.writing import whole_file

_OPENERS: dict[str, Callable] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_REFUSED = {".zst": "unzstd", ".zstd": "unzstd", ".lz4": "unlz4", ".Z": "uncompress"}
_DAMAGE = EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error
_PIECE_BYTES = 1 << 20


def is_compressed(path: Path) -> bool:
    """Return True if the name says that the file is compressed, in a way that is read.

    Errors: CorpusError if it is compressed in another way.
    """
    if path.suffix in _REFUSED:
        raise CorpusError(
            f"{path} is compressed, and of compressed files only those that end in "
            f"{', '.join(_OPENERS)} are read; {_REFUSED[path.suffix]} unpacks it"
        )
    return path.suffix in _OPENERS


def head_of(path: Path, num_bytes: int) -> bytes:
    """Return the first bytes of what a compressed file holds. Errors: CorpusError, OSError."""
    return _read(path, lambda file: file.read(num_bytes))


def unpack(path: Path, folder: Path, work: Callable[[], None]) -> Path:
    """Return the file in this folder that holds what a compressed file does, made if need be.

    work   called after each MiB
    Errors: CorpusError if it is damaged, OSError.
    """
    about = path.stat()
    key = repr((str(path.resolve()), about.st_size, about.st_mtime_ns))
    unpacked = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.unpacked"
    if not unpacked.exists():
        with whole_file(unpacked, durable=True) as out:
            _read(path, lambda file: _copy(file, out, work))
    return unpacked


def _copy(file, out, work: Callable[[], None]) -> None:
    while piece := file.read(_PIECE_BYTES):
        out.write(piece)
        work()


def _read(path: Path, use: Callable):
    try:
        with _OPENERS[path.suffix](path, "rb") as file:
            return use(file)
    except _DAMAGE as error:
        raise CorpusError(f"{path} is damaged and cannot be unpacked: {error}") from None
    except OSError as error:
        if error.errno is None:  # of the library bz2, which has no error of its own
            raise CorpusError(f"{path} is damaged and cannot be unpacked: {error}") from None
        raise
