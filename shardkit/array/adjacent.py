"""Arrays of a GPU that lie in one buffer, seen as one: one product reads or writes them all.

    | query.weight | key.weight | value.weight |           joined    [rows of all, columns]
    | query.weight | bias | key.weight | bias | ...        stacked   [number, rows, columns]

Nothing is copied. Arrays of NumPy are not seen so: on the CPU products keep their bits.
"""

from itertools import pairwise

import numpy


def joined(arrays):
    """Return one view [rows of all, ...] of arrays that touch in this order; None if they do not.

    arrays   [rows, ...], alike but for their rows
    """
    first = arrays[0]
    if not _are_parts(arrays):
        return None
    if any(_address(x) + x.nbytes != _address(after) for x, after in pairwise(arrays)):
        return None
    num_rows = sum([x.shape[0] for x in arrays])
    return _seen(first, (num_rows, *first.shape[1:]), first.strides)


def stacked(arrays):
    """Return one view [number, ...] of arrays of one shape, evenly spaced; None if they are not."""
    first = arrays[0]
    if not _are_parts(arrays) or any(x.shape != first.shape for x in arrays):
        return None
    steps = {_address(after) - _address(x) for x, after in pairwise(arrays)}
    step = steps.pop()
    if steps or step < first.nbytes or step % first.itemsize:
        return None
    return _seen(first, (len(arrays), *first.shape), (step, *first.strides))


def _are_parts(arrays) -> bool:
    """Return True for at least two arrays of one block of memory of a GPU, of one dtype, each
    without gaps and with elements.
    """
    first = arrays[0]
    if len(arrays) < 2 or type(first) is numpy.ndarray:
        return False
    kind, dtype, columns, block = type(first), first.dtype, first.shape[1:], first.data.mem.ptr
    return all(
        type(x) is kind
        and x.dtype == dtype
        and x.shape[1:] == columns
        and x.size
        and x.flags.c_contiguous
        and x.data.mem.ptr == block
        for x in arrays
    )


def _address(x) -> int:
    return x.data.ptr


def _seen(first, shape, strides):
    """Return the array of this form that begins where `first` does, in the same memory."""
    return type(first)(shape, first.dtype, first.data, strides)
