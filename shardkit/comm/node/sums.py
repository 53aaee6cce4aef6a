"""Reductions straight from the memory of several ranks, in the fixed order of comm/collectives/ordered.py, one
block at a time.

a  b  c  d  e        a block of each rank stays in the nearest cache until the whole tree over the ranks is added:
a+b   c+d   e        neighbors first, level by level, an odd one carried up
"""

from ...array.cpu.compiled import inlined
from .atomic import element, load, put_element, store
from .desk import BLOCK_BYTES, MIN, PRODUCT, SUM, WORD_BYTES


@inlined
def combine(left, right, into, like, count, op):
    """Element by element, at three addresses; `into` may be one of the others. NaN wins over
    numbers.
    """
    if op == SUM:
        for i in range(count):
            put_element(into, i, like, element(left, i, like) + element(right, i, like))
    elif op == PRODUCT:
        for i in range(count):
            put_element(into, i, like, element(left, i, like) * element(right, i, like))
    elif op == MIN:
        for i in range(count):
            a, b = element(left, i, like), element(right, i, like)
            put_element(into, i, like, b if b < a or b != b else a)
    else:
        for i in range(count):
            a, b = element(left, i, like), element(right, i, like)
            put_element(into, i, like, b if b > a or b != b else a)


@inlined
def reduce_block(sources, num_ranks, start, count, into, like, op, scratch):
    """The tree over `count` elements at `start` (bytes) of the arrays whose addresses are at
    `sources`; the result at `into`.

    `into` may be in one of the arrays. Partial results wait on a stack for their right neighbor,
    as the digits of a counter that grows; each has a block of the scratch.
    """
    depth, merged = 0, 0
    for rank in range(num_ranks):
        store(scratch + depth * WORD_BYTES, load(sources + rank * WORD_BYTES) + start)
        depth, digits = depth + 1, rank + 1
        while depth > 1 and (digits % 2 == 0 or rank == num_ranks - 1):
            depth, digits, merged = depth - 1, digits // 2, merged + 1
            left, right = scratch + (depth - 1) * WORD_BYTES, scratch + depth * WORD_BYTES
            result = into if merged == num_ranks - 1 else scratch + depth * BLOCK_BYTES
            combine(load(left), load(right), result, like, count, op)
            store(left, result)
