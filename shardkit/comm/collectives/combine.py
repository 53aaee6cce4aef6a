"""What each collective does, as plain functions on the arrays of all ranks.

Threads run them on the rank that arrives last. They are also the shortest definition of the verbs:
`given[r]` is what rank r brought. Sums are taken in rank order, so they are the same on every run.
"""

from collections.abc import Callable

import numpy

from ..checks import starts_of
from ..operations import ReductionOperation

_COMBINE = {
    ReductionOperation.SUM: numpy.add,
    ReductionOperation.AVERAGE: numpy.add,  # scaled afterwards
    ReductionOperation.PRODUCT: numpy.multiply,
    ReductionOperation.MIN: numpy.minimum,
    ReductionOperation.MAX: numpy.maximum,
}


def reduced(arrays, op):
    """Return the reduction of equal arrays, in their order, as a new array."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        _COMBINE[op](total, array, out=total)
    return total


def barrier(given):
    """Do nothing: all have come."""


def all_reduce(given, op):
    """Reduce given[r]: (array,), in place."""
    total = reduced([array for (array,) in given], op)
    for (array,) in given:
        array[...] = total


def broadcast(given, root):
    """Copy the root's array to all others; given[r]: (array,)."""
    (source,) = given[root]
    for rank, (array,) in enumerate(given):
        if rank != root:
            array[...] = source


def all_gather(given, counts):
    """Gather; given[r]: (send, receive). The first copy may be onto itself."""
    for start, count, (send, _) in zip(starts_of(counts), counts, given):
        for _, receive in given:
            receive[start : start + count] = send


def reduce_scatter(given, counts, op):
    """Reduce and scatter; given[r]: (send, receive)."""
    for start, count, (_, receive) in zip(starts_of(counts), counts, given):
        receive[...] = reduced([send[start : start + count] for send, _ in given], op)


def scatter(given, root, counts):
    """Scatter; given[r]: (send or anything, receive); the root's send counts."""
    for start, count, (_, receive) in zip(starts_of(counts), counts, given):
        receive[...] = given[root][0][start : start + count]


def gather(given, root, counts):
    """Gather; given[r]: (send, receive or anything); the root's receive counts."""
    for start, count, (send, _) in zip(starts_of(counts), counts, given):
        given[root][1][start : start + count] = send


def all_to_all(given):
    """Exchange the pieces of all ranks.

    given[r]: (send, receive, send_counts, receive_counts, send_starts, receive_starts).
    """
    for source, (send, _, send_counts, _, send_starts, _) in enumerate(given):
        for target, (_, receive, _, receive_counts, _, receive_starts) in enumerate(given):
            count = send_counts[target]
            if count != receive_counts[source]:
                raise ValueError(
                    f"rank {source} sends rank {target} {count} elements, which expects "
                    f"{receive_counts[source]}"
                )
            start, at = send_starts[target], receive_starts[source]
            receive[at : at + count] = send[start : start + count]


def split(given):
    """Return per rank the ordered ranks of its new group, or None.

    given[r]: (color or None, key).
    """
    groups = {}
    for rank, (color, key) in enumerate(given):
        groups.setdefault(color, []).append((key, rank))
    ordered = {
        color: [rank for _, rank in sorted(members)]
        for color, members in groups.items()
        if color is not None
    }
    return [ordered.get(color) for color, _ in given]


# What is done, and how many of the first arguments each rank brings to it; all others are equal.
COLLECTIVES: dict[str, tuple[Callable[..., None], int]] = {
    "barrier": (barrier, 0),
    "all_reduce": (all_reduce, 1),
    "broadcast": (broadcast, 1),
    "all_gather": (all_gather, 2),
    "reduce_scatter": (reduce_scatter, 2),
    "scatter": (scatter, 2),
    "gather": (gather, 2),
    "all_to_all": (all_to_all, 6),
}
