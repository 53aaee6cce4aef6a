"""Cuts of a dim that no layer makes, for functions that take any: in slabs."""

from shardkit.testing.layout import even_span


def slab_spans(length, num_ranks, num_slabs):
    """Return a run for each rank in pieces that are the same for any number of ranks that divides
    theirs.
    """
    slabs = [even_span(length, num_slabs, slab) for slab in range(num_slabs)]
    own = [even_span(num_slabs, num_ranks, rank) for rank in range(num_ranks)]
    return tuple([_without_empty(slabs[start:stop]) for start, stop in own])


def _without_empty(spans):
    return tuple([(start, stop) for start, stop in spans if start < stop])
