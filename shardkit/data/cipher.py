"""Permutations of range(size) that need no memory: a cipher on small domains.

A position is written as left + a * right with a * b >= size, and rounds add to each half, modulo
its size, a hash of the other half; a result that is no number below `size` is enciphered again
until it is one (cycle walking). All arithmetic is on whole arrays of 64-bit integers.

    encipher, decipher   numbers of any sizes and keys, hashes and all
    tables               all hashes of a size and a key: what the kernel `shuffled` adds, in less
                         time, where many numbers have one key

Sources: Black, Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002; the hash: Steele,
Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

import math
from typing import Any

import numpy

_NUM_ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio
_WORTH_A_CALL = 64  # numbers


def encipher(numbers, sizes, keys) -> numpy.ndarray:
    """Return the permuted numbers, [n] uint64.

    numbers [n] uint64, each below its size; sizes [n] or one integer; keys [n] or [1] uint64
    """
    return _walk(numbers, sizes, keys, 1)


def decipher(numbers, sizes, keys) -> numpy.ndarray:
    """Return the numbers that encipher() permutes to these."""
    return _walk(numbers, sizes, keys, -1)


def tables(sizes, keys) -> list[numpy.ndarray]:
    """Return for each size and key what the rounds add: [rounds, a] uint32, for `shuffled`.

    sizes  Python integers; keys [n] uint64, one for each
    """
    round_keys = subkeys(keys[:, None], numpy.arange(_NUM_ROUNDS, dtype=numpy.uint64))
    found: list[Any] = [None] * len(sizes)
    for size in dict.fromkeys(sizes):
        which = [i for i, other in enumerate(sizes) if other == size]
        left, right = _half_sizes(size)
        hashes = _mixed(numpy.arange(left, dtype=numpy.uint64) + round_keys[which][..., None])
        added = numpy.empty(hashes.shape, numpy.uint32)
        added[:, ::2] = hashes[:, ::2] % numpy.uint64(left)
        added[:, 1::2] = hashes[:, 1::2] % numpy.uint64(right)
        for i, table in zip(which, added):
            found[i] = table
    return found


def subkeys(keys, number) -> numpy.ndarray:
    """Return keys that the key and the number decide, of one or of all."""
    return _mixed(_mixed(keys) + (number + 1) * numpy.array([_GOLDEN], numpy.uint64))


def groups(*arrays):
    """Return (where each run of equal neighbors begins, number of its run for each element)."""
    is_first = numpy.zeros(len(arrays[0]), bool)
    is_first[:1] = True
    for array in arrays:
        is_first[1:] |= array[1:] != array[:-1]
    return numpy.flatnonzero(is_first), numpy.cumsum(is_first) - 1


def _mixed(bits):
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


def _walk(numbers, sizes, keys, direction):
    """Apply the cipher until each result is below its size.

    numbers [n]; sizes [n] or one integer; keys [n] or [1]
    """
    sizes, keys = (numpy.broadcast_to(a, numbers.shape) for a in (sizes, keys))
    begins, _ = groups(sizes, keys)
    if 0 < len(begins) * _WORTH_A_CALL <= len(numbers):
        ends = [*begins[1:], len(numbers)]
        return numpy.concatenate(
            [
                _walked(numbers[begin:end], sizes[begin:][:1], keys[begin:][:1], direction)
                for begin, end in zip(begins, ends)
            ]
        )
    return _walked(numbers, sizes, keys, direction)


def _walked(numbers, sizes, keys, direction):
    """Do so for sizes and keys [n], or with less arithmetic for one of all, [1]."""
    parts = [sizes, *_halves(sizes), keys]
    found = _ciphered(numbers, *parts[1:], direction)
    (out,) = numpy.nonzero(found >= sizes)
    while len(out):
        size, *own = (part[out] if len(part) == len(found) else part for part in parts)
        found[out] = _ciphered(found[out], *own, direction)
        out = out[found[out] >= size]
    return found


def _halves(sizes):
    """Return a, b with a * b >= size > a * b - a for each size."""
    different, which = numpy.unique(sizes, return_inverse=True)
    halves = zip(*[_half_sizes(int(size)) for size in different])
    return (numpy.array(half, numpy.uint64)[which] for half in halves)


def _half_sizes(size: int) -> tuple[int, int]:
    left = 1 + math.isqrt(size - 1)
    return left, -(-size // left)


def _ciphered(numbers, left_sizes, right_sizes, keys, direction):
    """Return numbers after all rounds; direction: -1 takes them back."""
    right, left = numpy.divmod(numbers, left_sizes)
    for number in range(_NUM_ROUNDS)[::direction]:
        key = subkeys(keys, number)
        if number % 2:
            right = _turned(right, _mixed(left + key), right_sizes, direction)
        else:
            left = _turned(left, _mixed(right + key), left_sizes, direction)
    return left + right * left_sizes


def _turned(half, hashes, sizes, direction):
    steps = hashes % sizes
    return (half + (steps if direction > 0 else sizes - steps)) % sizes
