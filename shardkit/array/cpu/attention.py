r"""Attention by tiles, causal or to all keys: only a tile of the visible scores exists at a time.

    queries
      |####\            |    a tile: up to QUERIES rows x KEYS columns of the scores of one head,
      |#####\           |    in a buffer that stays in cache. What lies right of the diagonal is
      |########\        |    skipped, in steps of some rows and columns; what is left of it there
      |#########\       |    is set to 0.
      +-------- keys ---+

Products, softmax and sums of a tile meet in one compiled loop (attention_tiles.py), which no
library and no result in between slows down. The bits depend on no library and no other head.
bfloat16 is multiplied by the CPU's own instructions, where it has them; elsewhere it is cast where
rows are packed and unpacked, and what is computed is float32.

Results lie in memory as [B, S, H, D] behind their shape [B, H, S, D]: as the layers around
attention have them, so that no permute has to copy.
"""

import math
from dataclasses import dataclass

import numpy

from .. import fresh, products
from ..arena import empty
from ..halves import rounded, widened
from ..reference.attention import rotary_tables
from ..registry import on_cpu
from .arrays import bits, computed_dtype, padded, plain
from .attention_tiles import (
    KEYS,
    LN_2,
    QUERIES,
    BackwardBuffers,
    ForwardBuffers,
    HeadMask,
    HeadRows,
    HeadSizes,
    attend_backward_head,
    attend_rows,
    dot,
    log_sum,
    seen_rows,
    start_of,
)
from .compiled import compiled
from .packing import pack, pack_across, pack_below, pack_below_too, unpack
from .panel_tiles import HAS_PAIRS
from .panels import PANEL_VECTORS
from .queries import attend_one
from .scalar import fma, larger, like
from .storage import narrow, wide

FEW_QUERIES = 4  # up to so many, packing the keys costs more than it saves
CALL_SCORES = 1 << 21  # of a call of a loop, hidden ones too, between two looks at messages

__all__ = [
    "causal_attention",
    "causal_attention_backward",
    "merge_attention",
    "rotary",
    "rotary_tables",
]


@on_cpu
def causal_attention(q, k, v, scale, first_query, window=None, firsts=None, mask=None, out=None):
    y = _empty_by_position(q) if out is None else out
    dtype = computed_dtype(q)
    if q.dtype != dtype and q.shape[2] <= FEW_QUERIES:
        given = *map(widened, (q, k, v)), scale, first_query
        wide_y, log_sums = causal_attention(*given, window, firsts, mask)
        return rounded(wide_y, y.dtype, y), log_sums
    log_sums = empty(q.shape[:3], dtype)
    if q.size:
        sizes, firsts = _sizes(q, k, first_query), _firsts(q, first_query, window, firsts)
        arrays = map(_rows, (q, k, v, y))
        given = sizes, float(scale), firsts, *arrays, log_sums.reshape(-1)
        if sizes.num_queries <= FEW_QUERIES and mask is None:
            _attend_few(*given, empty(sizes.num_keys, dtype))
        else:
            buffers = _buffers(sizes, _packed(q))
            _in_parts(_attend, len(q), sizes, *given, _mask(mask, sizes, dtype), buffers)
    return y, log_sums


@on_cpu
def causal_attention_backward(
    gradient, q, k, v, y, sums, scale, first, window=None, firsts=None, mask=None, out=3 * (None,)
):
    for_q, for_k, for_v = [
        _empty_by_position(x) if buffer is None else buffer for x, buffer in zip((q, k, v), out)
    ]
    num_seen = first + q.shape[2] if q.size else 0  # the keys from there on, if any
    for_k[:, :, num_seen:], for_v[:, :, num_seen:] = 0, 0
    if q.size:
        sizes, firsts = _sizes(q, k, first), _firsts(q, first, window, firsts)
        arrays = [_rows(x) for x in (gradient, q, k, v, y, for_q, for_k, for_v)]
        given = sizes, float(scale), firsts, *arrays, plain(sums).reshape(-1)
        buffers = _backward_buffers(sizes, _packed(q))
        seen = _mask(mask, sizes, computed_dtype(q))
        _in_parts(_attend_backward, len(q), sizes, *given, seen, buffers)
    return for_q, for_k, for_v


@on_cpu
def merge_attention(y, log_sums, block, block_log_sums, out=(None, None)):
    merged = _empty_by_position(y) if out[0] is None else out[0]
    total = empty(log_sums.shape, log_sums.dtype)
    if total.size:
        sums = [plain(x) for x in (log_sums, block_log_sums)]
        _merge(y.shape, *map(_rows, (y, block, merged)), *sums, total)
    if out[1] is None:
        return merged, total
    out[1][...] = total
    return merged, out[1]


def _in_parts(loop, num_samples, sizes, *given):
    """Run the loop on all (sample, key head) pairs, and look after messages in between."""
    group = sizes.num_heads // sizes.num_key_heads
    step = max(1, CALL_SCORES // (group * sizes.num_queries * sizes.num_keys))
    num_pairs = num_samples * sizes.num_key_heads
    for first in range(0, num_pairs, step):
        products.do_meanwhile()
        loop(first, min(first + step, num_pairs), *given)


def _sizes(q, k, first_query):
    num_heads, num_queries, head_dim = q.shape[1:]
    num_visible = int(first_query) + num_queries
    counts = num_heads, k.shape[1], num_queries, min(k.shape[2], num_visible), head_dim
    return HeadSizes(*counts, int(first_query))


def _firsts(q, first_query, window, firsts):
    """Return the first key that each query sees, [B or 1, S] int64."""
    num_queries = q.shape[2]
    if firsts is not None:
        return numpy.ascontiguousarray(firsts, numpy.int64)
    if window is None:
        return numpy.zeros((1, num_queries), numpy.int64)
    behind = numpy.arange(1, num_queries + 1, dtype=numpy.int64) + int(first_query)
    return numpy.maximum(behind - int(window), 0)[None]


def _mask(mask, sizes, dtype):
    """Return a mask [B or 1, H or 1, S or 1, T] as HeadMask."""
    if mask is None:
        no_spans = numpy.empty((0, 2), numpy.int64)
        return HeadMask(numpy.empty(0, dtype), 0, 0, 0, no_spans, 0, 0, 0)
    *counts, num_keys = mask.shape
    rows = empty((*counts, padded(num_keys, 1, dtype)), dtype)
    rows[..., num_keys:] = 0
    added = rows[..., :num_keys]
    if mask.dtype == bool:
        added[...] = -math.inf
        numpy.copyto(added, 0, where=mask)
        sees = mask
    else:
        numbers = widened(mask)
        lowest = numpy.finfo(dtype).min * (LN_2 / 1.01)  # finite beside ln 2
        numpy.maximum(numbers, lowest, out=added)
        added *= 1 / LN_2
        sees = numbers > -math.inf
        numpy.copyto(added, -math.inf, where=numbers == -math.inf)
    starts = range(0, counts[2], min(QUERIES, sizes.num_queries))
    seen = numpy.logical_or.reduceat(sees, starts, axis=2)  # [.., .., blocks, T]
    ends = num_keys - seen[..., ::-1].argmax(axis=-1)
    ends[~seen.any(axis=-1)] = 0
    spans = numpy.stack([seen.argmax(axis=-1), ends], axis=-1)
    of_rows = [number * rows.shape[3] for number in _steps(counts)]
    of_spans = _steps(spans.shape[:3])
    return HeadMask(rows.reshape(-1), *of_rows, spans.reshape(-1, 2), *of_spans)


def _steps(shape):
    """Return from how many to the next each dim leads; 0 of one that all share."""
    steps = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return [0 if size == 1 else step for size, step in zip(shape, steps)]


def _rows(x):
    """Return x [B, H, S, D] as HeadRows; a copy unless its rows [D] lie in one piece."""
    size = x.itemsize
    if x.strides[3] != size or min(x.strides) < 0 or not x.flags.writeable:
        x = fresh.copy(x)
    extent = size + sum((length - 1) * stride for length, stride in zip(x.shape, x.strides))
    flat = numpy.lib.stride_tricks.as_strided(x, (extent // size,), (size,))
    return HeadRows(bits(flat), *[stride // size for stride in x.strides[:3]])


# ---- loops -------------------------------------------------------------------------------------


@compiled
def _attend(first, last, sizes, scale, firsts, q, k, v, y, log_sums, mask, buffers):
    """Compute y and log_sums of the (sample, key head) pairs first .. last - 1."""
    group = sizes.num_heads // sizes.num_key_heads
    height = buffers.scores.shape[0]
    dim = sizes.head_dim
    one = like(1.0, wide(q.flat[0]))
    times = like(scale / LN_2, one)
    for pair in range(first, last):
        sample, key_head = divmod(pair, sizes.num_key_heads)
        of = min(sample, len(firsts) - 1)
        start = start_of(k, sample, key_head)
        pack_across(k.flat, start, k.row, sizes.num_keys, dim, buffers.across)
        start = start_of(v, sample, key_head)
        pack_below(v.flat, start, v.row, sizes.num_keys, dim, buffers.values)
        for head in range(key_head * group, (key_head + 1) * group):
            for row in range(0, sizes.num_queries, height):
                num_rows = min(height, sizes.num_queries - row)
                start = start_of(q, sample, head) + row * q.row
                pack(q.flat, start, q.row, num_rows, dim, buffers.queries)
                seen = seen_rows(mask, sample, head, row, height, sizes.num_keys)
                attend_rows(sizes, row, num_rows, times, firsts[of], mask, seen, buffers)
                start = start_of(y, sample, head) + row * y.row
                unpack(buffers.sums, num_rows, dim, one, y.flat, start, y.row)
                place = (sample * sizes.num_heads + head) * sizes.num_queries + row
                for i in range(num_rows):
                    log_sums[place + i] = log_sum(buffers.top[i], buffers.total[i])


@compiled
def _attend_few(sizes, scale, firsts, q, k, v, y, log_sums, scores):
    """Compute y and log_sums of all heads, of few queries: nothing is packed. scores [keys]."""
    group = sizes.num_heads // sizes.num_key_heads
    dim = sizes.head_dim
    for place in range(log_sums.size):
        whole_head, i = divmod(place, sizes.num_queries)
        sample, head = divmod(whole_head, sizes.num_heads)
        first_key = firsts[min(sample, len(firsts) - 1), i]
        num_keys = min(sizes.num_keys, sizes.first_query + i + 1) - first_key
        start = start_of(q, sample, head) + i * q.row
        query = q.flat[start : start + dim]
        keys = k.flat[start_of(k, sample, head // group) + first_key * k.row :]
        values = v.flat[start_of(v, sample, head // group) + first_key * v.row :]
        start = start_of(y, sample, head) + i * y.row
        row = y.flat[start : start + dim]
        given = query, keys, k.row, values, v.row, num_keys, scale, scores, row
        log_sums[place] = attend_one(*given)


@compiled
def _attend_backward(
    first,
    last,
    sizes,
    scale,
    firsts,
    gradient,
    q,
    k,
    v,
    y,
    for_q,
    for_k,
    for_v,
    log_sums,
    mask,
    buffers,
):
    """Compute the gradients of the (sample, key head) pairs first .. last - 1."""
    group = sizes.num_heads // sizes.num_key_heads
    dim, num_keys, num_queries = sizes.head_dim, sizes.num_keys, sizes.num_queries
    one = like(1.0, wide(q.flat[0]))
    times, by_scale = like(scale / LN_2, one), like(scale, one)
    for pair in range(first, last):
        sample, key_head = divmod(pair, sizes.num_key_heads)
        of = min(sample, len(firsts) - 1)
        start = start_of(k, sample, key_head)
        pack_across(k.flat, start, k.row, num_keys, dim, buffers.keys_across)
        pack_below(k.flat, start, k.row, num_keys, dim, buffers.keys)
        start = start_of(v, sample, key_head)
        pack_across(v.flat, start, v.row, num_keys, dim, buffers.values_across)
        buffers.for_keys[:] = 0
        buffers.for_values[:] = 0
        for head in range(key_head * group, (key_head + 1) * group):
            start = start_of(q, sample, head)
            pack(q.flat, start, q.row, num_queries, dim, buffers.queries)
            pack_below_too(q.flat, start, q.row, num_queries, dim, buffers.queries_below)
            g, row = gradient.flat, start_of(gradient, sample, head)
            pack(g, row, gradient.row, num_queries, dim, buffers.gradients)
            pack_below_too(g, row, gradient.row, num_queries, dim, buffers.gradients_below)
            place = (sample * sizes.num_heads + head) * num_queries
            for i in range(num_queries):
                buffers.levels[i] = log_sums[place + i] * like(1 / LN_2, one)
                start = start_of(y, sample, head) + i * y.row
                buffers.along[i] = dot(y.flat[start : start + dim], g[row : row + dim])
                row += gradient.row
            attend_backward_head(sizes, times, firsts[of], mask, sample, head, buffers)
            start = start_of(for_q, sample, head)
            unpack(buffers.for_queries, num_queries, dim, by_scale, for_q.flat, start, for_q.row)
        start = start_of(for_k, sample, key_head)
        unpack(buffers.for_keys, num_keys, dim, by_scale, for_k.flat, start, for_k.row)
        start = start_of(for_v, sample, key_head)
        unpack(buffers.for_values, num_keys, dim, one, for_v.flat, start, for_v.row)


@compiled
def _merge(shape, y, block, merged, log_sums, block_log_sums, totals):
    """Compute rows [D] of two sums, by the weights that their logarithms of sums give them."""
    num_samples, num_heads, num_rows, dim = shape
    for sample in range(num_samples):
        for head in range(num_heads):
            for i in range(num_rows):
                first = log_sums[sample, head, i]
                second = block_log_sums[sample, head, i]
                top = larger(first, second)
                added = math.exp(first - top) + math.exp(second - top)
                total = top + math.log(added)
                kept = math.exp(first - total)
                added = math.exp(second - total)
                start = start_of(y, sample, head) + i * y.row
                at = start_of(block, sample, head) + i * block.row
                to = start_of(merged, sample, head) + i * merged.row
                for d in range(dim):
                    term = block.flat[at + d] * added
                    before = y.flat[start + d]
                    merged.flat[to + d] = fma(before, kept, term)
                totals[sample, head, i] = total


# ---- buffers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """How rows of a dtype are packed (packing.py).

    sums, items   dtypes of sums, and of what is multiplied; num: numbers in one item
    """

    sums: numpy.dtype
    items: numpy.dtype
    num: int

    def beside(self, num_rows, num_columns):
        """Return a new array for rows on the left of a product."""
        return empty((num_rows, -(-num_columns // self.num)), self.items)

    def below(self, num_rows, num_columns):
        """Return a new array for rows that are summed over."""
        return empty((-(-num_rows // self.num), num_columns), self.items)

    def rounded(self, make, array, shape=None):
        """Return make(*shape) for what is rounded; the array itself if numbers are multiplied."""
        return array if self.num == 1 else make(*(shape or array.shape))


def _packed(x):
    """Return how x is packed: bfloat16 as words where the CPU multiplies them."""
    dtype = computed_dtype(x)
    if dtype != x.dtype and HAS_PAIRS:
        return Packed(dtype, numpy.dtype(numpy.uint32), 2)
    return Packed(dtype, dtype, 1)


def _buffers(sizes, packed):
    """Return what the forward of a head needs beside its results."""
    num_rows = min(QUERIES, sizes.num_queries)
    width = padded(sizes.head_dim, 1, packed.sums)
    scores = _tile(sizes, packed.sums)
    return ForwardBuffers(
        _panels(sizes, packed),
        packed.below(sizes.num_keys, width),
        packed.beside(num_rows, width),
        scores,
        packed.rounded(packed.beside, scores),
        empty((num_rows, width), packed.sums),
        empty(num_rows, packed.sums),
        empty(num_rows, packed.sums),
    )


def _backward_buffers(sizes, packed):
    """Return what the backward of a head needs beside its results."""
    width = padded(sizes.head_dim, 1, packed.sums)
    by_query = sizes.num_queries, width
    queries, gradients = [packed.beside(*by_query) for _ in range(2)]
    scores, for_scores = [_tile(sizes, packed.sums) for _ in range(2)]
    return BackwardBuffers(
        *[_panels(sizes, packed) for _ in range(2)],
        packed.below(sizes.num_keys, width),
        *[empty((sizes.num_keys, width), packed.sums) for _ in range(2)],
        queries,
        gradients,
        *[packed.rounded(packed.below, x, by_query) for x in (queries, gradients)],
        empty(by_query, packed.sums),
        scores,
        for_scores,
        packed.rounded(packed.below, scores),
        packed.rounded(packed.beside, for_scores),
        packed.rounded(packed.below, for_scores),
        *[empty(sizes.num_queries, packed.sums) for _ in range(2)],
    )


def _panels(sizes, packed):
    """Return a buffer for the rows of all keys, transposed."""
    width = padded(1, PANEL_VECTORS, packed.sums)
    depth = -(-sizes.head_dim // packed.num)
    return empty((-(-sizes.num_keys // width), depth, width), packed.items)


def _tile(sizes, dtype):
    """Return a buffer [queries, keys] for scores, with room behind them for hidden ones."""
    num_keys = min(KEYS, padded(sizes.num_keys, 1, dtype))
    return empty((min(QUERIES, sizes.num_queries), num_keys + 128 // dtype.itemsize), dtype)


# ---- rotary --------------------------------------------------------------------------------------


@on_cpu
def rotary(x, cos, sin, out=None):
    """Turn arrays that lie in memory as [B, S, H, D] without copying; so lies the result."""
    by_position = x.swapaxes(1, 2)
    if out is None:
        lies_so = by_position.flags.carray
        out = _empty_by_position(x) if lies_so else empty(x.shape, x.dtype)
    out_by_position = out.swapaxes(1, 2)
    if out_by_position.flags.carray:
        given, into = bits(plain(by_position)), bits(out_by_position)
    else:
        batch, num_heads, num_positions, head_dim = x.shape
        shape = batch * num_heads, num_positions, 1, head_dim
        given, into = bits(plain(x)).reshape(shape), bits(out).reshape(shape)
    _rotary(given, bits(plain(cos)), bits(plain(sin)), into)
    return out


@compiled
def _rotary(x, cos, sin, out):
    """Turn x [any, S, any, D]."""
    half = x.shape[3] // 2
    for a in range(x.shape[0]):
        for s in range(x.shape[1]):
            for b in range(x.shape[2]):
                for i in range(half):
                    first = wide(x[a, s, b, i])
                    second = wide(x[a, s, b, half + i])
                    kept = first * wide(cos[s, i])
                    turned = kept - second * wide(sin[s, i])
                    out[a, s, b, i] = narrow(turned, out)
                for i in range(half):
                    first = wide(x[a, s, b, i])
                    second = wide(x[a, s, b, half + i])
                    kept = second * wide(cos[s, i])
                    turned = kept + first * wide(sin[s, i])
                    out[a, s, b, half + i] = narrow(turned, out)


def _empty_by_position(x):
    """Return an array of the shape [B, H, S, D] of x that lies in memory as [B, S, H, D]."""
    batch, num_heads, num_positions, head_dim = x.shape
    return empty((batch, num_positions, num_heads, head_dim), x.dtype).swapaxes(1, 2)
