"""The inputs of a preparation: which files, of which kind, cut into which blocks.

Blocks are numbered in document order, and depend on the files alone: who encodes a block, and how
many ranks there are, changes nothing.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ...errors import ConfigurationError, CorpusError
from ...files.folders import files_below
from ...files.paths import suffix_of
from ...files.reading import opened, size_of
from ..contents import content_of, stamp_of
from ..text import HEAD_BYTES, first_bytes, is_hidden, is_text_head, kind_of
from .parquet import ParquetReader
from .readers import DocumentReader, Documents, JSONReader, Span, TextField, TextReader
from .unpacking import head_of, is_compressed, mark_of, unpack

READERS = {"text": TextReader, "JSON lines": JSONReader, "Parquet": ParquetReader}
_KINDS = dict.fromkeys((".jsonl", ".ndjson", ".json"), "JSON lines") | {".parquet": "Parquet"}
LEAST_BLOCK = 1 << 20  # bytes, a power of two and a multiple of a piece
LARGEST_BLOCK = 1 << 26
_MANY_BLOCKS = 1024
T = TypeVar("T")
FIELD = "text"  # where documents are, unless something else is said


@dataclass(frozen=True)
class Input:
    """One file as it was found: its kind, its size in bytes, and when it was changed (ns).

    content   the file with its documents: itself, or what was unpacked; None: not yet unpacked
    mark      hash of all that the content is; "": it is not known yet
    """

    path: Path
    kind: str
    num_bytes: int
    modified: int
    content: Path | None
    mark: str = ""

    def marked(self, work: Callable[[], None]) -> "Input":
        """Return this input with its mark. Errors: CorpusError, OSError."""
        is_packed = self.content is None
        mark = mark_of(self.path, work) if is_packed else content_of(self.path, work=work)
        return replace(self, mark=mark)

    def check_untouched(self) -> None:
        """Raise CorpusError if the file was changed since it was found."""
        if stamp_of(self.path)[1] != self.modified:
            raise CorpusError(
                f"{self.path} was changed while it was prepared; start again", self.path
            )

    def unpacked(self, folder: Path, work: Callable[[], None]) -> "Input":
        """Return this input with its content, unpacked into a folder if it is compressed.

        work   called as it gets on
        """
        if self.content is not None:
            return self
        content = unpack(self.path, folder, work)
        return replace(self, content=content, num_bytes=size_of(content, error=CorpusError))

    def reader(self, documents: Documents) -> DocumentReader:
        """Return its reader. Errors: CorpusError, ConfigurationError without a library."""
        return READERS[self.kind](self.content, documents, self.path)


@dataclass(frozen=True)
class Block:
    """What one rank encodes at a time."""

    number: int
    input: Input
    span: Span

    def key(self, tokenizer_hash: str, end_of_text: int | None, documents: str) -> str:
        """Return 32 hex digits: two blocks of one key have the same tokens."""
        about = (
            tokenizer_hash,
            end_of_text,
            documents,
            str(self.input.path.resolve()),
            self.input.kind,
        )
        about += (self.input.num_bytes, self.input.modified, self.input.mark, self.span)
        return hashlib.sha256(repr(about).encode()).hexdigest()[:32]


def find_inputs(paths: list[str], work: Callable[[], None] = lambda: None) -> list[Input]:
    """Return the files under these paths, in their order; folders are searched, sorted by name.

    In folders, files that are hidden or begin as no text does are passed over.
    work   called after each file
    Errors: CorpusError if a path does not exist, is no text, is compressed in a way that is not
    read, or nothing is there.
    """
    found = [found for path in map(Path, paths) for found in _under(path, work)]
    if not sum(one.num_bytes for one in found):
        raise CorpusError(f"no text in {', '.join(paths)}")
    return found


def _under(path: Path, work: Callable[[], None]) -> list[Input]:
    if not path.exists():
        raise CorpusError(f"{path} does not exist; wanted files or folders of text")
    if path.is_dir():
        files = sorted(passing(files_below(path, error=CorpusError), work))
        files = [file for file in passing(files, work) if file.is_file()]
        files = [file for file in files if not is_hidden(file, path)]
        return [_input(file) for file in passing(files, work) if is_text_head(_head(file))]
    head = _head(path)
    if not is_text_head(head):
        raise CorpusError(f"{path} is no text: {kind_of(path, head)}")
    return [_input(path)]


def _head(path: Path) -> bytes:
    """Return the first bytes of what a file holds; none of Parquet. Errors: CorpusError."""
    if is_compressed(path):
        if _kind(path) == "Parquet":
            raise CorpusError(f"{path} is Parquet that is compressed once more; unpack it")
        return head_of(path, HEAD_BYTES)
    return b"" if _kind(path) == "Parquet" else first_bytes(path)


def _kind(path: Path) -> str:
    """Return the kind that the name says, of a compressed file the name without that suffix."""
    name = path.with_suffix("") if is_compressed(path) else path
    return _KINDS.get(suffix_of(name), "text")


def _input(path: Path) -> Input:
    with opened(path, error=CorpusError) as file:
        about = os.fstat(file.fileno())
    content = None if is_compressed(path) else path
    return Input(path, _kind(path), about.st_size, about.st_mtime_ns, content)


def check_field(inputs: list[Input], field: str | None) -> TextField:
    """Return the field to read.

    Errors: ConfigurationError if one is given and no input has fields.
    """
    if field is not None and all(one.kind == "text" for one in inputs):
        raise ConfigurationError(
            f"--field={field} has no use: text files have no fields; wanted files that end in "
            f"{', '.join(_KINDS)}"
        )
    return TextField(FIELD if field is None else field)


def cut_into_blocks(
    inputs: list[Input], documents: Documents, work: Callable[[], None] = lambda: None
) -> list[Block]:
    """Return the blocks of all inputs, in document order.

    work   called after each file
    Errors: CorpusError if a Parquet file has no such column.
    """
    block_bytes = _block_bytes(sum(one.num_bytes for one in inputs))
    spans = [
        (one, span)
        for one in passing(inputs, work)
        for span in one.reader(documents).spans(block_bytes)
    ]
    return [Block(number, one, span) for number, (one, span) in enumerate(spans)]


def passing(things: Iterable[T], work: Callable[[], None]) -> Iterator[T]:
    """Yield these, and call work() after each."""
    for thing in things:
        yield thing
        work()


def _block_bytes(total: int) -> int:
    """Return a power of two: many blocks of a small corpus, and of a large one not too many."""
    size = LEAST_BLOCK
    while size < LARGEST_BLOCK and size * _MANY_BLOCKS < total:
        size *= 2
    return size
