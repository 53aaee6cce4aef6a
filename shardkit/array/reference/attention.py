"""Causal attention with its gradient, and rotary positions."""

import math

import numpy

from .. import products
from ..backend import xp_of
from ..registry import WITH_BFLOAT16, kernel
from .chunks import empty_like


@kernel(kinds=WITH_BFLOAT16, rounded=(True, False))
def causal_attention(q, k, v, scale, first_query, window=None, firsts=None, mask=None, out=None):
    """Return y [B, H, S, D], log_sums [B, H, S] for q [B, H, S, D], k and v [B, KV, T, D].

    The query in row i sees keys 0 .. first_query + i, as far as there are such: with first_query =
    T - 1 or more, each query sees all keys. log_sums are the logarithms of the softmax
    denominators: with them the backward computes the probabilities again. The scores of one sample
    exist at a time. T > 0, unless q is empty.

    window   of the keys 0 .. first_query + i the last so many are seen, at least one that there
             is; None: all
    firsts   [B, S] int64, the first key that each query sees, ascending along S, instead of a
             window: 0 .. first_query + i; None: 0
    mask     [B or 1, H or 1, S or 1, T] besides: booleans, True where a query sees a key, or
             numbers that are added to scores, -inf where it does not; None: all True. A query that
             sees none gets 0, and minus infinity
    out      of y, none of the inputs; it may be strided if its rows [D] are contiguous
    """
    xp = xp_of(q)
    y = empty_like(q, out)
    log_sums = xp.empty(q.shape[:3], q.dtype)
    sight = first_query, window, firsts, mask
    for b in range(q.shape[0] if q.size else 0):
        hidden = _hidden(q, k, b, *sight)
        scores = _scores(q[b], k[b], scale, hidden)  # [KV, group, S, T]
        top = scores.max(axis=-1, keepdims=True)
        xp.exp(xp.subtract(scores, _level(top, mask), out=scores), out=scores)
        total = scores.sum(axis=-1, keepdims=True)
        scores /= total if mask is None else xp.where(total == 0, 1, total)
        with numpy.errstate(divide="ignore"):
            log_sums[b] = (top + xp.log(total)).reshape(log_sums[b].shape)
        y[b] = products.matmul(_stack(scores), v[b]).reshape(q[b].shape)
    return y, log_sums


@kernel(kinds=WITH_BFLOAT16, rounded=(True, True, True))
def causal_attention_backward(
    gradient, q, k, v, y, sums, scale, first, window=None, firsts=None, mask=None, out=3 * (None,)
):
    """Return the gradients of q, k, v, for gradient [B, H, S, D] and the forward's values.

    With P the probabilities and dP = gradient v^T, the gradient of the scores is P (dP - sum of
    gradient y). Where k and v are some of the keys that made y and sums, these are the
    gradients of k and v, and a term of that of q.

    out   three buffers, of the gradients of q, k, v, as in causal_attention, or None for new ones
    """
    xp = xp_of(q)
    for_q, for_k, for_v = [empty_like(array, buffer) for array, buffer in zip((q, k, v), out)]
    if q.size == 0:
        for gradient_of in (for_q, for_k, for_v):
            gradient_of[...] = 0
    sight = first, window, firsts, mask
    for b in range(q.shape[0] if q.size else 0):
        grouped = _by_key_head(gradient[b], k.shape[1])  # [KV, group S, D]
        hidden = _hidden(q, k, b, *sight)
        p = _scores(q[b], k[b], scale, hidden)  # [KV, group, S, T]
        level = sums[b].reshape(p.shape[:3])
        p -= _level(level, mask)[..., None]
        xp.exp(p, out=p)
        for_v[b] = products.matmul(_stack(p).swapaxes(1, 2), grouped)
        for_scores = products.matmul(grouped, v[b].swapaxes(1, 2)).reshape(p.shape)
        along = (gradient[b] * y[b]).sum(axis=-1)
        for_scores -= along.reshape(p.shape[:3])[..., None]
        for_scores *= p
        for_scores *= scale
        for_q[b] = products.matmul(_stack(for_scores), k[b]).reshape(q[b].shape)
        for_k[b] = products.matmul(
            _stack(for_scores).swapaxes(1, 2), _by_key_head(q[b], k.shape[1])
        )
    return for_q, for_k, for_v


def _scores(q, k, scale, hidden):
    """Return scaled scores [KV, group, S, T] of q [H, S, D] and k [KV, T, D], and `hidden`."""
    num_heads, num_queries, _ = q.shape
    num_key_heads, num_keys, _ = k.shape
    scores = products.matmul(_by_key_head(q, num_key_heads), k.swapaxes(1, 2))  # [KV, group S, T]
    scores *= scale
    scores = scores.reshape(num_heads, num_queries, num_keys)
    scores += hidden
    return scores.reshape(num_key_heads, num_heads // num_key_heads, num_queries, num_keys)


def _level(top, mask):
    """Return what is taken from scores: 0 of a row that a mask hides, where all are -inf."""
    return top if mask is None else xp_of(top).where(top == -math.inf, 0, top)


def _by_key_head(x, num_key_heads):
    """Return x [H, S, D] as [KV, group S, D]: rows of one key head together, no key repeated."""
    return x.reshape(num_key_heads, x.shape[0] // num_key_heads * x.shape[1], x.shape[2])


def _stack(x):
    """Return x [KV, group, S, T] as [KV, group S, T]."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[3])


def _hidden(q, k, b, first_query, window, firsts, mask):
    """Return [H or 1, S, T] of sample b, to be added: minus infinity where the query may not see
    the key.
    """
    xp = xp_of(q)
    keys = xp.arange(k.shape[2])
    last = xp.arange(first_query, first_query + q.shape[2])[:, None]  # that each query sees
    is_hidden = keys > last
    if window is not None:
        is_hidden |= keys <= last - window
    if firsts is not None:
        is_hidden |= keys < xp.asarray(firsts)[b][:, None]
    added = xp.where(is_hidden, -math.inf, 0).astype(q.dtype)[None]
    if mask is None:
        return added
    own = mask[b if len(mask) > 1 else 0]
    if own.dtype == bool:
        own = xp.where(own, 0, -math.inf)
    return added + own.astype(q.dtype)


@kernel(has_cuda_twin=False)
def merge_attention(y, log_sums, block, block_log_sums, out=(None, None)):
    """Return y and log_sums of queries that see the keys of a block too.

    y, log_sums   [B, H, S, D] and [B, H, S], of the keys so far: what causal_attention returns; of
                  none 0 and minus infinity
    block, block_log_sums   the same of the keys of the block, of which each query sees one
    out   two buffers, which may be y and log_sums, or None for new ones
    Source: online softmax (arXiv 1805.02867), between devices as in arXiv 2310.01889.
    """
    xp = xp_of(y)
    top = xp.maximum(log_sums, block_log_sums)
    total = top + xp.log(xp.exp(log_sums - top) + xp.exp(block_log_sums - top))
    merged, merged_log_sums = [empty_like(x, buffer) for x, buffer in zip((y, log_sums), out)]
    added = block * xp.exp(block_log_sums - total)[..., None]
    xp.multiply(y, xp.exp(log_sums - total)[..., None], out=merged)
    merged += added
    merged_log_sums[...] = total
    return merged, merged_log_sums


@kernel()
def rotary_tables(positions, head_dim, base, dtype, scaling=None):
    """Return cos, sin [S, head_dim / 2] of the angles position * base^(-2i / head_dim).

    Positions are [S]. The angles are computed in float64: in float32 an angle of 100000 radians is
    off by 0.004.
    scaling   of these rates, see _scaled; None: as they are
    """
    xp = xp_of(positions)
    rates = base ** (xp.arange(0, head_dim, 2, dtype=numpy.float64) / -head_dim)
    if scaling is not None:
        rates = _scaled(rates, *scaling)
    angles = positions.astype(numpy.float64)[:, None] * rates
    return xp.cos(angles).astype(dtype), xp.sin(angles).astype(dtype)


def _scaled(rates, factor, low=None, high=None, length=None):
    """Return rates of rotation [D/2] of a model that sees longer sequences than it was made for.

    factor            alone: all rates are divided by it, as positions would be (arXiv 2306.15595)
    low, high         turns within `length` positions: pairs that turn fewer times than `low` are
                      divided by the factor, those that turn more often than `high` stay, and those
                      between the two are interpolated
    length            positions that the model was made for
    Source: Llama 3.1 (arXiv 2407.21783), as its published code scales frequencies.
    """
    if low is None:
        return rates / factor
    xp = xp_of(rates)
    turns = length * rates / (2 * numpy.pi)
    kept = xp.minimum(xp.maximum((turns - low) / (high - low), 0.0), 1.0)  # the part that stays
    return rates * ((1 - kept) / factor + kept)


@kernel(kinds=WITH_BFLOAT16, rounded=(True,))
def rotary(x, cos, sin, out=None):
    """Return x [B, H, S, D] with each pair (x[i], x[i + D/2]) turned by its angle.

    cos and sin are [S, D/2]; -sin turns back.

    out  strided if its rows [D] are contiguous; x itself on a GPU alone
    """
    half = x.shape[-1] // 2
    first = x[..., :half]
    second = x[..., half:]
    y = empty_like(x, out)
    turned = first * cos - second * sin
    y[..., half:] = second * cos + first * sin
    y[..., :half] = turned
    return y
