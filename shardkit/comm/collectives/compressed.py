"""Sums over ranks that travel as half floats: half the bytes, about three digits, still one fixed
order.

    buffer float32 --times a power of two--> float16 --all_to_all--> owner: float32, tree over
    ranks, scaled back

The power of two is agreed on by all ranks, so that the largest element lands near the top of the
range of float16: small gradients do not vanish and large ones do not overflow. Only the way to the
owners is compressed; sums are float32.
Source: the idea of a half-float hook is from PyTorch DDP (fp16_compress_hook).
"""

import math

import numpy

from ...array.backend import xp_of
from ...array.kernels import from_half, largest_magnitude, to_half, tree_sum
from ..checks import pieces_of, shares_of
from ..operations import ReductionOperation

_TOP_EXPONENT = 14  # scaled elements are below 2**15; float16 ends at 65504


def compressed_sum(backend, buffer, out):
    """Sum `buffer` over ranks, to about three digits. Collective over the backend.

    buffer    [any length] float; unchanged, unless `out` is `buffer` or a view of it
    out       `buffer` itself, for all sums, the same bits on every rank; or this rank's slice of
              them, [buffer.size / world_size], which may be that of `buffer`
    """
    if out is not buffer:
        return _reduce_to_owners(backend, buffer, [out.size] * backend.world_size, out)
    counts = shares_of(buffer.size, backend.world_size)
    own = pieces_of(buffer, counts)[backend.rank]
    _reduce_to_owners(backend, buffer, counts, own)
    backend.all_gather(own, buffer, counts)


def _reduce_to_owners(backend, buffer, counts, out):
    """Leave the sum of this rank's slice, of counts[rank] elements, in `out`."""
    scale = _agreed_scale(backend, buffer)
    wire = to_half(buffer, scale)
    received = xp_of(wire).empty(out.size * backend.world_size, wire.dtype)
    backend.all_to_all(wire, received, counts, [out.size] * backend.world_size)
    tree_sum(
        [from_half(row, out.dtype) for row in received.reshape(backend.world_size, -1)], out=out
    )
    out *= out.dtype.type(1 / scale)


def _agreed_scale(backend, buffer) -> float:
    """Return the power of two that fits the largest element of any rank into half floats."""
    largest = numpy.array([largest_magnitude(buffer)])
    backend.all_reduce(largest, ReductionOperation.MAX)
    if not math.isfinite(largest[0]) or largest[0] == 0:
        return 1.0
    return 2.0 ** (_TOP_EXPONENT - math.frexp(largest[0])[1])
