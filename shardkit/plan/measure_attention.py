"""How fast fused attention is here, for `shardkit bench hardware`: the kernels that a step
calls, forward and backward, by size of heads and length of sequences.
"""

from collections.abc import Callable

import numpy

from ..array import kernels

HEAD_DIMS = (32, 64, 128)
LENGTHS = (64, 128, 512, 1024)
_TOKENS = 1024  # of a try, on one head


def attention_speeds(seconds_of: Callable[[Callable[[], object]], float]) -> list[float]:
    """Return operations per second: for each size of heads and length, forward and backward.

    seconds_of   returns the seconds that a call takes
    The operations are those that hardware.AttentionModel counts.
    """
    speeds = []
    for head_dim in HEAD_DIMS:
        for length in LENGTHS:
            speeds += _speeds(head_dim, length, seconds_of)
    return speeds


def attention_rows(speeds: list[float], peak: float) -> list[dict]:
    """Return the rows [[device.attention]] of these speeds, as fractions of a peak, at most 1."""
    fractions = iter(min(float(speed) / peak, 1.0) for speed in speeds)
    rows = []
    for head_dim in HEAD_DIMS:
        pairs = [(next(fractions), next(fractions)) for _ in LENGTHS]
        forward, backward = (list(column) for column in zip(*pairs))
        rows.append(
            {
                "head_dim": head_dim,
                "lengths": list(LENGTHS),
                "forward": forward,
                "backward": backward,
            }
        )
    return rows


def _speeds(head_dim: int, length: int, seconds_of) -> list[float]:
    heads = _TOKENS // length
    draw = numpy.random.default_rng(0)
    q, k, v, gradient = draw.standard_normal((4, 1, heads, length, head_dim), "float32")
    scale = head_dim**-0.5
    y, log_sums = kernels.causal_attention(q, k, v, scale, 0)
    forward = seconds_of(lambda: kernels.causal_attention(q, k, v, scale, 0))
    backward = seconds_of(
        lambda: kernels.causal_attention_backward(gradient, q, k, v, y, log_sums, scale, 0)
    )
    product = heads * length * length * head_dim  # 2 x half of all pairs
    return [2 * product / forward, 5 * product / backward]
