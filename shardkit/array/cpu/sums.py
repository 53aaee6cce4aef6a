"""Sums of arrays and of rows; bfloat16 is added in float32 and rounded once."""

from ..registry import on_cpu
from .arrays import RowSums, bits, elementwise, empty_like, run
from .compiled import compiled, inlined
from .scalar import block_end, close
from .storage import narrow, wide


@on_cpu
def sum_of_two(x, y, out=None):
    return elementwise(_sum_of_two, x, y, out=out)


@on_cpu
def add_row(x, row, out=None):
    if out is x and x.flags.carray and row.flags.carray:
        _add_row_in_place(bits(row), bits(x))
        return x
    out = empty_like(x, out)
    run(_add_row, (x,), (row,), (out,))
    return out


@on_cpu
def sum_of_rows(x, out=None):
    sums = RowSums(x, 1)
    run(_sum_of_rows, (x,), sums.shared, ())
    if out is None:
        return sums.vectors()[0]
    out[...] = sums.vectors()[0]
    return out


@compiled
def _sum_of_two(x, y, out):
    for i in range(x.size):
        total = wide(x[i]) + wide(y[i])
        out[i] = narrow(total, out)


@compiled
def _add_row(x, row, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            total = wide(x[i, j]) + wide(row[j])
            out[i, j] = narrow(total, out)


@compiled
def _add_row_in_place(row, x):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            total = wide(x[i, j]) + wide(row[j])
            x[i, j] = narrow(total, x)


@compiled
def _sum_of_rows(x, total, whole, seen):
    start = 0
    while start < x.shape[0]:
        stop = block_end(start, x.shape[0], seen)
        _sum_of_block(x, total, start, stop)
        close(total, whole[0], seen)
        start = stop


@inlined
def _sum_of_block(x, total, start, stop):
    for i in range(start, stop):
        for j in range(x.shape[1]):
            total[j] += wide(x[i, j])
