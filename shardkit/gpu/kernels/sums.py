"""Sums of two arrays, and over rows in a fixed order."""

from ...array.registry import on_cuda
from .arrays import enter, new, pack, plain, real_dtype, sum_pieces
from .launch import launch

ROWS = 64  # of a piece
MAX_PIECES = MAX_MATRICES = 65535  # blocks along the second side of a grid, and the third
BLOCK = 32, 8  # threads: packs of columns, and rows


enter("activation.cu", "sum_of_two")


@on_cuda()
def sum_of_rows(x, out=None):
    matrices = x[None] if x.ndim == 2 else x
    if len(matrices) > MAX_MATRICES:
        if out is None:
            out = new(x, (len(x), x.shape[2]), real_dtype(x))
        for first in range(0, len(x), MAX_MATRICES):
            some = slice(first, first + MAX_MATRICES)
            sum_of_rows(x[some], out=out[some])
        return out
    if matrices.strides[2] != x.itemsize:
        matrices = plain(matrices)
    number, num_rows, width = matrices.shape
    rows = max(ROWS, -(-num_rows // MAX_PIECES))
    num_pieces = -(-num_rows // rows)
    if out is None:
        out = new(x, (*x.shape[:-2], width), real_dtype(x))
    is_one_piece = num_pieces == 1
    parts = out if is_one_piece else new(x, (number, num_pieces, width), out.dtype)
    launch(
        x,
        "columns.cu",
        "sum_of_rows",
        (-(-width // (BLOCK[0] * pack(x))), num_pieces, number),
        BLOCK,
        matrices,
        *[stride // x.itemsize for stride in matrices.strides[:2]],
        parts,
        num_rows,
        width,
        rows,
    )
    return out if is_one_piece else sum_pieces(parts, x, out)
