"""Numbers in a shuffled order: blocks of halves go through one round after the other."""

import numpy

from ..registry import on_cpu
from .arrays import plain
from .compiled import compiled, inlined

BLOCK = 512  # halves that stay in the nearest cache
ONE = numpy.uint32(1)
ZERO = numpy.uint32(0)


@on_cpu
def shuffled(rounds, size, first, count, ends, shifts):
    out = numpy.empty(count, numpy.int64)
    _shuffled(plain(rounds), size, -(-size // rounds.shape[1]), first, ends, shifts, out)
    return out


@compiled
def _shuffled(rounds, size, right_size, first, ends, shifts, out):
    """Fill out [count]; the rest as in the definition."""
    left_size = rounds.shape[1]
    lefts = numpy.empty(BLOCK, numpy.uint32)
    rights = numpy.empty(BLOCK, numpy.uint32)
    numbers = numpy.empty(BLOCK, numpy.int64)
    for begin in range(0, out.size, BLOCK):
        count = min(BLOCK, out.size - begin)
        _cut(first + begin, count, left_size, lefts, rights)
        for k in range(0, rounds.shape[0], 2):
            _add(lefts, rounds[k], rights, numpy.uint32(left_size), count)
            _add(rights, rounds[k + 1], lefts, numpy.uint32(right_size), count)
        for i in range(count):
            numbers[i] = numpy.int64(lefts[i]) + numpy.int64(rights[i]) * left_size
        for i in range(count):
            while numbers[i] >= size:
                numbers[i] = _again(numbers[i], rounds, left_size, right_size)
        _shift(numbers, count, ends, shifts, out[begin : begin + count])


@inlined
def _cut(first, count, left_size, lefts, rights):
    """Fill in the halves of the numbers from `first` on."""
    right = numpy.uint32(first // left_size)
    left = numpy.uint32(first % left_size)
    for i in range(count):
        lefts[i] = left
        rights[i] = right
        left = numpy.uint32(left + ONE)
        if left == left_size:
            left = ZERO
            right = numpy.uint32(right + ONE)


@inlined
def _add(halves, table, others, size, count):
    """Add table[other] to each half, modulo the size; a difference below zero is a large number."""
    for i in range(count):
        total = numpy.uint32(halves[i] + table[others[i]])
        halves[i] = min(total, numpy.uint32(total - size))


@inlined
def _again(number, rounds, left_size, right_size):
    left = number % left_size
    right = number // left_size
    for k in range(0, rounds.shape[0], 2):
        left = (left + rounds[k, right]) % left_size
        right = (right + rounds[k + 1, left]) % right_size
    return left + right * left_size


@inlined
def _shift(numbers, count, ends, shifts, out):
    for i in range(count):
        out[i] = numbers[i] + shifts[0]
    for slot in range(1, shifts.size):
        end = ends[slot - 1]
        more = shifts[slot] - shifts[slot - 1]
        for i in range(count):
            out[i] += more if numbers[i] >= end else 0
