"""Compressed inputs: unpacked once, beside the parts, since no block can begin in their middle.

    corpus.jsonl.gz --one rank--> tokens.h5.parts/<key>.unpacked --> blocks, as of any other file

The ranks share the files. What was unpacked stays until the job has ended, through any kill; its
key depends on the compressed file (name, size and time), which messages name too.
"""

import bz2
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

from ...errors import CorpusError
from ...files.paths import suffix_of
from ...files.reading import open_regular
from ...files.writing import whole_file
from ..contents import content_of_stream

_REFUSED = {".zst": "unzstd", ".zstd": "unzstd", ".lz4": "unlz4", ".z": "uncompress"}
_DAMAGE = EOFError, lzma.LZMAError, zlib.error, ValueError
_PIECE_BYTES = 1 << 20
_MOST_MEMORY = 1 << 28  # bytes, of a decoder of .xz: four times what xz -9 needs
_MOST_TIMES = 2000  # what gzip cannot reach
_MOST_ZEROS = 1 << 20  # behind a stream, where tapes and disks fill up their blocks
_SMALL = 1 << 30  # bytes that any file may hold


def is_compressed(path: Path) -> bool:
    """Return True if the name says that the file is compressed, in a way that is read.

    Errors: CorpusError if it is compressed in another way.
    """
    suffix = suffix_of(path)
    if suffix in _REFUSED:
        raise CorpusError(
            f"{path} is compressed, and of compressed files only those that end in "
            f"{', '.join(_DECODERS)} are read; {_REFUSED[suffix]} unpacks it"
        )
    return suffix in _DECODERS


def head_of(path: Path, num_bytes: int) -> bytes:
    """Return the first bytes of what a compressed file holds. Errors: CorpusError, OSError."""
    return _read(path, lambda file: file.read(num_bytes))


def content_within(path: Path, most: int) -> bytes:
    """Return all that a compressed file holds. Errors: CorpusError if it is more; as head_of."""
    found, most = io.BytesIO(), min(most, max(_MOST_TIMES * path.stat().st_size, _SMALL))
    _read(path, lambda file: _copy(path, file, found, most, lambda: None))
    return found.getvalue()


def mark_of(path: Path, work: Callable[[], None]) -> str:
    """Return the hash of what a compressed file holds, see content_of. Errors: as unpack."""
    return _read(path, lambda file: content_of_stream(file, work))


def unpack(path: Path, folder: Path, work: Callable[[], None]) -> Path:
    """Return the file in this folder that holds what a compressed file does, made if need be.

    work   called after each MiB
    Errors: CorpusError if it is damaged, OSError.
    """
    about = path.stat()
    key = repr((str(path.resolve()), about.st_size, about.st_mtime_ns))
    unpacked = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.unpacked"
    if not unpacked.exists():
        most = max(_MOST_TIMES * about.st_size, _SMALL)
        with whole_file(unpacked, durable=True) as out:
            _read(path, lambda file: _copy(path, file, out, most, work))
    return unpacked


def _copy(path: Path, file, out, most: int, work: Callable[[], None]) -> None:
    left = most
    while content := file.read(_PIECE_BYTES):
        left -= len(content)
        if left < 0:
            raise CorpusError(
                f"{path} holds more than {most:,} bytes, too many for its size of "
                f"{path.stat().st_size:,}, or to be held; unpack it first",
                path,
            )
        out.write(content)
        work()


def _read(path: Path, use: Callable):
    try:
        with open(open_regular(path, error=CorpusError), "rb") as packed:
            return use(io.BufferedReader(_Unpacked(packed, _DECODERS[suffix_of(path)])))
    except (*_DAMAGE, OSError) as error:
        if getattr(error, "errno", None) is not None:  # bz2 raises OSError of no number
            raise
        raise CorpusError(f"{path} is damaged and cannot be unpacked: {error}", path) from None


class _Unpacked(io.RawIOBase):
    """What a compressed file holds: one stream behind another, and zeros between them.

    Unlike the library's own, it takes bounded memory, and does not look for the end of the zeros
    one byte at a time.

    packed  the file
    begin   function () -> a decoder of one stream, like lzma.LZMADecompressor
    """

    def __init__(self, packed, begin: Callable):
        super().__init__()
        self._packed, self._begin = packed, begin
        self._decoder, self._rest = begin(), b""
        self._is_within = False  # a stream
        self._num_zeros = 0

    def readable(self):
        return True

    def readinto(self, buffer):
        while self._is_within or self._next_stream():
            if not self._rest and self._decoder.needs_input:
                self._rest = self._packed.read(_PIECE_BYTES)
                if not self._rest:
                    raise EOFError("it is cut short")
            found = self._decoder.decompress(self._rest, len(buffer))
            self._rest = b""
            if self._decoder.eof:
                self._rest, self._is_within = self._decoder.unused_data, False
                self._decoder = self._begin()
            if found:
                buffer[: len(found)] = found
                return len(found)
        return 0

    def _next_stream(self) -> bool:
        """Pass over zeros; return False at the end of the file."""
        while True:
            rest = self._rest.lstrip(b"\0")
            self._num_zeros += len(self._rest) - len(rest)
            if self._num_zeros > _MOST_ZEROS:
                raise EOFError(f"there are more than {_MOST_ZEROS:,} zeros behind its end")
            if rest:
                self._rest, self._is_within = rest, True
                return True
            self._rest = self._packed.read(_PIECE_BYTES)
            if not self._rest:
                return False


class _GzipDecoder:
    """A decoder of one stream of gzip, like those of the other libraries."""

    def __init__(self):
        self._decoder = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        """True behind the end of the stream."""
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        """What was read behind the end."""
        return self._decoder.unused_data

    @property
    def needs_input(self) -> bool:
        """True if nothing is left of what was read."""
        return not self._decoder.unconsumed_tail

    def decompress(self, content: bytes, most: int) -> bytes:
        """Return at most so many bytes of the stream."""
        return self._decoder.decompress(self._decoder.unconsumed_tail + content, most)


_DECODERS: dict[str, Callable] = {
    ".gz": _GzipDecoder,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lambda: lzma.LZMADecompressor(memlimit=_MOST_MEMORY),
}
