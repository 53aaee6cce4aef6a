"""Rows of a grid with the channels of each position beside each other, for compiled loops.

    x [N, C, H, W]  <->  lines [rows, columns, channels]

Vectors of channels need no care for strides, windows and ends of rows. There may be more channels
than those of x: products want whole vectors.
"""

import numpy

from .. import fresh
from ..arena import empty
from .arrays import plain
from .notation import inlined, intrinsic, ir, types
from .panels import NARROW_VECTORS
from .tiles import VECTOR_BYTES, Lanes, call_once_written, clear_row, index, pointers, smaller

CHAIN = 512  # numbers that are added one after the other


def wide(channels: int, dtype) -> int:
    """Return how many channels are laid down: whole vectors, so many that products take them."""
    step = NARROW_VECTORS * VECTOR_BYTES // dtype.itemsize
    return -(-channels // step) * step


def in_rows(x):
    """Return x [N, C, D, H, W] as [N, C, rows, W]."""
    return x.reshape(*x.shape[:2], -1, x.shape[4])


def no_bias_or(bias, x):
    """Return the bias for channels_first, of the dtype of x: of no elements if there is none."""
    return numpy.empty(0, x.dtype) if bias is None else plain(bias)


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
def turn(num_in, num_out, source, at, step, out, to, out_step):
    """Set out[k, i] = source[i, k] for i < num_in, k < num_out; both arrays are flat."""
    lanes = VECTOR_BYTES // source.itemsize
    for i in range(0, num_in, lanes):
        for k in range(0, num_out, lanes):
            rows = min(lanes, num_in - i)
            columns = min(lanes, num_out - k)
            begin = at + i * step + k
            place = to + k * out_step + i
            is_read_within = begin + (rows - 1) * step + lanes <= source.size
            if is_read_within and place + (columns - 1) * out_step + lanes <= out.size:
                turn_square(rows, columns, source, begin, step, out, place, out_step)
            else:
                for j in range(columns):
                    for r in range(rows):
                        out[place + j * out_step + r] = source[begin + r * step + j]


@inlined
def channels_last(x, n, row, num_rows, column, lines, first):
    """Lay rows of sample n of x [N, C, H, W] down as lines[first:] [rows, columns, channels].

    row, column   of x, where that begins; there are zeros where x has no elements
    """
    _, num_channels, height, width = x.shape
    _, length, channels = lines.shape
    source = x.reshape(-1)
    out = lines.reshape(-1)
    plane = height * width
    for i in range(num_rows):
        h = row + i
        to = (first + i) * length * channels
        low = max(0, -column)
        if h < 0 or h >= height:
            low = length
        high = max(low, min(length, width - column))
        clear_row(low * channels, out, to)
        clear_row((length - high) * channels, out, to + high * channels)
        at = n * num_channels * plane + h * width + column + low
        turn(num_channels, high - low, source, at, plane, out, to + low * channels, channels)


@inlined
def channels_first(lines, bias, y, n, row, column):
    """Lay lines [rows, columns, channels] down as rows of sample n of y [N, O, H, W], plus bias.

    column   of the lines, where y begins; what is beyond y is left out
    bias     [O], added to the lines; or of no elements
    """
    _, num_channels, height, width = y.shape
    num_rows, length, channels = lines.shape
    source = lines.reshape(-1)
    out = y.reshape(-1)
    plane = height * width
    for i in range(min(num_rows, height - row)):
        for w in range(column, column + width):
            for o in range(bias.size):
                lines[i, w, o] += bias[o]
        at = (i * length + column) * channels
        to = n * num_channels * plane + (row + i) * width
        turn(width, num_channels, source, at, channels, out, to, plane)
