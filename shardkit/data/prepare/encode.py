"""From the texts of a block to its tokens."""

from collections.abc import Iterator
from itertools import repeat

import numpy

from ..tokenizer import Tokenizer, token_dtype
from .readers import TextPiece

_NOWHERE = (1 << 62, 1 << 62)  # behind all characters
BATCH_CHARACTERS = 1 << 19  # encoded at once: enough to share among threads, little in memory


def encode_block(pieces: Iterator[TextPiece], tokenizer: Tokenizer) -> tuple[numpy.ndarray, ...]:
    """Return (ends of documents [d] int64, tokens [n] uint16 or uint32, answers [n or 0] uint8).

    The end-of-text number stands behind each text, if the tokenizer has one, and nothing behind a
    conversation, of which a token is part of an answer if one of its characters is.
    """
    dtype = token_dtype(tokenizer.vocabulary_size)
    end = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
    parts = [numpy.empty(0, dtype)]
    answers = [numpy.empty(0, numpy.uint8)]
    ends: list[int] = []
    num_tokens = 0
    for batch in _batches(pieces):
        for numbers, found, piece in _encoded(batch, tokenizer):
            answers.append(found)
            parts.append(numbers.astype(dtype))
            if piece.is_end and piece.answers is None:
                parts.append(numpy.array(end, dtype))
                num_tokens += len(end)
            num_tokens += len(numbers)
            ends += [num_tokens] * piece.is_end
    return numpy.array(ends, numpy.int64), numpy.concatenate(parts), numpy.concatenate(answers)


def _encoded(batch: list[TextPiece], tokenizer: Tokenizer) -> Iterator[tuple]:
    """Yield (tokens, which of them are answers, piece) of each piece; all are texts, or none."""
    texts = [piece.text for piece in batch]
    if batch[0].answers is None:
        yield from zip(tokenizer.encode_many(texts), repeat(numpy.empty(0, numpy.uint8)), batch)
        return
    for (numbers, places), piece in zip(tokenizer.encode_placed(texts), batch):
        yield numbers, _meets(places, piece.answers), piece


def _meets(places: numpy.ndarray, spans) -> numpy.ndarray:
    """Return which places [n, 2] share a character with one of the spans, in order: [n] uint8."""
    starts, stops = numpy.array([*spans, _NOWHERE], numpy.int64).T
    following = numpy.searchsorted(stops, places[:, 0], side="right")
    following = numpy.minimum(following, len(spans))
    return (starts[following] < places[:, 1]).astype(numpy.uint8)


def _batches(pieces: Iterator[TextPiece]) -> Iterator[list[TextPiece]]:
    batch: list[TextPiece] = []
    num_characters = 0
    for piece in pieces:
        batch.append(piece)
        num_characters += len(piece.text)
        if num_characters >= BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch
