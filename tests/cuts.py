"""Cuts of a dim that no layer makes, for functions that take any: early with late, and in slabs."""

from shardkit.testing.layout import even_span


def paired_spans(length, num_ranks):
    """Return two chunks for each rank, one as far from the start as the other from the end.

    Under a causal mask each rank sees as many keys as any other (arXiv 2407.21783).
    """
    chunks = [even_span(length, 2 * num_ranks, chunk) for chunk in range(2 * num_ranks)]
    *pairs, (first, last) = zip(chunks[:num_ranks], reversed(chunks))
    middle = (first[0], last[1])  # its two chunks touch
    return tuple([*map(_without_empty, pairs), _without_empty([middle])])


def slab_spans(length, num_ranks, num_slabs):
    """Return a run for each rank in pieces that are the same for any number of ranks that divides
    theirs.
    """
    slabs = [even_span(length, num_slabs, slab) for slab in range(num_slabs)]
    own = [even_span(num_slabs, num_ranks, rank) for rank in range(num_ranks)]
    return tuple([_without_empty(slabs[start:stop]) for start, stop in own])


def _without_empty(spans):
    return tuple([(start, stop) for start, stop in spans if start < stop])
