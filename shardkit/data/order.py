"""The order of samples: each epoch visits each sample exactly once, and nothing is kept in memory.

    position   0 1 2 3 4 | 5 6 7 8 9 | 10 ...      of an endless stream, N = 5
    epoch          0     |     1     |
    number     3 0 4 1 2 | 1 4 2 0 3 |             a permutation of 0 ... N - 1 in each epoch

The number at a position is a function of (seed, purpose, position), so no mesh changes it, a run
goes on anywhere, and 10^10 samples cost as much as ten.

A permutation of range(size) is a cipher on it. A position is written as left + a * right with
a * b >= size, and rounds add to each half, modulo its size, a hash of the other half; a result that
is no number below `size` is enciphered again until it is one (cycle walking). All arithmetic is on
whole arrays of 64-bit integers.
Sources: Black, Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002; the hash: Steele,
Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

import math

import numpy

from ..arguments import is_integer
from ..array.random import key_of
from ..errors import ConfigurationError

_NUM_ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio
_WINDOW_RUNS = 4  # runs whose samples are mixed
_AHEAD = 1024  # numbers found at once, in little more time than a few
_WORTH_A_CALL = 64  # numbers


class EpochOrder:
    """The order in which an endless stream visits numbered samples.

        runs of 3 samples     | 0 1 2 | 3 4 5 | 6 7 8 | 9 10 |
        shuffled              | 6 7 8 | 0 1 2 | 9 10 | 3 4 5 |
        mixed, four at a time | 1 9 7 0 4 6 ... , and so on with the next four

    num_samples  1 ... 2^62
    purpose      another one has another order
    run_length   with 1 the permutation is one of all samples; otherwise runs are shuffled, and then
                 the samples within each four of them
    """

    def __init__(self, num_samples: int, seed: int, purpose: str, run_length: int = 1):
        _check_size("number of samples", num_samples)
        _check_size("run_length", run_length)
        self.num_samples = num_samples
        self.run_length = min(run_length, num_samples)
        self._key = numpy.array([key_of(seed, "order", purpose)], numpy.uint64)
        self._known = 0, numpy.empty(0, numpy.int64)  # position of the first, and the numbers

    def numbers(self, first: int, count: int) -> numpy.ndarray:
        """Return the sample numbers at positions [first, first + count): [count] int64."""
        start, known = self._known
        if not start <= first <= first + count <= start + len(known):
            start, known = first, self._found(first, max(count, _AHEAD))
            self._known = start, known
        return known[first - start : first - start + count].copy()

    def _found(self, first: int, count: int) -> numpy.ndarray:
        positions = numpy.arange(first, first + count, dtype=numpy.uint64)
        epochs, positions = numpy.divmod(positions, numpy.uint64(self.num_samples))
        keys = _subkeys(self._key, epochs)
        if self.run_length == 1:
            numbers = encipher(positions, self.num_samples, keys)
        else:
            numbers = self._run_by_run(positions, keys)
        return numbers.astype(numpy.int64)

    def _run_by_run(self, positions, keys):
        """Return the numbers at these positions of epochs with these keys.

        The last run is short. Coordinates that count it as long have a hole behind it: there run
        and row are quotient and remainder.
        """
        length = self.run_length
        num_runs = -(-self.num_samples // length)
        hole = numpy.uint64(num_runs * length - self.num_samples)
        width = _WINDOW_RUNS * length
        run_keys = _subkeys(keys, 0)
        begins, epoch = _groups(run_keys)
        last_run = numpy.full(len(begins), num_runs - 1, numpy.uint64)
        short = decipher(last_run, num_runs, run_keys[begins])[epoch]  # its place
        short_window = short // _WINDOW_RUNS

        is_behind = positions + hole >= (short_window + 1) * width
        window = (positions + hole * is_behind) // width
        start = window * width - hole * is_behind
        stop = (window + 1) * width - hole * (window >= short_window)
        size = numpy.minimum(stop, self.num_samples) - start
        row = encipher(positions - start, size, _subkeys(keys, window + 1))

        place = window * width + row  # with the hole
        place += hole * ((window == short_window) & (place >= (short + 1) * length - hole))
        begins, group = _groups(run_keys, window)
        slots = window[begins, None] * _WINDOW_RUNS + numpy.arange(_WINDOW_RUNS, dtype=numpy.uint64)
        slot_keys = numpy.repeat(run_keys[begins], _WINDOW_RUNS)
        runs = encipher(numpy.minimum(slots, num_runs - 1).ravel(), num_runs, slot_keys)
        slot, within = numpy.divmod(place - window * width, numpy.uint64(length))
        run = runs.reshape(-1, _WINDOW_RUNS)[group, slot]
        return run * length + within


def _groups(*arrays):
    """Return (where each run of equal neighbors begins, number of its run for each element)."""
    is_first = numpy.zeros(len(arrays[0]), bool)
    is_first[:1] = True
    for array in arrays:
        is_first[1:] |= array[1:] != array[:-1]
    return numpy.flatnonzero(is_first), numpy.cumsum(is_first) - 1


def _check_size(name: str, value):
    if not is_integer(value) or not 1 <= value <= 1 << 62:
        raise ConfigurationError(f"{name} = {value!r}; wanted an integer in [1, 2^62]")


# ---- the cipher, on arrays of uint64 -------------------------------------------------------------


def encipher(numbers, sizes, keys) -> numpy.ndarray:
    """Return the permuted numbers, [n] uint64.

    numbers [n] uint64, each below its size; sizes [n] or one integer; keys [n] or [1] uint64
    """
    return _walk(numbers, sizes, keys, _enciphered)


def decipher(numbers, sizes, keys) -> numpy.ndarray:
    """Return the numbers that encipher() permutes to these."""
    return _walk(numbers, sizes, keys, _deciphered)


def _mixed(bits):
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


def _subkeys(keys, number):
    """Return keys that the key and the number decide, of one or of all."""
    return _mixed(_mixed(keys) + (number + 1) * numpy.array([_GOLDEN], numpy.uint64))


def _walk(numbers, sizes, keys, cipher):
    """Apply the cipher until each result is below its size.

    numbers [n]; sizes [n] or one integer; keys [n] or [1]
    """
    sizes, keys = (numpy.broadcast_to(a, numbers.shape) for a in (sizes, keys))
    begins, _ = _groups(sizes, keys)
    if 0 < len(begins) * _WORTH_A_CALL <= len(numbers):
        ends = [*begins[1:], len(numbers)]
        return numpy.concatenate(
            [
                _walk_alike(numbers[begin:end], sizes[begin:][:1], keys[begin:][:1], cipher)
                for begin, end in zip(begins, ends)
            ]
        )
    left_sizes, right_sizes = _halves(sizes)
    found = cipher(numbers, left_sizes, right_sizes, keys)
    (out,) = numpy.nonzero(found >= sizes)
    while len(out):
        found[out] = cipher(found[out], left_sizes[out], right_sizes[out], keys[out])
        out = out[found[out] >= sizes[out]]
    return found


def _walk_alike(numbers, size, key, cipher):
    """Do the same for numbers of one size [1] and one key [1]: less arithmetic for each."""
    left, right = _halves(size)
    found = cipher(numbers, left, right, key)
    (out,) = numpy.nonzero(found >= size)
    while len(out):
        found[out] = cipher(found[out], left, right, key)
        out = out[found[out] >= size]
    return found


def _halves(sizes):
    """Return a, b with a * b >= size > a * b - a for each size."""
    different, which = numpy.unique(sizes, return_inverse=True)
    left = [1 + math.isqrt(int(size) - 1) for size in different]
    right = [-(-int(size) // a) for size, a in zip(different, left)]
    return (numpy.array(half, numpy.uint64)[which] for half in (left, right))


def _rounds(keys):
    return [(number % 2, _subkeys(keys, number)) for number in range(_NUM_ROUNDS)]


def _enciphered(numbers, left_sizes, right_sizes, keys):
    right, left = numpy.divmod(numbers, left_sizes)
    for is_right, key in _rounds(keys):
        if is_right:
            right = (right + _mixed(left + key) % right_sizes) % right_sizes
        else:
            left = (left + _mixed(right + key) % left_sizes) % left_sizes
    return left + right * left_sizes


def _deciphered(numbers, left_sizes, right_sizes, keys):
    right, left = numpy.divmod(numbers, left_sizes)
    for is_right, key in reversed(_rounds(keys)):
        if is_right:
            right = (right + right_sizes - _mixed(left + key) % right_sizes) % right_sizes
        else:
            left = (left + left_sizes - _mixed(right + key) % left_sizes) % left_sizes
    return left + right * left_sizes
