"""From parts to the token file: every rank writes its parts at their places.

parts    | 0 | 1 | 2 | 3 |       rank r takes the parts r, r + ranks, ...
tokens   [ 0   1   2   3 ]       a part begins where those before it end
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy

from ...checkpoint.format.files import sync
from ...comm.alone_at_work import native_work
from ...comm.backend import CommunicationBackend
from ...comm.failure.agreement import by_first, collectively
from ..token_file import ANSWERS, DOCUMENTS, TOKENS, lay_out_token_file
from ..tokenizer import Tokenizer, token_dtype
from .inputs import passing
from .parts import SYNC_SECONDS, TokenPart


@dataclass(frozen=True)
class Totals:
    """What a token file holds."""

    num_tokens: int
    num_documents: int


def assemble(
    backend: CommunicationBackend,
    path: Path,
    parts: list[TokenPart],
    tokenizer: Tokenizer,
    made_from: str,
    *,
    has_answers: bool,
) -> Totals:
    """Write a token file of these parts, in their order; it is on disk when this returns.

    Collective. The bytes of the file depend on the parts and the tokenizer alone.
    Errors, on all ranks: CorpusError on a damaged part, OSError.
    """
    totals = Totals(sum(p.num_tokens for p in parts), sum(p.num_documents for p in parts))
    sizes = totals.num_tokens, totals.num_documents
    about = tokenizer, made_from
    places = by_first(
        backend, lambda: lay_out_token_file(path, *sizes, *about, has_answers=has_answers)
    )
    starts = [
        *zip(
            accumulate((part.num_documents for part in parts), initial=0),
            accumulate((part.num_tokens for part in parts), initial=0),
        )
    ]
    with collectively(backend):
        own = [*zip(parts, starts)][backend.rank :: backend.world_size]
        _write(path, places, passing(own, backend.work), tokenizer)
        with native_work(backend, SYNC_SECONDS):
            sync(path)
    return totals


def _write(path: Path, places: dict[str, int], own: Iterable, tokenizer: Tokenizer) -> None:
    """Write these parts at their places: (part, (documents before it, tokens before it)) each."""
    dtype = token_dtype(tokenizer.vocabulary_size)
    with open(path, "r+b") as file:
        for part, (first_document, first_token) in own:
            ends, tokens, answers = part.read(dtype, has_answers=ANSWERS in places)
            # Document 0 begins at token 0, and each of the others where the one before it ends.
            file.seek(places[DOCUMENTS] + ends.itemsize * (1 + first_document))
            file.write((ends + first_token).astype("<i8").tobytes())
            file.seek(places[TOKENS] + dtype.itemsize * first_token)
            file.write(tokens.tobytes())
            if ANSWERS in places:
                file.seek(places[ANSWERS] + first_token)
                file.write(answers.tobytes())
        file.seek(places[DOCUMENTS])
        file.write(numpy.zeros(1, "<i8").tobytes())
