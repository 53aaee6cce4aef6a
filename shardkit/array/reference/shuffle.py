"""Numbers in a shuffled order, from the tables of a cipher."""

import numpy

from ..registry import kernel


@kernel(kinds="I", has_cuda_twin=False)
def shuffled(rounds, size, first, count, ends, shifts):
    """Return what stands at positions [first, first + count) of a permutation: [count] int64.

    A number is left + a * right, a = the width of the table. Round k adds rounds[k, right] to left
    if k is even, rounds[k, left] to right if it is odd; left is modulo a, right is modulo the least
    b with a * b >= size. A result that is not below the size goes through all rounds again.

    rounds  [even, a] uint32, each entry below a (k even) or b (k odd)
    ends    [slots] int64, ascending: slot s has the numbers from ends[s - 1] up to ends[s]
    shifts  [slots] int64: added to the numbers of each slot in the end
    """
    found = _permuted(numpy.arange(first, first + count), rounds, size)
    (out,) = numpy.nonzero(found >= size)
    while len(out):
        found[out] = _permuted(found[out], rounds, size)
        out = out[found[out] >= size]
    return found + shifts[numpy.searchsorted(ends[:-1], found, side="right")]


def _permuted(numbers, rounds, size):
    left_size = rounds.shape[1]
    right_size = -(-size // left_size)
    right, left = numpy.divmod(numbers, left_size)
    for to_left, to_right in zip(rounds[::2], rounds[1::2]):
        left = (left + to_left[right]) % left_size
        right = (right + to_right[left]) % right_size
    return left + right * left_size
