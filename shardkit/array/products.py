"""Matrix products. All of them are made here, so that there is one place where they can be counted and timed."""
from .backend import xp_of


def matmul(a, b, out=None):
    """a [..., m, k] times b [..., k, n] -> [..., m, n], by the BLAS of the library that made the arrays.

    Leading dimensions broadcast. Transposed views are read as they lie, nothing is copied.
    out   where the result goes; None: a new array
    """
    return xp_of(a, b).matmul(a, b, out=out)
