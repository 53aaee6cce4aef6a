"""Corpora: sources of language data, found from settings and split by documents.

    data.path  --format of each, segments, checks-->  Corpus  --split-->  training    packed tokens
                                                                          validation  packed tokens

Without weights all paths are one corpus; with weights each path is one.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy

from ..errors import CorpusError
from .formats import format_named, format_of
from .packed import PackedTokens
from .samples import TRAINING, VALIDATION
from .segments import Segment
from .settings import TextData
from .split import split_documents

_NUM_GROUPS = 4096  # of neighboring documents, that are held out together


@dataclass(frozen=True)
class Corpus:
    """Segments of one format that are one source of samples.

    weight           its share of the samples, in any unit
    vocabulary_size  None where nothing tells it
    tokenizer_hash   None where it is not known
    """

    format: str
    segments: tuple[Segment, ...]
    weight: float
    vocabulary_size: int | None
    tokenizer_hash: str | None

    @property
    def num_tokens(self) -> int:
        """How many tokens there are, held out or not."""
        return sum(segment.count for segment in self.segments)

    def with_documents(self) -> "Corpus":
        """Return this corpus with the documents of its segments. Errors: CorpusError, OSError."""
        reader = format_named(self.format)
        segments = (
            replace(each, documents=reader.documents(path), answers=reader.answers(path))
            for each in self.segments
            for path in [Path(each.path)]
        )
        return replace(self, segments=tuple(segments))

    @property
    def has_answers(self) -> bool:
        """Whether its documents are conversations, which are never cut; with_documents() knows."""
        return all(segment.answers is not None for segment in self.segments)

    def whole(self) -> PackedTokens:
        """Return all tokens."""
        parts = [[i, 0, segment.count] for i, segment in enumerate(self.segments)]
        return self._packed(numpy.array(parts, numpy.int64))

    def _packed(self, parts) -> PackedTokens:
        return PackedTokens(list(self.segments), parts, is_text=self.format == "text")

    def split(self, percent: float) -> dict[str, PackedTokens]:
        """Return {"training": tokens, "validation": tokens}, by documents, see split.py."""
        tables = _grouped(self.segments, percent)
        sizes, is_one = tables[:, 2] - tables[:, 1], tables[:, 3]
        if self.has_answers:
            is_one = numpy.zeros_like(is_one)  # conversations are never cut
        both = split_documents(sizes.tolist(), is_one.tolist(), percent)
        found = {}
        for name, rows in zip((TRAINING, VALIDATION), both):
            group = tables[rows[:, 0]]
            numbers, starts = group[:, 0], group[:, 1]
            begins, ends = starts + rows[:, 1], starts + rows[:, 2]
            parts = numpy.stack([numbers, begins, ends], axis=1)
            found[name] = self._packed(_merged(parts))
        return found


def _grouped(segments, percent: float) -> numpy.ndarray:
    """Return [segment, first, stop, is one document] of each group of neighboring documents."""
    total = sum(segment.count for segment in segments)
    groups = max(_NUM_GROUPS, min(int(800 / percent), 1 << 20))
    tables: list[Any] = []
    for number, segment in enumerate(segments):
        if segment.documents is None:
            tables.append([[number, 0, segment.count, 1]])
            continue
        documents = segment.documents
        cuts = numpy.arange(0, segment.count, max(1, total // groups))
        cuts = numpy.unique([*numpy.searchsorted(documents, cuts), 0, len(documents) - 1])
        bounds = documents[cuts]
        numbers = numpy.full(len(cuts) - 1, number)
        columns = numbers, bounds[:-1], bounds[1:], numpy.diff(cuts) == 1
        tables.append(numpy.stack(columns, axis=1))
    table = numpy.concatenate(tables).astype(numpy.int64)
    return table[table[:, 2] > table[:, 1]]


def _merged(parts: numpy.ndarray) -> numpy.ndarray:
    """Return the parts with neighbors that touch joined."""
    earlier, later = parts[:-1], parts[1:]
    is_of_one_file = later[:, 0] == earlier[:, 0]
    touches = is_of_one_file & (later[:, 1] == earlier[:, 2])
    begins = numpy.append(True, ~touches)[: len(parts)]
    ends = numpy.append(~touches, True)[: len(parts)]
    return numpy.stack([parts[begins, 0], parts[begins, 1], parts[ends, 2]], axis=1)


# ---- from settings to corpora --------------------------------------------------------------------


def find_corpora(settings: TextData) -> tuple[list[Corpus], list[Corpus]]:
    """Return the corpora to train on, and those for validation ([]: a part is held out).

    Errors: CorpusError on what cannot be trained on, or settings that do not fit; OSError.
    """
    if settings.weights and len(settings.weights) != len(settings.path):
        raise CorpusError(
            f"data.weights has {len(settings.weights)} numbers for {len(settings.path)} paths in "
            "data.path; wanted one each"
        )
    if settings.validation_path and settings.validation_percent != TextData().validation_percent:
        raise CorpusError(
            "data.validation_percent holds out a part of data.path, but data.validation_path names "
            "other data; give one of the two"
        )
    groups = [[path] for path in settings.path] if settings.weights else [settings.path]
    weights = settings.weights or (1.0,)
    training = [_corpus(group, weight, settings) for group, weight in zip(groups, weights)]
    validation = []
    if settings.validation_path:
        validation = [_corpus(settings.validation_path, 1.0, settings)]
    _check_together(training + validation, settings)
    _check_apart(training, validation)
    return training, validation


def _corpus(paths, weight: float, settings: TextData) -> Corpus:
    paths = [Path(path) for path in paths]
    names = {format_of(path, settings) for path in paths} or {"text"}
    if len(names) > 1:
        raise CorpusError(
            f"data.path mixes {' and '.join(sorted(names))}; name files of one format, or give "
            "each its share in data.weights"
        )
    (name,) = names
    reader = format_named(name)
    segments = reader.segments(paths, settings)
    _check_once(segments)
    first = Path(segments[0].path)
    size = reader.vocabulary_size(first)
    return Corpus(name, tuple(segments), weight, size, reader.tokenizer(first)[0])


def _check_once(segments: list[Segment]) -> None:
    """Raise CorpusError if two files of a corpus hold the same."""
    known: dict[str, str] = {}
    for segment in segments:
        other = known.setdefault(segment.mark, segment.path)
        if other is not segment.path:
            raise CorpusError(
                f"{segment.path} of data.path holds what {other} does; leave one of them out, or "
                "give each its share in data.weights",
                segment.path,
            )


def _check_together(corpora: list[Corpus], settings: TextData) -> None:
    """Raise CorpusError on corpora of different tokens, or on settings that none of them reads."""
    for name, format_name in (("token_dtype", "nanogpt"), ("maximum_bytes", "text")):
        is_read = any(corpus.format == format_name for corpus in corpora)
        if getattr(settings, name) is not None and not is_read:
            raise CorpusError(
                f"data.{name} is for the format {format_name}, but data.path holds "
                f"{corpora[0].format}; leave it out"
            )
    sizes = {each.vocabulary_size for each in corpora} - {None}
    if len(sizes) > 1 or len({each.tokenizer_hash for each in corpora} - {None}) > 1:
        about = "; ".join(
            f"{each.segments[0].path}: {each.vocabulary_size} tokens, tokenizer "
            f"{(each.tokenizer_hash or 'unknown')[:12]}"
            for each in corpora
        )
        raise CorpusError(
            f"the files were made by different tokenizers ({about}); prepare them with one"
        )


def _check_apart(training: list[Corpus], validation: list[Corpus]) -> None:
    """Raise CorpusError if a file is trained on and validated on."""
    marks = {segment.mark: segment.path for each in training for segment in each.segments}
    for segment in (segment for each in validation for segment in each.segments):
        if segment.mark in marks:
            raise CorpusError(
                f"{segment.path} of data.validation_path is also trained on, as "
                f"{marks[segment.mark]}; a model knows what it was trained on"
            )
