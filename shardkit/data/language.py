"""The language data of a run, from the paths of its settings to numbered samples.

    settings --rank 0: find, check--> run folder/data/index.json --every rank--> corpora
                                      paths, sizes, marks                          |
                             samples <-- mixture <-- windows <-- packed tokens <---/

Only the index is in the run folder; a run that goes on finds its files as they were, or is refused.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TypeAlias

import numpy

from ..arguments import is_number
from ..errors import CorpusError
from ..files.paths import suffix_of
from ..files.reading import is_plain, read_json, understood, wanted, wanted_count
from ..files.writing import write_whole
from .contents import parsed_stamp, stamp_of
from .corpus import Corpus, find_corpora
from .formats import format_named
from .mixture import Mixture
from .packed import PackedTokens, TokenWindows, beyond_vocabulary
from .samples import TRAINING, VALIDATION, Samples
from .segments import OpenFiles, Segment
from .settings import FORMATS, TextData
from .tokenizer import MOST_TOKENS, ByteTokenizer, Tokenizer, tokenizer_of

Rows: TypeAlias = Callable[..., Samples]  # (tokens, length, vocabulary_size, part=name)
_INDEX = "index.json"
_COPY = "corpus.json"  # beside copies of the text, in folders of runs before there was an index
_MOST_INDEX_BYTES = 1 << 28  # room for a million files
_MOST_OF_A_FILE = 1 << 48  # bytes, and tokens
_SCANNED_BLOCK = 1 << 20  # tokens
_SCANNED_BLOCKS = 64


class LanguageData:
    """The language data of a run, with the files open.

    vocabulary_size  None where the files do not tell it
    tokenizer_hash   None where the files have no tokenizer
    tokenizer_files  {name: content}, what travels with a model; {} for bytes, or without tokenizer
    is_bytes         the tokens are bytes
    """

    def __init__(
        self,
        training: list[Corpus],
        validation: list[Corpus],
        settings: TextData,
        rows: Rows | None = None,
    ):
        self._settings = settings
        self._rows = rows or partial(TokenWindows, mask_documents=settings.mask_documents)
        self._found = training, validation
        self._corpora = [corpus.with_documents() for corpus in training]
        self._validation = [corpus.with_documents() for corpus in validation]
        everything = self._corpora + self._validation
        sizes = [each.vocabulary_size for each in everything if each.vocabulary_size is not None]
        self.vocabulary_size = sizes[0] if sizes else None
        hashes = [each.tokenizer_hash for each in everything if each.tokenizer_hash is not None]
        self.tokenizer_hash = hashes[0] if hashes else None
        self.is_bytes = self.tokenizer_hash == ByteTokenizer().hash
        self.tokenizer_files = self._tokenizer_files()
        self._parts = self._packed()

    @classmethod
    def prepare(
        cls, folder: Path, settings: TextData, rows: Rows | None = None, *, resume: bool
    ) -> "LanguageData":
        """Find and check the data, still without an index of it; for one rank.

        rows    what makes samples of tokens; None: windows
        resume  the folder has an index: the files must be as it says
        Errors: CorpusError, OSError.
        """
        if not resume:
            return cls(*find_corpora(settings), settings, rows)
        index = folder / _INDEX
        training, validation = (
            [_unchanged(corpus, index) for corpus in corpora] for corpora in _read_index(folder)
        )
        return cls(training, validation, settings, rows)

    def store(self, folder: Path) -> None:
        """Write the index into the folder, in place of another. Errors: OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        _write_index(folder, *self._found)

    @classmethod
    def open(cls, folder: Path, settings: TextData, rows: Rows | None = None) -> "LanguageData":
        """Open what was prepared and stored. Errors: CorpusError, OSError."""
        return cls(*_read_index(folder), settings, rows)

    def num_tokens(self, part: str) -> int:
        """Return how many tokens are in "training" or "validation"."""
        return sum(len(tokens) for tokens in self._parts[part])

    def samples(self, part: str, length: int, vocabulary_size: int) -> Samples:
        """Return the rows of "training" or "validation".

        vocabulary_size  of the model; a larger token is an error when it is read
        Errors: CorpusError if there is not one row.
        """
        windows: list[Samples] = [
            self._rows(tokens, length, vocabulary_size, part=part) for tokens in self._parts[part]
        ]
        if len(windows) == 1:
            return windows[0]
        return Mixture(windows, [corpus.weight for corpus in self._corpora])

    def samples_of(self, path: str, length: int, vocabulary_size: int) -> Samples:
        """Return the rows of other files, of all their documents; for one rank or each.

        Errors: CorpusError on what cannot be read, or tokens of another tokenizer; OSError.
        """
        is_binary = suffix_of(Path(path)) == ".bin"
        settings = TextData(
            path=(path,), token_dtype=self._settings.token_dtype if is_binary else None
        )
        (corpus,), _ = find_corpora(settings)
        ours, theirs = self.tokenizer_hash, corpus.tokenizer_hash
        if None not in (ours, theirs) and ours != theirs:
            raise CorpusError(
                f"the tokens of {path} were made by another tokenizer than those that the run was "
                "trained on; let `shardkit prepare` make them with the tokenizer of the run"
            )
        tokens = corpus.with_documents().whole()
        return self._rows(tokens, length, vocabulary_size, part=path)

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer of the tokens, None if the files have none."""
        if self.tokenizer_hash is None:
            return None
        return tokenizer_of(self.tokenizer_files, self._corpora[0].segments[0].path)

    def check_tokens(self, vocabulary_size: int) -> None:
        """Raise CorpusError, with place and value, if a token is beyond the vocabulary of a model.

        Of a segment, 64 blocks of 2^20 tokens are looked at, which is all of most; `samples` look
        at what they read.
        """
        known = self.vocabulary_size
        if known is not None and known > vocabulary_size:
            path = self._corpora[0].segments[0].path
            raise CorpusError(
                f"{path} has a vocabulary of {known:,} tokens, but the model one of "
                f"{vocabulary_size:,}; give the tokens of the model's own tokenizer"
            )
        files = OpenFiles()
        for corpus in self._corpora + self._validation:
            for segment in corpus.segments:
                if segment.largest >= vocabulary_size:
                    _scan(files, segment, vocabulary_size)

    def _packed(self) -> dict[str, list[PackedTokens]]:
        if self._validation:
            parts = {TRAINING: self._corpora, VALIDATION: self._validation}
            return {part: [each.whole() for each in found] for part, found in parts.items()}
        splits = [corpus.split(self._settings.validation_percent) for corpus in self._corpora]
        return {part: [split[part] for split in splits] for part in (TRAINING, VALIDATION)}

    def _tokenizer_files(self) -> dict[str, bytes]:
        for corpus in self._corpora:
            if corpus.tokenizer_hash is not None:
                return format_named(corpus.format).tokenizer(Path(corpus.segments[0].path))[1]
        return {}


def _scan(files: OpenFiles, segment: Segment, vocabulary_size: int) -> None:
    step = max(_SCANNED_BLOCK, segment.count // _SCANNED_BLOCKS)
    for first in range(0, segment.count, step):
        block = files.read(segment, first, min(_SCANNED_BLOCK, segment.count - first))
        if block.max() >= vocabulary_size or block.min() < 0:
            at = int(numpy.argmax((block >= vocabulary_size) | (block < 0)))
            raise beyond_vocabulary(segment.path, first + at, int(block[at]), vocabulary_size)


def _unchanged(corpus: Corpus, index: Path) -> Corpus:
    """Return a corpus of the index with the stamps of today. Errors: CorpusError if it changed."""
    reader = format_named(corpus.format)
    segments = (_as_it_was(each, reader.files(Path(each.path)), index) for each in corpus.segments)
    return replace(corpus, segments=tuple(segments))


def _as_it_was(segment: Segment, files: tuple[Path, ...], index: Path) -> Segment:
    try:
        if tuple(map(stamp_of, files)) == segment.stamps:
            return segment
        now = Segment.marked(segment.dtype, segment.at, segment.count, *files)
    except OSError as error:
        raise CorpusError(
            f"{segment.path}, which this run was trained on, cannot be read ({error.strerror}); "
            f"restore it, or {index}, or start another run",
            segment.path,
        ) from None
    if now.mark != segment.mark:
        raise CorpusError(
            f"{segment.path} is not what this run was trained on; restore it, or {index}, or start "
            "another run",
            segment.path,
        )
    return now


# ---- the index -----------------------------------------------------------------------------------


def _write_index(folder: Path, training: list[Corpus], validation: list[Corpus]) -> None:
    content = {TRAINING: training, VALIDATION: validation}
    tables = {part: [_table(each) for each in corpora] for part, corpora in content.items()}
    write_whole(folder / _INDEX, json.dumps(tables, indent=0).encode())


def _table(corpus: Corpus) -> dict:
    segments = [
        [each.path, each.dtype, each.at, each.count, each.mark, each.stamps]
        for each in corpus.segments
    ]
    return {**asdict(replace(corpus, segments=())), "segments": segments}


def _read_index(folder: Path) -> tuple[list[Corpus], list[Corpus]]:
    path = folder / _INDEX
    if not path.exists() and (folder / _COPY).exists():
        raise CorpusError(
            f"{folder} holds a copy of the text, of a shardkit that trained on copies; this one "
            f"reads files in place and does not go on with it. Start another run with its weights: "
            f"--model.start={folder.parent} --run.folder=ANOTHER"
        )
    try:
        tables = read_json(path, _MOST_INDEX_BYTES, error=CorpusError)
    except FileNotFoundError:
        raise CorpusError(f"{path} is not there; restore it", path) from None
    with understood(path, error=CorpusError):
        training, validation = (
            [_from_table(path, each) for each in tables[part]] for part in (TRAINING, VALIDATION)
        )
    if not training:
        raise CorpusError(f"{path} is damaged: it names nothing to train on", path, TRAINING)
    return training, validation


def _from_table(path: Path, table: dict) -> Corpus:
    """Return the corpus of an entry of the index. Errors: CorpusError, and as `understood`."""
    corpus = Corpus(**{**table, "segments": tuple(_segment(path, s) for s in table["segments"])})
    if corpus.format not in FORMATS or not corpus.segments:
        raise CorpusError(f"{path}: format = {corpus.format!r:.100} without files", path, "format")
    if not is_number(corpus.weight, above=0):
        raise CorpusError(f"{path}: weight = {corpus.weight!r:.100}", path, "weight")
    if corpus.vocabulary_size is not None:
        wanted_count(
            corpus.vocabulary_size, path, "vocabulary_size", MOST_TOKENS, error=CorpusError
        )
    wanted(corpus.tokenizer_hash, (str, NoneType), path, "tokenizer_hash", error=CorpusError)
    return corpus


def _segment(path: Path, values: list) -> Segment:
    """Return a segment of the index, whose file need not be there any more."""
    if len(values) == 5:
        raise CorpusError(
            f"{path} is of a shardkit that looked at some blocks of each file only, so that it "
            f"cannot be told whether they are as they were. Start another run with the weights of "
            f"this one: --model.start={path.parent.parent} --run.folder=ANOTHER",
            path,
        )
    name, dtype, at, count, mark, stamps = values
    for field, value in (("path", name), ("dtype", dtype), ("mark", mark)):
        wanted(value, str, path, field, error=CorpusError)
    for field, value in (("at", at), ("count", count)):
        wanted_count(value, path, field, _MOST_OF_A_FILE, error=CorpusError)
    kind = numpy.dtype(dtype)
    if kind.kind not in "iu" or not is_plain(kind):
        raise CorpusError(f"{path}: dtype = {dtype!r:.100}; wanted integers", path, "dtype")
    found = tuple(map(parsed_stamp, wanted(stamps, list, path, "stamps", error=CorpusError)))
    return Segment(name, dtype, at, count, mark, stamps=found)
