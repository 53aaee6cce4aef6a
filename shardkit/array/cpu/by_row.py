"""Products of few rows with a matrix that is too large for the cache: it is read once, fast.

    weight   |----------|   The rows of the weight are read in as many streams as a tile has
             |          |   columns, at equal distances: a core then waits for several lines of
             |----------|   memory at a time. A tile of dots (tiles.py) meets up to four rows of x,
             |          |   whose sums stay in registers.
             |----------|

Each sum is one chain of fused multiply-adds per lane, the lanes are added as a tree, and what is
left of the row is added one by one: so a row of the result has the same bits in every tile.
"""

import functools

import numpy

from ..arena import empty
from ..registry import on_cpu
from .arrays import plain
from .compiled import compiled, inlined
from .panels import lanes_for
from .scalar import fma, like
from .tiles import tile_of_dots

ROWS = 4
STREAMS = 4
STREAMS_OF_ONE_ROW = 8
AHEAD = 8  # vectors of each stream: memory has work while sums are added up

_square_tile = tile_of_dots(ROWS, STREAMS, AHEAD)
_slim_tile = tile_of_dots(1, STREAMS, AHEAD)
_long_tile = tile_of_dots(1, STREAMS_OF_ONE_ROW, AHEAD)
_single = tile_of_dots(1, 1)


@on_cpu
def product_by_row(x, weight, out=None):
    num_rows, width = x.shape
    out = empty((num_rows, len(weight)), x.dtype) if out is None else out
    assert out.flags.carray
    num_streams = STREAMS_OF_ONE_ROW if num_rows == 1 else STREAMS
    distance = len(weight) // num_streams  # rows of the weight from one stream to the next
    sums = numpy.empty(ROWS * STREAMS_OF_ONE_ROW, x.dtype)
    sizes = num_rows, width, len(weight), distance
    flat = [array.reshape(-1) for array in (plain(x), plain(weight), out)]
    _multiply(sizes, _offsets(num_streams, distance * width), sums, *flat)
    return out


@functools.lru_cache(maxsize=64)
def _offsets(num_streams, step):
    return numpy.arange(num_streams) * step


@compiled
def _multiply(sizes, offsets, sums, x, weight, out):
    """Compute the columns of all streams, then those that are left, one by one."""
    num_rows, _, num_columns, distance = sizes
    num_streams = offsets.size
    for column in range(distance):
        for row in range(0, num_rows, ROWS):
            last = min(row + ROWS, num_rows)
            if last - row == ROWS:
                _columns_of(sizes, row, last, column, offsets, sums, x, weight, out)
            else:
                for one in range(row, last):
                    _columns_of(sizes, one, one + 1, column, offsets, sums, x, weight, out)
    for column in range(num_streams * distance, num_columns):
        for row in range(num_rows):
            _columns_of(sizes, row, row + 1, column, offsets[:1], sums, x, weight, out)


@inlined
def _columns_of(sizes, row, last, column, offsets, sums, x, weight, out):
    """Compute these rows of out in a column of each stream."""
    _, width, num_columns, distance = sizes
    lanes = lanes_for(x)
    length = width // lanes
    num = offsets.size
    sums[:] = like(0.0, x[0])
    at_x = row * width
    at_weight = column * width
    given = length, x, at_x, width, weight, at_weight, offsets, 0, sums, 0, num
    if last - row == ROWS:
        _square_tile(*given)
    elif num == STREAMS:
        _slim_tile(*given)
    elif num == STREAMS_OF_ONE_ROW:
        _long_tile(*given)
    else:
        _single(*given)
    for i in range(last - row):
        one = row + i
        at_out = one * num_columns + column
        for stream in range(num):
            total = sums[i * num + stream]
            at = at_weight + offsets[stream]
            for k in range(length * lanes, width):
                total = fma(x[one * width + k], weight[at + k], total)
            out[at_out + stream * distance] = total
