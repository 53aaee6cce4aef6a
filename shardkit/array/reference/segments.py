"""Maxima of rows by the segment that each belongs to."""

from ..backend import xp_of
from ..registry import kernel


@kernel(rounded=(True,))
def segment_max(x, ids, num_segments):
    """Return [num_segments, D]: row s is the maximum of the rows of x [N, D] whose id is s.

    ids [N] are in [0, num_segments). -inf without rows, NaN if one is NaN.
    """
    xp = xp_of(x)
    out = xp.full((num_segments, x.shape[1]), -xp.inf, x.dtype)
    xp.maximum.at(out, ids, x)
    return out
