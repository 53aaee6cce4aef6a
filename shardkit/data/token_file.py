"""Token files: the tokens of a corpus, where its documents begin, and its tokenizer.

    /                            format "shardkit tokens", version 1, vocabulary_size,
                                 tokenizer_sha256, end_of_text (-1: none), made_from
    /tokens                      [n] uint16 or uint32, the documents one behind the other, each
                                 with its end-of-text number if the tokenizer has one
    /documents                   [d + 1] int64: document i is tokens[documents[i]:documents[i + 1]]
    /answers                     [n] uint8, of conversations alone: 1 for tokens to be learned
    /tokenizer/tokenizer.json    [bytes] uint8, and the files beside it; none for bytes

All datasets are contiguous: readers map them into memory, and the ranks of `shardkit prepare` write
their parts at their places. HDF5 in any language opens the file.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy

from ..errors import CorpusError, FileError
from ..files.reading import LARGEST, loaded, mapped, wanted, wanted_count
from . import hdf5
from .tokenizer import MOST_TOKENS, Tokenizer, token_dtype

FORMAT = "shardkit tokens"
VERSION = 1
TOKENS = "tokens"
DOCUMENTS = "documents"
ANSWERS = "answers"
_TOKENIZER = "tokenizer/"
_NONE = -1
_MADE_FROM = "made_from"
_FACTS = "vocabulary_size", "end_of_text", "tokenizer_sha256"
_ATTRIBUTES = ("format", "version", *_FACTS, _MADE_FROM)
_TOKEN_DTYPES = numpy.dtype("<u2"), numpy.dtype("<u4")
_OFFSET_DTYPES = (numpy.dtype("<i8"),)
_BYTE_DTYPES = (numpy.dtype("u1"),)
_MOST_FILE_BYTES = 1 << 26  # of each file of a tokenizer
_CHECKED = 1 << 20  # documents at a time


def lay_out_token_file(
    path: Path,
    num_tokens: int,
    num_documents: int,
    tokenizer: Tokenizer,
    made_from: str = "",
    *,
    has_answers: bool = False,
) -> dict[str, int]:
    """Make a token file that still lacks its tokens, document offsets and answers.

    made_from  a hash of the texts that it is made from
    returns    {"tokens": byte of the file where they begin, "documents": byte}, and "answers"
    The bytes of the file depend on the arguments alone. Errors: OSError.
    """
    files = tokenizer.files
    dtype = token_dtype(tokenizer.vocabulary_size)
    datasets = {_TOKENIZER + name: ((len(content),), "u1") for name, content in files.items()}
    datasets |= {DOCUMENTS: ((num_documents + 1,), "<i8"), TOKENS: ((num_tokens,), dtype)}
    if has_answers:
        datasets[ANSWERS] = (num_tokens,), "u1"
    end = tokenizer.end_of_text
    attributes = {
        "format": FORMAT,
        "version": VERSION,
        "vocabulary_size": tokenizer.vocabulary_size,
        "tokenizer_sha256": tokenizer.hash,
        "end_of_text": _NONE if end is None else end,
        _MADE_FROM: made_from,
    }
    places = hdf5.lay_out(path, datasets, attributes)
    with open(path, "r+b") as file:
        for name, content in files.items():
            file.seek(places[_TOKENIZER + name])
            file.write(content)
    return {name: places[name] for name in (TOKENS, DOCUMENTS, ANSWERS) if name in places}


@dataclass(frozen=True)
class TokenFile:
    """An open token file.

    tokens           [n] uint16 or uint32, a memory map
    at               byte of the file where they begin
    documents        [d + 1] int64, where each document begins; the last is n
    end_of_text      token number behind each document, or None
    tokenizer_hash   SHA-256 of its tokenizer.json
    made_from        a hash of the texts that it was made from; "" if it says nothing
    answers          byte of the file where it says which tokens are answers, None if it does not
    tokenizer_files  {name: content}, for tokenizer_of(); {} for bytes
    """

    tokens: numpy.ndarray
    at: int
    documents: numpy.ndarray
    vocabulary_size: int
    end_of_text: int | None
    tokenizer_hash: str
    made_from: str
    answers: int | None
    tokenizer_files: dict[str, bytes]


def is_token_file(path: Path) -> bool:
    """Return True for an HDF5 file that says that it is a token file."""
    try:
        return hdf5.describe(path, ("format",))[0].get("format") == FORMAT
    except (OSError, FileError):
        return False


def open_token_file(path: Path) -> TokenFile:
    """Map a token file. Errors: CorpusError if it is none, or is damaged; OSError."""
    try:
        attributes, datasets = hdf5.describe(path, _ATTRIBUTES, error=CorpusError)
    except CorpusError as error:
        raise CorpusError(f"{path} cannot be read as a token file: {error}", path) from None
    if attributes.get("format") != FORMAT or attributes.get("version") != VERSION:
        raise CorpusError(
            f"{path} is no token file of version {VERSION}; `shardkit prepare` makes such files",
            path,
        )
    tokens = _array(path, datasets, TOKENS, mapped, _TOKEN_DTYPES)
    documents = _array(path, datasets, DOCUMENTS, loaded, _OFFSET_DTYPES)
    check_documents(path, DOCUMENTS, documents, len(tokens))
    files = [name for name in datasets if name.startswith(_TOKENIZER)]
    return TokenFile(
        tokens,
        datasets[TOKENS][2] or 0,
        documents,
        *_facts(path, attributes),
        _answers(path, datasets, len(tokens)),
        {
            name.removeprefix(_TOKENIZER): _array(
                path, datasets, name, loaded, _BYTE_DTYPES, _MOST_FILE_BYTES
            ).tobytes()
            for name in files
        },
    )


def _answers(path: Path, datasets: dict, num_tokens: int) -> int | None:
    """Return the byte where the answers begin, None if there are none. Errors: CorpusError."""
    if ANSWERS not in datasets:
        return None
    found = _array(path, datasets, ANSWERS, mapped, _BYTE_DTYPES)
    if len(found) != num_tokens:
        raise CorpusError(
            f"{path} is damaged: it has {len(found):,} {ANSWERS} of {num_tokens:,} tokens",
            path,
            ANSWERS,
        )
    return datasets[ANSWERS][2] or 0


def _facts(path: Path, attributes: dict) -> tuple[int, int | None, str, str]:
    """Return the size of the vocabulary, the end of a text, the hash of the tokenizer, and what
    the file was made from.
    """
    size, end, digest = (attributes.get(name) for name in _FACTS)
    size = wanted_count(size, path, "vocabulary_size", MOST_TOKENS, error=CorpusError)
    if end != _NONE:
        wanted_count(end, path, "end_of_text", max(size - 1, 0), error=CorpusError)
    wanted(digest, str, path, "tokenizer_sha256", error=CorpusError)
    made_from = wanted(attributes.get(_MADE_FROM, ""), str, path, _MADE_FROM, error=CorpusError)
    return size, None if end == _NONE else end, digest, made_from


def _array(path: Path, datasets: dict, name: str, read, dtypes, most: int = LARGEST):
    """Return a one-dimensional dataset of one of these dtypes. Errors: CorpusError."""
    if name not in datasets:
        raise CorpusError(f"{path} is damaged: it has no {name}", path, name)
    shape, dtype, at = datasets[name]
    if len(shape) != 1 or dtype not in dtypes or shape[0] > most:
        raise CorpusError(
            f"{path} is damaged: {name} has shape {shape!s:.100} and dtype {dtype!s:.100}; wanted "
            f"[n] of {' or '.join(map(str, dtypes))}",
            path,
            name,
        )
    if at is None and shape[0]:
        raise CorpusError(
            f"{path}: {name} is stored in chunks and cannot be read in place; "
            "h5repack -l CONTI makes it contiguous",
            path,
            name,
        )
    return read(path, dtype, at or 0, shape, field=name, error=CorpusError)


def check_documents(path: Path, field: str, documents: numpy.ndarray, num_tokens: int) -> None:
    """Raise CorpusError unless documents follow each other from token 0 to the last."""
    parts = (documents[at : at + _CHECKED + 1] for at in range(0, len(documents), _CHECKED))
    is_right = len(documents) and documents[0] == 0 and documents[-1] == num_tokens
    if not is_right or not all((part[1:] >= part[:-1]).all() for part in parts):
        raise CorpusError(
            f"{path} is damaged: its documents are not parts of its tokens", path, field
        )
