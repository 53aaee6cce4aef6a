"""Formats of language data: how files say where their tokens and documents are.

    text       the bytes of text files, each file a document
    tokens     HDF5 files of `shardkit prepare` (token_file.py)
    nanogpt    FILE.bin: uint16 or uint32 and nothing else; meta.pkl beside it may tell the
               vocabulary
    megatron   NAME.bin and NAME.idx, the indexed datasets of Megatron-LM
    npy        one-dimensional arrays of integers
    npz        the same in an archive that is not compressed: FILE.npz, or FILE.npz:NAME

A format is one class here and its name in settings.FORMATS.
"""

import re
import struct
from abc import ABC, abstractmethod
from pathlib import Path

import numpy

from ..arguments import nearest
from ..errors import CorpusError
from ..files.arrays import StoredArray, npy_array, npz_arrays
from ..files.paths import suffix_of
from ..files.reading import bytes_of, is_plain, loaded, opened, read_bytes, size_of
from ..public import LateModule
from .segments import Segment
from .settings import AUTO, TextData
from .text import VOCABULARY_SIZE, text_segments
from .token_file import is_token_file, open_token_file
from .tokenizer import MOST_TOKENS, ByteTokenizer

pickletools = LateModule("pickletools")


class TokenFormat(ABC):
    """How files of one format are read."""

    def segments(self, paths: list[Path], settings: TextData) -> list[Segment]:
        """Return where the tokens of these paths are. Errors: CorpusError, OSError."""
        return [self.segment(path, settings) for path in paths]

    @abstractmethod
    def segment(self, path: Path, settings: TextData) -> Segment:
        """Return where the tokens of a file are, without its documents."""

    def files(self, path: Path) -> tuple[Path, ...]:
        """Return the file of the tokens, and those that belong to it."""
        return (path,)

    def documents(self, path: Path) -> numpy.ndarray | None:
        """Return where each document of this file begins, see Segment."""
        return None

    def answers(self, path: Path) -> int | None:
        """Return the byte where the file says which tokens are answers, see Segment."""
        return None

    def vocabulary_size(self, path: Path) -> int | None:
        """Return the size of the vocabulary, None where the files do not tell it."""
        return None

    def tokenizer(self, path: Path) -> tuple[str | None, dict[str, bytes]]:
        """Return the hash of the tokenizer, None where it is not known, and its files."""
        return None, {}


class _Text(TokenFormat):
    def segments(self, paths, settings):
        return text_segments(paths, settings.maximum_bytes)

    def segment(self, path, settings):
        return self.segments([path], settings)[0]

    def vocabulary_size(self, path):
        return VOCABULARY_SIZE

    def tokenizer(self, path):
        return ByteTokenizer().hash, {}


class _Tokens(TokenFormat):
    def segment(self, path, settings):
        file = open_token_file(path)
        if not len(file.tokens):
            raise CorpusError(f"{path} holds no tokens; give text to `shardkit prepare`")
        return Segment.marked(file.tokens.dtype, file.at, len(file.tokens), path)

    def documents(self, path):
        return open_token_file(path).documents

    def answers(self, path):
        return open_token_file(path).answers

    def vocabulary_size(self, path):
        return open_token_file(path).vocabulary_size

    def tokenizer(self, path):
        file = open_token_file(path)
        return file.tokenizer_hash, file.tokenizer_files


class _NanoGPT(TokenFormat):
    def segment(self, path, settings):
        dtype = settings.token_dtype
        if dtype is None and _nanogpt_meta(path) is not None:
            dtype = "uint16"  # nanoGPT knows no other where it writes this file
        if dtype is None:
            raise CorpusError(
                f"{path} does not say whether its tokens are uint16 or uint32, and there is no "
                "meta.pkl beside it; give data.token_dtype"
            )
        return _plain_segment(path, numpy.dtype(dtype).newbyteorder("<"))

    def vocabulary_size(self, path):
        return (_nanogpt_meta(path) or {}).get("vocab_size")


class _NPY(TokenFormat):
    def segment(self, path, settings):
        tokens = npy_array(path, error=CorpusError)
        _check_tokens(path, tokens)
        return Segment.marked(tokens.dtype, tokens.at, tokens.shape[0], path)


class _NPZ(TokenFormat):
    def segment(self, path, settings):
        file, name = _npz_parts(path)
        arrays = npz_arrays(file, error=CorpusError)
        if not name and len(arrays) == 1:
            (name,) = arrays
        if name not in arrays:
            close = nearest(name, arrays) or next(iter(arrays), "NAME")
            raise CorpusError(
                f"{path}: {file.name} holds {', '.join(arrays) or 'no arrays'}; wanted the name of "
                f"one, such as {file}:{close}"
            )
        array = arrays[name]
        _check_tokens(f"{name} of {file}", array)
        return Segment.marked(array.dtype, array.at, array.shape[0], file)

    def files(self, path):
        return (_npz_parts(path)[0],)


def _npz_parts(path: Path) -> tuple[Path, str]:
    """Return FILE.npz and NAME of FILE.npz:NAME; the name is "" where there is none."""
    found = _IN_ARCHIVE.fullmatch(str(path))
    return (Path(found[1]), found[2]) if found else (path, "")


def _check_tokens(what, array: StoredArray) -> None:
    shape, dtype = array.shape, array.dtype
    if len(shape) != 1 or dtype.kind not in "iu" or not is_plain(dtype) or not shape[0]:
        raise CorpusError(
            f"{what} has shape {shape} and dtype {dtype}; wanted the tokens one behind the other, "
            "[n] of integers"
        )


class _Megatron(TokenFormat):
    def segment(self, path, settings):
        binary, index = _megatron_pair(path)
        dtype, sizes, pointers, _ = _megatron_index(index)
        num_bytes = size_of(binary, error=CorpusError)
        end = int(pointers[-1]) + int(sizes[-1]) * dtype.itemsize
        if num_bytes == 0 or end != num_bytes:
            raise CorpusError(
                f"{binary} has {num_bytes:,} bytes, but {index.name} describes {end:,}; they do "
                "not belong together, or one of them is cut short"
            )
        count = num_bytes // dtype.itemsize
        return Segment.marked(dtype, 0, count, binary, index)

    def files(self, path):
        return _megatron_pair(path)

    def documents(self, path):
        dtype, sizes, pointers, documents = _megatron_index(_megatron_pair(path)[1])
        end = int(pointers[-1]) // dtype.itemsize + int(sizes[-1])
        begins = pointers[documents[documents < len(sizes)]] // dtype.itemsize
        return numpy.append(begins, end)


_IN_ARCHIVE = re.compile(r"(.*?\.npz):(.*)", re.IGNORECASE | re.DOTALL)
_READERS: dict[str, TokenFormat] = {
    "text": _Text(),
    "tokens": _Tokens(),
    "nanogpt": _NanoGPT(),
    "megatron": _Megatron(),
    "npy": _NPY(),
    "npz": _NPZ(),
}


def format_named(name: str) -> TokenFormat:
    """Return the format of this name in settings.FORMATS."""
    return _READERS[name]


def format_of(path: Path, settings: TextData) -> str:
    """Return the name of the format of a path, as set or by its suffix and content.

    Errors: CorpusError if there is no such path, or it holds something else.
    """
    is_archive = suffix_of(path).partition(":")[0] == ".npz"
    whole = _npz_parts(path)[0] if is_archive else path
    if not whole.exists() and not _megatron_pair(path)[1].exists():
        raise CorpusError(f"{path} does not exist; give a file or folder, of text or tokens")
    if settings.format != AUTO:
        if path.is_dir() and settings.format != "text":
            raise CorpusError(
                f"data.path {path} is a folder; data.format {settings.format} reads files: name "
                "them"
            )
        return settings.format
    if path.is_dir():
        return "text"
    if _megatron_pair(path)[1].exists():
        return "megatron"
    if suffix_of(path) == ".npy":
        return "npy"
    if is_archive:
        return "npz"
    if suffix_of(path) == ".bin" and (settings.token_dtype or _nanogpt_meta(path) is not None):
        return "nanogpt"
    return "tokens" if is_token_file(path) else "text"


def _plain_segment(path: Path, dtype: numpy.dtype) -> Segment:
    num_bytes = size_of(path, error=CorpusError)
    if num_bytes == 0 or num_bytes % dtype.itemsize:
        raise CorpusError(
            f"{path} has {num_bytes:,} bytes of tokens; wanted a multiple of {dtype.itemsize}, the "
            f"bytes of {dtype.name}, and not none"
        )
    return Segment.marked(dtype, 0, num_bytes // dtype.itemsize, path)


# ---- nanoGPT -------------------------------------------------------------------------------------


# What runs code when a pickle is loaded, or stands for something outside of it.
_CALLS = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"}
_CALLS |= {"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER"}
_BETWEEN = {"MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"}  # a key and its value
_SIZE = "vocab_size"
_MOST_META_BYTES = 1 << 26


def _nanogpt_meta(path: Path) -> dict | None:
    """Return the content of meta.pkl beside a .bin file, None if there is none.

    The file is read as a list of instructions, none of which is followed.
    """
    meta = path.with_name("meta.pkl")
    if not meta.exists():
        return None
    try:
        size = _number_behind(_SIZE, read_bytes(meta, _MOST_META_BYTES, error=CorpusError))
    except (CorpusError, ValueError, LookupError) as error:
        raise CorpusError(
            f"{meta} is not read ({error}); move it away, and give data.token_dtype and "
            "model.vocabulary_size",
            meta,
        ) from None
    return {_SIZE: size}


def _number_behind(name: str, content: bytes) -> int:
    """Return the integer behind this key in a pickle. Errors: ValueError, LookupError."""
    key, found = None, None
    for code, value, _ in pickletools.genops(content):
        if code.name in _CALLS:
            raise ValueError(f"it names code: {value or code.name}")
        if key == name and type(value) is int and code.name not in _BETWEEN:
            found = value
        if code.name not in _BETWEEN:
            key = value
    if found is None or not 0 < found <= MOST_TOKENS:
        raise ValueError(f"it has {name} = {found}; wanted a number")
    return found


# ---- Megatron-LM ---------------------------------------------------------------------------------

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD_BYTES = 34
_CHECKED = 1 << 20  # sequences or documents at a time
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


def _megatron_pair(path: Path) -> tuple[Path, Path]:
    """Return NAME.bin and NAME.idx for either of them, or for NAME."""
    stem = str(path.with_suffix("")) if path.suffix in (".bin", ".idx") else str(path)
    return Path(stem + ".bin"), Path(stem + ".idx")


def _megatron_index(path: Path):
    """Return dtype, size and byte of each sequence, and the first sequence of each document.

        magic | version 1 | code of the dtype | sequences n | documents d + 1 |
        sizes [n] int32 | first bytes [n] int64 | first sequence of each document [d + 1] int64

    Errors: CorpusError if it is no such file.
    """
    with opened(path, error=CorpusError) as file:
        head = file.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES or not head.startswith(_MAGIC):
            raise CorpusError(f"{path} is no index of Megatron-LM, which begins with MMIDIDX", path)
        size = bytes_of(file)
    version, code, count, num_documents = struct.unpack("<QBQQ", head[len(_MAGIC) :])
    needed = _HEAD_BYTES + 12 * count + 8 * num_documents
    if version != 1 or code not in _DTYPES or size < needed or not count or not num_documents:
        raise CorpusError(
            f"{path}: version {version}, dtype code {code}, {count:,} sequences in {size:,} bytes; "
            f"wanted version 1, integers, and at least {max(needed, 54):,} bytes",
            path,
        )
    dtype = numpy.dtype(_DTYPES[code])
    parts = ("sizes", "<i4", count), ("pointers", "<i8", count), ("documents", "<i8", num_documents)
    arrays, at = {}, _HEAD_BYTES
    for field, kind, length in parts:
        arrays[field] = loaded(path, kind, at, (length,), field=field, error=CorpusError)
        at += length * numpy.dtype(kind).itemsize
    _check_index(path, dtype, **arrays)
    return dtype, *arrays.values()


def _check_index(path: Path, dtype: numpy.dtype, sizes, pointers, documents) -> None:
    """Raise CorpusError unless sequences follow each other, and documents are some of them."""
    at = 0
    for first in range(0, len(sizes), _CHECKED):
        part = slice(first, first + _CHECKED)
        ends = at + numpy.cumsum(sizes[part], dtype=numpy.int64) * dtype.itemsize
        begins = numpy.append(at, ends[:-1])
        if (sizes[part] < 0).any():
            raise CorpusError(f"{path}: a size is negative", path, "sizes")
        if (pointers[part] != begins).any():
            number = first + int(numpy.argmax(pointers[part] != begins))
            raise CorpusError(
                f"{path}: sequence {number} begins at byte {pointers[number]}, and the one before "
                f"it ends at {begins[number - first]}; wanted one behind the other",
                path,
                "pointers",
            )
        at = int(ends[-1])
    for first in range(0, len(documents), _CHECKED):
        part = documents[first : first + _CHECKED + 1]
        ascends = (part[1:] >= part[:-1]).all()
        is_right = ascends and part[0] >= 0 and part[-1] <= len(sizes)
        if not is_right or documents[0] != 0:
            raise CorpusError(
                f"{path}: its documents are not parts of its {len(sizes):,} sequences",
                path,
                "documents",
            )
