"""Random numbers without state: element i of a stream is a function of (key, i) alone.

    key = key_of(seed, "weights", "blocks.3.mlp.up.weight")
    normal(key, 1000, 2000)            # the same 1000 numbers as normal(key, 0, 5000)[1000:2000]

So a rank can make the part that it owns and never see the rest, and no result depends on how work
was shared out. The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
numbers: as easy as 1, 2, 3", SC 2011): ten rounds of multiplying and mixing turn a 128-bit counter
and a 64-bit key into four 32-bit numbers. In integer arithmetic on whole arrays, NumPy and CuPy
give the same bits. `normal` also takes logarithms and cosines, whose last bit is the library's.
"""

import math
from hashlib import blake2b

import numpy

from ..errors import ShapeError

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
# Golden ratio and sqrt(3) - 1, added to the key after each round.
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF
CHUNK = 1 << 14  # blocks of four per pass: the temporaries stay in cache


def key_of(*parts: int | str) -> int:
    """Return a 64-bit key for these parts; other parts, or another order, give another key."""
    texts = []
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, (int, str, numpy.integer)):
            raise TypeError(
                f"key_of takes integers and strings, got {part!r} of type {type(part).__name__}"
            )
        kind = b"s" if isinstance(part, str) else b"i"
        text = str(part).encode()
        # With the length, ("ab", "c") differs from ("a", "bc")
        texts.append(b"%s%d:%s" % (kind, len(text), text))
    return int.from_bytes(blake2b(b"".join(texts), digest_size=8).digest(), "little")


def philox(counters, key: int):
    """Return four arrays of 32-bit numbers, held in uint64, for four such counters."""
    c0, c1, c2, c3 = counters
    k0 = key & LOW
    k1 = key >> 32
    for _ in range(10):
        # 32 x 32 -> 64 bits: high and low half are used
        p0 = c0 * MULTIPLIERS[0]
        p1 = c2 * MULTIPLIERS[1]
        c0 = (p1 >> 32) ^ c1 ^ k0
        c1 = p1 & LOW
        c2 = (p0 >> 32) ^ c3 ^ k1
        c3 = p0 & LOW
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW, (k1 + KEY_STEPS[1]) & LOW
    return c0, c1, c2, c3


def random_bits(key: int, start: int, stop: int, xp=numpy):
    """Return elements [start, stop) of the stream of this key: [stop - start] uint32, uniform."""
    _check_span(start, stop)
    # four elements come from one counter
    first = start // 4
    last = -(-stop // 4)
    bits = xp.empty((last - first, 4), xp.uint32)
    for begin in range(first, last, CHUNK):
        end = min(begin + CHUNK, last)
        block = xp.arange(begin, end, dtype=xp.uint64)
        zero = xp.zeros_like(block)
        for lane, numbers in enumerate(philox((block & LOW, block >> 32, zero, zero), key)):
            bits[begin - first : end - first, lane] = numbers
    return bits.reshape(-1)[start - 4 * first : stop - 4 * first]


def uniform(key: int, start: int, stop: int, xp=numpy):
    """Return elements [start, stop): [stop - start] float64 in [0, 1), multiples of 2^-53."""
    return uniform_of(random_bits(key, 2 * start, 2 * stop, xp).reshape(-1, 2))


def uniform_of(pairs):
    """Return the number in [0, 1) that each pair of 32 bits makes: [n] float64 of [n, 2]."""
    return ((pairs[:, 0] >> 5) * 2.0**26 + (pairs[:, 1] >> 6)) * 2.0**-53  # 27 and 26 bits


def normal(key: int, start: int, stop: int, xp=numpy):
    """Return elements [start, stop): [stop - start] float64, standard normal, by Box-Muller."""
    _check_span(start, stop)
    even = start - start % 2
    pairs = uniform(key, even, stop + stop % 2, xp).reshape(-1, 2).T.copy()  # [2, pairs]
    # 1 - u is in (0, 1], so the logarithm is finite.
    radius = xp.sqrt(-2.0 * xp.log(1.0 - pairs[0]))
    angle = 2.0 * math.pi * pairs[1]
    numbers = xp.stack([radius * xp.cos(angle), radius * xp.sin(angle)], axis=1).reshape(-1)
    return numbers[start - even : stop - even]


def permutation(key: int, count: int):
    """Return the numbers 0 ... count - 1 in an order that follows from the key: [count] int64.

    It makes all of them at once; EpochOrder of the room `data` finds each alone, in another order.
    """
    return numpy.argsort(random_bits(key, 0, count), kind="stable")


def _check_span(start, stop):
    """Raise ShapeError unless 0 <= start <= stop."""
    if not 0 <= start <= stop:
        raise ShapeError(f"random elements [{start}, {stop}); wanted 0 <= start <= stop")
