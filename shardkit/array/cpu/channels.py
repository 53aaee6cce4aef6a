"""Rows of a grid with the channels of each position beside each other, for compiled loops.

    x [N, C, D, H, W]  <->  lines [rows, columns, channels]

Vectors of channels need no care for strides, windows and ends of rows. There may be more channels
than those of x: products want whole vectors.
"""

import numpy

from .. import fresh
from ..arena import empty
from .notation import inlined, intrinsic, ir, types
from .panels import NARROW_VECTORS
from .tiles import VECTOR_BYTES, Lanes, call_once_written, clear_row, index, pointers, smaller

CHAIN = 512  # numbers that are added one after the other


def wide(channels: int, dtype) -> int:
    """Return how many channels are laid down: whole vectors, so many that products take them."""
    step = NARROW_VECTORS * VECTOR_BYTES // dtype.itemsize
    return -(-channels // step) * step


@intrinsic
def turn_square(typing_context, num_in, num_out, source, at_source, step, out, at_out, out_step):
    """Set out[k, i] = source[i, k] for i < num_in, k < num_out, both at most one vector.

    Whole vectors are read and written, what lies beyond num_in as it was.
    """
    n = types.intp
    signature = types.void(n, n, source, n, n, out, n, n)

    def generate(context, builder, signature, arguments):
        given = pointers(context, builder, signature, arguments)

        def write(inside, given):
            _write_square(Lanes(context, inside, source.dtype), *given)

        call_once_written(builder, f"turn_square_{source.dtype}", given, write)
        return context.get_dummy_value()

    return signature, generate


def _write_square(lanes, num_in, num_out, x, at_x, x_step, y, at_y, y_step):
    """Write the instructions of turn_square, whose arguments these are."""
    builder = lanes.builder
    last = builder.sub(num_in, index(1))
    rows = [smaller(builder, index(k), last) for k in range(lanes.count)]
    rows = [lanes.load(x, builder.add(at_x, builder.mul(x_step, row))) for row in rows]
    for k, row in enumerate(_turned(lanes, rows)):
        with builder.if_then(builder.icmp_signed("<", index(k), num_out)):
            at = builder.add(at_y, builder.mul(y_step, index(k)))
            lanes.store(builder.select(lanes.first(num_in), row, lanes.load(y, at)), y, at)


def _turned(lanes, rows):
    """Return the columns of a square of vectors: in each round, blocks change places crosswise."""
    distance = 1
    while distance < lanes.count:
        low, high = [
            ir.Constant(
                ir.VectorType(ir.IntType(32), lanes.count),
                [
                    k + (side if not k & distance else side + lanes.count - distance)
                    for k in range(lanes.count)
                ],
            )
            for side in (0, distance)
        ]
        changed = list(rows)
        for k in range(lanes.count):
            if not k & distance:
                pair = rows[k], rows[k + distance]
                changed[k] = lanes.builder.shuffle_vector(*pair, low)
                changed[k + distance] = lanes.builder.shuffle_vector(*pair, high)
        rows, distance = changed, 2 * distance
    return rows


def chains(shape, x, of_sample: int):
    """Return memory for sums over the samples of x in chains, and for the sums of the chains.

    The second has no elements where one chain is enough, for so many numbers of each sample.
    """
    is_one = x.shape[0] * of_sample <= CHAIN
    sums = numpy.empty(0, x.dtype) if is_one else fresh.zeros(shape, x.dtype)
    return empty(shape, x.dtype), sums.reshape(shape if sums.size else (0,) * len(shape))


@inlined
def added_up(length, is_last, chain, sums):
    """Add the chain to the sums if it is long, or the last; return how long it is now.

    A sum of float32 in one chain loses digits with its length.
    """
    if sums.size == 0 or (length < CHAIN and not is_last):
        return length
    for k in range(chain.size):
        sums[k] += chain[k]
    return 0


@inlined
def _turn(num_in, num_out, source, at, step, out, to, out_step):
    """Set out[k, i] = source[i, k] for i < num_in, k < num_out; both arrays are flat."""
    lanes = VECTOR_BYTES // source.itemsize
    for i in range(0, num_in, lanes):
        for k in range(0, num_out, lanes):
            rows, columns = min(lanes, num_in - i), min(lanes, num_out - k)
            begin, place = at + i * step + k, to + k * out_step + i
            ends = begin + (rows - 1) * step + lanes, place + (columns - 1) * out_step + lanes
            if ends[0] <= source.size and ends[1] <= out.size:
                turn_square(rows, columns, source, begin, step, out, place, out_step)
            else:
                for j in range(columns):
                    for r in range(rows):
                        out[place + j * out_step + r] = source[begin + r * step + j]


@inlined
def channels_last(x, n, depth, row, num_rows, column, lines, first):
    """Lay rows of sample n of x [N, C, D, H, W] down as lines[first:] [rows, columns, channels].

    depth, row, column   of x, where that begins; there are zeros where x has no elements
    """
    channels = lines.shape[2]
    flat = lines.reshape(-1)
    plane = x.shape[2] * x.shape[3] * x.shape[4]
    for i in range(first, first + num_rows):
        h, line = row + i - first, i * lines.shape[1] * channels
        is_inside = 0 <= h < x.shape[3] and 0 <= depth < x.shape[2]
        low = max(0, -column) if is_inside else lines.shape[1]
        high = max(low, min(lines.shape[1], x.shape[4] - column))
        clear_row(low * channels, flat, line)
        clear_row((lines.shape[1] - high) * channels, flat, line + high * channels)
        at = n * x.shape[1] * plane + (depth * x.shape[3] + h) * x.shape[4] + column + low
        to = line + low * channels
        _turn(x.shape[1], high - low, x.reshape(-1), at, plane, flat, to, channels)


@inlined
def channels_first(lines, bias, y, n, depth, row, column):
    """Lay lines [rows, columns, channels] down as rows of sample n of y [N, O, D, H, W], plus bias.

    column   of the lines, where y begins; what is beyond y is left out
    bias     [O], added to the lines; or of no elements
    """
    channels = lines.shape[2]
    flat = lines.reshape(-1)
    plane = y.shape[2] * y.shape[3] * y.shape[4]
    for i in range(max(0, -row), min(lines.shape[0], y.shape[3] - row)):
        for w in range(column, column + y.shape[4]):
            for o in range(bias.size):
                lines[i, w, o] += bias[o]
        at = (i * lines.shape[1] + column) * channels
        to = n * y.shape[1] * plane + (depth * y.shape[3] + row + i) * y.shape[4]
        _turn(y.shape[4], y.shape[1], flat, at, channels, y.reshape(-1), to, plane)
