"""How a convolution reads a packed part of its input: tables for the loops of convolution.py.

A part of x lies packed, with its zeros around it, so that what tap t reads for one window after the
other is contiguous: a stride of s makes s interleaved phases. Then a flat position p of the packed
grid stands for a window, tap t reads p + offset[t], and a run of windows is a matrix product.

    x, stride 2, before = 1      . 0 1 2 3 4 5       phase 0   . 1 3 5     taps 0 and 2
                                                     phase 1   0 2 4       tap 1
    windows p = 0, 1, 2          tap 0: phase 0 + p, tap 1: phase 1 + p, tap 2: phase 0 + p + 1

Between rows, planes and samples of the packed grid lie windows that nobody asked for; runs over
them are longer, and their results are left out. The gradient of x is such a sweep over the gradient
of y, one for each phase of x. All grids have four dimensions: samples, depth, height, width.

On a small grid most windows of a run are such ones. Where the products cost more than packing, each
tap gets a phase of its own, which nothing lies between.
"""

import functools
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy

from ..window import ConvolutionWindow

PACKED_BYTES = 600_000  # of a packed part, so that it stays in the second cache
FEWEST = 256  # positions of a part, for runs worth their beginning
RUN_COST = 1  # in vectors, of what comes with each run of windows
SUM_COST = 12  # and with each run whose products are added up
APART = 512  # windows x rows saved per line that is packed once more; measured on Zen 4


@dataclass(frozen=True)
class Sweep:
    """One pass of windows over a grid.

    firsts     [phases, 3] where each phase of the packed grid starts in the source
    step       in the source, from one position of a phase to the next
    offsets    [K] from a window to what it reads for channel c and tap t, c first
    taps       numbers of these taps among all
    counts     windows [3]; reach: how far taps reach beyond them [3]
    part       samples, and windows [3], that are packed at once
    parts      [number of parts, 8]: where each starts in samples and windows, and its sizes
    first_out, out_step   where the results of windows lie in the output
    """

    firsts: numpy.ndarray
    step: tuple[int, ...]
    offsets: numpy.ndarray
    taps: tuple[int, ...]
    counts: tuple[int, ...]
    reach: tuple[int, ...]
    part: tuple[int, ...]
    parts: numpy.ndarray
    first_out: tuple[int, ...]
    out_step: tuple[int, ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """The sizes of the packed grid, samples first."""
        inner = [count + reach for count, reach in zip(self.part[1:], self.reach)]
        return (self.part[0], *inner)

    def packed_elements(self, channels: int) -> int:
        """Return how many elements a packed part has."""
        return channels * len(self.firsts) * prod(self.grid)

    def merged_dims(self, lanes: int, cost: int) -> int:
        """Return how many dims, from the last, make one run: the fewest vectors in all.

        cost   of a run, in vectors
        """
        return min((4, 3, 2, 1), key=lambda dims: self._vectors(dims, lanes, cost))

    def _vectors(self, dims, lanes, cost):
        strides = [prod(self.grid[dim + 1 :]) for dim in range(4)]
        inner = range(4 - dims, 4)
        length = 1 + sum((self.part[dim] - 1) * strides[dim] for dim in inner)
        return prod(self.part[: 4 - dims]) * (-(-length // lanes) + cost)


@functools.lru_cache(maxsize=256)
def windows_sweep(window: ConvolutionWindow, taps, sizes, channels, rows, *form) -> Sweep:
    """Return the sweep of a convolution over x [samples, channels, *sizes]; all of three dims.

    rows   channels of y; form: samples, and bytes of an element
    """
    reads = [
        [t * dilation - before for t in range(num_taps)]
        for num_taps, dilation, before in zip(taps, window.dilation, window.before)
    ]
    counts = window.counts(sizes, taps)
    numbers = tuple(range(prod(taps)))
    places = ((0, 0, 0), (1, 1, 1))
    reads = list(product(*reads))
    return _sweep(reads, window.stride, numbers, counts, places, channels, rows, *form)


@functools.lru_cache(maxsize=256)
def input_sweeps(window: ConvolutionWindow, taps, sizes, channels, rows, *form) -> tuple:
    """Return the sweeps over the gradient of y that make the gradient of x [.., *sizes].

    One for each phase of x, whose elements meet the same taps; those without elements are left out.
    channels, rows   of y, and of x; form: samples, and bytes of an element
    """
    found = []
    for phase in product(*map(range, window.stride)):
        fields = (phase, sizes, window.stride, window.dilation, window.before, taps)
        firsts, counts, met = zip(*[_phase_of_input(*numbers) for numbers in zip(*fields)])
        if min(counts) > 0:
            reads = list(product(*[[read for _, read in one] for one in met]))
            strides = _strides(taps)
            numbers = product(*[[tap for tap, _ in one] for one in met])
            numbers = tuple([sum(map(_times, strides, tap)) for tap in numbers])
            places = (firsts, window.stride)
            step = (1, 1, 1)
            found.append(_sweep(reads, step, numbers, counts, places, channels, rows, *form))
    return tuple(found)


def _phase_of_input(a, size, stride, dilation, before, num_taps):
    """Return what phase a of the padded x is, in one dimension.

    That is its first element of x, how many it has, and [(tap, which element of y it meets first)].
    """
    start = -((a - before) // stride)  # the first position q stride + a - before >= 0
    first = start * stride + a - before
    count = max(0, -((first - size) // stride))
    met = [t for t in range(num_taps) if (a - t * dilation) % stride == 0]
    return first, count, [(t, start + (a - t * dilation) // stride) for t in met]


def _sweep(reads, step, taps, counts, places, channels, rows, samples, item_bytes) -> Sweep:
    """Return the sweep whose window 0 reads these positions of the source [K', 3]."""
    firsts, phase_of, shifts = _phases(reads, step)
    reach = _reach(shifts)
    grid = [count + more for count, more in zip(counts, reach)]
    if (prod(grid) / prod(counts) - 1) * rows * counts[2] > APART:
        firsts, phase_of, shifts = reads, range(len(reads)), [(0, 0, 0)] * len(reads)
        reach = _reach(shifts)
    part = _part(counts, reach, channels * len(firsts), samples, item_bytes)
    grid = [count + more for count, more in zip(part[1:], reach)]
    strides, plane = _strides(grid), part[0] * prod(grid)
    by_tap = [n * plane + sum(map(_times, strides, shift)) for n, shift in zip(phase_of, shifts)]
    starts = numpy.arange(channels, dtype=numpy.int64)[:, None] * (plane * len(firsts))
    offsets = (starts + numpy.array(by_tap, numpy.int64)).reshape(-1)
    firsts = numpy.array(firsts, numpy.int64).reshape(-1, 3)
    parts = numpy.array(list(_cut((samples, *counts), part)), numpy.int64)
    return Sweep(firsts, step, offsets, taps, counts, reach, part, parts, *places)


def _phases(reads, step):
    """Return where each phase starts, and for each tap its phase and how far it lies from there.

    Taps are of one phase if they differ by whole steps.
    """
    rests = [tuple([at % s for at, s in zip(read, step)]) for read in reads]
    names = sorted(set(rests))
    firsts = [
        tuple([min(axis) for axis in zip(*[r for r, rest in zip(reads, rests) if rest == name])])
        for name in names
    ]
    phase_of = [names.index(rest) for rest in rests]
    shifts = [
        tuple([(at - low) // s for at, low, s in zip(read, firsts[phase], step)])
        for read, phase in zip(reads, phase_of)
    ]
    return firsts, phase_of, shifts


def _reach(shifts):
    """Return the longest way of a tap from the start of its phase, in each dimension."""
    return tuple([max([shift[dim] for shift in shifts], default=0) for dim in range(3)])


def _part(counts, reach, planes, samples, item_bytes):
    """Return how many samples, or windows of the first long dimension of one, are packed."""
    room = max(FEWEST, PACKED_BYTES // (item_bytes * max(planes, 1)))
    sizes = [count + more for count, more in zip(counts, reach)]
    if prod(sizes) <= room:
        return (max(1, min(samples, room // prod(sizes))), *counts)
    cut = next((dim for dim in range(3) if counts[dim] > 1), 0)
    others = prod(sizes) // sizes[cut]
    part = list(counts)
    part[cut] = max(1, min(counts[cut], room // others - reach[cut]))
    return (1, *part)


def _cut(sizes, part):
    """Yield the start and the sizes of each part of a grid."""
    for start in product(*[range(0, size, most) for size, most in zip(sizes, part)]):
        yield (*start, *[min(most, size - at) for at, size, most in zip(start, sizes, part)])


def _strides(sizes):
    """Return the strides, in elements, of a C-contiguous array."""
    return [prod(sizes[dim + 1 :]) for dim in range(len(sizes))]


def _times(a, b):
    return a * b
