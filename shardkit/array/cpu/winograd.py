"""Convolution with 3 x 3 taps by Winograd's products: 36 numbers per 16 results instead of 144.

    x --B--> 36 matrices tiles x C  --times 36 of C x O-->  36 matrices tiles x O --A--> y
                                    G of the weight

A tile of 4 x 4 results reads 6 x 6 of x. It is the product of two polynomials in each dimension,
found by its values at six points (Lavin and Gray, arXiv 1509.09308). The points 0, 5/8, -5/8, 3/2,
-3/2 and infinity keep the error in float32 within twice that of adding up 9 C products: with 0, 1,
-1, 2, -2 it is four times (Barabasz and others, arXiv 1803.10986, on how points matter).

The channels of a position lie beside each other, so that all three transforms are the same on each
vector of channels. The gradients are the transposed transforms. Each sum over channels, and over
the tiles of a block, is one chain of fused multiply-adds: the bits of a sample do not depend on the
others.
"""

from dataclasses import dataclass
from math import prod

import numpy

from .. import fresh
from ..arena import empty
from ..dtypes import FLOAT32
from .arrays import plain
from .channels import added_up, chains, channels_first, channels_last, wide
from .compiled import compiled, inlined
from .notation import cgutils, intrinsic, types
from .panels import multiply
from .tiles import Lanes, copy_row, index, pointers

TAPS = 3
RESULTS = 4
POINTS = 6
FEWEST, STEP = 16, 32  # channels; they cost as much as the next multiple of a step
SAMPLES, GAIN = 8, 1.3  # the batch that the choice is made for; by how much it has to be quicker
BLOCK_BYTES = 1 << 20  # of the 36 matrices of a block, so that they stay in cache
MOST_BYTES = 1 << 24  # of a row of tiles, the least that is transformed at once
LEAST_TILES = 64  # of a block, which reads the weight once
_FINITE = (0.0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)


def _transforms():
    """Return B [6, 6], of 6 inputs; G [6, 3], of 3 taps; A [6, 4], of which A^T makes results."""
    inputs, taps, results = (numpy.zeros((POINTS, n)) for n in (POINTS, TAPS, RESULTS))
    for number, point in enumerate(_FINITE):
        others = [each for each in _FINITE if each != point]
        inputs[number, : POINTS - 1] = numpy.poly(others)[::-1]
        taps[number] = [
            point**power / numpy.prod(point - numpy.array(others)) for power in range(TAPS)
        ]
        results[number] = [point**power for power in range(RESULTS)]
    inputs[-1] = numpy.poly(_FINITE)[::-1]
    taps[-1, -1] = results[-1, -1] = 1
    return inputs, taps, results


_OF_INPUTS, _OF_TAPS, _OF_RESULTS = _transforms()


def _combining(matrix):
    """Return what multiplies vectors by a matrix [rows, columns] of constants."""
    num_rows, num_columns = matrix.shape

    @intrinsic
    def combine(typing_context, count, source, at_source, step, out, at_out, out_step):
        """Set out[r step + i] = sum over k of matrix[r, k] source[k step + i], i < count.

        The count is one of whole vectors.
        """
        n = types.intp
        signature = types.void(n, source, n, n, out, n, n)

        def generate(context, builder, signature, arguments):
            lanes = Lanes(context, builder, source.dtype)
            count, x, at_x, x_step, y, at_y, y_step = pointers(
                context, builder, signature, arguments
            )
            x, y = builder.gep(x, [at_x]), builder.gep(y, [at_y])
            vectors = builder.udiv(count, index(lanes.count))
            with cgutils.for_range(builder, vectors) as loop:
                at = builder.mul(loop.index, index(lanes.count))
                read = [
                    lanes.load(x, builder.add(at, builder.mul(x_step, index(k))))
                    for k in range(num_columns)
                ]
                for r in range(num_rows):
                    total = lanes.weighted(
                        [(w, vector) for w, vector in zip(matrix[r], read) if w != 0]
                    )
                    lanes.store(total, y, builder.add(at, builder.mul(y_step, index(r))))
            return context.get_dummy_value()

        return signature, generate

    return combine


_combine_inputs = _combining(_OF_INPUTS)
_combine_gradients = _combining(_OF_RESULTS)
_combine_results = _combining(_OF_RESULTS.T)
_combine_taps = _combining(_OF_TAPS)
_combine_weights = _combining(_OF_TAPS.T)


# ---- blocks of tiles -----------------------------------------------------------------------------


def _transforming(combine, overlap, name):
    """Return what transforms the tiles of a block by these vectors, and says how many they are.

    overlap   lines that a tile shares with the one below
    """

    def transform(x, block, before, num_tiles, given):
        # given: memory for lines, for transforms down their columns, and for both [36, tiles, .]
        lines, columns, values = given
        num_lines, length, channels = lines.shape
        line = length * channels
        step = values.shape[1] * channels
        flat = lines.reshape(-1)
        across = columns.reshape(-1)
        out = values.reshape(-1)
        first, last, top, bottom = block
        t = 0
        for n in range(first, last):
            for i in range(top, bottom):
                kept = overlap if i > top else 0
                copy_row(kept * line, flat, RESULTS * line, 1, flat, 0, 1)
                row = i * RESULTS - before[0] + kept
                channels_last(x, n, row, num_lines - kept, -before[1], lines, kept)
                combine(line, flat, 0, line, across, 0, line)
                for j in range(num_tiles):
                    at = j * RESULTS * channels
                    to = t * channels
                    for _ in range(POINTS):
                        combine(channels, across, at, channels, out, to, step)
                        at += line
                        to += POINTS * step
                    t += 1
        return t

    transform.__name__ = transform.__qualname__ = name
    return inlined(transform)


_transform_inputs = _transforming(_combine_inputs, POINTS - RESULTS, "transform_inputs")
_transform_gradients = _transforming(_combine_gradients, 0, "transform_gradients")


@inlined
def _transform_results(block, num_tiles, made, bias, y):
    """Set a block of y to the results of the products; made as `given`."""
    lines, columns, products = made
    channels = lines.shape[2]
    line = lines.shape[1] * channels
    step = products.shape[1] * channels
    flat = lines.reshape(-1)
    across = columns.reshape(-1)
    source = products.reshape(-1)
    first, last, top, bottom = block
    t = 0
    for n in range(first, last):
        for i in range(top, bottom):
            for j in range(num_tiles):
                at = t * channels
                to = j * RESULTS * channels
                for _ in range(POINTS):
                    _combine_results(channels, source, at, step, across, to, channels)
                    at += POINTS * step
                    to += line
                t += 1
            _combine_results(line, across, 0, line, flat, 0, line)
            channels_first(lines, bias, y, n, i * RESULTS, 0)


@compiled
def _convolve_by_points(x, weight, bias, blocks, before, num_tiles, given, made, y):
    """Set y; weight [36, C, O]; given, made: memory, for what is read and for what is made."""
    _, tiles, rows = given[2].shape
    _, depth, across = weight.shape
    values = given[2].reshape(-1)
    right = weight.reshape(-1)
    out = made[2].reshape(-1)
    for block in blocks:
        count = _transform_inputs(x, block, before, num_tiles, given)
        for k in range(POINTS * POINTS):
            left = k * tiles * rows, rows, 1
            at = k * depth * across, across
            to = k * tiles * across, across
            multiply((count, depth, across), values, left, right, at, out, to, True)
        _transform_results(block, num_tiles, made, bias, y)


@compiled
def _weigh_by_points(x, gradient, blocks, before, num_tiles, given, made, chain, weight):
    """Add to weight [36, C, O] the sums over tiles of x by the gradient, both transformed."""
    _, tiles, rows = given[2].shape
    _, depth, across = chain.shape
    values = given[2].reshape(-1)
    right = made[2].reshape(-1)
    out = chain.reshape(-1)
    whole = weight.reshape(-1)
    length = 0
    for b in range(blocks.shape[0]):
        count = _transform_inputs(x, blocks[b], before, num_tiles, given)
        _transform_gradients(gradient, blocks[b], (0, 0), num_tiles, made)
        is_new = length == 0
        for k in range(POINTS * POINTS):
            left = k * tiles * rows, 1, rows
            at = k * tiles * across, across
            to = k * depth * across, across
            multiply((depth, count, across), values, left, right, at, out, to, is_new)
        length = added_up(length + count, b + 1 == blocks.shape[0], out, whole)


@compiled
def _transform_taps(weight, depth_step, step, is_turned, num_out, taps, columns, values):
    """Set values [36, depth, outs] to the transforms of a flat weight.

    depth_step, step   from a channel that is read, and made, to the next
    is_turned          the taps are taken from the last on
    """
    _, depth, across = values.shape
    out = values.reshape(-1)
    row = TAPS * across
    for d in range(depth):
        for o in range(num_out):
            at = d * depth_step + o * step
            for t in range(TAPS * TAPS):
                from_last = TAPS * TAPS - 1 - t
                taps[t * across + o] = weight[at + (from_last if is_turned else t)]
        _combine_taps(row, taps, 0, row, columns, 0, row)
        to = d * across
        for r in range(POINTS):
            _combine_taps(across, columns, r * row, across, out, to, depth * across)
            to += POINTS * depth * across


@compiled
def _transform_weight(values, taps, columns, weight):
    """Set weight [O, C, 9] to what values [36, C, outs] are the gradient of."""
    _, depth, across = values.shape
    source = values.reshape(-1)
    row = TAPS * across
    for c in range(depth):
        at = c * across
        for r in range(POINTS):
            _combine_weights(across, source, at, depth * across, columns, r * row, across)
            at += POINTS * depth * across
        _combine_weights(row, columns, 0, row, taps, 0, row)
        for o in range(weight.shape[0]):
            for t in range(TAPS * TAPS):
                weight[o, c, t] = taps[t * across + o]


# ---- what convolution.py calls -------------------------------------------------------------------


def is_quicker(window, weight, counts, dtype) -> bool:
    """Return whether this is quicker than the ways after it, for these shapes of weight and y.

    The costs of a tile are in nanoseconds on Zen 4; float64 is left to sums of all products.
    """
    num_out, channels, *taps = weight
    is_plane = counts[0] == 1 and not window.before[0] and not window.after[0]
    is_fit = dtype == FLOAT32 and window.groups == 1 and taps == [1, TAPS, TAPS] and is_plane
    if not is_fit or max(*window.stride, *window.dilation) > 1 or min(num_out, channels) < FEWEST:
        return False
    row_bytes = POINTS**2 * (channels + num_out) * dtype.itemsize * _tiles(counts[2:])[0]
    if row_bytes > MOST_BYTES:
        return False
    wide_in, wide_out = [-(-number // STEP) * STEP for number in (channels, num_out)]
    num_tiles = prod(_tiles(counts[1:]))
    mine = 0.85 * channels * wide_out + 12 * (wide_in + wide_out)
    mine += 14 * channels * wide_out / (SAMPLES * num_tiles)
    return 0.24 * channels * num_out * prod(counts) / num_tiles > GAIN * mine


def convolve(x, weight, bias, window, y):
    """Set y [N, O, 1, *counts] to the convolution of x [N, C, 1, H, W], weight [O, C, 1, 3, 3]."""
    _run(x, _taps_of(weight, 1, 0), bias, window.before[1:], y)


def convolve_input(gradient, weight, bias, window, x):
    """Set x [N, C, 1, H, W] to its gradient for that of y."""
    before = [TAPS - 1 - each for each in window.before[1:]]
    _run(gradient, _taps_of(weight, 0, 1), bias, before, x)


def convolve_weight(gradient, x, window, weight):
    """Set weight [O, C, 1, 3, 3] to its gradient."""
    blocks = _Tiling.of(x, gradient)
    given = blocks.memory(x.shape[1], x.dtype, POINTS)
    made = blocks.memory(gradient.shape[1], x.dtype, RESULTS)
    shape = POINTS**2, x.shape[1], made[2].shape[2]
    chain, sums = chains(shape, x, prod(blocks.tiles))
    before = numpy.array(window.before[1:], numpy.int64)
    about = blocks.table, before, blocks.tiles[1], given, made
    _weigh_by_points(_flat(x), _flat(gradient), *about, chain, sums)
    sums = sums if sums.size else chain
    found = empty((*weight.shape[:2], TAPS * TAPS), x.dtype)
    _transform_weight(sums, *_lines_of_taps(sums), found)
    weight[...] = found.reshape(weight.shape)


def _run(x, taps, bias, before, y):
    blocks = _Tiling.of(x, y)
    given = blocks.memory(x.shape[1], x.dtype, POINTS)
    made = blocks.memory(y.shape[1], x.dtype, RESULTS)
    bias = numpy.empty(0, x.dtype) if bias is None else plain(bias)
    before = numpy.array(before, numpy.int64)
    about = bias, blocks.table, before, blocks.tiles[1], given, made
    _convolve_by_points(_flat(x), taps, *about, _flat(y))


def _flat(x):
    """Return x [N, C, 1, H, W] as [N, C, H, W]."""
    return plain(x).reshape(*x.shape[:2], *x.shape[3:])


def _taps_of(weight, depth_dim, dim):
    """Return the transforms [36, depth, outs] of a weight [., ., 1, 3, 3], zeros after the outs.

    depth_dim, dim   of the channels that are read, and of those that are made
    """
    weight = plain(weight)
    num_out = weight.shape[dim]
    shape = POINTS**2, weight.shape[depth_dim], wide(num_out, weight.dtype)
    values = empty(shape, weight.dtype)
    steps = [weight.strides[each] // weight.itemsize for each in (depth_dim, dim)]
    lines = _lines_of_taps(values)
    _transform_taps(weight.reshape(-1), *steps, dim == 1, num_out, *lines, values)
    return values


def _lines_of_taps(values):
    """Return memory for the taps of one channel, and for transforms down their columns."""
    length = TAPS * values.shape[2]
    return [fresh.zeros(n * length, values.dtype) for n in (TAPS, POINTS)]


def _tiles(counts):
    return [-(-count // RESULTS) for count in counts]


@dataclass(frozen=True)
class _Tiling:
    """Tiles that are transformed and multiplied together.

    tiles   rows and columns of them in a sample
    table   [blocks, 4] of samples and of rows of tiles, each the first and the one after the last
    most    tiles of a block
    """

    tiles: list[int]
    table: numpy.ndarray
    most: int

    @classmethod
    def of(cls, x, y) -> "_Tiling":
        """Return the blocks for the results y [N, O, 1, *counts] of x."""
        tiles = _tiles(y.shape[3:])
        channels = x.shape[1] + y.shape[1]
        room = max(LEAST_TILES, BLOCK_BYTES // (POINTS**2 * channels * x.itemsize))
        of_sample = tiles[0] * tiles[1]
        samples = min(max(1, room // of_sample), x.shape[0])
        rows = min(max(1, room // tiles[1]), tiles[0])
        found = [
            (n, min(n + samples, x.shape[0]), i, min(i + rows, tiles[0]))
            for n in range(0, x.shape[0], samples)
            for i in range(0, tiles[0], rows)
        ]
        return cls(tiles, numpy.array(found, numpy.int64), samples * rows * tiles[1])

    def memory(self, channels, dtype, num_lines):
        """Return memory for lines, for transforms down their columns, and for both."""
        channels = wide(channels, dtype)
        width = self.tiles[1] * RESULTS + num_lines - RESULTS
        lines = fresh.zeros((num_lines, width, channels), dtype)
        columns = empty((POINTS, width, channels), dtype)
        return lines, columns, empty((POINTS**2, self.most, channels), dtype)
