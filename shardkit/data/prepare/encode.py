"""From the texts of a block to its tokens."""

from collections.abc import Iterator

import numpy

from ..tokenizer import Tokenizer, token_dtype
from .readers import Piece

BATCH_CHARACTERS = 1 << 19  # encoded at once: enough to share among threads, little in memory


def encode_block(
    pieces: Iterator[Piece], tokenizer: Tokenizer
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return (ends of documents [d] int64, tokens [n] uint16 or uint32).

    The end-of-text number stands behind each document, if the tokenizer has one.
    """
    dtype = token_dtype(tokenizer.vocabulary_size)
    end = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
    end_of_text = numpy.array(end, dtype)
    parts = [numpy.empty(0, dtype)]
    ends = []
    num_tokens = 0
    for batch in _batches(pieces):
        encoded = tokenizer.encode_many([piece.text for piece in batch])
        for numbers, piece in zip(encoded, batch):
            parts.append(numbers.astype(dtype))
            num_tokens += len(numbers)
            if piece.is_end:
                parts.append(end_of_text)
                num_tokens += len(end)
                ends.append(num_tokens)
    return numpy.array(ends, numpy.int64), numpy.concatenate(parts)


def encode_answers(
    pieces: Iterator[Piece], tokenizer: Tokenizer
) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Return what encode_block does of whole documents, and which tokens are answers [n] uint8.

    A token is part of an answer if one of its characters is. Nothing stands behind a document.
    """
    dtype = token_dtype(tokenizer.vocabulary_size)
    parts, answers = [numpy.empty(0, dtype)], [numpy.empty(0, numpy.uint8)]
    for batch in _batches(pieces):
        encoded = tokenizer.encode_placed([piece.text for piece in batch])
        for (numbers, places), piece in zip(encoded, batch):
            parts.append(numbers.astype(dtype))
            answers.append(_meets(places, piece.answers))
    ends = numpy.cumsum([len(part) for part in parts[1:]], dtype=numpy.int64)
    return ends, numpy.concatenate(parts), numpy.concatenate(answers)


def _meets(places: numpy.ndarray, spans) -> numpy.ndarray:
    """Return which places [n, 2] share a character with one of the spans, in order: [n] uint8."""
    starts, stops = numpy.array([*spans, (1 << 62, 1 << 62)], numpy.int64).T
    following = numpy.searchsorted(stops, places[:, 0], side="right")
    following = numpy.minimum(following, len(spans))
    return (starts[following] < places[:, 1]).astype(numpy.uint8)


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    num_characters = 0
    for piece in pieces:
        batch.append(piece)
        num_characters += len(piece.text)
        if num_characters >= BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch
