"""Convolution as one product: what the windows read, a row for each, times the weight.

    x --channels beside each other--> a sample, with its zeros
                                          |  copy what each window reads, taps x channels
                                          v
    y <--channels apart-- windows x O = windows x K times K x O         K = taps x channels

    gradient of the weight    K x O      = (windows x K)^T times windows x O
    gradient of x             windows x K = windows x O times O x K, added up where they were read

A few rows of windows at a time, so that what is copied stays in cache. Tables say where a row of
windows begins and where its taps read, so that one loop serves all strides, dilations and dims.
Each number is one chain of fused multiply-adds, in one order: the bits of a sample do not depend on
the others.
"""

from dataclasses import dataclass
from math import prod

import numpy

from .. import fresh
from ..arena import empty
from .arrays import plain
from .channels import added_up, chains, channels_first, channels_last, in_rows, no_bias_or, wide
from .compiled import compiled, inlined
from .panels import multiply
from .tiles import clear_row, copy_row

BLOCK_BYTES = 1 << 19  # of what the windows of a block read
FEWEST = 64  # windows of 8 samples
APART, TOGETHER = 1 << 13, 30_000  # products of a window with strides, and without


@inlined
def _lay_down(x, n, rows, margin, sample):
    """Set a sample [rows, columns, C] to those rows of sample n of x [N, C, rows, W]."""
    for i in range(rows.size):
        channels_last(x, n, rows[i], 1, -margin, sample, i)


@inlined
def _take_up(sample, rows, margin, bias, x, n):
    """Set sample n of x to what lies there in a sample, plus bias."""
    for i in range(rows.size):
        if rows[i] >= 0:
            channels_first(sample[i : i + 1], bias, x, n, rows[i], margin)


@inlined
def _read(sample, start, taps, steps, columns):
    """Set columns [windows, K] to what a row of windows reads of a flat sample from `start` on."""
    out = columns.reshape(-1)
    step, run = steps
    to = 0
    for w in range(columns.shape[0]):
        at = start + w * step
        for tap in taps:
            copy_row(run, sample, at + tap, 1, out, to, 1)
            to += run


@inlined
def _add(columns, start, taps, steps, sample):
    """Add columns [windows, K] to a flat sample where a row of windows read it."""
    step, run = steps
    for w in range(columns.shape[0]):
        at = start + w * step
        for k in range(taps.size):
            target = sample[at + taps[k] : at + taps[k] + run]
            source = columns[w, k * run : k * run + run]
            for i in range(run):
                target[i] += source[i]


@inlined
def _read_block(x, begin, end, tables, margin, steps, sample, columns, windows):
    """Set columns to what these rows of windows read of x; return how many windows they are."""
    rows, starts, taps = tables
    whole = sample.reshape(-1)
    p = 0
    for number in range(begin, end):
        n, row = divmod(number, starts.size)
        if row == 0:
            _lay_down(x, n, rows, margin, sample)
        _read(whole, starts[row], taps, steps, columns[p : p + windows])
        p += windows
    return p


@inlined
def _results_block(y, begin, end, results):
    """Set results [windows, channels] to these rows of y; return how many windows they are."""
    _, _, num_rows, windows = y.shape
    p = 0
    for number in range(begin, end):
        n, row = divmod(number, num_rows)
        lines = results[p : p + windows].reshape(1, windows, results.shape[1])
        channels_last(y, n, row, 1, 0, lines, 0)
        p += windows
    return p


@compiled
def _convolve(x, weight, bias, tables, margin, steps, sample, columns, results, y):
    """Set y [N, O, rows, W]; weight [K, wide O]; columns, results: memory for rows of windows."""
    _, _, num_rows, windows = y.shape
    left = columns.reshape(-1)
    right = weight.reshape(-1)
    out = results.reshape(-1)
    depth = columns.shape[1]
    across = results.shape[1]
    last = y.shape[0] * num_rows
    block = columns.shape[0] // windows
    for begin in range(0, last, block):
        end = min(begin + block, last)
        p = _read_block(x, begin, end, tables, margin, steps, sample, columns, windows)
        multiply(
            (p, depth, across), left, (0, depth, 1), right, (0, across), out, (0, across), True
        )
        p = 0
        for number in range(begin, end):
            n, row = divmod(number, num_rows)
            lines = results[p : p + windows].reshape(1, windows, across)
            channels_first(lines, bias, y, n, row, 0)
            p += windows


@compiled
def _convolve_input(gradient, weight, bias, tables, margin, steps, sample, columns, results, x):
    """Set x [N, C, rows, W]; weight [O, wide K]; columns, results: memory for rows of windows."""
    rows, starts, taps = tables
    windows = gradient.shape[3]
    whole = sample.reshape(-1)
    left = results.reshape(-1)
    right = weight.reshape(-1)
    out = columns.reshape(-1)
    depth = results.shape[1]
    across = columns.shape[1]
    last = x.shape[0] * starts.size
    block = columns.shape[0] // windows
    for begin in range(0, last, block):
        end = min(begin + block, last)
        p = _results_block(gradient, begin, end, results)
        multiply(
            (p, depth, across), left, (0, depth, 1), right, (0, across), out, (0, across), True
        )
        p = 0
        for number in range(begin, end):
            n, row = divmod(number, starts.size)
            if row == 0:
                clear_row(whole.size, whole, 0)
            _add(columns[p : p + windows], starts[row], taps, steps, whole)
            if row == starts.size - 1:
                _take_up(sample, rows, margin, bias, x, n)
            p += windows


@compiled
def _convolve_weight(gradient, x, tables, margin, steps, sample, columns, results, chain, weight):
    """Add to weight [K, wide O]; columns, results: memory for rows of windows."""
    _, _, num_rows, windows = gradient.shape
    left = columns.reshape(-1)
    right = results.reshape(-1)
    out = chain.reshape(-1)
    sums = weight.reshape(-1)
    depth = columns.shape[1]
    across = results.shape[1]
    last = x.shape[0] * num_rows
    block = columns.shape[0] // windows
    length = 0
    for begin in range(0, last, block):
        end = min(begin + block, last)
        p = _read_block(x, begin, end, tables, margin, steps, sample, columns, windows)
        _results_block(gradient, begin, end, results)
        is_new = length == 0
        multiply(
            (depth, p, across), left, (0, 1, depth), right, (0, across), out, (0, across), is_new
        )
        length = added_up(length + p, end == last, out, sums)


# ---- what convolution.py calls; grids have three dims --------------------------------------------


def is_quicker(window, weight, counts, dtype) -> bool:
    """Return whether this is quicker than swept.py, for a weight of this shape and counts of y.

    Where windows do not overlap or lie apart, their sums share little; else only wide products pay
    for what is copied. Chosen on 40 forms on Zen 4.
    """
    num_out, channels, *taps = weight
    depth = channels * prod(taps)
    if window.groups > 1 or 8 * prod(counts) < FEWEST or min(num_out, depth) < 24:
        return False
    if counts[2] * depth * dtype.itemsize > BLOCK_BYTES:  # a row is the least that is copied
        return False
    if max(window.stride) > 1:
        is_wide = channels >= 16 and num_out * depth >= APART
        return is_wide or tuple(taps) == window.stride
    return min(num_out, channels) >= 40 and min(num_out, channels) * depth >= TOGETHER


def convolve(x, weight, bias, window, y):
    """Set y [N, O, *counts] to the convolution of x with weight [O, C, *taps]."""
    form = _Reading.of(window, weight, x, y)
    across = wide(y.shape[1], x.dtype)
    columns, results = form.memory(form.depth, across, x, y)
    num_out, channels, *taps = weight.shape
    right = fresh.zeros((*taps, channels, results.shape[1]), x.dtype)
    right[..., :num_out] = weight.transpose(2, 3, 4, 1, 0)
    right = right.reshape(form.depth, -1)
    given = form.given(x)
    x, y_rows = in_rows(plain(x)), in_rows(y)
    _convolve(x, right, no_bias_or(bias, y), *given, columns, results, y_rows)


def convolve_input(gradient, weight, bias, window, x):
    """Set x [N, C, *sizes] to its gradient for that of y."""
    form = _Reading.of(window, weight, x, gradient)
    depth = wide(form.depth, x.dtype)
    columns, results = form.memory(depth, gradient.shape[1], x, gradient)
    right = fresh.zeros((weight.shape[0], columns.shape[1]), x.dtype)
    channels_last = weight.transpose(0, 2, 3, 4, 1)
    right[:, : form.depth] = channels_last.reshape(weight.shape[0], -1)
    gradient = in_rows(plain(gradient))
    given = form.given(x)
    _convolve_input(gradient, right, no_bias_or(bias, x), *given, columns, results, in_rows(x))


def convolve_weight(gradient, x, window, weight):
    """Set weight [O, C, *taps] to its gradient."""
    form = _Reading.of(window, weight, x, gradient)
    across = wide(gradient.shape[1], x.dtype)
    columns, results = form.memory(form.depth, across, x, gradient)
    num_windows = prod(gradient.shape[2:])
    chain, sums = chains((form.depth, results.shape[1]), x, num_windows)
    both = in_rows(plain(gradient)), in_rows(plain(x))
    _convolve_weight(*both, *form.given(x), columns, results, chain, sums)
    sums = sums if sums.size else chain
    num_out, channels, *taps = weight.shape
    found = sums[:, :num_out].reshape(*taps, channels, -1)
    weight[...] = found.transpose(4, 3, 0, 1, 2)


@dataclass(frozen=True)
class _Reading:
    """What the loops have to know of a convolution.

    sizes    rows and columns of a sample with its zeros
    tables   of each row there, which of x it is, or -1; where each row of windows begins in a flat
             sample; where its runs of taps lie from there
    margin   zeros before each row
    steps    from window to window; elements of a run
    depth    K
    """

    sizes: tuple[int, int]
    tables: tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]
    margin: int
    steps: tuple[int, int]
    depth: int

    @classmethod
    def of(cls, window, weight, x, y) -> "_Reading":
        """Return the form of a convolution of x to y."""
        taps, sizes = weight.shape[2:], []
        for dim in range(3):
            reach = (y.shape[2 + dim] - 1) * window.stride[dim]
            reach += (taps[dim] - 1) * window.dilation[dim] + 1
            sizes.append(max(reach, window.before[dim] + x.shape[2 + dim]))
        channels = x.shape[1]
        step = numpy.array([sizes[1] * sizes[2], sizes[2], 1]) * channels
        is_run = window.dilation[2] == 1
        met = [*taps[:2], 1] if is_run else taps
        tables = (
            _rows(sizes, window.before, x.shape[2:]),
            _places(y.shape[2:4], step * window.stride),
            _places(met, step * window.dilation),
        )
        run = taps[2] * channels if is_run else channels
        steps = window.stride[2] * channels, run
        num_rows = sizes[0] * sizes[1]
        return cls((num_rows, sizes[2]), tables, window.before[2], steps, weight[0].size)

    def given(self, x):
        """Return what the loops are given, with memory for a sample of x."""
        sample = empty((*self.sizes, x.shape[1]), x.dtype)
        return self.tables, self.margin, self.steps, sample

    def memory(self, depth, across, x, y):
        """Return memory for rows of windows: [windows, depth] and [windows, across]."""
        windows = y.shape[4]
        room = BLOCK_BYTES // (self.depth * x.itemsize * windows)
        most_rows = y.shape[0] * y.shape[2] * y.shape[3]
        windows *= min(max(1, room), most_rows)
        columns = empty((windows, depth), x.dtype)
        return columns, fresh.zeros((windows, across), x.dtype)


def _rows(sizes, before, inside):
    """Return which row of x [depth x height] each row of a sample is, or -1."""
    depth = numpy.arange(sizes[0]) - before[0]
    height = numpy.arange(sizes[1]) - before[1]
    is_depth = (depth >= 0) & (depth < inside[0])
    is_height = (height >= 0) & (height < inside[1])
    rows = depth[:, None] * inside[1] + height
    return numpy.where(is_depth[:, None] & is_height, rows, -1).reshape(-1)


def _places(counts, steps):
    """Return the sums of multiples of the steps, below these counts."""
    places = numpy.zeros(1, numpy.int64)
    for count, step in zip(counts, steps):
        places = (places[:, None] + numpy.arange(count) * step).reshape(-1)
    return places
