"""Spans: which elements of a dim each rank holds, by their numbers in the whole.

    even      rank 0 |######|        1 |######|        2 |######|        one run for each rank
    slabs            |###|##|          |###|##|          |###|##|        the same, in fixed pieces
    paired    rank 0 |#|............#|  1 ..|#|......|#|..  2 ....|##|....   early with late

A table has the spans of every rank, and every rank has the same table: what a rank sends needs no
question. Slabs are as many for any number of ranks that divides them: what is computed slab by
slab, and added in an order of theirs, has the same bits on all these numbers. With pairs, under a
causal mask, each rank sees as many keys as any other (chunks i and 2n - 1 - i of 2n, as in Llama 3,
arXiv 2407.21783; Striped Attention, arXiv 2311.09431, deals out single tokens instead).
"""

from itertools import accumulate, pairwise

import numpy

from ...errors import ShapeError
from ...layout.cuts import even_span

Spans = tuple[tuple[int, int], ...]  # [start, stop) of one rank, in order
Table = tuple[Spans, ...]  # of all ranks


def even_spans(length: int, num_ranks: int, num_slabs: int | None = None) -> Table:
    """Return a run for each rank, in slabs; None: as many slabs as ranks."""
    num_slabs = num_ranks if num_slabs is None else num_slabs
    slabs = [even_span(length, num_slabs, slab) for slab in range(num_slabs)]
    own = [even_span(num_slabs, num_ranks, rank) for rank in range(num_ranks)]
    return tuple([_without_empty(slabs[start:stop]) for start, stop in own])


def paired_spans(length: int, num_ranks: int) -> Table:
    """Return two chunks for each rank, one as far from the start as the other from the end."""
    chunks = [even_span(length, 2 * num_ranks, chunk) for chunk in range(2 * num_ranks)]
    *pairs, (first, last) = zip(chunks[:num_ranks], reversed(chunks))
    middle = (first[0], last[1])  # its two chunks touch
    return tuple([*map(_without_empty, pairs), _without_empty([middle])])


def _without_empty(spans) -> Spans:
    return tuple([(start, stop) for start, stop in spans if start < stop])


def count_of(spans: Spans) -> int:
    """Return the elements of a rank."""
    return sum([stop - start for start, stop in spans])


def length_of(table: Table) -> int:
    """Return the elements of all ranks."""
    return sum(map(count_of, table))


def positions_of(spans: Spans):
    """Return the number in the whole of each element of a rank, [own] int64."""
    runs = [numpy.arange(start, stop) for start, stop in spans]
    return numpy.concatenate([numpy.arange(0), *runs])


def placed_spans(spans: Spans) -> list[tuple[slice, tuple[int, int]]]:
    """Return [(where a span lies in what its rank holds, the span)]."""
    ends = [0, *accumulate([stop - start for start, stop in spans])]
    return [(slice(*place), span) for place, span in zip(pairwise(ends), spans)]


def check_table(what: str, table: Table, num_ranks: int) -> None:
    """Raise ShapeError unless the spans of so many ranks are a whole, each element once."""
    spans = sorted([span for spans in table for span in spans])
    starts = [start for start, _ in spans]
    stops = [0, *[stop for _, stop in spans]]
    if len(table) != num_ranks or starts != stops[:-1]:
        raise ShapeError(
            f"{what} cut over {num_ranks} ranks into {table}; wanted spans of each rank that are "
            "0 to its length together, each element once: use even_spans or paired_spans"
        )
