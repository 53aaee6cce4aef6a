"""Attention of single queries: nothing is packed, which would cost more than it saves."""

from ..arena import empty
from ..registry import on_cpu
from .arrays import bits, computed_dtype, plain
from .attention_tiles import LN_2, dot, log_sum
from .compiled import compiled, inlined
from .scalar import exp2, fma, larger, like, plus
from .storage import narrow, wide


@on_cpu
def attend_to_kept(q, keys, values, texts, counts, most, scale, window=None):
    y = empty(q.shape, q.dtype)
    dtype = computed_dtype(q)
    scores = empty(most, dtype)
    sums = empty(q.shape[2], dtype)
    flat = [bits(plain(x)).reshape(-1) for x in (keys, values)]
    sizes = *keys.shape[1:3], most if window is None else window
    given = sizes, float(scale), bits(plain(q)), *flat
    _attend_to_kept(*given, plain(texts), plain(counts), scores, sums, bits(y))
    return y


@compiled
def _attend_to_kept(sizes, scale, q, keys, values, texts, counts, scores, sums, y):
    num_key_heads, capacity, window = sizes
    num_queries, num_heads, dim = q.shape
    group = num_heads // num_key_heads
    for i in range(num_queries):
        for head in range(num_heads):
            place = texts[i] * num_key_heads + head // group
            first = max(0, counts[i] - window)
            start = (place * capacity + first) * dim
            k = keys[start:]
            v = values[start:]
            seen = k, dim, v, dim, counts[i] - first
            attend_one(q[i, head], *seen, scale, scores, sums)
            for d in range(dim):
                y[i, head, d] = narrow(sums[d], y)


@inlined
def attend_one(query, keys, key_step, values, value_step, num_keys, scale, scores, row):
    """Set row [D] to the attention of a query [D] to keys, and return its log_sum.

    keys, values   from the first one on; key_step and value_step lead to the next
    """
    dim = query.size
    zero = like(0.0, scores[0])
    times = like(scale / LN_2, zero)
    highest = like(-float("inf"), zero)
    for j in range(num_keys):
        at = j * key_step
        scores[j] = dot(query, keys[at : at + dim]) * times
    for j in range(num_keys):
        highest = larger(highest, scores[j])
    for j in range(num_keys):
        scores[j] = exp2(scores[j] - highest)
    total = zero
    for j in range(num_keys):
        total = plus(total, scores[j])
    row[:] = zero
    for j in range(num_keys):
        at = j * value_step
        weight = scores[j] / total
        for d in range(dim):
            value = wide(values[at + d])
            row[d] = fma(value, weight, row[d])
    return log_sum(highest, total)
