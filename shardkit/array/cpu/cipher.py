"""Encipher numbers of a range, each by itself: a permutation that needs no memory.

A number is written as left + a * right with a * b >= size, and rounds add to each half, modulo its
size, a hash of the other half. A result that is no number below `size` is enciphered again until
it is one (cycle walking).
Sources: Black, Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002; the hash: Steele,
Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

import numpy

from .compiled import compiled, inlined

NUM_ROUNDS = 8
GOLDEN = numpy.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio
_FIRST = numpy.uint64(0xBF58476D1CE4E5B9)
_SECOND = numpy.uint64(0x94D049BB133111EB)
_SHIFTS = numpy.uint64(30), numpy.uint64(27), numpy.uint64(31)
_ONE = numpy.uint64(1)


@compiled
def encipher(numbers, sizes, lefts, rights, keys, is_back, out):
    """Write the enciphered numbers into out, all [n] uint64; is_back: the numbers deciphered.

    sizes     numbers are below them
    lefts     a; rights: b
    """
    round_keys = numpy.empty(NUM_ROUNDS, numpy.uint64)
    for i in range(numbers.size):
        if i == 0 or keys[i] != keys[i - 1]:
            _fill_round_keys(keys[i], round_keys)
        number = numbers[i]
        while True:
            number = _enciphered(number, lefts[i], rights[i], round_keys, is_back)
            if number < sizes[i]:
                break
        out[i] = number


@inlined
def _fill_round_keys(key, round_keys):
    mixed = _mixed(key)
    counter = numpy.uint64(0)
    for at in range(NUM_ROUNDS):
        counter += _ONE
        round_keys[at] = _mixed(mixed + counter * GOLDEN)


@inlined
def _enciphered(number, left_size, right_size, round_keys, is_back):
    right = number // left_size
    left = number - right * left_size
    for step in range(NUM_ROUNDS):
        at = NUM_ROUNDS - 1 - step if is_back else step
        if at % 2:
            right = _shifted(right, _mixed(left + round_keys[at]) % right_size, right_size, is_back)
        else:
            left = _shifted(left, _mixed(right + round_keys[at]) % left_size, left_size, is_back)
    return left + right * left_size


@inlined
def _shifted(half, by, size, is_back):
    """Return half + by, or half - by, modulo the size; both are below it."""
    if is_back:
        by = size - by
    total = half + by
    return total - size if total >= size else total


@inlined
def _mixed(bits):
    bits = (bits ^ (bits >> _SHIFTS[0])) * _FIRST
    bits = (bits ^ (bits >> _SHIFTS[1])) * _SECOND
    return bits ^ (bits >> _SHIFTS[2])
