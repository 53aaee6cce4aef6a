"""Calls in which one rank does something else than the others, for any backend of three ranks or
more.

WRONG["all_reduce: dtype"](backend, is_odd)      the odd rank, with is_odd, brings float64 where the
                                                 others bring float32
"""

import numpy

from shardkit import ReductionOperation

SUM, MAX, AVERAGE = ReductionOperation.SUM, ReductionOperation.MAX, ReductionOperation.AVERAGE
SIZE = 6


def ones(size=SIZE, dtype="float32"):
    return numpy.ones(size, dtype)


def kind(is_odd):
    return "float64" if is_odd else "float32"


def whole(backend, size=SIZE, dtype="float32", root=None):
    """Return slices of all ranks; None where only the root has them."""
    return ones(backend.world_size * size, dtype) if root in (None, backend.rank) else None


def counts(backend, is_odd):
    """Return counts of the same sum, cut in another way on the odd rank, whose own count stays."""
    first = [SIZE + 1, SIZE - 1] if is_odd else [SIZE, SIZE]
    return [*first, *[SIZE] * (backend.world_size - 2)]


WRONG = {
    "all_reduce: verb": lambda b, odd: b.broadcast(ones()) if odd else b.all_reduce(ones()),
    "all_reduce: none": lambda b, odd: b.barrier() if odd else b.all_reduce(ones()),
    "all_reduce: dtype": lambda b, odd: b.all_reduce(ones(dtype=kind(odd))),
    "all_reduce: dtype of the same size": lambda b, odd: b.all_reduce(
        ones(dtype="int32" if odd else "float32")
    ),
    "all_reduce: count": lambda b, odd: b.all_reduce(ones(SIZE + odd)),
    "all_reduce: large count": lambda b, odd: b.all_reduce(ones(5000 * (SIZE + odd))),
    "all_reduce: small and large": lambda b, odd: b.all_reduce(ones(50_000 if odd else 5)),
    "all_reduce: op": lambda b, odd: b.all_reduce(ones(), MAX if odd else SUM),
    "all_reduce: average": lambda b, odd: b.all_reduce(ones(), AVERAGE if odd else SUM),
    "broadcast: root": lambda b, odd: b.broadcast(ones(), 1 if odd else 0),
    "broadcast: count": lambda b, odd: b.broadcast(ones(SIZE + odd)),
    "broadcast: dtype": lambda b, odd: b.broadcast(ones(dtype=kind(odd))),
    "all_gather: count": lambda b, odd: b.all_gather(ones(SIZE + odd), whole(b, SIZE + odd)),
    "all_gather: counts": lambda b, odd: b.all_gather(
        ones(counts(b, odd)[b.rank]), whole(b), counts(b, odd)
    ),
    "all_gather: dtype": lambda b, odd: b.all_gather(
        ones(dtype=kind(odd)), whole(b, dtype=kind(odd))
    ),
    "reduce_scatter: count": lambda b, odd: b.reduce_scatter(
        whole(b, SIZE + odd), ones(SIZE + odd)
    ),
    "reduce_scatter: counts": lambda b, odd: b.reduce_scatter(
        whole(b), ones(counts(b, odd)[b.rank]), counts(b, odd)
    ),
    "reduce_scatter: dtype": lambda b, odd: b.reduce_scatter(
        whole(b, dtype=kind(odd)), ones(dtype=kind(odd))
    ),
    "reduce_scatter: op": lambda b, odd: b.reduce_scatter(whole(b), ones(), op=MAX if odd else SUM),
    "reduce_scatter: average": lambda b, odd: b.reduce_scatter(
        whole(b), ones(), op=AVERAGE if odd else SUM
    ),
    "scatter: root": lambda b, odd: b.scatter(whole(b, root=int(odd)), ones(), int(odd)),
    "scatter: count": lambda b, odd: b.scatter(whole(b, root=0), ones(SIZE + odd)),
    "gather: root": lambda b, odd: b.gather(ones(), whole(b, root=int(odd)), int(odd)),
    "gather: count": lambda b, odd: b.gather(ones(SIZE + odd), whole(b, root=0)),
    "gather: dtype": lambda b, odd: b.gather(ones(dtype=kind(odd)), whole(b, root=0)),
    "all_to_all: dtype": lambda b, odd: b.all_to_all(
        whole(b, dtype=kind(odd)), whole(b, dtype=kind(odd))
    ),
    "all_to_all: verb": lambda b, odd: (
        b.all_gather(ones(), whole(b)) if odd else b.all_to_all(whole(b), whole(b))
    ),
    "broadcast_object: root": lambda b, odd: b.broadcast_object(7, 1 if odd else 0),
    "gather_object: root": lambda b, odd: b.gather_object(7, 1 if odd else 0),
    "all_gather_object: verb": lambda b, odd: b.gather_object(7) if odd else b.all_gather_object(7),
}
PIECES = {
    "all_to_all: count": lambda b, odd: b.all_to_all(whole(b, SIZE + odd), whole(b, SIZE + odd)),
}
IN_CHECKED_MODE = {  # and by threads
    "iall_reduce: verb": lambda b, odd: (
        b.all_reduce(ones()) if odd else b.iall_reduce(ones()).wait()
    ),
    "iall_gather: count": lambda b, odd: b.iall_gather(
        ones(SIZE + odd), whole(b, SIZE + odd)
    ).wait(),
    "ireduce_scatter: average": lambda b, odd: b.ireduce_scatter(
        whole(b), ones(), op=AVERAGE if odd else SUM
    ).wait(),
    "split: verb": lambda b, odd: b.split(0) if odd else b.barrier(),
}
REFUSED = {  # on the odd rank, which has its own error
    "all_reduce: op": lambda b, odd: b.all_reduce(ones(), "plus" if odd else SUM),
    "all_reduce: strided": lambda b, odd: b.all_reduce(ones(2 * SIZE)[::2] if odd else ones()),
    "all_reduce: complex": lambda b, odd: b.all_reduce(
        ones(dtype="complex64" if odd else "float32")
    ),
    "all_reduce: a list": lambda b, odd: b.all_reduce([1.0] if odd else ones()),
    "broadcast: root": lambda b, odd: b.broadcast(ones(), 99 if odd else 0),
    "all_gather: own count": lambda b, odd: b.all_gather(ones(SIZE + odd), whole(b)),
    "scatter: counts": lambda b, odd: b.scatter(whole(b, root=0), ones(), 0, [1] if odd else None),
    "split: color": lambda b, odd: b.split(-1 if odd else 0),
    "gather_object: root": lambda b, odd: b.gather_object(7, -1 if odd else 0),
}
