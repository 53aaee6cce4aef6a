"""Products of matrices that lie packed (packing.py), for compiled loops that need many small ones.

    multiply        out [rows, columns] (+)= a [rows, depth] b [depth, columns]
    multiply_rows   out [rows, columns] = a [rows, depth] b, of few rows and b that lies in panels

a may have any steps, so that a transposed one is read as it lies. All arrays are flat; starts and
steps count elements. a and b may be words, two bfloat16 each (panel_tiles.py): then the depth
counts words.
"""

from .notation import inlined, overload, types
from .panel_tiles import tile_of_panel
from .tiles import VECTOR_BYTES

# A tile of sums, the vectors of b and a number of a fill the registers: AVX2 has 16, others 32.
PANEL_ROWS = 6
PANEL_VECTORS = 2 if VECTOR_BYTES == 32 else 4
NARROW_VECTORS = 2
# Tiles of multiply_rows, for few rows: a batch of 8 or 4 is whole tiles.
SLIM_VECTORS = 2
TALL_ROWS = 4 if VECTOR_BYTES == 32 else 8
SHORT_ROWS = TALL_ROWS // 2

_tile = tile_of_panel(PANEL_ROWS, PANEL_VECTORS)
_narrow_tile = tile_of_panel(PANEL_ROWS, NARROW_VECTORS)
_slim_tile = tile_of_panel(PANEL_ROWS, 1)
tall_tile = tile_of_panel(TALL_ROWS, SLIM_VECTORS)
_short_tile = tile_of_panel(SHORT_ROWS, SLIM_VECTORS)


def lanes_for(x):
    """Return the numbers of a vector of the dtype of an array, in a compiled loop."""
    raise NotImplementedError("lanes_for works in compiled loops only")


@overload(lanes_for)
def _lanes_for(x):
    lanes = VECTOR_BYTES // (8 if x.dtype == types.float64 else 4)
    return lambda x: lanes


def width_for(x):
    """Return the columns of a full tile of the dtype of a flat array, in a compiled loop."""
    raise NotImplementedError("width_for works in compiled loops only")


@overload(width_for)
def _width_for(x):
    return lambda x: PANEL_VECTORS * lanes_for(x)


@inlined
def multiply(sizes, a, at_a, b, at_b, out, at_out, is_first):
    """Compute out = a b if it is the first product, else out += a b.

    sizes   rows, depth, columns: whole vectors
    at_a    first element, elements from row to row and from one to the next along the depth
    at_b, at_out    first element, elements from row to row
    """
    num_rows, depth, num_columns = sizes
    start, row_step, depth_step = at_a
    start_b, b_step = at_b
    start_out, out_step = at_out
    width = width_for(out)
    lanes = lanes_for(out)
    narrow = NARROW_VECTORS * lanes
    column = 0
    while column < num_columns:
        at = start_b + column
        beyond = num_columns - column
        for row in range(0, num_rows, PANEL_ROWS):
            last = num_rows - row - 1
            x, y = start + row * row_step, start_out + row * out_step + column
            left = a, x, row_step, depth_step, last, depth
            if beyond >= width:
                _tile(*left, b, at, b_step, out, y, out_step, is_first)
            elif beyond >= narrow:
                _narrow_tile(*left, b, at, b_step, out, y, out_step, is_first)
            else:
                _slim_tile(*left, b, at, b_step, out, y, out_step, is_first)
        if beyond >= width:
            column += width
        else:
            column += narrow if beyond >= narrow else lanes


@inlined
def multiply_rows(a, at_a, row_step, num_rows, panels, out):
    """Set out [rows, panels wide] to rows [depth] of a times panels of two vectors.

    panels   [number, depth, SLIM_VECTORS vectors]; each stays in cache while all rows pass
    """
    num_panels, depth, width = panels.shape
    out_step = out.shape[1]
    flat, y = panels.reshape(-1), out.reshape(-1)
    for panel in range(num_panels):
        b = panel * depth * width
        for row in range(0, num_rows, TALL_ROWS):
            last = num_rows - row - 1
            left = a, at_a + row * row_step, row_step, 1, last, depth
            at_out = row * out_step + panel * width
            if last >= SHORT_ROWS:
                tall_tile(*left, flat, b, width, y, at_out, out_step, True)
            else:
                _short_tile(*left, flat, b, width, y, at_out, out_step, True)
