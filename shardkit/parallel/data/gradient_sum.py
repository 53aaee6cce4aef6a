"""Summing the gradients of micro-batches: as a fixed tree, or one after the other.

    micro-batch   0   1   2   3   4       a finished pair is added immediately, so at most
                   \\ /     \\ /   |       log2(m) + 1 partial sums are alive; an odd one is
                   01      23    |       carried up and joins at the end
                     \\   /       |
                      0123 ----- 01234

The tree depends on the numbers of the micro-batches alone. A rank that owns an aligned run of 2^k
of them computes a whole subtree, and the reduction over ranks goes on with the same tree: the bits
of the sum do not depend on the number of ranks.
"""

from ...array.device import BufferPool


class GradientTree:
    """The sum over micro-batches in tree order, in whichever order they finish."""

    def __init__(self, pool: BufferPool, size: int):
        self._pool, self._size = pool, size
        self._partial_sums: dict[tuple[int, int], object] = {}  # (level, index) -> [size]

    def begin(self):
        """Return a buffer [size] for one micro-batch, and True: its contents mean nothing."""
        return self._pool.take(self._size), True

    def end(self, micro_batch: int, buffer):
        """Add the complete gradient of this micro-batch to its neighbor, and on up the tree."""
        level, index = 0, micro_batch
        while (level, index ^ 1) in self._partial_sums:
            neighbor = self._partial_sums.pop((level, index ^ 1))
            buffer = self._add(neighbor, buffer)  # a + b and b + a are the same bits
            level, index = level + 1, index // 2
        self._partial_sums[level, index] = buffer

    def finish(self):
        """Return the sum of all micro-batches [size], the caller's now; None if there were none."""
        largest_first = sorted(self._partial_sums, reverse=True)
        rest = [self._partial_sums.pop(node) for node in largest_first]
        total = rest.pop() if rest else None
        while rest:
            total = self._add(rest.pop(), total)
        return total

    def _add(self, left, right):
        """Return the sum, in left's memory; right's goes back to the pool."""
        left += right
        self._pool.give(right)
        return left


class GradientRunningSum:
    """The sum over micro-batches in one buffer, as they come: bits depend on the mesh."""

    def __init__(self, pool: BufferPool, size: int):
        self._pool, self._size = pool, size
        self._sum = None

    def begin(self):
        """Return the running sum [size], and whether its contents mean nothing yet."""
        is_empty = self._sum is None
        if is_empty:
            self._sum = self._pool.take(self._size)
        return self._sum, is_empty

    def end(self, micro_batch: int, buffer):
        """Do nothing: backward has added this micro-batch already."""

    def finish(self):
        """Return the sum of all micro-batches [size], the caller's now; None if there were none."""
        total, self._sum = self._sum, None
        return total
