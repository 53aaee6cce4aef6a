"""The cut goes from one dim to another, and back: each is the adjoint of the other.

    rank 0   [ a0 a1 a2 | ]          from rows to columns: piece d of what a rank has goes to rank d
    rank 1   [ b0 b1 b2 | ]   --->   rank 0 [ a0 b0 c0 ]   rank 1 [ a1 b1 c1 ]   rank 2 [ a2 b2 c2 ]
    rank 2   [ c0 c1 c2 | ]          each rank sends (n-1)/n of its elements

What a rank could not compute along a dim that is cut, it computes on a part of another (DeepSpeed
Ulysses, arXiv 2309.14509, for heads of attention; the transposition of parallel FFTs).
"""

from math import prod

from ...array import fresh
from ...array.arena import empty
from ...array.backend import xp_of
from ...comm.backend import CommunicationBackend
from ...nn.autograd import Tensor, record_linear
from .spans import Table, count_of, length_of, placed_spans


def exchange_cut(
    x: Tensor,
    group: CommunicationBackend,
    from_dim: int,
    to_dim: int,
    from_table: Table,
    to_table: Table,
) -> Tensor:
    """Return x, cut along from_dim, cut along to_dim instead.

    Collective over `group` in forward, and in backward, which goes the other way.
    x        [..., own of from_dim, ..., whole to_dim, ...] local, the dims in any order
    returns  [..., whole from_dim, ..., own of to_dim, ...] local, elements by their numbers; its
             dims lie in memory in the order of those of x
    """
    dims = from_dim % x.ndim, to_dim % x.ndim
    form = group, *dims, from_table, to_table
    back = group, *dims[::-1], to_table, from_table
    return record_linear(
        _exchanged(x.array, *form),
        x,
        lambda gradient: _exchanged(gradient, *back),
        lambda gradient: exchange_cut(gradient, *back),
        gives_new=True,
    )


def _exchanged(array, group, from_dim, to_dim, from_table, to_table):
    """Return what exchange_cut does, of an array: a new one."""
    xp = xp_of(array)
    front = xp.moveaxis(array, (from_dim, to_dim), (0, 1))  # [own, whole, ...rest]
    rest = front.shape[2:]
    shapes = [(len(front), count_of(spans), *rest) for spans in to_table]
    pieces, send = _pieces(array, shapes)
    for piece, spans in zip(pieces, to_table):
        for place, span in placed_spans(spans):
            piece[:, place] = front[:, slice(*span)]
    num_own = count_of(to_table[group.rank])
    shapes = [(count_of(spans), num_own, *rest) for spans in from_table]
    arrived, receive = _pieces(array, shapes)
    counts = [[piece.size for piece in each] for each in (pieces, arrived)]
    group.all_to_all(send, receive, *counts)
    shape = list(array.shape)
    shape[from_dim], shape[to_dim] = length_of(from_table), num_own
    result = fresh.ordered_as(array, shape)
    whole = xp.moveaxis(result, (from_dim, to_dim), (0, 1))
    for piece, spans in zip(arrived, from_table):
        for place, span in placed_spans(spans):
            whole[slice(*span)] = piece[place]
    return result


def _pieces(array, shapes):
    """Return new arrays of these shapes, one after the other in memory, and all of that [total]."""
    xp = xp_of(array)
    sizes = [prod(shape) for shape in shapes]
    flat = empty((sum(sizes),), array.dtype, xp)
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    views = [
        flat[start : start + size].reshape(shape)
        for start, size, shape in zip(starts, sizes, shapes)
    ]
    return views, flat
