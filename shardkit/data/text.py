"""Text files: which files a path names, and whether they are text; their bytes are the tokens."""

import os
import sysconfig
from pathlib import Path

from ..errors import CorpusError
from ..files.folders import files_below
from ..files.paths import suffix_of
from ..files.reading import bytes_of, opened, size_of
from .segments import Segment

VOCABULARY_SIZE = 256  # a token is a byte
_UTF_16 = "it is UTF-16, which iconv -t UTF-8 converts"
_PACKED = "it is compressed; unpack it, or let `shardkit prepare` do so: .gz, .bz2 or .xz"
_HEADS = {  # of files that are no text, though they may have no NUL byte
    b"\x89HDF\r\n\x1a\n": "it is an HDF5 file",
    b"\xff\xfe": _UTF_16,
    b"\xfe\xff": _UTF_16,
    b"\x1f\x8b": _PACKED,
    b"BZh": _PACKED,
    b"\xfd7zXZ": _PACKED,
    b"\x28\xb5\x2f\xfd": _PACKED,
    b"PK\x03\x04": "it is a zip archive, or a file of an office program; unpack it, or export text",
    b"%PDF-": "it is a PDF; pdftotext converts it",
    b"PAR1": "it is Parquet, which `shardkit prepare` reads if it is named .parquet",
}
HEAD_BYTES = 1024  # that tell a file of another kind from text
_CHECKED_BYTES = 1 << 20  # at the beginning of a file
# encodings: a hundred tables, most of them nearly copies of each other
_SKIPPED_FOLDERS = "test tests idle_test site-packages dist-packages __pycache__ encodings".split()


def find_files(paths) -> list[Path]:
    """Return the text files under these paths, sorted; without paths, the standard library's.

    Folders are searched for files that are not hidden and hold no NUL byte near their beginning.
    Errors: CorpusError if a path does not exist, or a folder holds nothing but files of other
    kinds.
    """
    if not paths:
        return _library_files()
    files = []
    for path in map(Path, paths):
        if not path.exists():
            raise CorpusError(f"{path} does not exist; give a file or folder, of text or tokens")
        files += _texts_under(path) if path.is_dir() else [path]
        if path.is_file() and not size_of(path, error=CorpusError):
            raise CorpusError(f"no text in {path}: it is empty; give text, or leave it out", path)
    return files


def _library_files() -> list[Path]:
    found = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found)


def _texts_under(folder: Path) -> list[Path]:
    below = sorted(files_below(folder, error=CorpusError))
    found = [path for path in below if path.is_file()]
    seen = [path for path in found if not is_hidden(path, folder)]
    texts = [path for path in seen if is_text_head(first_bytes(path))]
    if not texts:
        were = "s were" if len(found) > 1 else " was"
        passed = f"{len(found)} file{were} passed over, which are hidden or of another kind"
        raise CorpusError(
            f"no text in {folder}: {passed if found else 'it is empty'}; data.path must name text "
            "files"
        )
    return texts


def is_hidden(path: Path, folder: Path) -> bool:
    """Return True if the file, or a folder on the way to it from this one, begins with a dot."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def first_bytes(path: Path) -> bytes:
    """Return the bytes that tell a file of another kind from text."""
    with opened(path, error=CorpusError) as file:
        return file.read(HEAD_BYTES)


def is_text_head(head: bytes) -> bool:
    """Return False for the first bytes of a file of another kind, or a NUL byte among them."""
    return b"\0" not in head and not head.startswith((*_HEADS,))


def _check_text(path: Path, head: bytes) -> None:
    """Raise CorpusError if a file that begins with these bytes is no text; it says what it is."""
    if not is_text_head(head):
        raise CorpusError(
            f"data.path {path} is no text: {kind_of(path, head)}. The language task learns the "
            "bytes of text files, and token files; for rows of numbers there is --task table"
        )


def kind_of(path: Path, head: bytes) -> str:
    """Return in words what a file is that is no text, and begins with these bytes."""
    for begin, kind in _HEADS.items():
        if head.startswith(begin):
            return kind
    if suffix_of(path) == ".bin":
        return (
            "it holds NUL bytes, like the token numbers that nanoGPT writes, of which "
            "data.token_dtype must say whether they are uint16 or uint32"
        )
    return "it holds NUL bytes"


def text_segments(paths, maximum_bytes: int | None = None) -> list[Segment]:
    """Return the different texts of these paths, each one document, at most so many bytes in all.

    Of files with the same content the first counts.
    Errors: CorpusError if a file cannot be read or is no text, or nothing is there.
    """
    left = maximum_bytes
    segments: dict[str, Segment] = {}
    try:
        for path in find_files(paths):
            if left == 0:
                break
            segment = _segment(path, left)
            if not segment.count or segment.mark in segments:
                continue
            segments[segment.mark] = segment
            left = None if left is None else left - segment.count
    except OSError as error:
        raise CorpusError(f"cannot read text {error.filename}: {error.strerror}") from None
    if not segments:
        raise CorpusError(
            f"no text in {', '.join(map(str, paths)) or 'the standard library'}; data.path must "
            "name text files"
        )
    return [*segments.values()]


def _segment(path: Path, most_bytes: int | None) -> Segment:
    with opened(path, error=CorpusError) as file:
        _check_text(path, file.read(_CHECKED_BYTES))
        size = bytes_of(file)
    count = size if most_bytes is None else min(size, most_bytes)
    return Segment.marked("uint8", 0, count, path)
