"""Convolution by products of tiles over a packed part of the input; all grids have three dims.

    x --pack--> a part in cache --tiles--> channels x windows --unpack--> y
                                ^
                                weights, read where they lie

No matrix of windows is made: sweep.py says where a tap finds what it reads. The gradient of x is
the same loop over the gradient of y. For the gradient of the weight, tiles add up products of x
with the gradient of y, packed in the same way, part after part and in one order.
"""

from typing import Any, NamedTuple

import numpy

from .. import fresh
from ..arena import empty
from .arrays import plain
from .compiled import compiled, inlined
from .sweep import RUN_COST, SUM_COST, input_sweeps, windows_sweep
from .tiles import ROWS, VECTOR_BYTES, VECTORS, clear_row, copy_row, tile_of_dots, tile_product

SINGLE_VECTORS = 8  # of a tile with one row, for groups of one channel
BLOCK_ELEMENTS = 1 << 14  # of results before they are unpacked
SUM_BLOCK = 2048  # windows whose products are added up at once


class PartForm(NamedTuple):
    """What the loops have to know of parts of x: see Sweep, and merged_dims there."""

    num_channels: int
    firsts: Any
    step: tuple
    grid: tuple
    reach: tuple
    parts: Any
    merged: int


class WeightRows(NamedTuple):
    """The rows of a group of weights: how many, their stride, where a row has channels and taps."""

    num_rows: int
    stride: int
    places: Any


class WindowTarget(NamedTuple):
    """A flat y, its shape, where window 0 lies in it, and from one to the next."""

    y: Any
    shape: tuple
    first: tuple
    step: tuple


def is_quicker(window, weight, counts, dtype) -> bool:
    """Return True: this convolves whatever the others leave."""
    return True


def convolve(x, weight, bias, window, y):
    """Set y [N, O, *counts] to the convolution of x with weight [O, C/groups, *taps]."""
    rows = weight.shape[0] // window.groups
    sweep = windows_sweep(*_form(window, weight, x, weight.shape[1], rows))
    weight = _by_group(plain(weight), window)
    _sweep_over(plain(x), sweep, weight, _in_order(weight, 1, 2, sweep), bias, y)


def convolve_input(gradient, weight, bias, window, x):
    """Set x [N, C, *sizes] to its gradient for that of y."""
    form = _form(window, weight, x, weight.shape[0] // window.groups, weight.shape[1])
    weight = _by_group(plain(weight), window)
    for sweep in input_sweeps(*form):
        places = _in_order(weight, 2, 1, sweep)
        _sweep_over(plain(gradient), sweep, weight, places, bias, x)


def convolve_weight(gradient, x, window, weight):
    """Set weight [O, C/groups, *taps] to its gradient."""
    x, gradient = plain(x), plain(gradient)
    groups = window.groups
    num_rows, channels = gradient.shape[1] // groups, x.shape[1] // groups
    sweep = windows_sweep(*_form(window, weight, x, channels, num_rows))
    height, width, loop = (ROWS, VECTORS, _weigh) if num_rows > 1 else (1, SINGLE_VECTORS, _weigh_1)
    num_columns = sweep.offsets.size
    sums = fresh.zeros((groups, _up(num_rows, height), _up(num_columns, width)), x.dtype)
    offsets = numpy.zeros(sums.shape[2], numpy.int64)
    offsets[:num_columns] = sweep.offsets
    left = fresh.zeros((sums.shape[1], SUM_BLOCK), x.dtype)
    source, form = _packing(sweep, channels, x.dtype, SUM_COST)
    loop(x, gradient.reshape(-1), gradient.shape, num_rows, offsets, form, source, left, sums)
    weight[...] = sums[:, :num_rows, :num_columns].reshape(weight.shape)


def _form(window, weight, x, channels, rows):
    """Return what the sweeps over a grid depend on."""
    return window, weight.shape[2:], x.shape[2:], channels, rows, x.shape[0], x.itemsize


def _by_group(weight, window):
    """Return the weight as [groups, O/groups, C/groups, taps]."""
    groups = window.groups
    return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)


def _in_order(weight, row_dim, channel_dim, sweep):
    """Return the rows of a group of weights.

    row_dim, channel_dim   of the weight [groups, ., ., taps]
    """
    strides = [stride // weight.itemsize for stride in weight.strides]
    channels = numpy.arange(weight.shape[channel_dim], dtype=numpy.int64)[:, None]
    taps = numpy.array(sweep.taps, numpy.int64)
    offsets = (channels * strides[channel_dim] + taps).reshape(-1)
    return WeightRows(weight.shape[row_dim], strides[row_dim], offsets)


def _packing(sweep, channels, dtype, cost):
    """Return memory for a packed part, and what the loops have to know of parts."""
    lanes = VECTOR_BYTES // dtype.itemsize
    source = fresh.zeros(sweep.packed_elements(channels) + lanes, dtype)
    merged = sweep.merged_dims(lanes, cost)
    grids = sweep.step, sweep.grid, sweep.reach
    return source, PartForm(channels, sweep.firsts, *grids, sweep.parts, merged)


def _sweep_over(x, sweep, weight, rows, bias, y):
    """Set what a sweep reaches of y to the bias and the products of the weight with x."""
    height, vectors, loop = (
        (ROWS, VECTORS, _convolve) if rows.num_rows > 1 else (1, SINGLE_VECTORS, _convolve_1)
    )
    width = vectors * VECTOR_BYTES // x.itemsize
    count = _up(rows.num_rows, height)
    results = empty((count, max(1, BLOCK_ELEMENTS // (count * width)) * width), x.dtype)
    source, form = _packing(sweep, x.shape[1] // weight.shape[0], x.dtype, RUN_COST)
    bias = fresh.zeros(y.shape[1], x.dtype) if bias is None else plain(bias)
    target = WindowTarget(y.reshape(-1), y.shape, sweep.first_out, sweep.out_step)
    loop(x, weight, rows, bias, sweep.offsets, form, source, results, target)


def _up(number, step):
    """Return the multiple of step from this number on."""
    return -(-number // step) * step


# ---- packing -------------------------------------------------------------------------------------


@inlined
def _pack(x, group, form, part, source):
    """Lay a part of x [N, C, D, H, W] down on a grid, with zeros where x has no elements.

    part   where it starts in samples and windows, and how many: [8]
    """
    num_channels, firsts, step, grid, reach, _, _ = form
    flat = x.reshape(-1)
    plane = grid[0] * grid[1] * grid[2] * grid[3]
    size = part[7] + reach[2]
    for c in range(num_channels):
        for f in range(firsts.shape[0]):
            first = firsts[f, 2] + part[3] * step[2]
            low = min(size, max(0, -(first // step[2])))
            high = max(low, min(size, (x.shape[4] - 1 - first) // step[2] + 1))
            for n in range(part[4]):
                for i in range(part[5] + reach[0]):
                    d = firsts[f, 0] + (part[1] + i) * step[0]
                    for j in range(part[6] + reach[1]):
                        h = firsts[f, 1] + (part[2] + j) * step[1]
                        at = (c * firsts.shape[0] + f) * plane
                        at += ((n * grid[1] + i) * grid[2] + j) * grid[3]
                        if 0 <= d < x.shape[2] and 0 <= h < x.shape[3]:
                            row = (part[0] + n) * x.shape[1] + group * num_channels + c
                            of_plane = row * x.shape[2] + d
                            row = (of_plane * x.shape[3] + h) * x.shape[4]
                            begin = row + first + low * step[2]
                            clear_row(low, source, at)
                            copy_row(high - low, flat, begin, step[2], source, at + low, 1)
                            clear_row(size - high, source, at + high)
                        else:
                            clear_row(size, source, at)


@inlined
def _row_of(number, begin, stop, part, grid):
    """Return which windows of row `number` of the grid lie in [begin, stop), and where.

    n, i, j, the first of them in the row, and how many; 0 if nobody asked for that row
    """
    j = number % grid[2]
    i = number // grid[2] % grid[1]
    n = number // (grid[2] * grid[1])
    low = max(begin, number * grid[3])
    high = min(stop, number * grid[3] + part[7])
    count = high - low if j < part[6] and i < part[5] else 0
    return n, i, j, low - number * grid[3], count


@inlined
def _unpack(results, begin, stop, group, num_rows, part, grid, target):
    """Lay the windows [begin, stop) that were asked for down in the target.

    results   [rows, windows] from `begin` on
    """
    y, shape, first, step = target
    flat = results.reshape(-1)
    for number in range(begin // grid[3], (stop - 1) // grid[3] + 1):
        n, i, j, k, count = _row_of(number, begin, stop, part, grid)
        d = first[0] + (part[1] + i) * step[0]
        h = first[1] + (part[2] + j) * step[1]
        w = first[2] + (part[3] + k) * step[2]
        at = number * grid[3] + k - begin
        for o in range(num_rows if count > 0 else 0):
            row = (part[0] + n) * shape[1] + group * num_rows + o
            of_plane = row * shape[2] + d
            to = (of_plane * shape[3] + h) * shape[4] + w
            copy_row(count, flat, o * results.shape[1] + at, 1, y, to, step[2])


@inlined
def _pack_results(y, shape, begin, stop, group, num_rows, part, grid, left):
    """Lay windows [begin, stop) of y, taken as flat, down in left [rows, windows].

    Between them and after them are zeros.
    """
    flat = left.reshape(-1)
    for o in range(num_rows):
        clear_row(left.shape[1], flat, o * left.shape[1])
    for number in range(begin // grid[3], (stop - 1) // grid[3] + 1):
        n, i, j, k, count = _row_of(number, begin, stop, part, grid)
        at = number * grid[3] + k - begin
        for o in range(num_rows if count > 0 else 0):
            row = (part[0] + n) * shape[1] + group * num_rows + o
            of_plane = row * shape[2] + part[1] + i
            line = of_plane * shape[3] + part[2] + j
            begin_row = line * shape[4] + part[3] + k
            copy_row(count, y, begin_row, 1, flat, o * left.shape[1] + at, 1)


# ---- runs of windows -----------------------------------------------------------------------------


@inlined
def _runs(part, form):
    """Return how many runs a part has in each of the outer dimensions, and their length."""
    grid, merged = form.grid, form.merged
    length = part[7]
    if merged > 1:
        length += (part[6] - 1) * grid[3]
    if merged > 2:
        length += (part[5] - 1) * grid[2] * grid[3]
    if merged > 3:
        length += (part[4] - 1) * grid[1] * grid[2] * grid[3]
    num_samples = part[4] if merged < 4 else 1
    num_planes = part[5] if merged < 3 else 1
    num_rows = part[6] if merged < 2 else 1
    return num_samples, num_planes, num_rows, length


@inlined
def _start_of(number, num_planes, num_rows, grid):
    """Return where run `number` of a part starts."""
    j = number % num_rows
    i = number // num_rows % num_planes
    n = number // (num_rows * num_planes)
    return ((n * grid[1] + i) * grid[2] + j) * grid[3]


def _convolving(rows, vectors, name):
    """Return the loop of a sweep, with tiles of so many rows and vectors."""
    wide_tile, narrow_tile = tile_product(rows, vectors), tile_product(rows, 1)

    def multiply(begin, stop, weight, rows_of, bias, offsets, source, out):
        lanes = VECTOR_BYTES // source.itemsize
        block = out.shape[1]
        p = begin
        while p < stop:
            is_wide = stop - p > (vectors - 1) * lanes
            for o in range(0, rows_of.num_rows, rows):
                to = o * block + p - begin
                left = (weight, o, rows_of.num_rows - 1, rows_of.stride, rows_of.places, bias)
                read = (source, p, offsets, offsets.size)
                if is_wide:
                    wide_tile(*left, *read, out, to, block)
                else:
                    narrow_tile(*left, *read, out, to, block)
            p += vectors * lanes if is_wide else lanes

    # code that another process has compiled is linked by names, and each width has its own code
    multiply.__name__ = multiply.__qualname__ = f"{name}_multiply"
    multiply = inlined(multiply)

    def loop(x, weight, rows_of, bias, offsets, form, source, results, target):
        for g in range(weight.shape[0]):
            level = bias[g * rows_of.num_rows : (g + 1) * rows_of.num_rows]
            for part in form.parts:
                _pack(x, g, form, part, source)
                num_samples, num_planes, num_lines, length = _runs(part, form)
                for number in range(num_samples * num_planes * num_lines):
                    start = _start_of(number, num_planes, num_lines, form.grid)
                    for begin in range(start, start + length, results.shape[1]):
                        stop = min(begin + results.shape[1], start + length)
                        multiply(begin, stop, weight[g], rows_of, level, offsets, source, results)
                        _unpack(results, begin, stop, g, rows_of.num_rows, part, form.grid, target)

    return _named(loop, name)


def _weighing(rows, columns, name):
    """Return the loop of a weight's gradient, with tiles of so many rows and columns."""
    add_dots = tile_of_dots(rows, columns)

    def loop(x, y, shape, num_rows, offsets, form, source, left, sums):
        lanes = VECTOR_BYTES // x.itemsize
        block = left.shape[1]
        for g in range(sums.shape[0]):
            for part in form.parts:
                _pack(x, g, form, part, source)
                num_samples, num_planes, num_lines, length = _runs(part, form)
                for number in range(num_samples * num_planes * num_lines):
                    start = _start_of(number, num_planes, num_lines, form.grid)
                    for begin in range(start, start + length, block):
                        stop = min(begin + block, start + length)
                        _pack_results(y, shape, begin, stop, g, num_rows, part, form.grid, left)
                        num_vectors = (stop - begin + lanes - 1) // lanes
                        for k in range(0, sums.shape[2], columns):
                            for o in range(0, sums.shape[1], rows):
                                given = (num_vectors, left, o * block, block, source, begin)
                                to = o * sums.shape[2] + k
                                add_dots(*given, offsets, k, sums[g], to, sums.shape[2])

    return _named(loop, name)


def _named(loop, name):
    """Return the loop compiled, under a name of its own: one file holds one loop."""
    loop.__name__ = loop.__qualname__ = name
    return compiled(loop)


_convolve = _convolving(ROWS, VECTORS, "convolve_tiles")
_convolve_1 = _convolving(1, SINGLE_VECTORS, "convolve_rows")
_weigh = _weighing(ROWS, VECTORS, "weigh_tiles")
_weigh_1 = _weighing(1, SINGLE_VECTORS, "weigh_rows")
