"""The blocks that a rank takes, until none is left.

    claim a block -> read -> encode -> write its part -> report -> claim the next one

Blocks are claimed in document order, and a rank that meets an error lets the others finish theirs:
so the error that is raised is the first of the corpus, for any number of ranks.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...comm.alone_at_work import native_work
from ...comm.backend import CommunicationBackend
from ...comm.failure.agreement import by_first, collectively
from ...errors import CorpusError
from ..tokenizer import Tokenizer, token_dtype
from .encode import encode_block
from .inputs import Block, Input, passing
from .parts import SYNC_SECONDS, PartsFolder, TokenPart
from .readers import DocumentReader, Documents, TextPiece

_LIST_SECONDS = 1.0  # the least time between two looks at the parts of all ranks


@dataclass(frozen=True)
class PreparationProgress:
    """How far a job is, of all ranks together.

    tokens             tokens of this attempt
    share              of the text that is done, 0 to 1; parts of earlier attempts count
    tokens_per_second  since this attempt began to encode
    seconds_left       at this speed
    """

    tokens: int
    share: float
    tokens_per_second: float
    seconds_left: float


class Readers:
    """The readers of a rank; the last one stays open, since neighboring blocks share it."""

    def __init__(self, documents: Documents):
        self._documents = documents
        self._open: tuple[Input, DocumentReader] | None = None

    def pieces(self, block: Block) -> Iterator[TextPiece]:
        """Yield the pieces of a block. Errors: CorpusError."""
        if self._open is None or self._open[0] != block.input:
            self._open = block.input, block.input.reader(self._documents)
        return self._open[1].pieces(block.span)


class Encoding:
    """The work of all ranks on the blocks of a job."""

    def __init__(
        self,
        backend: CommunicationBackend,
        folder: PartsFolder,
        tokenizer: Tokenizer,
        blocks: list[Block],
        documents: Documents,
    ):
        self._backend = backend
        self._folder = folder
        self._tokenizer = tokenizer
        self._blocks = blocks
        self._readers = Readers(documents)
        self._has_answers = documents.has_answers
        about = tokenizer.hash, tokenizer.end_of_text, documents.key
        self._keys = [block.key(*about) for block in blocks]

    def check_parts(self) -> int:
        """Drop the parts of earlier attempts that are damaged; return how many blocks are done.

        Collective; the ranks share the reading. Errors, on all ranks: OSError.
        """
        dtype = token_dtype(self._tokenizer.vocabulary_size)
        kept = self._listed()
        with collectively(self._backend):
            for key in sorted(kept.keys() & self._keys)[
                self._backend.rank :: self._backend.world_size
            ]:
                self._backend.work()
                try:
                    kept[key].read(dtype, has_answers=self._has_answers)
                except CorpusError:
                    self._folder.drop(kept[key])
        kept = self._listed()
        return sum(key in kept for key in self._keys)

    def encode(self, report: Callable[[PreparationProgress], None]) -> list[TokenPart]:
        """Make the parts that are missing; return those of all blocks, in their order.

        Collective. Errors, on all ranks: CorpusError, OSError.
        """
        parts = self._listed()
        left = [block for block in self._blocks if self._keys[block.number] not in parts]
        made: dict[str, TokenPart] = {}
        error = None
        with collectively(self._backend), told(self._folder):
            watch = _Watch(self._folder, self._blocks, self._keys, left)
            for block in left:
                self._backend.work()
                self._backend.look_at_others()
                if self._folder.has_failed or error is not None:
                    break
                if self._folder.claim(block.number):
                    error = self._encode(block, made)
                    if self._backend.rank == 0 and watch.is_due:
                        report(watch.look())
        everyones = self._backend.all_gather_object((error, made))
        errors = [error for error, _ in everyones if error is not None]
        if errors:
            raise CorpusError(min(errors)[1])
        for _, of_rank in everyones:
            parts |= of_rank
        return [parts[key] for key in self._keys]

    def _encode(self, block: Block, made: dict[str, TokenPart]) -> tuple[int, str] | None:
        """Add the part of this block; return (its number, what is wrong with it) if that fails."""
        key = self._keys[block.number]
        try:
            pieces = passing(self._readers.pieces(block), self._backend.work)
            encoded = encode_block(pieces, self._tokenizer)
        except CorpusError as error:
            self._folder.note_failure()
            return block.number, str(error)
        with native_work(self._backend, SYNC_SECONDS):
            made[key] = self._folder.write(key, *encoded)
        return None

    def _listed(self) -> dict[str, TokenPart]:
        """Return the parts as rank 0 sees them. Collective."""
        return by_first(self._backend, self._folder.parts)


class _Watch:
    """How far all ranks are, from the names of the parts."""

    def __init__(
        self, folder: PartsFolder, blocks: list[Block], keys: list[str], left: list[Block]
    ):
        self._folder = folder
        self._bytes = {keys[block.number]: block.span.num_bytes for block in blocks}
        self._new = {keys[block.number] for block in left}
        self._began = time.monotonic()
        self._looked = self._began

    @property
    def is_due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() - self._looked >= _LIST_SECONDS

    def look(self) -> PreparationProgress:
        """Return how far all ranks are."""
        self._looked = time.monotonic()
        parts = self._folder.parts()
        seconds = self._looked - self._began
        tokens = sum(part.num_tokens for key, part in parts.items() if key in self._new)
        total = sum(self._bytes.values())
        done = sum(size for key, size in self._bytes.items() if key in parts)
        new = sum(self._bytes[key] for key in self._new & parts.keys())
        left = (total - done) * seconds / max(new, 1)
        return PreparationProgress(tokens, done / max(total, 1), tokens / seconds, left)


@contextmanager
def told(folder: PartsFolder):
    """On an error of any kind, tell the other ranks to take no more blocks."""
    try:
        yield
    except BaseException:
        folder.note_failure()
        raise
