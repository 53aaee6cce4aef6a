r"""Documents in files, as blocks that any rank can read by itself.

    file    |---------|---------|---------|      a block every so many bytes
    JSON    {...}\n{...}\n{...}\n{...}\n          a line belongs to the block in which it begins
    text    One line.\nAnother line.\nA third     pieces end at the first good place behind a
                                                 multiple of PIECE_BYTES

A text file is one document. It is cut where tokenizers that look for words would cut too: behind a
line end between two visible characters, or else before a single space. Where neither is near, the
tokens at the cut may be others than those of the whole text.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ...arguments import nearest
from ...errors import CorpusError
from ...files.reading import FAULTS, bytes_of, opened, size_of

PIECE_BYTES = 1 << 16  # of text that is encoded at once; blocks of text are multiples of it
_GOOD_CUTS = (  # each match ends where a text may be cut, the best kind first
    re.compile(rb"[!-~]\r?\n(?=[!-~])"),
    re.compile(rb"[!-~](?= [!-~])"),
    re.compile(rb"\S\r?\n(?=\S)"),  # Unicode has spaces that these take for letters
    re.compile(rb"\S(?= \S)"),
    re.compile(rb"(?=[\x00-\x7f\xc0-\xff])"),  # before any character
)
_MOST_LINE = 1 << 28  # bytes of a line of JSON
_LOOK_BACK = 3  # bytes that a good cut may need before it


@dataclass(frozen=True)
class Span:
    """What one block takes of a file.

    start, stop  bytes; of Parquet rows of the row group
    num_bytes    about as much text, for the time left
    group        row group of Parquet; 0 elsewhere
    """

    start: int
    stop: int
    num_bytes: int
    group: int = 0


class TextPiece(NamedTuple):
    """A piece of a document.

    is_end   the document ends behind it
    answers  (start, stop) of the characters that are answers, in order; None: all is text, and the
             tokenizer's end of text stands behind the document
    """

    text: str
    is_end: bool
    answers: tuple[tuple[int, int], ...] | None = None


class RecordError(ValueError):
    """What is wrong with a record, as the end of a sentence about it: "has no role"."""


class Documents(Protocol):
    """What the documents of records are.

    key          of two with the same key the same records are the same documents
    has_answers  pieces say which characters are answers
    """

    @property
    def key(self) -> str: ...

    @property
    def has_answers(self) -> bool: ...

    def piece(self, record: Any) -> TextPiece:
        """Return the document of a record. Errors: RecordError, and those of files.FAULTS."""

    def columns(self, path: Path, schema) -> list[str]:
        """Return the columns of a Parquet file that are read. Errors: CorpusError."""


@dataclass(frozen=True)
class TextField:
    """Documents are the texts in one field of each record."""

    name: str
    has_answers = False

    @property
    def key(self) -> str:
        """The name."""
        return self.name

    def piece(self, record: Any) -> TextPiece:
        """Return the text of a record."""
        text = record[self.name]
        if text is None:
            raise RecordError(f"has no value in {self.name!r}")
        text.encode("utf-8")
        return TextPiece(text, True)

    def columns(self, path: Path, schema) -> list[str]:
        """Return the column. Errors: CorpusError if it is not one of text."""
        if self.name not in schema.names:
            raise CorpusError(
                f"{path} has no column {self.name!r}{hint_of(self.name, schema.names)}"
            )
        kind = schema.field(self.name).type
        if str(kind) not in ("string", "large_string", "string_view"):
            raise CorpusError(f"{path}: column {self.name!r} is {kind}; wanted strings")
        return [self.name]


class DocumentReader(ABC):
    """Reads the documents of one file.

    path       of the file that is read
    documents  what they are in its records
    name       of the file in messages; None: its path
    """

    def __init__(self, path: Path, documents: Documents, name: Path | None = None):
        self.path, self.name = path, name or path
        self.documents = documents

    def spans(self, block_bytes: int) -> list[Span]:
        """Return the blocks of the file, which depend on it and block_bytes alone."""
        size = size_of(self.path, error=CorpusError)
        return [
            Span(start, min(start + block_bytes, size), min(block_bytes, size - start))
            for start in range(0, size, block_bytes)
        ]

    @abstractmethod
    def pieces(self, span: Span) -> Iterator[TextPiece]:
        """Yield the pieces of a block, in order.

        Errors: CorpusError with file and line.
        """


class TextReader(DocumentReader):
    """A file of text: one document."""

    def pieces(self, span):
        """Yield the pieces of this block; the document ends behind the last of the file."""
        first = max(span.start - _LOOK_BACK, 0)
        with opened(self.path, error=CorpusError) as file:
            size = bytes_of(file)
            file.seek(first)
            content = file.read(span.stop + PIECE_BYTES - first)
        places = [*range(span.start, span.stop, PIECE_BYTES), span.stop]
        cuts = [_good_cut(content, place - first, place == size) for place in places]
        for start, stop in zip(cuts, cuts[1:]):
            text = self._decoded(content[start:stop], first + start)
            yield TextPiece(text, first + stop == size)

    def _decoded(self, content: bytes, at: int) -> str:
        nul = content.find(b"\0")
        if nul >= 0:
            line = line_at(self.path, at + nul)
            raise CorpusError(f"{self.name} is no text: line {line} holds a NUL byte")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{self.name} line {line_at(self.path, at + error.start)} is not valid UTF-8; "
                "iconv -t UTF-8 converts other encodings"
            ) from None


def _good_cut(content: bytes, at: int, is_end: bool) -> int:
    """Return the first good place to cut at or behind `at`, if one is near; 0 and the end stay."""
    if is_end or at == 0:
        return at
    for pattern in _GOOD_CUTS:
        found = pattern.search(content, max(at - _LOOK_BACK, 0), at + PIECE_BYTES)
        while found and found.end() < at:
            found = pattern.search(content, found.start() + 1, at + PIECE_BYTES)
        if found:
            return found.end()
    return min(at + PIECE_BYTES, len(content))


class JSONReader(DocumentReader):
    """A file of JSON lines: a record is one line. Empty lines are passed over."""

    def pieces(self, span):
        """Yield the document of each line that begins in this block."""
        with opened(self.path, error=CorpusError) as file:
            at = max(span.start - 1, 0)
            file.seek(at)
            if span.start:
                at += len(self._line(file, at))  # the end of a line of the block before
            while at < span.stop and (line := self._line(file, at)):
                if line.strip():
                    yield self._piece(line, at)
                at += len(line)

    def _line(self, file, at: int) -> bytes:
        line = file.readline(_MOST_LINE + 1)
        if len(line) > _MOST_LINE:
            raise CorpusError(
                f"{self.name} line {line_at(self.path, at)} is longer than {_MOST_LINE:,} bytes",
                self.name,
            )
        return line

    def _piece(self, line: bytes, at: int) -> TextPiece:
        try:
            return self.documents.piece(json.loads(line.decode("utf-8-sig")))
        except FAULTS as error:
            raise CorpusError(
                f"{self.name} line {line_at(self.path, at)} {self._fault(line, error)}"
            ) from None

    def _fault(self, line: bytes, error: Exception) -> str:
        """Return what is wrong with this line."""
        if isinstance(error, RecordError):
            return str(error)
        if isinstance(error, UnicodeDecodeError):
            return f"is not valid UTF-8 at byte {error.start + 1}"
        if isinstance(error, json.JSONDecodeError):
            return f"is no JSON: {error.msg} at column {error.colno}"
        if isinstance(error, UnicodeEncodeError):
            return (
                f"has half of a surrogate pair in {self.documents.key!r}, which no UTF-8 can hold"
            )
        if isinstance(error, RecursionError):
            return "is nested too deeply"
        if isinstance(error, MemoryError):
            return "asks for more memory than there is"
        if type(error) is ValueError:
            return f"is no JSON: {error}"
        record, field = json.loads(line.decode("utf-8-sig")), self.documents.key
        if not isinstance(record, dict):
            return f"is a JSON {type(record).__name__}; wanted an object with a field {field!r}"
        if field in record:
            return f"has no text in {field!r} but a value of type {type(record[field]).__name__}"
        return f"has no field {field!r}{hint_of(field, record)}"


def hint_of(name: str, known) -> str:
    """Return a hint for a name that is missing: the nearest known one, or a few of them."""
    close = nearest(name, known)
    return f"; did you mean --field={close}?" if close else f"; it has {', '.join(known)}"[:200]


def line_at(path: Path, at: int) -> int:
    """Return the number, from 1, of the line in which this byte of a file lies."""
    number, left = 1, at
    with opened(path, error=CorpusError) as file:
        while left > 0 and (content := file.read(min(left, 1 << 20))):
            number += content.count(b"\n")
            left -= len(content)
    return number
