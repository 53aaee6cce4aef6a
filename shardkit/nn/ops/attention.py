r"""Attention, causal or to all keys, with masks or without.

no mask:   one kernel, by tiles: the scores never exist as a whole
a window:  the same; tiles that no query of theirs sees are not computed
a mask:    the same on CPUs; where it takes a gradient and on GPUs
           weights = softmax(scale q k^T + mask) [..., S, T], then weights v
"""

import math
from typing import Any

import numpy

from ...arguments import is_integer, require
from ...array import fresh, kernels
from ...array.arena import empty
from ...array.backend import xp_of
from ...array.dtypes import is_floating
from ...array.halves import widened
from ...errors import ShapeError
from ..autograd import Tensor, constant_of, record
from .activation import softmax
from .elementwise import add, multiply, subtract, where
from .joint_parts import JointPart
from .linear import matmul
from .operands import check_floating
from .reduction import sum as total
from .shape import cast, reshape, transpose

# Scores of hidden keys: their exponentials are 0 beside any other, and sums with them are finite.
HIDDEN, HIDDEN_HALF = -1e38, -3e4
LOST = -1e16  # added to a score it leaves nothing of it, in float64 either


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    first_query: int = 0,
    window: int | None = None,
) -> Tensor:
    """Return softmax(scale q k^T) v, where query position p sees key positions 0 .. p.

    Parameters
    ----------
    q
        [batch, heads, S, D].
    k, v
        [batch, kv_heads, T, D]; each serves heads / kv_heads consecutive heads (grouped-query,
        arXiv 2305.13245).
    scale
        1 / sqrt(D) if None.
    first_query
        Position of q's first row among the keys: 0 in training, T - S when generating from a cache.
    window
        A query sees its own key and window - 1 before it (arXiv 2004.05150); None: all before it.

    Returns
    -------
    Tensor
        [batch, heads, S, D].

    Notes
    -----
    Kept for the backward: q, k, v, the result and one number per query, not the scores (arXiv
    2205.14135).
    """
    _check_attention(q, k, v, first_query)
    check_window(window)
    return _by_tiles(q, k, v, _scale_of(q, scale), first_query, window)


def attention_from(
    q: Tensor, k: Tensor, v: Tensor, firsts: Any, window: int | None = None
) -> Tensor:
    """Return causal_attention's result where queries see no key before their first ones.

    firsts  [batch, S] integers, ascending along S, none behind its query
    window  as of causal_attention; a query sees what both let it see
    """
    _check_attention(q, k, v, 0)
    check_window(window)
    xp = xp_of(q.array)
    firsts = fresh.placed(firsts, xp)
    if window is not None and window < q.shape[2]:
        behind = xp.arange(1, q.shape[2] + 1)
        firsts = xp.maximum(firsts, behind - window)
    return _by_tiles(q, k, v, q.shape[-1] ** -0.5, 0, firsts=firsts)


def attention_to_all(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Return causal_attention's result and shape where each query sees all keys; T > 0.

    window  it sees the keys less than so far from it, before it and behind it; None: all
    """
    _check_operands(q, k, v, enable_gqa=True)
    sight = _sight_of_own(q, k, False, window)
    return _by_tiles(q, k, v, q.shape[-1] ** -0.5, *sight)


def check_window(window: int | None) -> None:
    """Raise ShapeError unless this is a number of keys, at least one, or None."""
    if window is not None and not is_integer(window, at_least=1):
        raise ShapeError(f"attention with window {window!r}; wanted a number of keys from 1 on")


def check_one_sequence(num_queries: int, num_keys: int, window: int | None) -> None:
    """Raise ShapeError on a window of queries and keys that are not of one sequence."""
    if window is not None and num_queries != num_keys:
        raise ShapeError(
            f"attention of {num_queries} queries to {num_keys} keys with window {window}; wanted "
            "as many of both, of one sequence: a window is about the distance in it"
        )


def require_window(what: str, window: int | None) -> None:
    """Raise ConfigurationError unless this is a window of a layer, or None."""
    is_right = window is None or is_integer(window, at_least=1)
    require(is_right, f"{what} with window", window, "a number of tokens from 1 on, or None")


def _sight_of_own(q, k, is_causal, window):
    """Return (first_query, window) as the kernel wants them, for a sequence that sees itself.

    Errors: ShapeError on a window of queries and keys that are not of one sequence.
    """
    check_window(window)
    check_one_sequence(q.shape[-2], k.shape[-2], window)
    if window is None or window >= k.shape[-2]:  # it hides nothing
        return (0 if is_causal else k.shape[-2]), None
    return (0, window) if is_causal else (window - 1, 2 * window - 1)


def _by_tiles(
    q, k, v, scale, first_query, window=None, firsts=None, mask=None, differentiable=None
):
    """Return what the kernel computes: query i sees keys 0 .. first_query + i, if there are so
    many, or the last of them, where the mask is True or as it says.
    """
    if window is not None and window >= first_query + q.shape[2]:
        window = None  # it hides nothing
    sight = first_query, window, firsts, mask
    y, log_sums = kernels.causal_attention(q.array, k.array, v.array, scale, *sight)

    def backward(gradient, wanted):
        out = tuple([x.place.take() if isinstance(x, JointPart) else None for x in (q, k, v)])
        return kernels.causal_attention_backward(
            *(gradient, q.array, k.array, v.array, y, log_sums),
            *(scale, *sight),
            out=out,
        )

    about: dict[str, Any] = {"needs": (q, k, v), "needs_output": True}
    return record(y, (q, k, v), backward, differentiable=differentiable, **about)


def _gradients_again(q, k, v, mask, is_causal, scale, window):
    """Return the gradients of q, k, v as record() wants them, by operations on Tensors."""

    def again(gradient, wanted, output):
        weights, sees = _weights(q, k, mask, is_causal, scale, window)
        weights = weights if sees is None else where(sees, weights, 0)
        weights, rows, gradient = [_by_key_head(x, k) for x in (weights, q, gradient)]
        for_weights = matmul(gradient, transpose(v, -1, -2))
        along = total(multiply(weights, for_weights), -1, keepdim=True)
        for_scores = multiply(multiply(weights, subtract(for_weights, along)), scale)
        for_q = reshape(matmul(for_scores, k), q.shape)
        for_k = matmul(transpose(for_scores, -1, -2), rows)
        return for_q, for_k, matmul(transpose(weights, -1, -2), gradient)

    return again


def _is_for_kernel(query, key, value, mask):
    """Return whether the kernel takes these: masks on CPUs alone, to which no gradient goes."""
    if key.shape != value.shape or key.shape[-2] == 0:
        return False
    if mask is None:
        return True
    on_cpu = type(query.array) is numpy.ndarray
    return on_cpu and not (isinstance(mask, Tensor) and mask.requires_grad)


def _rows_of_mask(mask, query, key, near):
    """Return a mask as the kernel wants it, [B or 1, H or 1, S or 1, T], None if there is none; and
    whether it leaves scores to tell keys apart in each row.

    Numbers are taken relative to the largest that a query sees: softmax is the same, and log_sums
    keep their digits. Where that is finfo.min, as some write a row that sees nothing, all keys with
    it weigh alike, which the kernel does not know.
    near   [S, T], or None for all True: which keys a query sees besides
    """
    if mask is None:
        return None, True
    shape = *query.shape[:-1], key.shape[-2]
    visible, bias = _parts_of_mask(mask, shape, query.dtype, numpy)
    if bias is None:
        array, keeps_scores = visible, True
    else:
        array = widened(bias.array)
        seen = array if near is None else numpy.where(near, array, -math.inf)
        top = seen.max(axis=-1, keepdims=True)
        keeps_scores = not ((-math.inf < top) & (top < LOST)).any()
        with numpy.errstate(over="ignore"):
            array = array - numpy.where(numpy.isfinite(top), top, 0)
    if query.ndim > 4:
        array = numpy.broadcast_to(array, shape).reshape(-1, *shape[-3:])
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    return numpy.broadcast_to(array, (*array.shape[:3], shape[-1])), keeps_scores


def _check_attention(q, k, v, first_query):
    """Raise ShapeError unless the three fit together and every query has a key to see."""
    got = f"causal_attention of q {q.shape}, k {k.shape}, v {v.shape}"
    if (
        not q.ndim == k.ndim == 4
        or k.shape != v.shape
        or q.shape[0] != k.shape[0]
        or q.shape[3] != k.shape[3]
    ):
        raise ShapeError(f"{got}; wanted q [batch, heads, S, D] and k, v [batch, kv_heads, T, D]")
    if not q.dtype == k.dtype == v.dtype:
        raise ShapeError(
            f"{got} with dtypes {q.dtype}, {k.dtype}, {v.dtype}; wanted one dtype, use ops.cast"
        )
    check_floating("causal_attention", q)
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ShapeError(
            f"{got}: {q.shape[1]} heads cannot be shared out over {k.shape[1]} key heads; wanted a "
            "multiple"
        )
    if first_query < 0 or first_query + q.shape[2] > k.shape[2]:
        raise ShapeError(
            f"{got} with first_query {first_query}: queries stand at positions {first_query} .. "
            f"{first_query + q.shape[2] - 1}, keys at 0 .. {k.shape[2] - 1}; every query needs its "
            "own key"
        )


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: int | None = None,
) -> Tensor:
    """Return softmax(scale q k^T + mask) v: [..., S, Dv].

    Parameters
    ----------
    query
        [..., S, D].
    key, value
        [..., T, D], [..., T, Dv], with the leading sizes of the query.
    attn_mask
        Broadcasts to [..., S, T]: booleans, True where a query sees a key; or numbers that are
        added to the scores, -inf where it does not, a Tensor if they take a gradient.
    dropout_p
        Only 0: which elements are dropped depends on the path of a layer, so it is
        nn.MultiheadAttention that drops weights.
    is_causal
        Query i sees keys 0 .. i; with a mask both hold.
    scale
        1 / sqrt(D) if None.
    enable_gqa
        Key and value may have fewer heads, dim -3; each serves consecutive heads of query.
    window
        Of one sequence, S = T: query i sees keys less than so far from it, i - window < j <= i if
        causal, else |i - j| < window (arXiv 2004.05150), with a mask what both let it see; None:
        however far. Costs S x window, but S x T where scores are kept.

    Raises
    ------
    ShapeError

    Notes
    -----
    A query that sees no key gets 0, and so do the gradients through it, as in PyTorch. Scores are
    not kept (arXiv 2205.14135), but with a mask on a GPU, or one that takes a gradient.
    """
    _check_operands(query, key, value, enable_gqa)
    if dropout_p:
        raise ShapeError(
            f"scaled_dot_product_attention with dropout_p {dropout_p}; wanted 0: dropout belongs "
            "to a layer, use nn.MultiheadAttention(dropout=...)"
        )
    scale = _scale_of(query, scale)
    if _is_for_kernel(query, key, value, attn_mask):
        near = None if attn_mask is None else _near(query, key, is_causal, window)
        mask, keeps_scores = _rows_of_mask(attn_mask, query, key, near)
        if keeps_scores:
            shape, sight = query.shape, _sight_of_own(query, key, is_causal, window)
            query, key, value = [_as_4d(x) for x in (query, key, value)]
            again = _gradients_again(query, key, value, mask, is_causal, scale, window)
            more = {"mask": mask, "differentiable": again}
            return reshape(_by_tiles(query, key, value, scale, *sight, **more), shape)
    weights, sees = _weights(query, key, attn_mask, is_causal, scale, window)
    rows = _by_key_head(weights, value)
    y = reshape(matmul(rows, value), (*weights.shape[:-1], value.shape[-1]))
    return y if sees is None else where(sees, y, 0)


def packed_attention(
    qkv: Tensor, num_heads: int, is_causal: bool, window: int | None = None
) -> Tensor:
    """Return the attention of a sequence to itself, [B, S, H D], for qkv [B, S, 3 H D].

    Queries, keys and values stand side by side; their gradients are written there.
    window  as of scaled_dot_product_attention
    """
    batch, length, width = qkv.shape
    split = batch, length, 3, num_heads, width // 3 // num_heads
    form = split[4] ** -0.5, *_sight_of_own(qkv, qkv, is_causal, window)

    def parts(array):
        """Return q, k, v as views [B, H, S, D]."""
        return array.reshape(split).transpose(2, 0, 3, 1, 4)

    y, log_sums = kernels.causal_attention(*parts(qkv.array), *form)

    def backward(gradient, wanted):
        array = empty((batch, length, width), gradient.dtype, xp_of(gradient))
        gradient = gradient.reshape(batch, length, *split[3:]).swapaxes(1, 2)
        given = gradient, *parts(qkv.array), y, log_sums, *form
        kernels.causal_attention_backward(*given, out=tuple(parts(array)))
        return (array,)

    output = y.swapaxes(1, 2).reshape(batch, length, width // 3)
    return record(output, (qkv,), backward, needs=(qkv,), needs_output=True)


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Any = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window: int | None = None,
) -> Tensor:
    """Return softmax(scale q k^T + mask) [..., S, T]; 0 for a query that sees no key.

    The arguments are those of scaled_dot_product_attention.
    """
    _check_operands(query, key, key, enable_gqa)
    scale = _scale_of(query, scale)
    weights, sees = _weights(query, key, attn_mask, is_causal, scale, window)
    return weights if sees is None else where(sees, weights, 0)


def _scale_of(query, scale):
    """Return the given scale, a number without a gradient, or 1 / sqrt(D)."""
    return query.shape[-1] ** -0.5 if scale is None else constant_of(scale, "scale of attention")


def _weights(query, key, mask, is_causal, scale, window):
    """Return the weights [..., S, T], and which queries see a key, [..., S or 1, 1]; None: all do.

    The weights of those that see none mean nothing.
    """
    rows = _by_key_head(multiply(query, scale), key)
    scores = matmul(rows, transpose(key, -1, -2))
    scores = reshape(scores, (*query.shape[:-1], key.shape[-2]))
    visible, bias = _parts_of_mask(mask, scores.shape, scores.dtype, xp_of(scores.array))
    lowest = HIDDEN_HALF if scores.dtype == "float16" else HIDDEN
    sees = None
    if bias is not None:
        is_out = bias.array == -math.inf
        sees = ~is_out.all(axis=-1, keepdims=True)
        floor = lowest / 10  # finfo.min is lower than what is not seen for other reasons
        scores = add(scores, where(is_out, lowest, where(bias.array < floor, floor, bias)))
    near = _near(query, key, is_causal, window)
    if near is not None:
        visible = near if visible is None else visible & near
        if bias is not None:
            sees = (~is_out & near).any(axis=-1, keepdims=True)
    if visible is not None:
        scores = where(visible, scores, lowest)
        if bias is None:
            sees = visible.any(axis=-1, keepdims=True)
    return softmax(scores), sees


def _near(query, key, is_causal, window):
    """Return [S, T], True where a query sees a key by where they stand; None: everywhere."""
    first_query, window = _sight_of_own(query, key, is_causal, window)
    if not is_causal and window is None:
        return None
    xp = xp_of(query.array)
    shape = query.shape[-2], key.shape[-2]
    near = xp.tri(*shape, first_query, dtype=bool)
    if window is None:
        return near
    return near & ~xp.tri(*shape, first_query - window, dtype=bool)


def _parts_of_mask(mask, shape, dtype, xp):
    """Return a mask of scores of this shape as (booleans, None) or (None, Tensor), or two None.

    Errors: ShapeError unless it broadcasts to the scores.
    """
    if mask is None:
        return None, None
    mask = mask if isinstance(mask, Tensor) else Tensor(fresh.placed(mask, xp))
    try:
        fits = numpy.broadcast_shapes(mask.shape, shape) == shape
    except ValueError:
        fits = False
    is_bool = mask.dtype == bool
    if not fits or mask.ndim < 1 or not is_bool and not is_floating(mask.dtype):
        raise ShapeError(
            f"attention with a mask {mask.shape} {mask.dtype}; wanted booleans or numbers that "
            f"broadcast to {shape}"
        )
    if is_bool:
        return mask.array, None
    return None, mask if mask.dtype == dtype else cast(mask, dtype)


def _by_key_head(x, key):
    """Return x [..., H, S, any] as [..., KV, group S, any]: rows of one key head together."""
    heads = key.shape[-3:-2]
    if heads == x.shape[-3:-2]:
        return x
    rows = x.shape[-3] // heads[0] * x.shape[-2]
    return reshape(x, (*x.shape[:-3], *heads, rows, x.shape[-1]))


def _as_4d(x):
    """Return x [..., H, S, D] as [B, H, S, D]."""
    if x.ndim == 4:
        return x
    heads = x.shape[-3] if x.ndim > 2 else 1
    return reshape(x, (math.prod(x.shape[:-3]), heads, *x.shape[-2:]))


def _check_operands(q, k, v, enable_gqa):
    """Raise ShapeError unless the three fit together."""
    got = f"attention of query {q.shape}, key {k.shape}, value {v.shape}"
    if (
        min(q.ndim, k.ndim, v.ndim) < 2
        or q.ndim != k.ndim
        or k.shape[:-1] != v.shape[:-1]
        or q.shape[-1] != k.shape[-1]
        or q.shape[:-3] != k.shape[:-3]
    ):
        raise ShapeError(f"{got}; wanted [..., S, D], [..., T, D], [..., T, Dv]")
    if q.shape[-1] == 0:
        raise ShapeError(f"{got}; wanted at least one element in each row")
    if not q.dtype == k.dtype == v.dtype or not is_floating(q.dtype):
        raise ShapeError(
            f"{got} with dtypes {q.dtype}, {k.dtype}, {v.dtype}; wanted one floating dtype, use "
            "ops.cast"
        )
    if q.shape[-3:-2] != k.shape[-3:-2] and not (
        enable_gqa and k.shape[-3] and q.shape[-3] % k.shape[-3] == 0
    ):
        raise ShapeError(
            f"{got}: {q.shape[-3]} heads for {k.shape[-3]} key heads; wanted as many, or with "
            "enable_gqa=True a multiple"
        )
