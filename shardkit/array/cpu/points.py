"""The loops of Winograd's convolutions: tiles of x by their values at six points in each dimension.

    x --B--> 36 matrices tiles x C  --times 36 of C x O-->  36 matrices tiles x O --A--> y
                                    G of the weight

A tile of r x r results reads 6 x 6 of x, with taps of 7 - r. It is the product of two polynomials
in each dimension, found by its values at six points (Lavin and Gray, arXiv 1509.09308). The points
0, 5/8, -5/8, 3/2, -3/2 and infinity keep the error in float32 within twice that of adding up all
products: with 0, 1, -1, 2, -2 it is four times (Barabasz and others, arXiv 1803.10986, on how
points matter). Of three dimensions the first is that of planes, each transformed once, and its taps
are more products that are added.

The channels of a position lie beside each other, so that all three transforms are the same on each
vector of channels. The gradients are the transposed transforms. Each sum over channels, and over
the tiles of a block, is one chain of fused multiply-adds: the bits of a sample do not depend on the
others.
"""

from dataclasses import dataclass
from typing import Any

import numpy

from .channels import added_up, channels_first, channels_last
from .compiled import compiled, inlined
from .notation import cgutils, intrinsic, types
from .panels import multiply
from .tiles import Lanes, clear_row, copy_row, index, pointers

POINTS = 6
_FINITE = (0.0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)


@dataclass(frozen=True)
class PointLoops:
    """The loops for taps of one size: of so many in each dimension a tile has so many results."""

    taps: int
    results: int
    convolve: Any
    weigh: Any
    transform_taps: Any
    transform_weight: Any


def _matrices(num_taps, num_results):
    """Return B [6, 6], of 6 inputs; G [6, taps]; A [6, results], of which A^T makes results."""
    inputs = numpy.zeros((POINTS, POINTS))
    taps = numpy.zeros((POINTS, num_taps))
    results = numpy.zeros((POINTS, num_results))
    for number, point in enumerate(_FINITE):
        others = [each for each in _FINITE if each != point]
        inputs[number, : POINTS - 1] = numpy.poly(others)[::-1]
        scale = numpy.prod(point - numpy.array(others))
        taps[number] = point ** numpy.arange(num_taps) / scale
        results[number] = point ** numpy.arange(num_results)
    inputs[-1] = numpy.poly(_FINITE)[::-1]
    taps[-1, -1] = results[-1, -1] = 1
    return inputs, taps, results


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


def _loops_for(num_taps):
    """Return the loops for taps of this size."""
    num_results = POINTS + 1 - num_taps
    of_inputs, of_taps, of_results = _matrices(num_taps, num_results)
    transform_inputs = _transforming(of_inputs, num_results, f"transform_inputs_{num_taps}")
    transform_gradients = _transforming(of_results, num_results, f"transform_gradients_{num_taps}")
    transform_results = _transforming_results(of_results.T, f"transform_results_{num_taps}")
    return PointLoops(
        num_taps,
        num_results,
        _convolving(transform_inputs, transform_results, f"convolve_by_points_{num_taps}"),
        _weighing(transform_inputs, transform_gradients, f"weigh_by_points_{num_taps}"),
        _transforming_taps(of_taps, f"transform_taps_{num_taps}"),
        _transforming_weight(of_taps.T, f"transform_weight_{num_taps}"),
    )


def _named(formula, name):
    """Return the formula with a name of its own, by which Numba links it and files are found."""
    formula.__name__ = formula.__qualname__ = name
    return formula


def _transforming(matrix, num_results, name):
    """Return what transforms the tiles of a plane by a matrix [6, lines that a tile has], and says
    how many tiles there are.
    """
    combine, overlap = _combining(matrix), matrix.shape[1] - num_results

    def transform(x, plane, height, block, before, num_tiles, given, slot):
        # given: memory for lines, for transforms down their columns, and for both, of some planes
        lines, columns, values = given  # values [slots 36, tiles, .]
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
                for k in range(0, kept, num_results):  # lines that a tile shares with the one above
                    size = min(num_results, kept - k) * line
                    copy_row(size, flat, (k + num_results) * line, 1, flat, k * line, 1)
                for k in range(kept, num_lines):
                    row = i * num_results - before[1] + k
                    row = plane * height + row if 0 <= row < height else -1
                    channels_last(x, n, row, 1, -before[2], lines, k)
                combine(line, flat, 0, line, across, 0, line)
                for j in range(num_tiles):
                    at = j * num_results * channels
                    to = slot * POINTS * POINTS * step + t * channels
                    for _ in range(POINTS):
                        combine(channels, across, at, channels, out, to, step)
                        at += line
                        to += POINTS * step
                    t += 1
        return t

    return inlined(_named(transform, name))


def _transforming_results(matrix, name):
    """Return what sets a plane of a block of y to the results of the products; made as `given`."""
    combine, num_results = _combining(matrix), len(matrix)

    def transform(block, num_tiles, made, bias, y, plane, height):
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
                    to = j * num_results * channels
                    for _ in range(POINTS):
                        combine(channels, source, at, step, across, to, channels)
                        at += POINTS * step
                        to += line
                    t += 1
                combine(line, across, 0, line, flat, 0, line)
                row = i * num_results
                given = lines[: min(num_results, height - row)]
                channels_first(given, bias, y, n, plane * height + row, 0)

    return inlined(_named(transform, name))


@inlined
def _new_planes(d, before, num_taps, num_planes):
    """Return the planes of x that plane d of y is the first to read: from, and up to."""
    stop = d - before + num_taps
    begin = stop - 1 if d > 0 else stop - num_taps
    return max(0, begin), min(stop, num_planes)


@inlined
def _taps_within(d, before, num_taps, num_planes):
    """Return which taps of planes read a plane of x for plane d of y: from, and up to."""
    first = d - before
    return max(0, -first), min(num_taps, num_planes - first)


def _convolving(transform_inputs, transform_results, name):
    """Return the loop that sets y [N, O, rows of planes, W]; weight [taps of planes x 36, C, O].

    planes        of x, and of y
    given, made   memory, for what is read and for what is made; the first for as many planes as
                  there are taps of them: each is transformed once
    """

    def convolve(x, weight, bias, blocks, before, planes, num_tiles, given, made, y):
        _, tiles, rows = given[2].shape
        num_matrices, depth, across = weight.shape
        values = given[2].reshape(-1)
        right = weight.reshape(-1)
        out = made[2].reshape(-1)
        num_taps = num_matrices // POINTS**2
        height = x.shape[2] // planes[0]
        height_out = y.shape[2] // planes[1]
        for block in blocks:
            count = 0
            for d in range(planes[1]):
                begin, stop = _new_planes(d, before[0], num_taps, planes[0])
                for p in range(begin, stop):
                    about = block, before, num_tiles, given, p % num_taps
                    count = transform_inputs(x, p, height, *about)
                low, high = _taps_within(d, before[0], num_taps, planes[0])
                if low >= high:
                    clear_row(out.size, out, 0)
                for k in range(POINTS * POINTS):
                    to = k * tiles * across, across
                    for t in range(low, high):
                        of_plane = (d - before[0] + t) % num_taps * POINTS * POINTS
                        left = (of_plane + k) * tiles * rows, rows, 1
                        at = (t * POINTS * POINTS + k) * depth * across, across
                        sizes = count, depth, across
                        multiply(sizes, values, left, right, at, out, to, t == low)
                transform_results(block, num_tiles, made, bias, y, d, height_out)

    return compiled(_named(convolve, name))


def _weighing(transform_inputs, transform_gradients, name):
    """Return the loop that adds to weight [taps of planes x 36, C, O] the sums over tiles of x by
    the gradient, all as for convolving.
    """

    def weigh(x, gradient, blocks, before, planes, num_tiles, given, made, chain, weight):
        _, tiles, rows = given[2].shape
        num_matrices, depth, across = chain.shape
        values = given[2].reshape(-1)
        right = made[2].reshape(-1)
        out = chain.reshape(-1)
        whole = weight.reshape(-1)
        num_taps = num_matrices // POINTS**2
        height = x.shape[2] // planes[0]
        height_out = gradient.shape[2] // planes[1]
        last_block = blocks.shape[0] - 1
        length = 0
        clear_row(out.size, out, 0)
        for b in range(blocks.shape[0]):
            for d in range(planes[1]):
                begin, stop = _new_planes(d, before[0], num_taps, planes[0])
                for p in range(begin, stop):
                    about = blocks[b], before, num_tiles, given, p % num_taps
                    transform_inputs(x, p, height, *about)
                about = blocks[b], (0, 0, 0), num_tiles, made, 0
                count = transform_gradients(gradient, d, height_out, *about)
                low, high = _taps_within(d, before[0], num_taps, planes[0])
                for t in range(low, high):
                    of_plane = (d - before[0] + t) % num_taps * POINTS * POINTS
                    for k in range(POINTS * POINTS):
                        left = (of_plane + k) * tiles * rows, 1, rows
                        at = k * tiles * across, across
                        to = (t * POINTS * POINTS + k) * depth * across, across
                        sizes = depth, count, across
                        multiply(sizes, values, left, right, at, out, to, False)
                is_last = b == last_block and d == planes[1] - 1
                length = added_up(length + count, is_last, out, whole)
                if length == 0:
                    clear_row(out.size, out, 0)

    return compiled(_named(weigh, name))


def _transforming_taps(matrix, name):
    """Return the loop that sets values [36, depth, outs] to the transforms of a flat weight.

    depth_step, step   from a channel that is read, and made, to the next
    is_turned          the taps are taken from the last on
    """
    combine, size = _combining(matrix), matrix.shape[1]

    def transform(weight, depth_step, step, is_turned, num_out, taps, columns, values):
        _, depth, across = values.shape
        out = values.reshape(-1)
        row = size * across
        for d in range(depth):
            for o in range(num_out):
                at = d * depth_step + o * step
                for t in range(size * size):
                    from_last = size * size - 1 - t
                    taps[t * across + o] = weight[at + (from_last if is_turned else t)]
            combine(row, taps, 0, row, columns, 0, row)
            to = d * across
            for r in range(POINTS):
                combine(across, columns, r * row, across, out, to, depth * across)
                to += POINTS * depth * across

    return compiled(_named(transform, name))


def _transforming_weight(matrix, name):
    """Return the loop that sets weight [O, C, taps] to what values [36, C, outs] are the gradient
    of.
    """
    combine, size = _combining(matrix), len(matrix)

    def transform(values, taps, columns, weight):
        _, depth, across = values.shape
        source = values.reshape(-1)
        row = size * across
        for c in range(depth):
            at = c * across
            for r in range(POINTS):
                combine(across, source, at, depth * across, columns, r * row, across)
                at += POINTS * depth * across
            combine(row, columns, 0, row, taps, 0, row)
            for o in range(weight.shape[0]):
                for t in range(size * size):
                    weight[o, c, t] = taps[t * across + o]

    return compiled(_named(transform, name))


POINT_LOOPS = {num_taps: _loops_for(num_taps) for num_taps in range(2, POINTS)}
