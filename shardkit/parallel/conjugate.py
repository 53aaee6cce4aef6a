"""Collectives on Tensors, each with its adjoint: what one does to values, the other does to
gradients.

Over the ranks of an axis a tensor is in one of two states:

    whole     the same values on every rank, standing for ONE tensor; its gradient is the same on
              every rank too
    own       values that belong to this rank: a slice of a larger tensor, or a term of a sum

    function              forward           backward          from -> to
    copy_to_region        identity          all-reduce        whole -> own (each rank's use of it)
    reduce_from_region    all-reduce        identity          own (terms) -> whole
    all_gather            all-gather        reduce-scatter    own (slices) -> own (uses)
    reduce_scatter        reduce-scatter    all-gather        own (terms) -> own (slices)
    gather_from_region    all-gather        take own slice    own (slices) -> whole
    all_reduce            all-reduce        all-reduce        own (terms) -> own (uses)

Adjoint means: summed over ranks, with whole tensors counted once, <A x, y> = <x, A' y>. Slices
along a dim are those of layout.even_span, so they may differ by one. Sums are added as a fixed tree
over the ranks (comm/collectives/ordered.py), so that every run has the same bits. Source:
Megatron-LM (arXiv 1909.08053) for the first two, arXiv 2205.05198 for the gather and scatter.
"""

from typing import Any

from ..array import fresh
from ..array.arena import empty
from ..array.backend import is_device_array, xp_of
from ..comm.backend import CommunicationBackend
from ..comm.collectives.ordered import ordered_all_reduce, ordered_reduce_scatter
from ..layout.cuts import even_runs, even_span
from ..nn.autograd import Tensor, record_unary


def copy_to_region(x: Tensor, group: CommunicationBackend) -> Tensor:
    """Give each rank x, whole, for its own use; backward sums the gradients of all uses.

    Collective over `group` in backward.
    """
    return record_unary(x.array, x, lambda gradient: summed(gradient, group), view_of=x)


def reduce_from_region(x: Tensor, group: CommunicationBackend) -> Tensor:
    """Return the sum of every rank's x, whole; backward gives each term the gradient as it is.

    Collective over `group` in forward. x of one shape on all ranks.
    """
    return record_unary(summed(x.array, group), x, lambda gradient: gradient)


def all_reduce(x: Tensor, group: CommunicationBackend) -> Tensor:
    """Return the sum of every rank's x, for each rank's own use; backward sums those gradients.

    Collective over `group` in both. x of one shape on all ranks.
    """
    return copy_to_region(reduce_from_region(x, group), group)


def all_gather(
    x: Tensor, group: CommunicationBackend, dim: int, length: int | None = None
) -> Tensor:
    """Return the slices of all ranks along dim, for each rank's own use.

    Collective over `group` in forward, and (reduce-scatter) in backward.
    x        [..., own part of length, ...] local
    length   of dim in the result; None: all slices are as long as this one
    returns  [..., length, ...]
    """
    whole = gathered(x.array, group, dim, length)
    return record_unary(whole, x, lambda gradient: _scattered(gradient, group, dim))


def reduce_scatter(x: Tensor, group: CommunicationBackend, dim: int) -> Tensor:
    """Return this rank's slice along dim of the sum of every rank's x.

    Collective over `group` in forward, and (all-gather) in backward.
    x        [..., length, ...], of one shape on all ranks
    returns  [..., own part of length, ...] local
    """
    length = x.shape[dim]
    own = _scattered(x.array, group, dim)
    return record_unary(own, x, lambda gradient: gathered(gradient, group, dim, length))


def gather_from_region(
    x: Tensor, group: CommunicationBackend, dim: int, length: int | None = None
) -> Tensor:
    """Return the slices of all ranks along dim as one whole tensor.

    In backward each slice takes its part of the gradient.
    Collective over `group` in forward. Shapes as for all_gather.
    """
    whole = gathered(x.array, group, dim, length)
    return record_unary(whole, x, lambda gradient: _own_slice(gradient, group, dim))


# ---- on arrays -----------------------------------------------------------------------------------


def summed(array, group):
    """Return the sum over ranks, a new array; where other ranks can read it, if there is room.

    Collective over the group.
    """
    heap = None if is_device_array(array) else group.memory()
    total = None if heap is None else heap.empty(array.shape, array.dtype)
    if total is None:
        total = fresh.copy(array)
    else:
        total[...] = array
    ordered_all_reduce(group, total.reshape(-1))
    return total


def gathered(array: Any, group: CommunicationBackend, dim: int, length: int | None) -> Any:
    """Gather arrays [..., own, ...] into [..., length, ...], a new array. Collective over group."""
    xp = xp_of(array)
    own = fresh.contiguous(xp.moveaxis(array, dim, 0))  # [own, ...rest]
    length = own.shape[0] * group.world_size if length is None else length
    spans = even_runs(length, group.world_size)
    whole = empty((length, *own.shape[1:]), own.dtype, xp)  # [length, ...rest]
    row = whole[:1].size
    counts = [(stop - start) * row for start, stop in spans]
    group.all_gather(own.reshape(-1), whole.reshape(-1), counts)
    return fresh.contiguous(xp.moveaxis(whole, 0, dim))


def _scattered(array, group, dim):
    """Sum [..., length, ...] over ranks and return [..., own, ...] of it, a new array.

    Slices that differ by one are padded to the longest, because the ordered sum takes equal ones.
    """
    xp = xp_of(array)
    num_ranks = group.world_size
    front = xp.moveaxis(array, dim, 0)  # [length, ...rest]
    spans = even_runs(front.shape[0], num_ranks)
    longest = spans[0][1]
    buffer = fresh.zeros((num_ranks, longest, *front.shape[1:]), array.dtype, xp)
    for part, (start, stop) in zip(buffer, spans):
        part[: stop - start] = front[start:stop]
    own = empty(buffer.shape[1:], array.dtype, xp)  # [longest, ...rest]
    ordered_reduce_scatter(group, buffer.reshape(-1), own.reshape(-1))
    start, stop = spans[group.rank]
    return fresh.contiguous(xp.moveaxis(own[: stop - start], 0, dim))


def _own_slice(array, group, dim):
    """Return [..., own, ...] of [..., length, ...], a view."""
    start, stop = even_span(array.shape[dim], group.world_size, group.rank)
    return array[(slice(None),) * (dim % array.ndim) + (slice(start, stop),)]
