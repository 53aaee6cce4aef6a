"""Dropout: the mask is a function of (key, element number), so it is made again, not kept."""

import numpy

from ..backend import xp_of
from ..random import random_bits
from ..registry import kernel
from .chunks import empty_like, spans


@kernel(rounded=(True,))
def dropout(x, key, start, p, out=None):
    """Return x [...] with what the mask of this key drops set to 0, the rest times 1 / (1 - p).

    key    64 bits: an integer, or on the CPU also an array [1] uint64
    start  the number in the mask of the first element of x
    """
    xp = xp_of(x)
    out = empty_like(x, out)
    scale = 1 / (1 - p)
    flat, result = x.reshape(-1), out.reshape(-1)
    for span in spans(flat):
        keep = dropout_mask(key, start + span.start, start + span.stop, p, xp)
        result[span] = xp.where(keep, flat[span] * scale, 0)
    return out


@kernel()
def dropout_mask(key, start, stop, p, xp=numpy):
    """Return elements [start, stop) of the mask of this key: [stop - start] bool, True to keep.

    An element is kept with probability 1 - p.
    """
    return random_bits(key, start, stop, xp) >= dropped_numbers(p)


def dropped_numbers(p) -> int:
    """Return how many of the 2^32 numbers mean that an element is dropped."""
    return min(round(p * 2**32), 2**32 - 1)
