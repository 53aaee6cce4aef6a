"""Packed documents: parts of segments as one long sequence of tokens, and windows of it.

    segments   AAAAAAAAAAAAAAA   BBBBBBB   CCCCCCCCCCCC
    parts       |--------|       |-----|       |-----|      what is not held out, say
    packed     |AAAAAAAAAA|BBBBBBB|CCCCCCC|
    windows    |.....|.....|.....|.....|       of `length` tokens, and one more as target

Window k is x = packed[k * length : (k + 1) * length] with y one token further, in every epoch the
same; less than a window is left over at the end. A window may hold the end of one document and the
beginning of the next: attention sees both, and the target at the boundary, the first token of a
document as guessed from another one, can be left out of the loss.
"""

from dataclasses import replace
from hashlib import blake2b

import numpy

from ..errors import CorpusError
from .samples import Samples
from .segments import OpenFiles, Segment

IGNORED = -100  # a target that does not count


class PackedTokens:
    """Parts of segments as one sequence.

    parts    [k, 3] int64: segment, first token, token behind the last; none empty
    is_text  the tokens are bytes of text, of which none is 0
    """

    def __init__(self, segments: list[Segment], parts: numpy.ndarray, *, is_text: bool = False):
        self.segments = segments
        self.is_text = is_text
        self.parts = parts
        self._stops = numpy.cumsum(parts[:, 2] - parts[:, 1])
        self._files, self._answers = OpenFiles(), OpenFiles()

    def __len__(self):
        return int(self._stops[-1]) if len(self._stops) else 0

    def pieces(self, start: int, stop: int):
        """Yield (position, segment, first, count): where tokens [start, stop) lie."""
        index = int(numpy.searchsorted(self._stops, start, side="right"))
        while start < stop:
            which, _, last = self.parts[index].tolist()
            end = int(self._stops[index])
            count = min(stop, end) - start
            yield start, self.segments[which], last - (end - start), count
            start += count
            index += 1

    def gather(self, starts: numpy.ndarray, length: int) -> numpy.ndarray:
        """Return `length` tokens from each position: [n] -> [n, length] int64.

        Errors: CorpusError, OSError as OpenFiles.read.
        """
        tokens = numpy.empty((len(starts), length), numpy.int64)
        for row, start in zip(tokens, starts.tolist()):
            for position, segment, first, count in self.pieces(start, start + length):
                at = position - start
                row[at : at + count] = self._files.read(segment, first, count)
        return tokens

    def span(self, start: int, stop: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return tokens [start, stop), int64, and which of them are answers. Errors: as gather."""
        tokens = self.gather(numpy.array([start]), stop - start)[0]
        return tokens, self.answers(start, stop)

    def answers(self, start: int, stop: int) -> numpy.ndarray:
        """Return which of tokens [start, stop) are answers, bool. Errors: as gather."""
        answers = [
            self._answers.read(replace(segment, dtype="|u1", at=segment.answers), first, count)
            for _, segment, first, count in self.pieces(start, stop)
        ]
        return numpy.concatenate(answers) != 0

    def boundaries(self, start: int, stop: int) -> list[int]:
        """Return the positions in [start, stop) at which a document begins, or a part of one."""
        found = set(self._stops[slice(*numpy.searchsorted(self._stops, [start, stop]))].tolist())
        for position, segment, first, count in self.pieces(start, stop):
            if segment.documents is not None:
                inside = numpy.searchsorted(segment.documents, [first, first + count])
                begins = segment.documents[slice(*inside)]
                found.update((begins + (position - first)).tolist())
        return sorted(found)

    def place(self, position: int) -> tuple[str, int]:
        """Return (path, token of the file) of this position."""
        _, segment, first, _ = next(self.pieces(position, position + 1))
        return segment.path, first

    def fingerprint(self) -> str:
        """Return a hash of the marks of the files, their dtypes and sizes, and the parts."""
        digest = blake2b(digest_size=16)
        for segment in self.segments:
            digest.update(f"{segment.mark} {segment.dtype} {segment.count}\n".encode())
        digest.update(self.parts.tobytes())
        return digest.hexdigest()


class TokenRows(Samples):
    """Rows that are made of packed tokens: x and y [n, length] int64.

    vocabulary_size  what every token is below; else read() refuses it
    """

    def __init__(self, tokens: PackedTokens, length: int, vocabulary_size: int):
        self.tokens = tokens
        self.length = length
        self.vocabulary_size = vocabulary_size
        self._is_checked = any(s.largest >= vocabulary_size for s in tokens.segments)

    def _check_tokens(self, tokens: numpy.ndarray, starts: numpy.ndarray) -> None:
        """Raise CorpusError if one of tokens [n, any], of these positions on, is no token."""
        if not self._is_checked:
            return
        is_wrong = (tokens < 0) | (tokens >= self.vocabulary_size)
        if is_wrong.any():
            row, column = numpy.argwhere(is_wrong)[0].tolist()
            path, token = self.tokens.place(int(starts[row]) + column)
            raise beyond_vocabulary(path, token, int(tokens[row, column]), self.vocabulary_size)


class TokenWindows(TokenRows):
    """Windows of packed tokens.

    mask_documents   the first token of a document is no target: IGNORED in y
    part             what these tokens are for, for messages
    Errors: CorpusError if there is not one window, or on conversations.
    """

    def __init__(
        self,
        tokens: PackedTokens,
        length: int,
        vocabulary_size: int,
        *,
        mask_documents: bool = False,
        part: str = "training",
    ):
        super().__init__(tokens, length, vocabulary_size)
        self.mask_documents = mask_documents
        _check_texts(tokens.segments)
        if len(tokens) < length + 1:
            more = " and others" if len(tokens.segments) > 1 else ""
            raise CorpusError(
                f"{part} has {len(tokens):,} tokens of {tokens.segments[0].path}{more}, but a "
                f"sequence needs model.sequence_length + 1 = {length + 1}; give more text or a "
                "shorter sequence"
            )

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def read(self, numbers, part=None):
        """Return x, y of these windows, or of their tokens of a part.

        Errors: CorpusError on a token beyond the vocabulary, and on a NUL byte in text.
        """
        first, stop = (0, self.length) if part is None else part.span(self.length)
        starts = numbers * self.length + first
        windows = self.tokens.gather(starts, stop - first + 1)
        if self.tokens.is_text and not windows.all():
            row, column = numpy.argwhere(windows == 0)[0].tolist()
            path, byte = self.tokens.place(int(starts[row]) + column)
            raise CorpusError(f"{path} is no text: byte {byte:,} is NUL; leave the file out")
        self._check_tokens(windows, starts)
        y = windows[:, 1:].copy()
        if self.mask_documents:
            self._mask(y, starts)
        x = windows[:, :-1].copy()
        if part is None:
            return x, y
        return part.x(x, self.length), part.y(y, self.length)

    def _mask(self, y, starts):
        for row, start in zip(y, starts.tolist()):
            begins = self.tokens.boundaries(start + 1, start + 1 + y.shape[1])
            row[numpy.array(begins, numpy.int64) - start - 1] = IGNORED

    def fingerprint(self):
        """Return a hash of the tokens and the mask; a run that goes on may change the length."""
        text = f"{self.tokens.fingerprint()} {self.mask_documents}"
        return blake2b(text.encode(), digest_size=16).hexdigest()


def _check_texts(segments: list[Segment]) -> None:
    for segment in segments:
        if segment.answers is not None:
            raise CorpusError(
                f"{segment.path} holds conversations; train on their answers by --task=chat, or "
                "prepare them without --chat",
                segment.path,
            )


def beyond_vocabulary(path: str, token: int, value: int, vocabulary_size: int) -> CorpusError:
    """Return the error about a token that the model has no row for."""
    return CorpusError(
        f"{path}: token {token:,} is {value:,}, but the vocabulary has {vocabulary_size:,} tokens, "
        f"0 to {vocabulary_size - 1:,}; give the vocabulary size or the token dtype that the file "
        "was written with"
    )
