"""Causal attention, and rotary positions."""

from ...array import fresh, kernels
from ...array.backend import xp_of
from ...array.dtypes import wide
from ...errors import ShapeError
from ..autograd import Tensor, array_of, record


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, first_query: int = 0
) -> Tensor:
    """Return softmax(scale q k^T) v, where query position p sees key positions 0 .. p.

    q            [batch, heads, S, D]
    k, v         [batch, kv_heads, T, D]; each serves heads / kv_heads consecutive heads
                 (grouped-query, arXiv 2305.13245)
    scale        1 / sqrt(D) if None
    first_query  position of q's first row among the keys: 0 in training, T - S when generating from
                 a cache
    returns      [batch, heads, S, D]
    Kept for the backward: q, k, v, the result and one number per query, not the scores (arXiv
    2205.14135).
    """
    _check_attention(q, k, v, first_query)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    y, log_sums = kernels.causal_attention(q.array, k.array, v.array, scale, first_query)

    def backward(gradient, wanted):
        return kernels.causal_attention_backward(
            gradient, q.array, k.array, v.array, y, log_sums, scale, first_query
        )

    return record(y, (q, k, v), backward, needs=(q, k, v), needs_output=True)


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


def rotary(
    x: Tensor, positions, base: float = 10000.0, scaling: tuple[float, ...] | None = None
) -> Tensor:
    """Return x with each pair (x[i], x[i + D/2]) turned by position * base^(-2i/D).

    Source: arXiv 2104.09864.

    x          [batch, heads, S, D], D even; positions [S] integers, an array or Tensor
    scaling    (factor,) or (factor, low, high, length), see transformer.check_scaling; None: none
    gradient: the same, turned back
    """
    positions = fresh.placed(array_of(positions), xp_of(x.array))
    if x.ndim != 4 or x.shape[3] % 2 or positions.shape != x.shape[2:3]:
        raise ShapeError(
            f"rotary of x {x.shape} at positions {positions.shape}; wanted x [batch, heads, S, D] "
            "with D even and one position per S"
        )
    cos, sin = kernels.rotary_tables(positions, x.shape[3], base, wide(x.dtype), scaling)

    def backward(gradient, wanted):
        return (kernels.rotary(gradient, cos, -sin),)

    return record(kernels.rotary(x.array, cos, sin), (x,), backward)
