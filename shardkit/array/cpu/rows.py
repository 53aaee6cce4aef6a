"""Rows that are taken from runs of rows in memory: one pass over their numbers."""

from ..registry import on_cpu
from .arrays import plain
from .compiled import compiled


@on_cpu
def rows_kept(kept, slots, length, numbers, found):
    assert found.flags.carray
    return found[: _rows_kept(plain(kept), plain(slots), length, plain(numbers), found)]


@compiled
def _rows_kept(kept, slots, length, numbers, found):
    """Return how many rows were copied."""
    for i in range(numbers.size):
        run = numbers[i] // length
        slot = slots[run]
        if slot < 0:
            return i
        row = slot * length + (numbers[i] - run * length)
        for j in range(found.shape[1]):
            found[i, j] = kept[row, j]
    return numbers.size
