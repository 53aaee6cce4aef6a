"""Spans: which elements of a dim each rank holds, by their numbers in the whole.

    even      rank 0 |######|        1 |######|        2 |######|        one run for each rank
    paired    rank 0 |###|..................|###|   the first half of its even run, and the second
                   1 .........|######|...........   half of the run that lies as far from the end
                   2 ....|###|.........|###|.....
    any       rank 0 |#|............#|  1 ..|#|......|#|..  2 ....|##|....   several runs

A table has the spans of every rank, and every rank has the same table: what a rank sends needs no
question. Layers cut evenly; attention takes any table.
"""

from itertools import accumulate, pairwise

import numpy

from ...errors import ShapeError
from ...layout.cuts import even_runs

Spans = tuple[tuple[int, int], ...]  # [start, stop) of one rank, in order
Table = tuple[Spans, ...]  # of all ranks


def even_spans(length: int, num_ranks: int) -> Table:
    """Return a run for each rank; none for one that has no element."""
    return tuple([_without_empty([run]) for run in even_runs(length, num_ranks)])


def paired_spans(length: int, num_ranks: int) -> Table:
    """Return spans early and late for each rank, which see as many keys under a causal mask.

    Source: the balance of arXiv 2311.09431, with halves of even spans, so that each rank exchanges
    rows with one other rank at most.
    """
    runs = even_runs(length, num_ranks)
    middles = [(start + stop + 1) // 2 for start, stop in runs]
    first = [(start, middle) for (start, _), middle in zip(runs, middles)]
    second = [(middle, stop) for (_, stop), middle in zip(runs, middles)]
    pairs = map(sorted, zip(first, reversed(second)))
    return tuple([_without_empty(_joined(*pair)) for pair in pairs])


def _joined(first, second) -> Spans:
    """Return two spans as one if they touch."""
    if first[1] == second[0]:
        return ((first[0], second[1]),)
    return first, second


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
            "0 to its length together, each element once"
        )
