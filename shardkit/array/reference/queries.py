"""Attention of single queries to keys that are kept."""

from .. import products
from ..backend import xp_of
from ..registry import WITH_BFLOAT16, kernel


@kernel(kinds=WITH_BFLOAT16, rounded=(True,), has_cuda_twin=False)
def attend_to_kept(q, keys, values, texts, counts, most, scale, window=None):
    """Return y [P, H, D] for q [P, H, D]: query p sees the first counts[p] keys of text texts[p].

    keys, values   [texts, KV, capacity, D]; each head of them serves H / KV heads
    texts, counts  [P] int64; counts from 1 to `most`
    window         of these keys the last so many; None: all
    """
    xp = xp_of(q)
    num_heads = keys.shape[1]
    k, v = [kept[texts, :, :most] for kept in (keys, values)]  # [P, KV, T, D]
    group = q.shape[1] // num_heads
    grouped = q.reshape(len(q), num_heads, group, q.shape[2])
    scores = products.matmul(grouped, k.swapaxes(2, 3)) * scale  # [P, KV, group, T]
    numbers, stop = xp.arange(most), counts[:, None, None, None]
    is_hidden = numbers >= stop
    if window is not None:
        is_hidden |= numbers < stop - window
    scores = xp.where(is_hidden, -xp.inf, scores).astype(q.dtype)
    weights = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    weights = xp.where(is_hidden, 0, weights).astype(q.dtype)
    seen = xp.where(is_hidden.swapaxes(2, 3), 0, v)  # what was never written may be NaN
    return products.matmul(weights, seen).reshape(q.shape)
