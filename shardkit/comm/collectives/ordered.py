"""Sums over ranks whose bits do not depend on the network, the MPI library, or who comes first.

    rank      0    1    2    3    4          everyone sends each owner its slice (all_to_all,
              a    b    c    d    e          straight from the buffer), the owner adds the slices as
              a + b     c + d     e          a fixed tree over the ranks: neighbors first, level by
              (a+b) + (c+d)       e          level, an odd one carried up
              ((a+b)+(c+d)) + e

Each rank sends and receives as many bytes as in a ring reduce-scatter. Together with micro-batches
that are added as the same tree, the trained bits are the same on any number of data ranks
(DESIGN.md, section 4).
"""

import numpy

from ...array.arena import empty
from ...array.backend import xp_of
from ...array.kernels import tree_sum
from ..checks import equal_counts, pieces_of, shares_of, starts_of
from ..wire import HALF_FLOATS

SCRATCH_ELEMENTS = 1 << 20


def ordered_reduce_scatter(backend, buffer, out, *, scratch_elements: int = SCRATCH_ELEMENTS):
    """Sum this rank's slice of `buffer` over ranks, added as a tree over the ranks.

    Collective over the backend. `buffer` is unchanged, unless `out` is a view of this rank's own
    slice of it, which it may be.
    buffer    [world_size * shard], any float or integer dtype, the same on all ranks; half floats
              are summed as float32
    out       [shard], same dtype
    scratch_elements   memory for slices that are to be added, of one for each rank at least
    """
    if backend.adds_in_tree_order(buffer):
        return backend.reduce_scatter(buffer, out, in_place=True)
    counts = equal_counts("counts", buffer.size, backend.world_size)
    reduce_to_owners(backend.all_to_all, backend.rank, buffer, counts, out, scratch_elements)


def ordered_all_reduce(backend, buffer, *, scratch_elements: int = SCRATCH_ELEMENTS):
    """Sum `buffer` over ranks, in it, added as a tree over the ranks.

    Collective over the backend, in place.
    buffer    [any length], float or integer dtype
    """
    if backend.world_size == 1:
        return
    if backend.adds_in_tree_order(buffer):
        return backend.all_reduce(buffer)
    counts = shares_of(buffer.size, backend.world_size)
    own = pieces_of(buffer, counts)[backend.rank]
    reduce_to_owners(backend.all_to_all, backend.rank, buffer, counts, own, scratch_elements)
    backend.all_gather(own, buffer, counts)


def ordered_sum(backend, values):
    """Sum a few numbers over ranks, added as a tree over the ranks: norms, losses, counts.

    Collective over the backend.
    values    sequence of k floats
    returns   [k] float64, the same on all ranks
    """
    own = numpy.array(values, numpy.float64).reshape(-1)
    if backend.world_size == 1:
        return own
    table = numpy.empty((backend.world_size, own.size), numpy.float64)
    backend.all_gather(own, table)
    return tree_sum(list(table))


def reduce_to_owners(all_to_all, rank, buffer, counts, out, scratch_elements=SCRATCH_ELEMENTS):
    """Leave the sum over ranks of this rank's slice of `buffer` in `out`. Collective.

    `out` may be that slice. A window of every owner's slice at a time, so that the scratch stays
    small.
    all_to_all   function (send, receive, send counts, receive counts, send starts)
    """
    num_ranks = len(counts)
    starts = starts_of(counts)
    window = max(1, scratch_elements // num_ranks)
    scratch = empty(num_ranks * min(window, max(counts)), buffer.dtype, xp_of(buffer))
    for first in range(0, max(counts), window):
        sizes = [min(max(count - first, 0), window) for count in counts]
        received = scratch[: num_ranks * sizes[rank]]
        all_to_all(
            buffer,
            received,
            sizes,
            [sizes[rank]] * num_ranks,
            [start + min(first, count) for start, count in zip(starts, counts)],
        )
        add_slices(list(received.reshape(num_ranks, sizes[rank])), out[first : first + sizes[rank]])


def add_slices(slices, out):
    """Add slices [n] of all ranks as the tree, in `out` [n], which may be one of them."""
    if out.dtype.name in HALF_FLOATS:
        out[...] = tree_sum([half.astype("float32") for half in slices])
    elif out.size:
        tree_sum(slices, out=out)
