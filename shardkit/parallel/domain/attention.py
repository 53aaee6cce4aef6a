"""Attention of a sequence that is cut over ranks: keys and values go round.

    ring     rank 0 |q0|  k0 v0 -->  rank 1 |q1|  k1 v1 -->  rank 2 |q2|  k2 v2 -->  rank 0 ...
             each rank keeps its queries; the next block of keys travels while this one is computed,
             and what queries saw in blocks is merged by the logarithms of their sums

A block goes on as long as a rank ahead sees one of its keys: under a causal mask or a window not
all the way. Where a window lets queries see keys on both sides of them, blocks go one way and then
the other, if these are fewer steps. In the backward the gradients of keys and values travel behind
their block, and from its last rank home. No scores are kept, nor blocks of others.

    order    queries of span i, keys of span j: i sees j = i, i-1, ..., 0, last, ..., i+1, and its
             gradient is added so; that of j is added from i = j, j+1, ..., last, 0, ..., j-1

This is the order in which blocks of even spans come by, on any number of ranks. So what ranks add
has the same bits in each run, and in each size that cuts into the same spans. Where a rank has
spans early and late, or blocks go both ways, the order is that in which they arrive.

Sources: Ring Attention (arXiv 2310.01889), online softmax (arXiv 1805.02867).
"""

from collections.abc import Callable
from typing import Any

import numpy

from ...array import fresh, kernels, products
from ...array.arena import empty
from ...array.backend import is_device_array, xp_of
from ...array.dtypes import is_floating, wide
from ...array.halves import rounded, widened
from ...comm.backend import CommunicationBackend
from ...comm.operations import Handle
from ...errors import ShapeError
from ...nn.autograd import Tensor, record
from ...nn.ops.attention import check_window
from .itinerary import Itinerary, Sight, Sighting, Stop, itineraries_of
from .spans import Table, check_table, count_of

# tags of messages: keys and values, their gradients on the way, and on the way home
BLOCK_TAG = 1
SUMS_TAG = 2
HOME_TAG = 3


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: CommunicationBackend,
    table: Table,
    key_table: Table | None = None,
    **form: Any,
) -> Tensor:
    """Return softmax(scale q k^T) v of this rank's queries, over the keys of all ranks.

    Collective over `group` in forward and backward: isend and irecv between neighbors.
    q          [batch, heads, own tokens, D] local, of the spans of this rank in `table`
    k, v       [batch, kv_heads, own tokens, D] local, of its spans in key_table; each key head
               serves heads / kv_heads heads (arXiv 2305.13245)
    table, key_table   the spans of all ranks (spans.py), which may hold none; key_table None: that
               of the queries
    returns    [batch, heads, own tokens, D] local; 0 for queries that see no key
    In `form`, all by name:
    causal     a query sees keys up to its own position in the whole sequence; True
    window     of these the last so many; where not causal as many after it as before; None: all
    scale      None: 1 / sqrt(D)
    Errors: ShapeError. Weights are not dropped, and there is no second derivative.
    """
    key_table = table if key_table is None else key_table
    sight, scale = checked(q, k, v, group, table, key_table, **form)
    return attended(q, k, v, group, itineraries_of(table, key_table, sight, group.rank), scale)


def attended(q, k, v, group, itineraries, scale) -> Tensor:
    """Return the attention, with its backward."""
    y, log_sums = _attend(itineraries, group, q.array, k.array, v.array, scale)

    def backward(gradient, wanted):
        given = q.array, k.array, v.array, y, log_sums, scale
        return _attend_backward(itineraries, group, gradient, *given)

    return record(y, (q, k, v), backward, needs=(q, k, v), needs_output=True)


def checked(q, k, v, group, table, key_table, *, causal=True, window=None, scale=None):
    """Return the sight of queries, and the scale.

    Errors: ShapeError unless the three fit together and the tables.
    """
    check_window(window)
    check_table("queries", table, group.world_size)
    check_table("keys", key_table, group.world_size)
    num_queries, num_keys = [count_of(each[group.rank]) for each in (table, key_table)]
    if not _fit(q, k, v, num_queries, num_keys):
        got = [f"{x.shape} {x.dtype}" for x in (q, k, v)]
        raise ShapeError(
            f"attention of q, k, v {', '.join(got)} on rank {group.rank} of {group.world_size}; "
            f"wanted one floating dtype, q [batch, heads, {num_queries}, D] and k, v [batch, "
            f"kv_heads, {num_keys}, D], with kv_heads that divide the heads"
        )
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return Sight.of(causal, window), scale


def _fit(q, k, v, num_queries, num_keys) -> bool:
    """Return True if these are heads of so many queries and keys, of one floating dtype."""
    if not q.dtype == k.dtype == v.dtype or not is_floating(q.dtype):
        return False
    if not q.ndim == k.ndim == v.ndim == 4:
        return False
    batch, heads, _, dim = q.shape
    key_heads = k.shape[1]
    if key_heads == 0 or dim == 0 or heads % key_heads:
        return False
    of_keys = batch, key_heads, num_keys, dim
    return q.shape[2] == num_queries and k.shape == v.shape == of_keys


# ---- on arrays -----------------------------------------------------------------------------------


def _attend(itineraries, group, q, k, v, scale):
    """Return y [B, H, own, D] and log_sums [B, H, own] of arrays."""
    if (sight := _sight_of_all(itineraries[0], q, k)) is not None:
        return kernels.causal_attention(q, k, v, scale, *sight)
    y = _by_position(q)
    log_sums = empty(q.shape[:3], y.dtype, xp_of(q))
    log_sums.fill(-numpy.inf)

    def see(block, sightings):
        for rows, keys, *sight in map(_indexed, sightings):
            seen, sums = kernels.causal_attention(
                q[rows], block[0][keys], block[1][keys], scale, *sight
            )
            so_far = y[rows], log_sums[rows]
            kernels.merge_attention(*so_far, widened(seen), sums, out=so_far)

    for itinerary in itineraries:
        _pass_blocks(itinerary, group, k, v, lambda stop, block: see(block, stop.sightings))
        see((k, v), itinerary.closing)
    return rounded(y, q.dtype), log_sums


def _attend_backward(itineraries, group, gradient, q, k, v, y, log_sums, scale):
    """Return the gradients of q, k and v, for arrays of the forward."""
    if (sight := _sight_of_all(itineraries[0], q, k)) is not None:
        given = gradient, q, k, v, y, log_sums, scale
        return kernels.causal_attention_backward(*given, *sight)
    for_q = _by_position(q)

    def add(block, sightings, sums):
        keys_of, values_of = block
        for rows, keys, *sight in map(_indexed, sightings):
            operands = gradient[rows], q[rows], keys_of[keys], values_of[keys]
            made = y[rows], log_sums[rows]
            terms = kernels.causal_attention_backward(*operands, *made, scale, *sight)
            for_keys, for_values = sums()
            for_q[rows] += widened(terms[0])
            for_keys[keys] += widened(terms[1])
            for_values[keys] += widened(terms[2])

    def passed(itinerary):
        """Return the gradients of own keys, of all ranks on one way."""
        key_sums = _KeySums(itinerary, group, k)

        def use(stop, block):
            sums = key_sums.begin(stop)
            add(block, stop.sightings, sums)
            key_sums.leave(stop, sums())

        _pass_blocks(itinerary, group, k, v, use)
        for_keys = key_sums.come_home()
        add((k, v), itinerary.closing, lambda: for_keys)
        return for_keys

    for_keys, *others = map(passed, itineraries)
    for sums in others:
        for_keys += sums
    return tuple([rounded(total, q.dtype) for total in (for_q, *for_keys)])


def _sight_of_all(itinerary, q, k):
    """Return the sight of all queries in all keys, in one piece; None: there are several."""
    sightings = itinerary.stops[0].sightings + itinerary.closing
    everything = slice(0, q.shape[2]), slice(0, k.shape[2])
    is_alone = len(itinerary.ends) == len(sightings) == 1
    return sightings[0][2:] if is_alone and sightings[0][:2] == everything else None


def _by_position(q):
    """Return zeros of the shape [B, H, S, D] of q, which lie in memory as [B, S, H, D]."""
    batch, heads, length, dim = q.shape
    shape = batch, length, heads, dim
    return fresh.zeros(shape, wide(q.dtype), xp_of(q)).swapaxes(1, 2)


def _indexed(sighting: Sighting):
    """Return indices of [B, H, S, D] or [B, H, S], and the rest of a sighting."""
    rows, keys, *sight = sighting
    all_heads = slice(None), slice(None)
    return (*all_heads, rows), (*all_heads, keys), *sight


# ---- on the way ----------------------------------------------------------------------------------


def _pass_blocks(itinerary: Itinerary, group, k, v, use: Callable) -> None:
    """Call use(stop, block) for each block that comes by, while the next one travels.

    block   keys and values [2, B, KV, T, D]: the part of the owner's that travels, or its own
    """
    block: Any = (k, v)
    leaving: Any = None
    if itinerary.stops[0].goes_on:
        part = itinerary.parts[itinerary.rank]
        leaving = _travelling(itinerary, group, k, itinerary.rank, k.dtype)
        for into, array in zip(leaving, (k, v)):
            into[...] = array[:, :, part]
    for stop, following in zip(itinerary.stops, (*itinerary.stops[1:], None)):
        coming, under_way = None, []
        if following is not None and following.arrives:
            coming = _travelling(itinerary, group, k, following.owner, k.dtype)
            under_way.append(group.irecv(coming, itinerary.neighbor(-1), BLOCK_TAG))
        if stop.goes_on:
            under_way.append(group.isend(leaving, itinerary.neighbor(1), BLOCK_TAG))
        with products.doing_also_meanwhile(_looking_at(under_way)):
            if stop.arrives:
                use(stop, block)
        for handle in under_way:
            handle.wait()
        block = leaving = coming


def _looking_at(handles: list[Handle]) -> Callable[[], None]:
    """Return what lets messages move."""

    def look():
        for handle in handles:
            handle.test()

    return look


def _travelling(itinerary: Itinerary, group, k, owner: int, dtype):
    """Return a new array [2, B, KV, T, D] for keys of this owner, contents undefined.

    It lies where other ranks can read it, if there is room.
    """
    batch, heads, _, dim = k.shape
    part = itinerary.parts[owner]
    shape = 2, batch, heads, part.stop - part.start, dim
    heap = None if is_device_array(k) else group.memory()
    array = None if heap is None else heap.empty(shape, dtype)
    return empty(shape, dtype, xp_of(k)) if array is None else array


class _KeySums:
    """Gradients of keys and values: each rank adds its terms to those of a block, and sends them
    after it, of the part that travels; the last one sends them home.
    """

    def __init__(self, itinerary: Itinerary, group, k):
        self._itinerary = itinerary
        self._group = group
        self._k = k
        self._dtype = wide(k.dtype)
        self._leaving: list[tuple] = []  # (handle, array)
        self._own: Any = None
        self._returned: Any = None  # what other ranks made of the part that travelled
        self._home: Handle | None = None
        last = itinerary.ends[itinerary.rank]
        if last != itinerary.rank:
            self._returned = self._empty(itinerary.rank)
            self._home = group.irecv(self._returned, last, HOME_TAG)

    def begin(self, stop: Stop) -> Callable:
        """Return () -> the sums of this block so far, which may still be on their way."""
        if stop.owner == self._itinerary.rank:
            shape = 2, *self._k.shape
            self._own = fresh.zeros(shape, self._dtype, xp_of(self._k))
            return lambda: self._own
        array = self._empty(stop.owner)
        if self._itinerary.begins_sums(stop.owner):
            array.fill(0)
            return lambda: array
        arrival = self._group.irecv(array, self._itinerary.neighbor(-1), SUMS_TAG)

        def arrived():
            arrival.wait()
            return array

        return arrived

    def leave(self, stop: Stop, array) -> None:
        """Send the sums on, or home; those before have arrived."""
        self._wait()
        is_own = stop.owner == self._itinerary.rank
        if stop.goes_on and is_own:
            if self._itinerary.begins_sums(stop.owner):
                leaving = self._empty(stop.owner)
                leaving[...] = array[:, :, :, self._part]
                self._send(leaving, self._itinerary.neighbor(1), SUMS_TAG)
        elif stop.goes_on:
            self._send(array, self._itinerary.neighbor(1), SUMS_TAG)
        elif not is_own:
            self._send(array, stop.owner, HOME_TAG)

    def come_home(self):
        """Return the sums of this rank's own block."""
        self._wait()
        if self._home is not None:
            self._home.wait()
            self._own[:, :, :, self._part] = self._returned
        return self._own

    @property
    def _part(self):
        return self._itinerary.parts[self._itinerary.rank]

    def _empty(self, owner):
        return _travelling(self._itinerary, self._group, self._k, owner, self._dtype)

    def _send(self, array, rank, tag):
        self._leaving.append((self._group.isend(array, rank, tag), array))

    def _wait(self):
        while self._leaving:
            self._leaving.pop()[0].wait()
