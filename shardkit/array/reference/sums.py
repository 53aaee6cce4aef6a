"""Sums that NumPy makes slowly of bfloat16, which it casts number by number."""

from ..backend import xp_of
from ..registry import WITH_BFLOAT16, kernel
from .chunks import elementwise, empty_like


@kernel(kinds=WITH_BFLOAT16, rounded=(True,))
def sum_of_two(x, y, out=None):
    """Return x + y for x and y [...]; out may be one of them."""
    return elementwise(lambda x, y: x + y, x, y, out=out)


@kernel(kinds=WITH_BFLOAT16, rounded=(True,), has_cuda_twin=False)
def add_row(x, row, out=None):
    """Return x + row [N, D] for x [N, D], row [D]; out may be x."""
    out = empty_like(x, out)
    out[...] = x + row
    return out


@kernel(kinds=WITH_BFLOAT16, rounded=(False,))
def sum_of_rows(x, out=None):
    """Return the sum of x [N, D] over its rows, one after the other: [D].

    On GPUs also of x [M, N, D], each matrix for itself, in an order of their own; rows may have
    gaps between them.
    """
    return xp_of(x).ascontiguousarray(x).sum(axis=-2, out=out)
