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

import pickle
import struct
from abc import ABC, abstractmethod
from pathlib import Path

import numpy

from ..arguments import nearest
from ..errors import CorpusError
from .array_table import members_of
from .segments import Segment, mark_of
from .settings import AUTO, TextData
from .text import VOCABULARY_SIZE, text_segments
from .token_file import is_token_file, open_token_file
from .tokenizer import ByteTokenizer


class TokenFormat(ABC):
    """How files of one format are read."""

    def segments(self, paths: list[Path], settings: TextData) -> list[Segment]:
        """Return where the tokens of these paths are. Errors: CorpusError, OSError."""
        return [self.segment(path, settings) for path in paths]

    @abstractmethod
    def segment(self, path: Path, settings: TextData) -> Segment:
        """Return where the tokens of a file are, without its documents."""

    def mark(self, path: Path) -> str:
        """Return the mark of a file and those that belong to it. Errors: OSError."""
        return mark_of(path)

    def documents(self, path: Path) -> numpy.ndarray | None:
        """Return where each document of this file begins, see Segment."""
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
        dtype = file.tokens.dtype.str
        return Segment(str(path), dtype, file.tokens.offset, len(file.tokens), mark_of(path))

    def documents(self, path):
        return open_token_file(path).documents

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
        return _plain_segment(path, numpy.dtype(dtype).newbyteorder("<"), 0)

    def vocabulary_size(self, path):
        return (_nanogpt_meta(path) or {}).get("vocab_size")


class _NPY(TokenFormat):
    def segment(self, path, settings):
        try:
            tokens = numpy.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise CorpusError(f"{path} is no .npy file of tokens: {error}") from None
        _check_tokens(path, tokens.shape, tokens.dtype)
        return _plain_segment(path, tokens.dtype, tokens.offset)


class _NPZ(TokenFormat):
    def segment(self, path, settings):
        file, name = _npz_parts(path)
        arrays = members_of(file)
        if not name and len(arrays) == 1:
            (name,) = arrays
        if name not in arrays:
            close = nearest(name, arrays) or next(iter(arrays), "NAME")
            raise CorpusError(
                f"{path}: {file.name} holds {', '.join(arrays) or 'no arrays'}; wanted the name of "
                f"one, such as {file}:{close}"
            )
        shape, dtype, at = arrays[name]
        _check_tokens(f"{name} of {file}", shape, dtype)
        return Segment(str(file), dtype.str, at, shape[0], mark_of(file))

    def mark(self, path):
        return mark_of(_npz_parts(path)[0])


def _npz_parts(path: Path) -> tuple[Path, str]:
    """Return FILE.npz and NAME of FILE.npz:NAME; the name is "" where there is none."""
    file, suffix, name = str(path).partition(".npz")
    return Path(file + suffix), name.removeprefix(":")


def _check_tokens(what, shape, dtype) -> None:
    if len(shape) != 1 or dtype.kind not in "iu" or not shape[0]:
        raise CorpusError(
            f"{what} has shape {shape} and dtype {dtype}; wanted the tokens one behind the other, "
            "[n] of integers"
        )


class _Megatron(TokenFormat):
    def segment(self, path, settings):
        binary, index = _megatron_pair(path)
        dtype, _, pointers, sizes, _ = _megatron_index(index)
        num_bytes = binary.stat().st_size
        end = int(pointers[-1] + sizes[-1] * dtype.itemsize) if len(sizes) else 0
        if num_bytes == 0 or end != num_bytes:
            raise CorpusError(
                f"{binary} has {num_bytes:,} bytes, but {index.name} describes {end:,}; they do "
                "not belong together, or one of them is cut short"
            )
        count = num_bytes // dtype.itemsize
        return Segment(str(binary), dtype.str, 0, count, self.mark(binary))

    def mark(self, path):
        return mark_of(*_megatron_pair(path))

    def documents(self, path):
        dtype, count, pointers, sizes, documents = _megatron_index(_megatron_pair(path)[1])
        end = int(pointers[-1] // dtype.itemsize + sizes[-1])
        begins = pointers[documents[documents < count]] // dtype.itemsize
        return numpy.append(begins, end)


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
    is_archive = path.suffix.partition(":")[0] == ".npz"
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
    if path.suffix == ".npy":
        return "npy"
    if is_archive:
        return "npz"
    if path.suffix == ".bin" and (settings.token_dtype or _nanogpt_meta(path) is not None):
        return "nanogpt"
    return "tokens" if is_token_file(path) else "text"


def _plain_segment(path: Path, dtype: numpy.dtype, at: int) -> Segment:
    num_bytes = path.stat().st_size - at
    if num_bytes == 0 or num_bytes % dtype.itemsize:
        raise CorpusError(
            f"{path} has {num_bytes:,} bytes of tokens; wanted a multiple of {dtype.itemsize}, the "
            f"bytes of {dtype.name}, and not none"
        )
    return Segment(str(path), dtype.str, at, num_bytes // dtype.itemsize, mark_of(path))


# ---- nanoGPT -------------------------------------------------------------------------------------


class _PlainUnpickler(pickle.Unpickler):
    """Reads dictionaries, text and numbers; whatever would run code is refused."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _nanogpt_meta(path: Path) -> dict | None:
    """Return the content of meta.pkl beside a .bin file, None if there is none."""
    meta = path.with_name("meta.pkl")
    if not meta.exists():
        return None
    try:
        with open(meta, "rb") as file:
            found = _PlainUnpickler(file).load()
        return {"vocab_size": int(found["vocab_size"])}
    except Exception as error:  # a pickle can raise anything
        raise CorpusError(
            f"{meta} is not read ({type(error).__name__}: {error}); move it away, and give "
            "data.token_dtype and model.vocabulary_size"
        ) from None


# ---- Megatron-LM ---------------------------------------------------------------------------------

_MAGIC = b"MMIDIDX\x00\x00"
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


def _megatron_pair(path: Path) -> tuple[Path, Path]:
    """Return NAME.bin and NAME.idx for either of them, or for NAME."""
    stem = str(path.with_suffix("")) if path.suffix in (".bin", ".idx") else str(path)
    return Path(stem + ".bin"), Path(stem + ".idx")


def _megatron_index(path: Path):
    """Return dtype, number of sequences, byte and size of each, and where documents begin.

        magic | version 1 | code of the dtype | sequences n | documents d + 1 |
        sizes [n] int32 | first bytes [n] int64 | first sequence of each document [d + 1] int64

    Errors: CorpusError if it is no such file.
    """
    with open(path, "rb") as file:
        head = file.read(34)
        if len(head) < 34 or not head.startswith(_MAGIC):
            raise CorpusError(f"{path} is no index of Megatron-LM, which begins with MMIDIDX")
        version, code, count, num_documents = struct.unpack("<QBQQ", head[9:])
        needed = 34 + 12 * count + 8 * num_documents
    if version != 1 or code not in _DTYPES or path.stat().st_size < needed or not count:
        raise CorpusError(
            f"{path}: version {version}, dtype code {code}, {count:,} sequences in "
            f"{path.stat().st_size:,} bytes; wanted version 1, integers, and at least "
            f"{max(needed, 46):,} bytes"
        )
    sizes = numpy.memmap(path, "<i4", "r", 34, (count,))
    pointers = numpy.memmap(path, "<i8", "r", 34 + 4 * count, (count,))
    documents = numpy.memmap(path, "<i8", "r", 34 + 12 * count, (num_documents,))
    return numpy.dtype(_DTYPES[code]), count, pointers, sizes, documents
