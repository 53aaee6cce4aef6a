"""Convolution with square taps of 2 to 5 by Winograd's products, fewer than there are taps; in
three dimensions those of the last two, and as many planes as there are taps of the first.

    taps    results of a tile    products    instead of
    2 x 2   5 x 5                36          100
    3 x 3   4 x 4                36          144
    4 x 4   3 x 3                36          144
    5 x 5   2 x 2                36          100

points.py has the loops.
"""

from dataclasses import dataclass
from math import prod

import numpy

from .. import fresh
from ..arena import empty
from ..dtypes import FLOAT32
from .arrays import plain
from .channels import chains, in_rows, no_bias_or, wide
from .points import POINT_LOOPS, POINTS, PointLoops

FEWEST, STEP = 16, 32  # channels; they cost as much as the next multiple of a step
SAMPLES, GAIN = 8, 1.1  # the batch that the choice is made for; by how much it has to be quicker
BLOCK_BYTES = 1 << 20  # of the 36 matrices of a block, so that they stay in cache
MOST_BYTES = 1 << 24  # of a row of tiles, the least that is transformed at once
LEAST_TILES = 64  # of a block, which reads the weight once


def is_quicker(window, weight, counts, dtype) -> bool:
    """Return whether this is quicker than the ways after it, for these shapes of weight and y.

    The costs of a tile are in nanoseconds, fitted to 256 shapes on Zen 4, of which the quicker way
    is missed by 3% on average. float64 is left to sums of all products.
    """
    num_out, channels, *taps = weight
    if dtype != FLOAT32 or min(num_out, channels) < FEWEST or not _fits(window, taps):
        return False
    tiles = _tiles(counts[1:], POINT_LOOPS[taps[2]].results)
    depth = taps[0] * channels
    of_tile = POINTS**2 * (depth + num_out) * dtype.itemsize
    if of_tile * tiles[1] > MOST_BYTES:
        return False
    num_tiles = prod(tiles)
    wide_out = _up(num_out)
    mine = 0.85 * depth * wide_out + 8 * (_up(channels) + wide_out)
    mine += 10 * depth * wide_out / (SAMPLES * num_tiles * counts[0])
    windows = counts[1] * (counts[2] + taps[2] - 1) / num_tiles  # with those between rows
    return 0.0267 * channels * num_out * prod(taps) * windows > GAIN * mine


def _up(channels):
    return -(-channels // STEP) * STEP


def _fits(window, taps) -> bool:
    """Return whether these are square taps, next to each other, and all windows."""
    is_dense = max(window.groups, *window.stride, *window.dilation) == 1
    return is_dense and taps[1] == taps[2] and taps[2] in POINT_LOOPS


def convolve(x, weight, bias, window, y):
    """Set y [N, O, *counts] to the convolution of x [N, C, *sizes] with weight [O, C, t, k, k]."""
    loops = POINT_LOOPS[weight.shape[4]]
    _run(loops, x, _taps_of(loops, weight, 1, 0), bias, window.before, y)


def convolve_input(gradient, weight, bias, window, x):
    """Set x [N, C, *sizes] to its gradient for that of y."""
    loops = POINT_LOOPS[weight.shape[4]]
    taps = weight.shape[2:]
    before = [tap - 1 - each for tap, each in zip(taps, window.before)]
    _run(loops, gradient, _taps_of(loops, weight, 0, 1), bias, before, x)


def convolve_weight(gradient, x, window, weight):
    """Set weight [O, C, t, k, k] to its gradient."""
    loops = POINT_LOOPS[weight.shape[4]]
    num_taps = weight.shape[2]
    blocks = _Tiling.of(loops, x, gradient, num_taps)
    given = blocks.memory(x.shape[1], x.dtype, POINTS, num_taps)
    made = blocks.memory(gradient.shape[1], x.dtype, loops.results)
    across = made[2].shape[2]
    of_sample = gradient.shape[2] * prod(blocks.tiles)
    chain, sums = chains((num_taps * POINTS**2, x.shape[1], across), x, of_sample)
    about = blocks.about(window.before, x, gradient)
    both = in_rows(plain(x)), in_rows(plain(gradient))
    loops.weigh(*both, *about, given, made, chain, sums)
    sums = sums if sums.size else chain
    channels = weight.shape[:2]
    found = empty((num_taps, *channels, loops.taps**2), x.dtype)
    lines = _lines_of_taps(loops, sums)
    for values, of_plane in zip(_by_plane(sums), found):
        loops.transform_weight(values, *lines, of_plane)
    weight[...] = found.transpose(1, 2, 0, 3).reshape(weight.shape)


def _run(loops, x, taps, bias, before, y):
    num_taps = len(taps) // POINTS**2
    blocks = _Tiling.of(loops, x, y, num_taps)
    given = blocks.memory(x.shape[1], x.dtype, POINTS, num_taps)
    made = blocks.memory(y.shape[1], x.dtype, loops.results)
    table, *about = blocks.about(before, x, y)
    bias = no_bias_or(bias, x)
    x, y = in_rows(plain(x)), in_rows(y)
    loops.convolve(x, taps, bias, table, *about, given, made, y)


def _by_plane(values):
    """Return matrices [taps of planes x 36, ., .] of each of these taps."""
    return values.reshape(-1, POINTS**2, *values.shape[1:])


def _taps_of(loops, weight, depth_dim, dim):
    """Return the transforms [t x 36, depth, outs] of a weight [., ., t, k, k], then zeros.

    depth_dim, dim   of the channels that are read, and of those that are made
    """
    weight = plain(weight)
    num_out, num_taps = weight.shape[dim], weight.shape[2]
    across = wide(num_out, weight.dtype)
    shape = num_taps * POINTS**2, weight.shape[depth_dim], across
    values = empty(shape, weight.dtype)
    steps = [weight.strides[each] // weight.itemsize for each in (depth_dim, dim)]
    lines = _lines_of_taps(loops, values)
    is_turned = dim == 1
    for t, of_plane in enumerate(_by_plane(values)):
        first = (num_taps - 1 - t if is_turned else t) * loops.taps**2
        read = weight.reshape(-1)[first:], *steps, is_turned
        loops.transform_taps(*read, num_out, *lines, of_plane)
    return values


def _lines_of_taps(loops, values):
    """Return memory for the taps of one channel, and for transforms down their columns."""
    length = loops.taps * values.shape[2]
    return [fresh.zeros(n * length, values.dtype) for n in (loops.taps, POINTS)]


def _tiles(counts, num_results):
    return [-(-count // num_results) for count in counts[-2:]]


@dataclass(frozen=True)
class _Tiling:
    """Tiles that are transformed and multiplied together.

    loops   of their taps
    tiles   rows and columns of them in a sample
    table   [blocks, 4] of samples and of rows of tiles, each the first and the one after the last
    most    tiles of a block
    """

    loops: PointLoops
    tiles: list[int]
    table: numpy.ndarray
    most: int

    @classmethod
    def of(cls, loops, x, y, num_taps) -> "_Tiling":
        """Return the blocks for the results y [N, O, *counts] of x, with so many taps of planes."""
        tiles = _tiles(y.shape[3:], loops.results)
        channels = num_taps * x.shape[1] + y.shape[1]
        room = max(LEAST_TILES, BLOCK_BYTES // (POINTS**2 * channels * x.itemsize))
        of_sample = tiles[0] * tiles[1]
        samples = min(max(1, room // of_sample), x.shape[0])
        rows = min(max(1, room // tiles[1]), tiles[0])
        found = [
            (n, min(n + samples, x.shape[0]), i, min(i + rows, tiles[0]))
            for n in range(0, x.shape[0], samples)
            for i in range(0, tiles[0], rows)
        ]
        most = samples * rows * tiles[1]
        return cls(loops, tiles, numpy.array(found, numpy.int64), most)

    def about(self, before, x, y):
        """Return what the loops have to know: blocks, zeros before, planes, tiles of a row."""
        before = numpy.array(before, numpy.int64)
        planes = x.shape[2], y.shape[2]
        return self.table, before, planes, self.tiles[1]

    def memory(self, channels, dtype, num_lines, num_planes=1):
        """Return memory for lines, for transforms down their columns, and for both, of planes."""
        channels = wide(channels, dtype)
        width = self.tiles[1] * self.loops.results + num_lines - self.loops.results
        lines = fresh.zeros((num_lines, width, channels), dtype)
        columns = empty((POINTS, width, channels), dtype)
        return lines, columns, empty((num_planes * POINTS**2, self.most, channels), dtype)
