"""Sums of arrays and of rows; bfloat16 is added in float32 and rounded once."""

from .. import fresh
from ..registry import on_cpu
from .arrays import bits, computed_dtype, elementwise, empty_like, run
from .compiled import compiled
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
def sum_of_rows(x):
    total = fresh.zeros(x.shape[1], computed_dtype(x))
    run(_sum_of_rows, (x,), (total,), ())
    return total


@compiled
def _sum_of_two(x, y, out):
    for i in range(x.size):
        out[i] = narrow(wide(x[i]) + wide(y[i]), out)


@compiled
def _add_row(x, row, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = narrow(wide(x[i, j]) + wide(row[j]), out)


@compiled
def _add_row_in_place(row, x):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = narrow(wide(x[i, j]) + wide(row[j]), x)


@compiled
def _sum_of_rows(x, total):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            total[j] += wide(x[i, j])
