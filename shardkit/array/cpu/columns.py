"""Convolution as one product: what the windows read, a row for each, times the weight.

    x --channels beside each other--> a sample, with its zeros
                                          |  copy what each window reads, taps x channels
                                          v
    y <--channels apart-- windows x O = windows x K times K x O         K = taps x channels

    gradient of the weight    K x O      = (windows x K)^T times windows x O
    gradient of x             windows x K = windows x O times O x K, added up where they were read

A few rows of windows at a time, so that what is copied stays in cache. Each number is one chain of
fused multiply-adds, in one order: the bits of a sample do not depend on the others.
"""

from math import prod

import numpy

from .. import fresh
from ..arena import empty
from .arrays import plain
from .channels import added_up, chains, channels_first, channels_last, wide
from .compiled import compiled, inlined
from .panels import multiply
from .tiles import copy_row

BLOCK_BYTES = 1 << 19  # of what the windows of a block read
FEWEST = 64  # windows of 8 samples
APART, TOGETHER = 1 << 13, 30_000  # products of a window with strides, and without


@inlined
def _lay_down(x, n, before, sample):
    """Set a sample [D, H, W, C] to sample n of x, from so far before its beginning."""
    for d in range(sample.shape[0]):
        lines = sample[d]
        channels_last(x, n, d - before[0], -before[1], lines.shape[0], -before[2], lines, 0)


@inlined
def _take_up(sample, before, bias, x, n):
    """Set sample n of x to what lies there in a sample [D, H, W, C], plus bias."""
    for d in range(x.shape[2]):
        channels_first(sample[d + before[0]], bias, x, n, d, -before[1], before[2])


@inlined
def _place(row, counts):
    """Return the sample, depth and height of a row of windows."""
    of_sample = counts[0] * counts[1]
    return row // of_sample, row // counts[1] % counts[0], row % counts[1]


@inlined
def _window(row, w, counts, stride, dilation, a, b, sample):
    """Return where window w of a row of windows finds taps (a, b, 0) in a flat sample."""
    d = row // counts[1] % counts[0] * stride[0] + a * dilation[0]
    h = row % counts[1] * stride[1] + b * dilation[1]
    return ((d * sample.shape[1] + h) * sample.shape[2] + w * stride[2]) * sample.shape[3]


@inlined
def _read(sample, row, counts, taps, stride, dilation, columns, p):
    """Set columns[p:] [windows, K] to what the windows of a row read of a sample."""
    channels = sample.shape[3]
    flat = sample.reshape(-1)
    out = columns.reshape(-1)
    run = taps[2] if dilation[2] == 1 else 1
    for a in range(taps[0]):
        for b in range(taps[1]):
            for w in range(counts[2]):
                at = _window(row, w, counts, stride, dilation, a, b, sample)
                to = (p + w) * columns.shape[1] + (a * taps[1] + b) * taps[2] * channels
                for e in range(0, taps[2], run):
                    place = at + e * dilation[2] * channels
                    copy_row(run * channels, flat, place, 1, out, to + e * channels, 1)


@inlined
def _add(columns, p, row, counts, taps, stride, dilation, sample):
    """Add columns[p:] [windows, K] to a sample where the windows of a row read it."""
    channels = sample.shape[3]
    flat = sample.reshape(-1)
    given = columns.reshape(-1)
    run = taps[2] if dilation[2] == 1 else 1
    for a in range(taps[0]):
        for b in range(taps[1]):
            for w in range(counts[2]):
                at = _window(row, w, counts, stride, dilation, a, b, sample)
                read = (p + w) * columns.shape[1] + (a * taps[1] + b) * taps[2] * channels
                for e in range(0, taps[2], run):
                    place, start = at + e * dilation[2] * channels, read + e * channels
                    target = flat[place : place + run * channels]
                    source = given[start : start + run * channels]
                    for k in range(run * channels):
                        target[k] += source[k]


@compiled
def _convolve(x, weight, bias, form, num_rows, sample, columns, results, y):
    """Set y; weight [K, wide O]; columns, results: memory for num_rows rows of windows."""
    before, taps, stride, dilation = form
    counts = y.shape[2:]
    of_sample = counts[0] * counts[1]
    depth, across = columns.shape[1], results.shape[1]
    left = columns.reshape(-1)
    right = weight.reshape(-1)
    out = results.reshape(-1)
    for start in range(0, y.shape[0] * of_sample, num_rows):
        stop = min(start + num_rows, y.shape[0] * of_sample)
        for row in range(start, stop):
            if row % of_sample == 0:
                _lay_down(x, row // of_sample, before, sample)
            p = (row - start) * counts[2]
            _read(sample, row, counts, taps, stride, dilation, columns, p)
        sizes = ((stop - start) * counts[2], depth, across)
        multiply(sizes, left, (0, depth, 1), right, (0, across), out, (0, across), True)
        for row in range(start, stop):
            p = (row - start) * counts[2]
            lines = results[p : p + counts[2]].reshape(1, counts[2], across)
            n, d, h = _place(row, counts)
            channels_first(lines, bias, y, n, d, h, 0)


@compiled
def _convolve_input(gradient, weight, bias, form, num_rows, sample, columns, results, x):
    """Set x; weight [O, wide K]; columns, results: memory for num_rows rows of windows."""
    before, taps, stride, dilation = form
    counts = gradient.shape[2:]
    of_sample = counts[0] * counts[1]
    depth, across = results.shape[1], columns.shape[1]
    left = results.reshape(-1)
    right = weight.reshape(-1)
    out = columns.reshape(-1)
    whole = sample.reshape(-1)
    for start in range(0, x.shape[0] * of_sample, num_rows):
        stop = min(start + num_rows, x.shape[0] * of_sample)
        for row in range(start, stop):
            p = (row - start) * counts[2]
            lines = results[p : p + counts[2]].reshape(1, counts[2], depth)
            n, d, h = _place(row, counts)
            channels_last(gradient, n, d, h, 1, 0, lines, 0)
        sizes = ((stop - start) * counts[2], depth, across)
        multiply(sizes, left, (0, depth, 1), right, (0, across), out, (0, across), True)
        for row in range(start, stop):
            if row % of_sample == 0:
                for k in range(whole.size):
                    whole[k] = 0
            p = (row - start) * counts[2]
            _add(columns, p, row, counts, taps, stride, dilation, sample)
            if (row + 1) % of_sample == 0:
                _take_up(sample, before, bias, x, row // of_sample)


@compiled
def _convolve_weight(gradient, x, form, num_rows, sample, columns, results, chain, weight):
    """Add to weight [K, wide O]; columns, results: memory for num_rows rows of windows."""
    before, taps, stride, dilation = form
    counts = gradient.shape[2:]
    of_sample = counts[0] * counts[1]
    depth, across = columns.shape[1], results.shape[1]
    left = columns.reshape(-1)
    right = results.reshape(-1)
    out = chain.reshape(-1)
    whole, length = weight.reshape(-1), 0
    for start in range(0, x.shape[0] * of_sample, num_rows):
        stop = min(start + num_rows, x.shape[0] * of_sample)
        for row in range(start, stop):
            n, d, h = _place(row, counts)
            if row % of_sample == 0:
                _lay_down(x, n, before, sample)
            p = (row - start) * counts[2]
            _read(sample, row, counts, taps, stride, dilation, columns, p)
            lines = results[p : p + counts[2]].reshape(1, counts[2], across)
            channels_last(gradient, n, d, h, 1, 0, lines, 0)
        count = (stop - start) * counts[2]
        sizes, is_first = (depth, count, across), length == 0
        multiply(sizes, left, (0, 1, depth), right, (0, across), out, (0, across), is_first)
        length = added_up(length + count, stop == x.shape[0] * of_sample, out, whole)


# ---- what convolution.py calls; grids have three dims --------------------------------------------


def is_quicker(window, weight, counts, dtype) -> bool:
    """Return whether this is quicker than swept.py, for a weight of this shape and counts of y.

    Where windows do not overlap or lie apart, their sums share little; else only wide products pay
    for what is copied. Chosen on 20 forms on Zen 4, judged on others: benchmarks/convolutions.py.
    """
    num_out, channels, *taps = weight
    depth = channels * prod(taps)
    if window.groups > 1 or 8 * prod(counts) < FEWEST or min(num_out, depth) < 24:
        return False
    if max(window.stride) > 1:
        is_wide = channels >= 16 and num_out * depth >= APART
        return is_wide or tuple(taps) == window.stride
    return min(num_out, channels) >= 40 and min(num_out, channels) * depth >= TOGETHER


def convolve(x, weight, bias, window, y):
    """Set y [N, O, *counts] to the convolution of x with weight [O, C, *taps]."""
    memory = _memory(x, weight, window, y, y.shape[1])
    right = fresh.zeros((*weight.shape[2:], x.shape[1], memory[-1].shape[1]), x.dtype)
    right[..., : y.shape[1]] = weight.transpose(2, 3, 4, 1, 0)
    right = right.reshape(-1, right.shape[-1])
    _convolve(plain(x), right, _bias(bias, y), *memory, y)


def convolve_input(gradient, weight, bias, window, x):
    """Set x [N, C, *sizes] to its gradient for that of y."""
    form, num_rows, sample, columns, results = _memory(x, weight, window, gradient, 0)
    columns = empty((columns.shape[0], wide(columns.shape[1], x.dtype)), x.dtype)
    right = fresh.zeros((weight.shape[0], columns.shape[1]), x.dtype)
    right[:, : weight[0].size] = weight.transpose(0, 2, 3, 4, 1).reshape(weight.shape[0], -1)
    memory = form, num_rows, sample, columns, results
    _convolve_input(plain(gradient), right, _bias(bias, x), *memory, x)


def convolve_weight(gradient, x, window, weight):
    """Set weight [O, C, *taps] to its gradient."""
    memory = _memory(x, weight, window, gradient, gradient.shape[1])
    shape = memory[-2].shape[1], memory[-1].shape[1]
    chain, sums = chains(shape, x, prod(gradient.shape[2:]))
    _convolve_weight(plain(gradient), plain(x), *memory, chain, sums)
    sums = sums if sums.size else chain
    found = sums[:, : weight.shape[0]].reshape(*weight.shape[2:], weight.shape[1], -1)
    weight[...] = found.transpose(4, 3, 0, 1, 2)


def _bias(bias, y):
    return numpy.empty(0, y.dtype) if bias is None else plain(bias)


def _memory(x, weight, window, y, num_wide):
    """Return the form of a convolution of x to y, and memory: what the loops have to know.

    num_wide   outs that are laid down in whole vectors; 0: y's as they are
    """
    taps = weight.shape[2:]
    rules = window.before, taps, window.stride, window.dilation
    form = tuple([numpy.array(rule, numpy.int64) for rule in rules])
    before, _, stride, dilation = form
    sizes = (numpy.array(y.shape[2:]) - 1) * stride + (numpy.array(taps) - 1) * dilation + 1
    sizes = numpy.maximum(sizes, before + x.shape[2:])
    sample = empty((*sizes, x.shape[1]), x.dtype)
    depth, line = weight[0].size, y.shape[4]
    num_rows = max(1, BLOCK_BYTES // (depth * x.itemsize * line))
    num_rows = min(num_rows, y.shape[0] * y.shape[2] * y.shape[3])
    across = wide(num_wide, x.dtype) if num_wide else y.shape[1]
    columns = empty((num_rows * line, depth), x.dtype)
    return form, num_rows, sample, columns, fresh.zeros((num_rows * line, across), x.dtype)
