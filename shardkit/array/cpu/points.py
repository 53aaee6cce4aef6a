"""The loops of Winograd's convolutions: tiles of x by their values at six points in each dimension.

    x --B--> 36 matrices tiles x C  --times 36 of C x O-->  36 matrices tiles x O --A--> y
                                    G of the weight

A tile of r x r results reads 6 x 6 of x, with taps of 7 - r. It is the product of two polynomials
in each dimension, found by its values at six points (Lavin and Gray, arXiv 1509.09308). The points
0, 5/8, -5/8, 3/2, -3/2 and infinity keep the error in float32 within twice that of adding up all
products: with 0, 1, -1, 2, -2 it is four times (Barabasz and others, arXiv 1803.10986, on how
points matter).

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
from .tiles import Lanes, copy_row, index, pointers

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
        taps[number] = point ** numpy.arange(num_taps) / numpy.prod(point - numpy.array(others))
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
    """Return what transforms the tiles of a block by a matrix [6, lines that a tile has], and says
    how many tiles there are.
    """
    combine, overlap = _combining(matrix), matrix.shape[1] - num_results

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
                for k in range(0, kept, num_results):  # lines that a tile shares with the one above
                    size = min(num_results, kept - k) * line
                    copy_row(size, flat, (k + num_results) * line, 1, flat, k * line, 1)
                row = i * num_results - before[0] + kept
                channels_last(x, n, row, num_lines - kept, -before[1], lines, kept)
                combine(line, flat, 0, line, across, 0, line)
                for j in range(num_tiles):
                    at = j * num_results * channels
                    to = t * channels
                    for _ in range(POINTS):
                        combine(channels, across, at, channels, out, to, step)
                        at += line
                        to += POINTS * step
                    t += 1
        return t

    return inlined(_named(transform, name))


def _transforming_results(matrix, name):
    """Return what sets a block of y to the results of the products; made as `given`."""
    combine, num_results = _combining(matrix), len(matrix)

    def transform(block, num_tiles, made, bias, y):
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
                channels_first(lines, bias, y, n, i * num_results, 0)

    return inlined(_named(transform, name))


def _convolving(transform_inputs, transform_results, name):
    """Return the loop that sets y.

    weight [36, C, O]; given, made: memory, for what is read and for what is made
    """

    def convolve(x, weight, bias, blocks, before, num_tiles, given, made, y):
        _, tiles, rows = given[2].shape
        _, depth, across = weight.shape
        values = given[2].reshape(-1)
        right = weight.reshape(-1)
        out = made[2].reshape(-1)
        for block in blocks:
            count = transform_inputs(x, block, before, num_tiles, given)
            for k in range(POINTS * POINTS):
                left = k * tiles * rows, rows, 1
                at = k * depth * across, across
                to = k * tiles * across, across
                multiply((count, depth, across), values, left, right, at, out, to, True)
            transform_results(block, num_tiles, made, bias, y)

    return compiled(_named(convolve, name))


def _weighing(transform_inputs, transform_gradients, name):
    """Return the loop that adds to weight [36, C, O] the sums over tiles of x by the gradient."""

    def weigh(x, gradient, blocks, before, num_tiles, given, made, chain, weight):
        _, tiles, rows = given[2].shape
        _, depth, across = chain.shape
        values = given[2].reshape(-1)
        right = made[2].reshape(-1)
        out = chain.reshape(-1)
        whole = weight.reshape(-1)
        length = 0
        for b in range(blocks.shape[0]):
            count = transform_inputs(x, blocks[b], before, num_tiles, given)
            transform_gradients(gradient, blocks[b], (0, 0), num_tiles, made)
            is_new = length == 0
            for k in range(POINTS * POINTS):
                left = k * tiles * rows, 1, rows
                at = k * tiles * across, across
                to = k * depth * across, across
                multiply((depth, count, across), values, left, right, at, out, to, is_new)
            length = added_up(length + count, b + 1 == blocks.shape[0], out, whole)

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
