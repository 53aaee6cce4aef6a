"""From the texts of a block to its tokens."""

from collections.abc import Iterator

import numpy

from ..tokenizer import Tokenizer, token_dtype

BATCH_CHARACTERS = 1 << 19  # encoded at once: enough to share among threads, little in memory


def encode_block(
    pieces: Iterator[tuple[str, bool]], tokenizer: Tokenizer
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return (ends of documents [d] int64, tokens [n] uint16 or uint32).

    pieces   (text, whether a document ends behind it)
    The end-of-text number stands behind each document, if the tokenizer has one.
    """
    dtype = token_dtype(tokenizer.vocabulary_size)
    end = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
    end_of_text = numpy.array(end, dtype)
    parts = [numpy.empty(0, dtype)]
    ends = []
    num_tokens = 0
    for batch in _batches(pieces):
        encoded = tokenizer.encode_many([text for text, _ in batch])
        for numbers, (_, is_end) in zip(encoded, batch):
            parts.append(numbers.astype(dtype))
            num_tokens += len(numbers)
            if is_end:
                parts.append(end_of_text)
                num_tokens += len(end)
                ends.append(num_tokens)
    return numpy.array(ends, numpy.int64), numpy.concatenate(parts)


def _batches(pieces: Iterator[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    batch, num_characters = [], 0
    for piece in pieces:
        batch.append(piece)
        num_characters += len(piece[0])
        if num_characters >= BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch
