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
from .tiles import VECTOR_BYTES, Lanes, copy_row, index, pointers

TAPS = 3
RESULTS = 4
POINTS = 6
OVERLAP = POINTS - RESULTS
FEWEST, STEP = 16, 32  # channels; they cost as much as the next multiple of a step
SAMPLES, GAIN = 8, 1.3  # the batch that the choice is made for; by how much it has to be quicker
BLOCK_BYTES = 1 << 20  # of the 36 matrices of a block, so that they stay in cache
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
        """Set out[r step + i] = sum over k of matrix[r, k] source[k step + i] for count vectors."""
        n = types.intp
        signature = types.void(n, source, n, n, out, n, n)

        def generate(context, builder, signature, arguments):
            lanes = Lanes(context, builder, source.dtype)
            count, x, at_x, x_step, y, at_y, y_step = pointers(
                context, builder, signature, arguments
            )
            x, y = builder.gep(x, [at_x]), builder.gep(y, [at_y])
            with cgutils.for_range(builder, count) as loop:
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


@inlined
def _transform_inputs(x, block, before, num_tiles, lines, columns, values):
    """Set values [36, tiles, channels] to the transforms of the tiles of a block."""
    channels, lanes = lines.shape[2], VECTOR_BYTES // x.itemsize
    line = lines.shape[1] * channels
    flat = lines.reshape(-1)
    across = columns.reshape(-1)
    to = values.reshape(-1)
    step = values.shape[1] * channels
    t = 0
    for n in range(block[0], block[1]):
        for i in range(block[2], block[3]):
            kept = OVERLAP if i > block[2] else 0
            copy_row(kept * line, flat, RESULTS * line, 1, flat, 0, 1)
            row = i * RESULTS - before[0]
            channels_last(x, n, 0, row + kept, POINTS - kept, -before[1], lines, kept)
            _combine_inputs(line // lanes, flat, 0, line, across, 0, line)
            for j in range(num_tiles):
                for r in range(POINTS):
                    read = r * line + j * RESULTS * channels
                    at = r * POINTS * step + t * channels
                    _combine_inputs(channels // lanes, across, read, channels, to, at, step)
                t += 1
    return t


@inlined
def _transform_gradients(gradient, block, num_tiles, lines, columns, values):
    """Set values [36, tiles, channels] to the transforms of the gradients of a block's results."""
    channels, lanes = lines.shape[2], VECTOR_BYTES // gradient.itemsize
    line = lines.shape[1] * channels
    flat = lines.reshape(-1)
    across = columns.reshape(-1)
    to = values.reshape(-1)
    step = values.shape[1] * channels
    t = 0
    for n in range(block[0], block[1]):
        for i in range(block[2], block[3]):
            channels_last(gradient, n, 0, i * RESULTS, RESULTS, 0, lines, 0)
            _combine_gradients(line // lanes, flat, 0, line, across, 0, line)
            for j in range(num_tiles):
                for r in range(POINTS):
                    read = r * line + j * RESULTS * channels
                    at = r * POINTS * step + t * channels
                    _combine_gradients(channels // lanes, across, read, channels, to, at, step)
                t += 1


@inlined
def _transform_results(products, block, num_tiles, columns, lines, bias, y):
    """Set a block of y to the results of the products [36, tiles, channels]."""
    channels, lanes = lines.shape[2], VECTOR_BYTES // y.itemsize
    line = lines.shape[1] * channels
    flat = lines.reshape(-1)
    across = columns.reshape(-1)
    given = products.reshape(-1)
    step = products.shape[1] * channels
    t = 0
    for n in range(block[0], block[1]):
        for i in range(block[2], block[3]):
            for j in range(num_tiles):
                for r in range(POINTS):
                    at = r * line + j * RESULTS * channels
                    read = r * POINTS * step + t * channels
                    _combine_results(channels // lanes, given, read, step, across, at, channels)
                t += 1
            _combine_results(line // lanes, across, 0, line, flat, 0, line)
            channels_first(lines, bias, y, n, 0, i * RESULTS, 0)


@compiled
def _convolve_by_points(x, weight, bias, blocks, before, num_tiles, given, made, y):
    """Convolve; weight [36, C, O]; given, made: memory, for what is read and for what is made."""
    lines, columns, values = given
    result_lines, result_columns, products = made
    rows, at = values.shape[2], products.shape[2]
    flat = values.reshape(-1)
    right = weight.reshape(-1)
    out = products.reshape(-1)
    for b in range(blocks.shape[0]):
        block = blocks[b]
        count = _transform_inputs(x, block, before, num_tiles, lines, columns, values)
        for k in range(POINTS * POINTS):
            sizes = (count, weight.shape[1], at)
            left = (k * values.shape[1] * rows, rows, 1)
            into = (k * products.shape[1] * at, at)
            multiply(sizes, flat, left, right, (k * weight.shape[1] * at, at), out, into, True)
        _transform_results(products, block, num_tiles, result_columns, result_lines, bias, y)


@compiled
def _weigh_by_points(x, gradient, blocks, before, num_tiles, given, made, chain, weight):
    """Add to weight [36, C, O] the sums over tiles of x by the gradient, both transformed."""
    lines, columns, values = given
    gradient_lines, gradient_columns, gradients = made
    rows, at = values.shape[2], gradients.shape[2]
    flat = values.reshape(-1)
    right = gradients.reshape(-1)
    out = chain.reshape(-1)
    whole = weight.reshape(-1)
    length = 0
    for b in range(blocks.shape[0]):
        block = blocks[b]
        count = _transform_inputs(x, block, before, num_tiles, lines, columns, values)
        _transform_gradients(
            gradient, block, num_tiles, gradient_lines, gradient_columns, gradients
        )
        for k in range(POINTS * POINTS):
            sizes = (chain.shape[1], count, at)
            left = (k * values.shape[1] * rows, 1, rows)
            start = k * gradients.shape[1] * at
            into = (k * chain.shape[1] * at, at)
            multiply(sizes, flat, left, right, (start, at), out, into, length == 0)
        length = added_up(length + count, b + 1 == blocks.shape[0], out, whole)


@compiled
def _transform_taps(weight, depth_step, step, is_turned, num_out, taps, columns, values):
    """Set values [36, depth, outs] to the transforms of a flat weight.

    depth_step, step   from a channel that is read, and made, to the next
    is_turned          the taps are taken from the last on
    """
    lanes, wide = VECTOR_BYTES // weight.itemsize, values.shape[2]
    to = values.reshape(-1)
    for d in range(values.shape[1]):
        for o in range(num_out):
            at = d * depth_step + o * step
            for t in range(TAPS * TAPS):
                taps[t * wide + o] = weight[at + (TAPS * TAPS - 1 - t if is_turned else t)]
        _combine_taps(TAPS * wide // lanes, taps, 0, TAPS * wide, columns, 0, TAPS * wide)
        for r in range(POINTS):
            place = (r * POINTS * values.shape[1] + d) * wide
            read = r * TAPS * wide
            _combine_taps(wide // lanes, columns, read, wide, to, place, values.shape[1] * wide)


@compiled
def _transform_weight(values, taps, columns, weight):
    """Set weight [O, C, 9] to what values [36, C, outs] are the gradient of."""
    lanes, wide = VECTOR_BYTES // weight.itemsize, values.shape[2]
    given = values.reshape(-1)
    for c in range(values.shape[1]):
        for r in range(POINTS):
            read = (r * POINTS * values.shape[1] + c) * wide
            at = r * TAPS * wide
            _combine_weights(wide // lanes, given, read, values.shape[1] * wide, columns, at, wide)
        _combine_weights(TAPS * wide // lanes, columns, 0, TAPS * wide, taps, 0, TAPS * wide)
        for o in range(weight.shape[0]):
            for t in range(TAPS * TAPS):
                weight[o, c, t] = taps[t * wide + o]


# ---- what convolution.py calls -------------------------------------------------------------------


def is_quicker(window, weight, counts, dtype) -> bool:
    """Return whether this is quicker than the ways after it, for these shapes of weight and y.

    The costs of a tile are in nanoseconds on Zen 4; float64 is left to sums of all products.
    """
    num_out, channels, *taps = weight
    is_fit = dtype == FLOAT32 and window.groups == 1 and taps == [1, TAPS, TAPS]
    if not is_fit or max(*window.stride, *window.dilation) > 1 or min(num_out, channels) < FEWEST:
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
    tiles = _tiles(gradient.shape[3:])
    blocks, most = _blocks(x.shape[0], tiles, sum(weight.shape[:2]), x.itemsize)
    given = _memory(tiles, most, x.shape[1], x.dtype, POINTS)
    made = _memory(tiles, most, gradient.shape[1], x.dtype, RESULTS)
    chain, sums = chains((POINTS**2, x.shape[1], made[2].shape[2]), x, prod(tiles))
    before = numpy.array(window.before[1:], numpy.int64)
    about = blocks, before, tiles[1], given, made
    _weigh_by_points(plain(x), plain(gradient), *about, chain, sums)
    sums = sums if sums.size else chain
    found = empty((*weight.shape[:2], TAPS * TAPS), x.dtype)
    _transform_weight(sums, *_lines_of_taps(sums), found)
    weight[...] = found.reshape(weight.shape)


def _run(x, taps, bias, before, y):
    tiles = _tiles(y.shape[3:])
    blocks, most = _blocks(x.shape[0], tiles, x.shape[1] + y.shape[1], x.itemsize)
    given = _memory(tiles, most, x.shape[1], x.dtype, POINTS)
    made = _memory(tiles, most, y.shape[1], x.dtype, RESULTS)
    bias = numpy.empty(0, x.dtype) if bias is None else plain(bias)
    before = numpy.array(before, numpy.int64)
    _convolve_by_points(plain(x), taps, bias, blocks, before, tiles[1], given, made, y)


def _taps_of(weight, depth_dim, dim):
    """Return the transforms [36, depth, outs] of a weight [., ., 3, 3], with zeros after the outs.

    depth_dim, dim   of the channels that are read, and of those that are made
    """
    weight = plain(weight)
    num_out = weight.shape[dim]
    shape = (POINTS**2, weight.shape[depth_dim], wide(num_out, weight.dtype))
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


def _blocks(samples, tiles, channels, item_bytes):
    """Return blocks [., 4] of samples and rows of tiles, and the most tiles of one."""
    room = max(LEAST_TILES, BLOCK_BYTES // (POINTS**2 * channels * item_bytes))
    of_sample = tiles[0] * tiles[1]
    num_samples = max(1, room // of_sample)
    num_rows = tiles[0] if of_sample <= room else max(1, room // tiles[1])
    found = [
        (n, min(n + num_samples, samples), i, min(i + num_rows, tiles[0]))
        for n in range(0, samples, num_samples)
        for i in range(0, tiles[0], num_rows)
    ]
    most = min(num_samples, samples) * min(num_rows, tiles[0]) * tiles[1]
    return numpy.array(found, numpy.int64), most


def _memory(tiles, most, channels, dtype, num_lines):
    """Return memory for lines, for transforms down a column, and for both [36, tiles, channels]."""
    channels = wide(channels, dtype)
    width = tiles[1] * RESULTS + num_lines - RESULTS
    lines = fresh.zeros((num_lines, width, channels), dtype)
    return lines, empty((POINTS, width, channels), dtype), empty((POINTS**2, most, channels), dtype)
