"""Rows that are taken from runs of rows in memory."""

from ..registry import kernel


@kernel(kinds="B", has_cuda_twin=False)
def rows_kept(kept, slots, length, numbers, found):
    """Copy rows as far as their runs are kept, and return those: found[:number of rows copied].

    Row number r is row r % length of run r // length.

    kept     [slots * length, row_bytes] uint8
    slots    [runs] int32: the slot that keeps each run; below zero if none does
    numbers  [n] int64
    found    [n, row_bytes] uint8, C-contiguous, to copy to
    """
    runs, within = numbers // length, numbers % length
    count = len(numbers)
    missing = (slots[runs] < 0).nonzero()[0]
    if len(missing):
        count = int(missing[0])
    places = slots[runs[:count]] * length + within[:count]
    found = found[:count]
    kept.take(places, axis=0, out=found, mode="clip")
    return found
