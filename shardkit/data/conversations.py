"""Conversations as samples: whole ones in rows, of which the answers are learned.

    conversations   AAAAAAAAA  BBBB  CCCCCC  DDD
    packed rows     AAAAAAAAA CCCCCC |  BBBB DDD .......      each sees itself alone (nn/texts.py)
    or one each     AAAAAAAAA ...... |  CCCCCC ......... | ...

    x    what a token follows          y    the token, IGNORED unless it is part of an answer

A conversation of n tokens takes n - 1 places. What is longer than a row is cut at its end, and what
has no answer then is left out; both are counted. Conversations are packed by best fit, the longest
first (arXiv 2404.10830), so that few places of a row stay free.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy

from ..errors import CorpusError
from ..nn.texts import begin_text
from .packed import IGNORED, PackedTokens, TokenRows

_READ_TOKENS = 1 << 22  # looked at at once


@dataclass(frozen=True)
class Shortened:
    """What does not fit.

    conversations   that there are
    cut             at their end, for they are longer than a row
    tokens          that were cut off
    without_answer  and so left out
    """

    conversations: int
    cut: int
    tokens: int
    without_answer: int

    def __str__(self):
        told = f"{self.conversations:,} conversations"
        if self.cut:
            told += f", {self.cut:,} of them cut at their end by {self.tokens:,} tokens"
        if self.without_answer:
            told += f", {self.without_answer:,} left out for want of an answer"
        return told


class ConversationRows(TokenRows):
    """Rows of conversations.

    given   as of TokenRows
    packs   several stand in a row where they fit; False: one in each
    part    what they are for, for messages
    cut     what does not fit
    Errors: CorpusError if there is no answer to learn, or on texts that are no conversations.
    """

    def __init__(self, *given: Any, packs: bool, part: str = "training"):
        super().__init__(*given)
        tokens, length = self.tokens, self.length
        self._packs = packs
        _check_answers(tokens)
        starts = numpy.array([0, *tokens.boundaries(1, len(tokens))], numpy.int64)
        sizes = numpy.diff(starts, append=len(tokens))
        kept = numpy.minimum(sizes, length + 1)
        learns = _have_answers(tokens, starts, kept)
        lost = sizes - kept
        counts = [int(each.sum()) for each in (lost > 0, lost, ~learns)]
        self.cut = Shortened(len(sizes), *counts)
        if not learns.any():
            raise CorpusError(
                f"{part} has no answer to learn within model.sequence_length = {length} tokens of "
                f"its {len(sizes):,} conversations; give more of them, or longer sequences"
            )
        self._starts, self._sizes = starts[learns], kept[learns]
        alone = [[number] for number in range(len(self._sizes))]
        self._rows = packed(self._sizes - 1, length) if packs else alone

    def __len__(self):
        return len(self._rows)

    @property
    def free_places(self) -> int:
        """How many places of all rows hold no token."""
        return len(self) * self.length - int((self._sizes - 1).sum())

    def read(self, numbers):
        """Return x, y of these rows. Errors: CorpusError on a token beyond the vocabulary."""
        x = numpy.zeros((len(numbers), self.length), numpy.int64)
        y = numpy.full((len(numbers), self.length), IGNORED, numpy.int64)
        for row, number in enumerate(numpy.asarray(numbers).tolist()):
            at = 0
            for one in self._rows[number]:
                at = self._fill(one, x[row], y[row], at)
            if 0 < at < self.length and self._packs:
                x[row, at] = begin_text(0)  # what is free sees nothing, and nothing sees it
        return x, y

    def _fill(self, one: int, x, y, at: int) -> int:
        """Write a conversation into a row from a place on; return the place behind it."""
        start, size = self._starts[one], self._sizes[one]
        tokens, is_answer = self.tokens.span(int(start), int(start + size))
        self._check_tokens(tokens[None], self._starts[one : one + 1])
        own = slice(at, at + int(size) - 1)
        x[own] = tokens[:-1]
        y[own] = numpy.where(is_answer[1:], tokens[1:], IGNORED)
        if self._packs:
            x[at] = begin_text(x[at])
        return own.stop

    def fingerprint(self):
        """Return a hash of the tokens and answers, and how they stand in rows."""
        text = f"{self.tokens.fingerprint()} conversations {self._packs}"
        return blake2b(text.encode(), digest_size=16).hexdigest()


def packed(sizes: numpy.ndarray, length: int) -> list[list[int]]:
    """Return rows of numbers: best fit, the largest first, those of one size in their order.

    sizes   [n] places that each takes, 1 .. length
    """
    rows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(length + 1)]  # rows by their free places
    rooms = 0  # bit r: there is a row with r free places
    for number in numpy.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[number])
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            rooms &= ~(not with_room[room] and 1 << room)
        else:
            room, row = length, len(rows)
            rows.append([])
        rows[row].append(number)
        with_room[room - size].append(row)
        rooms |= 1 << (room - size)
    return rows


def _have_answers(tokens: PackedTokens, starts, sizes) -> numpy.ndarray:
    """Return which conversations have an answer behind their first token, [n] bool."""
    found = numpy.zeros(len(starts), bool)
    stops = starts + sizes
    for first in range(0, len(tokens), _READ_TOKENS):
        stop = min(first + _READ_TOKENS, len(tokens))
        places = first + numpy.flatnonzero(tokens.answers(first, stop))
        which = numpy.searchsorted(starts, places, side="right") - 1
        is_kept = (places > starts[which]) & (places < stops[which])
        found[which[is_kept]] = True
    return found


def _check_answers(tokens: PackedTokens) -> None:
    for segment in tokens.segments:
        if segment.answers is None:
            raise CorpusError(
                f"{segment.path} says not what is an answer in it; wanted a file of `shardkit "
                "prepare --chat`",
                segment.path,
            )
