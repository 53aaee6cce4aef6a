r"""Attention by tiles, causal or to all keys: only a tile of the visible scores exists at a time.

    queries
      |####\            |    a tile: 64 to 256 rows x up to KEYS columns of scores of some heads,
      |#####\           |    in a buffer that stays in cache. What lies right of the diagonal is
      |########\        |    skipped; inside a tile on the diagonal it is set to 0 after the
      |#########\       |    product. Products are BLAS's, one call for all heads of a tile.
      +-------- keys ---+

With up to KEYS keys a row of tiles is one tile, and its softmax the plain one. Longer sequences go
from tile to tile with the maximum and the sum of each row so far (arXiv 1805.02867, 2205.14135).
How scores are cut depends on shapes alone.

Results lie in memory as [B, S, H, D] behind their shape [B, H, S, D]: as the layers around
attention have them, so that no permute has to copy.
"""

import functools
from math import prod
from typing import NamedTuple

import numpy

from .. import fresh, products
from ..arena import empty
from ..reference.attention import rotary_tables
from ..registry import on_cpu
from .arrays import plain
from .compiled import compiled, inlined
from .scalar import exp, fma, larger, like, plus

KEYS = 512
FEW_QUERIES, MANY_QUERIES = 64, 128  # rows of a tile: more are skipped with few, and
LONG = 1024  # products are faster with many; measured on Zen 5
ALL_QUERIES = 256  # of a tile where each query sees all keys: none are skipped
VECTORS = 64  # elements of a turn of an unrolled loop
TILE_ELEMENTS = 1 << 18  # heads and samples are taken together up to so many

__all__ = ["causal_attention", "causal_attention_backward", "rotary", "rotary_tables"]


class Tile(NamedTuple):
    """A part of the scores [B, KV, group, S, T], as slices; a key head serves a group of heads."""

    samples: slice
    key_heads: slice
    queries: slice
    keys: slice
    # how many of these keys the first of these queries sees; each later query sees one more
    num_visible: int
    shape: tuple  # of its scores [samples, key heads, group, queries, keys]


@functools.lru_cache(maxsize=64)
def rows_of_tiles(num_samples, num_key_heads, group, num_queries, num_keys, first_query):
    """Return all tiles with a visible score: a list for each row, from key 0 on.

    For each group of heads the last rows come first.
    """
    height = FEW_QUERIES if num_queries < LONG else MANY_QUERIES
    height = min(ALL_QUERIES if first_query + 1 >= num_keys else height, num_queries)
    together = max(1, TILE_ELEMENTS // (group * height * min(KEYS, num_keys)))
    return [
        _row(samples, key_heads, queries, group, num_keys, first_query)
        for samples in _cut(num_samples, max(1, together // num_key_heads))
        for key_heads in _cut(num_key_heads, together)
        for queries in reversed(_cut(num_queries, height))
    ]


def _row(samples, key_heads, queries, group, num_keys, first_query):
    shape = (
        samples.stop - samples.start,
        key_heads.stop - key_heads.start,
        group,
        queries.stop - queries.start,
    )
    return [
        Tile(
            samples,
            key_heads,
            queries,
            keys,
            first_query + queries.start - keys.start + 1,
            (*shape, keys.stop - keys.start),
        )
        for keys in _cut(min(first_query + queries.stop, num_keys), KEYS)
    ]


def _cut(length, size):
    """Return [0, length) as slices of this size and a last, smaller one."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _tiles_and_buffers(q, k, first_query, num_buffers):
    """Return the rows of tiles, and flat buffers large enough for the scores of any tile."""
    rows = rows_of_tiles(
        *k.shape[:2], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], first_query
    )
    return rows, empty(
        (num_buffers, max(prod(tile.shape) for row in rows for tile in row)), q.dtype
    )


def _for_products(x):
    """Return x itself if BLAS can read its rows [D], else a copy."""
    _, row, element = x.strides[1:]
    return (
        x
        if element == x.itemsize and row >= x.shape[3] * element and row % element == 0
        else fresh.copy(x)
    )


def _by_key_head(x, k):
    """Return x [B, H, ...] as a view [B, KV, group, ...]."""
    return x.reshape(x.shape[0], k.shape[1], x.shape[1] // k.shape[1], *x.shape[2:])


def _scores(tile, buffer, left, right):
    """Multiply left [samples, key heads, group, queries, D] by right [B, KV, T, D] transposed.

    The result lies in the buffer.
    """
    scores = buffer[: prod(tile.shape)].reshape(tile.shape)
    return products.matmul(
        left, right[tile.samples, tile.key_heads, None, tile.keys].swapaxes(3, 4), out=scores
    )


@inlined
def _visible(count, width):
    """Return how many of `width` keys a query sees, and where to stop computing.

    Some hidden ones are computed too, to fill the last vectors.
    """
    seen = max(0, min(count, width))
    return seen, min((seen + VECTORS - 1) // VECTORS * VECTORS, width)


# ---- forward -------------------------------------------------------------------------------------


@on_cpu
def causal_attention(q, k, v, scale, first_query, out=None):
    y = _empty_by_position(q) if out is None else out
    log_sums = empty(q.shape[:3], q.dtype)
    if q.size:
        q, k, v = [_for_products(x) for x in (q, k, v)]
        rows, (buffer,) = _tiles_and_buffers(q, k, first_query, 1)
        grouped = [_by_key_head(x, k) for x in (q, y, log_sums)]
        for row in rows:
            _attend(row, k, v, *grouped, float(scale), buffer)
    return y, log_sums


def _attend(row, k, v, q, y, log_sums, scale, buffer):
    """Compute some rows of y and log_sums.

    k, v [B, KV, T, D]; q, y [B, KV, group, S, D]; log_sums [B, KV, group, S].
    """
    here = row[0].samples, row[0].key_heads, slice(None), row[0].queries
    top, total, factor = [empty(row[0].shape[:4], q.dtype) for _ in range(3)]
    top.fill(-numpy.inf)
    total.fill(0)
    weighted = None  # [samples, key heads, group, queries, D]
    for tile in row:
        p = _scores(tile, buffer, q[here], k)
        _softmax_tile(
            _rows(p),
            scale,
            tile.num_visible,
            tile.shape[3],
            *[x.reshape(-1) for x in (top, total, factor)],
        )
        product = products.matmul(p, v[tile.samples, tile.key_heads, None, tile.keys])
        if weighted is None:
            weighted = product
        else:
            weighted *= factor[..., None]
            weighted += product
    weighted /= total[..., None]  # NumPy's buffers are smaller than into y[here]
    y[here] = weighted
    log_sums[here] = top + numpy.log(total)


@compiled
def _softmax_tile(scores, scale, num_visible, num_queries, top, total, factor):
    """Turn scores [rows, keys] into exp(scale scores - top), and 0 where they are hidden.

    Row i is query i % num_queries.

    top, total  [rows] so far, brought up to date
    factor      [rows] what sums over earlier tiles have to be multiplied with, since they were made
                with a smaller top
    """
    for i in range(scores.shape[0]):
        seen, stop = _visible(num_visible + i % num_queries, scores.shape[1])
        old = highest = top[i]
        times = like(scale, old)
        added = like(0.0, old)
        one_seen = scores[i, 0]
        for j in range(seen, stop):
            scores[i, j] = one_seen  # so that the highest stays right
        for j in range(stop):
            highest = larger(highest, scores[i, j] * times)
        for j in range(stop):
            scores[i, j] = exp(fma(scores[i, j], times, -highest))
        for j in range(seen, scores.shape[1]):
            scores[i, j] = 0
        for j in range(stop):
            added = plus(added, scores[i, j])
        factor[i] = exp(old - highest)
        top[i] = highest
        total[i] = total[i] * factor[i] + added


# ---- backward ------------------------------------------------------------------------------------


@on_cpu
def causal_attention_backward(
    gradient, q, k, v, y, log_sums, scale, first_query, out=(None, None, None)
):
    for_q, for_k, for_v = [
        _empty_by_position(x) if buffer is None else buffer for x, buffer in zip((q, k, v), out)
    ]
    num_seen = first_query + q.shape[2] if q.size else 0  # the keys from there on, if any
    for_k[:, :, num_seen:], for_v[:, :, num_seen:] = 0, 0
    if q.size:
        gradient, q, k, v = [_for_products(x) for x in (gradient, q, k, v)]
        rows, buffers = _tiles_and_buffers(q, k, first_query, 2)
        grouped = [
            _by_key_head(x, k)
            for x in (gradient, q, log_sums, _sums_of_products(gradient, y), for_q)
        ]
        for row in rows:
            for tile in row:
                _attend_backward(tile, k, v, for_k, for_v, *grouped, float(scale), buffers)
    return for_q, for_k, for_v


def _attend_backward(tile, k, v, for_k, for_v, gradient, q, log_sums, along, for_q, scale, buffers):
    """Add what one tile contributes to the gradients.

    k, v, for_k, for_v [B, KV, T, D]; gradient, q, for_q [B, KV, group, S, D].

    log_sums, along  [B, KV, group, S]; along is the sum of gradient y
    """
    heads = tile.samples, tile.key_heads
    here = (*heads, slice(None), tile.queries)
    there = (*heads, tile.keys)
    p = _scores(tile, buffers[0], q[here], k)
    for_scores = _scores(tile, buffers[1], gradient[here], v)
    _gradient_tile(
        _rows(p),
        _rows(for_scores),
        scale,
        tile.num_visible,
        tile.shape[3],
        plain(log_sums[here].reshape(-1)),
        plain(along[here].reshape(-1)),
    )
    _add_product(
        for_scores, k[(*heads, None, tile.keys)], for_q[here], is_first=tile.keys.start == 0
    )
    for member in range(tile.shape[2]):
        rows = *heads, member, tile.queries
        # The last queries see all keys, and come first.
        is_first = member == 0 and tile.queries.stop == q.shape[3]
        _add_product(p[:, :, member].swapaxes(2, 3), gradient[rows], for_v[there], is_first)
        _add_product(for_scores[:, :, member].swapaxes(2, 3), q[rows], for_k[there], is_first)


def _add_product(left, right, out, is_first):
    """Set out = left right the first time, and add to it from then on."""
    if is_first:
        products.matmul(left, right, out=out)
    else:
        out += products.matmul(left, right)


def _rows(x):
    """Return x [..., keys] as [rows, keys]."""
    return x.reshape(-1, x.shape[-1])


@compiled
def _gradient_tile(p, for_scores, scale, num_visible, num_queries, log_sums, along):
    """Turn scores p [rows, keys] into probabilities, and their gradients into those of scores.

    gradients of the scores.
    """
    for i in range(p.shape[0]):
        seen, stop = _visible(num_visible + i % num_queries, p.shape[1])
        times = like(scale, along[i])
        level = along[i]
        for j in range(stop):
            p[i, j] = exp(fma(p[i, j], times, -log_sums[i]))
        for j in range(stop):
            for_scores[i, j] = p[i, j] * (for_scores[i, j] - level) * times
        for j in range(seen, p.shape[1]):
            p[i, j] = for_scores[i, j] = 0


def _sums_of_products(x, y):
    """Return the sums of x y over D, [B, H, S], for x, y [B, H, S, D]."""
    batch, num_heads, num_queries, _ = x.shape
    sums = empty((batch, num_queries, num_heads), x.dtype)
    _sum_products(_rows(plain(x.swapaxes(1, 2))), _rows(plain(y.swapaxes(1, 2))), sums.reshape(-1))
    return sums.swapaxes(1, 2)


@compiled
def _sum_products(x, y, sums):
    for i in range(x.shape[0]):
        total = like(0.0, sums[i])
        for j in range(x.shape[1]):
            total = plus(total, x[i, j] * y[i, j])
        sums[i] = total


# ---- rotary --------------------------------------------------------------------------------------


@on_cpu
def rotary(x, cos, sin, out=None):
    """Turn arrays that lie in memory as [B, S, H, D] without copying; so lies the result."""
    if out is None:
        out = _empty_by_position(x) if x.swapaxes(1, 2).flags.carray else empty(x.shape, x.dtype)
    if out.swapaxes(1, 2).flags.carray:
        _rotary(plain(x.swapaxes(1, 2)), plain(cos), plain(sin), out.swapaxes(1, 2))
    else:
        batch, num_heads, num_positions, head_dim = x.shape
        shape = batch * num_heads, num_positions, 1, head_dim
        _rotary(plain(x).reshape(shape), plain(cos), plain(sin), out.reshape(shape))
    return out


@compiled
def _rotary(x, cos, sin, out):
    """Turn x [any, S, any, D]."""
    half = x.shape[3] // 2
    for a in range(x.shape[0]):
        for s in range(x.shape[1]):
            for b in range(x.shape[2]):
                for i in range(half):
                    out[a, s, b, i] = x[a, s, b, i] * cos[s, i] - x[a, s, b, half + i] * sin[s, i]
                for i in range(half):
                    out[a, s, b, half + i] = (
                        x[a, s, b, half + i] * cos[s, i] + x[a, s, b, i] * sin[s, i]
                    )


def _empty_by_position(x):
    """Return an array of the shape [B, H, S, D] of x that lies in memory as [B, S, H, D]."""
    batch, num_heads, num_positions, head_dim = x.shape
    return empty((batch, num_positions, num_heads, head_dim), x.dtype).swapaxes(1, 2)
