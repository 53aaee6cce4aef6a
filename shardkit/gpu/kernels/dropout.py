"""Dropout whose mask is computed on the way, with the CPU's bits: the backward needs the key."""

import numpy

from ...array.reference.dropout import dropped_numbers
from ...array.registry import on_cuda
from .arrays import THREADS, new_like, plain, spread
from .launch import launch

FILE = "dropout.cu"


@on_cuda()
def dropout(x, key, start, p, out=None):
    out = new_like(x, out)
    arrays = plain(x), *_stream(key, start, p), 1 / (1 - p), out
    launch(x, FILE, "dropout", _grid(x.size), (THREADS,), *arrays, x.size)
    return out


@on_cuda()
def dropout_mask(key, start, stop, p, xp=numpy):
    mask = xp.empty(stop - start, numpy.bool_)
    given = *_stream(key, start, p), mask, mask.size
    launch(mask, FILE, "dropout_mask", _grid(mask.size), (THREADS,), *given, dtype="float32")
    return mask


def _stream(key, start, p):
    return numpy.uint64(key), int(start), numpy.uint32(dropped_numbers(p))


def _grid(size):
    """Return a thread for each counter, of four elements; None for no elements.

    The first counter and the last may be needed in part.
    """
    return spread(size and size // 4 + 2)
