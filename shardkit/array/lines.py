"""Windows along one dimension: what each element of a result reads of a line, and with what weight.

    line      0 1 2 3 4            index[t, i]   what tap t of window i reads
    window 0  x x                  weight[t, i]  what that counts; 0 where the tap is off the line
    window 1      x x

Pooling and interpolation are such windows in one dimension after the other. Gradients are windows
too, of the elements that a window reads: `back` has them, so nothing is scattered, and the order of
each sum is that of a table.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy

from .backend import xp_of

NEAREST = ("nearest", "nearest-exact")


@dataclass(frozen=True, eq=False)
class Windows:
    """index, weight   [taps, count], of int and float64; size   elements of the line.

    tap   [taps, count]: None, or of a table that goes back, the tap of the forward one; -1: none
    """

    size: int
    index: numpy.ndarray
    weight: numpy.ndarray
    tap: numpy.ndarray | None = None

    @cached_property
    def back(self) -> "Windows":
        """Return which windows read each element of the line, and by which tap."""
        taps, count = self.index.shape
        read = self.index.T.ravel()  # window by window
        order = numpy.argsort(read, kind="stable")
        readers = numpy.bincount(read, minlength=self.size)
        begins = numpy.cumsum(readers) - readers
        place = numpy.arange(read.size) - begins[read[order]]
        shape = (int(readers.max(initial=0)), self.size)
        index, tap, weight = numpy.zeros(shape, int), numpy.full(shape, -1), numpy.zeros(shape)
        where = (place, read[order])
        index[where] = order // max(taps, 1)
        tap[where] = order % max(taps, 1)
        weight[where] = self.weight.T.ravel()[order]
        return Windows(count, index, weight, tap)


@lru_cache(maxsize=256)
def pooling(size, kernel, stride, padding, dilation, count, counts_padding, divides) -> Windows:
    """Return windows of a kernel; their weights are of a sum, or of a mean if it `divides`.

    counts_padding  a mean counts positions of the padding, which are 0
    """
    starts = numpy.arange(count) * stride - padding
    index = starts + numpy.arange(kernel)[:, None] * dilation
    is_inside = (index >= 0) & (index < size)
    first = index[is_inside.argmax(axis=0), numpy.arange(count)] if count else starts
    weight = is_inside.astype("float64")
    if divides:
        ends = numpy.minimum(starts + kernel, size + padding)
        weight /= ends - starts if counts_padding else numpy.maximum(is_inside.sum(axis=0), 1)
    return Windows(size, numpy.where(is_inside, index, numpy.maximum(first, 0)), weight)


@lru_cache(maxsize=256)
def adaptive(size, count) -> Windows:
    """Return `count` windows that share a line, with the weights of a mean."""
    windows = numpy.arange(count)
    starts = windows * size // count
    ends = -(-(windows + 1) * size // count)
    index = starts + numpy.arange((ends - starts).max(initial=0))[:, None]
    is_inside = index < ends
    return Windows(size, numpy.minimum(index, ends - 1), is_inside / (ends - starts))


@lru_cache(maxsize=256)
def interpolation(size, count, mode, aligned, scale) -> Windows:
    """Return windows of one element (modes of NEAREST), or of two neighbors ("linear").

    aligned  the first and last elements of both lines lie at the same place
    scale    of the result; None: count / size
    """
    places = numpy.arange(count)
    step = size / count if scale is None else 1 / scale
    if mode in NEAREST:
        half = numpy.float32(0.5 if mode == "nearest-exact" else 0)
        read = numpy.floor((places.astype("float32") + half) * numpy.float32(step)).astype(int)
        index = numpy.minimum(read, size - 1)[None]
        return Windows(size, index, numpy.ones(index.shape))
    if size == count:  # a copy, whatever the scale: as PyTorch does
        position = places
    elif aligned:
        position = places * ((size - 1) / (count - 1) if count > 1 else 0.0)
    else:
        position = numpy.maximum((places + 0.5) * step - 0.5, 0)
    low = numpy.minimum(position.astype(int), size - 1)
    part = numpy.clip(position - low, 0, 1)
    high = numpy.minimum(low + 1, size - 1)
    return Windows(size, numpy.stack([low, high]), numpy.stack([1 - part, part]))


def tap_counts(windows) -> tuple[int, ...]:
    """Return the number of taps of each of several Windows."""
    return tuple([line.index.shape[0] for line in windows])


def read(x, dim, row):
    """Return the elements of x along dim that a row of a table names: a view if they are even."""
    before = (slice(None),) * dim
    steps = row[1:] - row[:-1]
    if row.size and (steps == (steps[0] if steps.size else 1)).all() and (steps > 0).all():
        step = int(steps[0]) if steps.size else 1
        return x[(*before, slice(int(row[0]), int(row[-1]) + 1, step))]
    return xp_of(x).take(x, xp_of(x).asarray(row), axis=dim)


def along(line, dim, ndim):
    """Return a line in a form that is broadcast over all dimensions but dim."""
    return line.reshape([-1 if d == dim else 1 for d in range(ndim)])
