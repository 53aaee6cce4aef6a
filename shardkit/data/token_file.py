"""Token files: the tokens of a corpus, where its documents begin, and its tokenizer.

    /                            format "shardkit tokens", version 1, vocabulary_size,
                                 tokenizer_sha256, end_of_text (-1: none)
    /tokens                      [n] uint16 or uint32, the documents one behind the other, each
                                 with its end-of-text number if the tokenizer has one
    /documents                   [d + 1] int64: document i is tokens[documents[i]:documents[i + 1]]
    /tokenizer/tokenizer.json    [bytes] uint8, and the files beside it; none for bytes

All datasets are contiguous: readers map them into memory, and the ranks of `shardkit prepare` write
their parts at their places. HDF5 in any language opens the file.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy

from ..errors import CorpusError
from . import hdf5
from .tokenizer import Tokenizer, token_dtype

FORMAT = "shardkit tokens"
VERSION = 1
TOKENS = "tokens"
DOCUMENTS = "documents"
_TOKENIZER = "tokenizer/"
_NONE = -1


def lay_out_token_file(
    path: Path, num_tokens: int, num_documents: int, tokenizer: Tokenizer
) -> dict[str, int]:
    """Make a token file that still lacks its tokens and document offsets.

    returns   {"tokens": byte of the file where they begin, "documents": byte}
    The bytes of the file depend on the arguments alone. Errors: OSError.
    """
    files = tokenizer.files
    dtype = token_dtype(tokenizer.vocabulary_size)
    datasets = {_TOKENIZER + name: ((len(content),), "u1") for name, content in files.items()}
    datasets |= {DOCUMENTS: ((num_documents + 1,), "<i8"), TOKENS: ((num_tokens,), dtype)}
    end = tokenizer.end_of_text
    attributes = {
        "format": FORMAT,
        "version": VERSION,
        "vocabulary_size": tokenizer.vocabulary_size,
        "tokenizer_sha256": tokenizer.hash,
        "end_of_text": _NONE if end is None else end,
    }
    places = hdf5.lay_out(path, datasets, attributes)
    with open(path, "r+b") as file:
        for name, content in files.items():
            file.seek(places[_TOKENIZER + name])
            file.write(content)
    return {name: places[name] for name in (TOKENS, DOCUMENTS)}


@dataclass(frozen=True)
class TokenFile:
    """An open token file; the arrays are memory maps.

    tokens           [n] uint16 or uint32
    documents        [d + 1] int64, where each document begins; the last is n
    end_of_text      token number behind each document, or None
    tokenizer_hash   SHA-256 of its tokenizer.json
    tokenizer_files  {name: content}, for tokenizer_of(); {} for bytes
    """

    tokens: numpy.ndarray
    documents: numpy.ndarray
    vocabulary_size: int
    end_of_text: int | None
    tokenizer_hash: str
    tokenizer_files: dict[str, bytes]


def is_token_file(path: Path) -> bool:
    """Return True for an HDF5 file that says that it is a token file."""
    try:
        return hdf5.describe(path)[0].get("format") == FORMAT
    except OSError:
        return False


def open_token_file(path: Path) -> TokenFile:
    """Map a token file. Errors: CorpusError if it is none, or is damaged."""
    try:
        attributes, datasets = hdf5.describe(path)
    except OSError as error:
        raise CorpusError(f"{path} cannot be read as a token file: {error}") from None
    if attributes.get("format") != FORMAT or attributes.get("version") != VERSION:
        raise CorpusError(
            f"{path} is no token file of version {VERSION}; `shardkit prepare` makes such files"
        )
    arrays = {name: _map(path, name, *place) for name, place in datasets.items()}
    tokens, documents = arrays.get(TOKENS), arrays.get(DOCUMENTS)
    if tokens is None or documents is None or not _fit(tokens, documents):
        raise CorpusError(f"{path} is damaged: its documents are not parts of its tokens")
    end = attributes["end_of_text"]
    return TokenFile(
        tokens,
        documents,
        attributes["vocabulary_size"],
        None if end == _NONE else end,
        attributes["tokenizer_sha256"],
        {
            name.removeprefix(_TOKENIZER): array.tobytes()
            for name, array in arrays.items()
            if name.startswith(_TOKENIZER)
        },
    )


def _map(path: Path, name: str, shape, dtype, at: int | None) -> numpy.ndarray:
    if not numpy.prod(shape):
        return numpy.empty(shape, dtype)
    if at is None:
        raise CorpusError(
            f"{path}: {name} is stored in chunks and cannot be read in place; "
            "h5repack -l CONTI makes it contiguous"
        )
    if at + numpy.prod(shape) * dtype.itemsize > path.stat().st_size:
        raise CorpusError(f"{path} is cut short: {name} ends behind the end of the file")
    return numpy.memmap(path, dtype, "r", at, shape)


def _fit(tokens, documents) -> bool:
    return len(documents) > 0 and documents[0] == 0 and documents[-1] == len(tokens)
