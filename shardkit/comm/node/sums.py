"""Reductions straight from the memory of several ranks, in the fixed order of ordered.py.

a  b  c  d  e        a block of each rank stays in the nearest cache until the whole tree over the
a+b   c+d   e        ranks is added: neighbors first, level by level, an odd one carried up
"""

from ...array.cpu.compiled import inlined
from .atomic import element, load, put_element, store
from .mailbox import BLOCK_BYTES, MIN, PRODUCT, SUM, WORD_BYTES


@inlined
def combine(left, right, into, like, count, op):
    """Combine element by element, at three addresses; `into` may be one of the others.

    NaN wins over numbers.
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
    """Leave the tree over `count` elements of several arrays at `into`, in one of them or not.

    sources, start   where the addresses of the arrays are; bytes from the start of each
    Partial results wait on a stack for their right neighbor, as the digits of a counter that grows;
    each has a block of the scratch.
    """
    depth, merged = 0, 0
    for rank in range(num_ranks):
        store(scratch + depth * WORD_BYTES, load(sources + rank * WORD_BYTES) + start)
        depth, digits = depth + 1, rank + 1
        while depth > 1 and (digits % 2 == 0 or rank == num_ranks - 1):
            depth = depth - 1
            digits = digits // 2
            merged = merged + 1
            left = scratch + (depth - 1) * WORD_BYTES
            right = scratch + depth * WORD_BYTES
            result = into if merged == num_ranks - 1 else scratch + depth * BLOCK_BYTES
            combine(load(left), load(right), result, like, count, op)
            store(left, result)
