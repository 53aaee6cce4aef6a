"""Dropout whose mask is computed on the way: the backward needs the key alone."""

import numpy

from ..random import KEY_STEPS, MULTIPLIERS
from ..reference.dropout import dropped_numbers
from ..registry import on_cpu
from .arrays import empty_like, plain
from .compiled import compiled, inlined
from .scalar import like

BLOCK = 256  # counters at a time, of four elements each
FIRST_MULTIPLIER, SECOND_MULTIPLIER = [numpy.uint64(multiplier) for multiplier in MULTIPLIERS]
FIRST_STEP, SECOND_STEP = [numpy.uint32(step) for step in KEY_STEPS]
HALF = numpy.uint64(32)


@on_cpu
def dropout(x, key, start, p, out=None):
    out = empty_like(x, out)
    key = numpy.full(1, key, numpy.uint64)
    _dropout(
        plain(x).reshape(-1),
        start,
        key,
        numpy.uint32(dropped_numbers(p)),
        1 / (1 - p),
        out.reshape(-1),
    )
    return out


@on_cpu
def dropout_mask(key, start, stop, p, xp=numpy):
    return dropout(numpy.ones(stop - start, numpy.float32), key, start, p) != 0


@compiled
def _dropout(x, start, key, dropped, scale, out):
    """Drop elements of x into out, both [N]; key [1]."""
    key_low = numpy.uint32(key[0])
    key_high = numpy.uint32(key[0] >> HALF)
    numbers = (
        numpy.empty(BLOCK, numpy.uint32),
        numpy.empty(BLOCK, numpy.uint32),
        numpy.empty(BLOCK, numpy.uint32),
        numpy.empty(BLOCK, numpy.uint32),
    )
    for counter in range(start // 4, (start + x.size + 3) // 4, BLOCK):
        _philox(numpy.uint64(counter), key_low, key_high, *numbers)
        begin = 4 * counter - start  # of this block in x; before it at the first
        if begin >= 0 and begin + 4 * BLOCK <= x.size:
            _drop_block(x, begin, *numbers, dropped, scale, out)
        else:
            for i in range(max(begin, 0), min(begin + 4 * BLOCK, x.size)):
                is_kept = numbers[(i - begin) % 4][(i - begin) // 4] >= dropped
                out[i] = x[i] * like(scale, x[i]) if is_kept else like(0.0, x[i])


@inlined
def _philox(counter, key_low, key_high, first, second, third, fourth):
    """Fill buffers with the four 32-bit numbers of each counter, as random.philox does."""
    for i in range(BLOCK):
        here = counter + numpy.uint64(i)
        c0 = numpy.uint32(here)
        c1 = numpy.uint32(here >> HALF)
        c2 = numpy.uint32(0)
        c3 = numpy.uint32(0)
        k0, k1 = key_low, key_high
        for _ in range(10):
            p0, p1 = numpy.uint64(c0) * FIRST_MULTIPLIER, numpy.uint64(c2) * SECOND_MULTIPLIER
            c0 = numpy.uint32(p1 >> HALF) ^ c1 ^ k0
            c1 = numpy.uint32(p1)
            c2 = numpy.uint32(p0 >> HALF) ^ c3 ^ k1
            c3 = numpy.uint32(p0)
            k0, k1 = numpy.uint32(k0 + FIRST_STEP), numpy.uint32(k1 + SECOND_STEP)
        first[i] = c0
        second[i] = c1
        third[i] = c2
        fourth[i] = c3


@inlined
def _drop_block(x, begin, first, second, third, fourth, dropped, scale, out):
    """Drop four elements per counter, all read before one is written: LLVM makes vectors of it."""
    for i in range(BLOCK):
        j = begin + 4 * i
        a = x[j]
        b = x[j + 1]
        c = x[j + 2]
        d = x[j + 3]
        times = like(scale, a)
        zero = like(0.0, a)
        a = a * times if first[i] >= dropped else zero
        b = b * times if second[i] >= dropped else zero
        c = c * times if third[i] >= dropped else zero
        d = d * times if fourth[i] >= dropped else zero
        out[j] = a
        out[j + 1] = b
        out[j + 2] = c
        out[j + 3] = d
