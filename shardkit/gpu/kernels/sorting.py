"""Sort the ids of rows on the GPU, in kernels whose sizes are known beforehand.

CuPy's sorts are Thrust's, for which the host waits and which a graph cannot capture. These are
launches like any other: two for every 8 bits of an id, and one search for all rows.
"""

import numpy

from ...array.dtypes import FLOAT32
from .arrays import THREADS, new, pack, plain, spread
from .launch import MAX_BLOCKS, launch

FILE = "sorting.cu"
DIGIT_BITS = 8
LANES, PARTS_OF_BLOCK = 32, 8
MOST_BLOCKS = 32  # each reads the counts of all

INT64 = numpy.dtype("int64")


def sorted_by_row(ids, num_rows: int):
    """Return (order [n], starts [num_rows + 1]) of ids [n], which are in [0, num_rows).

    order[starts[v] : starts[v + 1]] are the places of id v, in the order they came.
    """
    assert num_rows < MAX_BLOCKS
    ids = plain(ids.astype(INT64, copy=False))
    n = ids.size
    blocks = min(-(-n // (LANES * PARTS_OF_BLOCK)), MOST_BLOCKS)
    span = -(-n // max(blocks * PARTS_OF_BLOCK, 1))
    block = (LANES, PARTS_OF_BLOCK)
    counts = new(ids, (blocks * PARTS_OF_BLOCK, 1 << DIGIT_BITS), numpy.int32)
    order = None
    for shift in range(0, max((num_rows - 1).bit_length(), 1), DIGIT_BITS):
        given, order = order, new(ids)
        numbers = n, span, numpy.int32(shift)
        for name, results in (("count_digits", (counts,)), ("place_by_digit", (counts, order))):
            arrays = ids, given, *results
            launch(ids, FILE, name, (blocks,), block, *arrays, *numbers, dtype=FLOAT32)
    starts = new(ids, (num_rows + 1,))
    launch(
        *(ids, FILE, "starts_of_rows", spread(num_rows + 1), (THREADS,)),
        *(ids, order, starts, n, num_rows),
        dtype=FLOAT32,
    )
    return order, starts


def by_segments(name, rows, ids, num_segments: int, out, *more) -> None:
    """Run kernel(rows, order, starts, out, width, *more) of embedding.cu, a block for a segment."""
    width = rows.shape[1]
    threads = min(256, max(32, -(-width // pack(rows) // 32) * 32))
    grid = (num_segments if width else 0,)
    arrays = plain(rows), *sorted_by_row(ids, num_segments), out
    launch(rows, "embedding.cu", name, grid, (threads,), *arrays, width, *more)
