"""The order of samples: each epoch visits each sample exactly once, and nothing is kept in memory.

    position   0 1 2 3 4 | 5 6 7 8 9 | 10 ...      of an endless stream, N = 5
    epoch          0     |     1     |
    number     3 0 4 1 2 | 1 4 2 0 3 |             a permutation of 0 ... N - 1 in each epoch

The number at a position is a function of (seed, purpose, position), so no mesh changes it, a run
goes on anywhere, and 10^10 samples cost as much as ten. The permutation is a cipher (cipher.py).

    ByPosition   the definition: whole arrays of positions, each with the key of its window
    ByWindow     the same numbers from tables (windows.py), where windows have many rows
"""

import numpy

from ..arguments import is_integer
from ..array.random import key_of
from ..errors import ConfigurationError
from .cipher import decipher, encipher, groups, subkeys
from .windows import WINDOW_RUNS, ByWindow, Runs, Single

_AHEAD = 1024  # numbers found at once, in little more time than a few


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
        key = numpy.array([key_of(seed, "order", purpose)], numpy.uint64)
        width = num_samples if self.run_length == 1 else WINDOW_RUNS * self.run_length
        if ByWindow.fits(width):
            self._found: ByWindow | ByPosition = ByWindow(num_samples, self._epochs(key), width)
        else:
            self._found = ByPosition(num_samples, self.run_length, key)

    def _epochs(self, key):
        """Return (number of an epoch) -> its windows."""
        if self.run_length == 1:
            return lambda number: Single(self.num_samples, subkeys(key, number))
        return lambda number: Runs(self.num_samples, self.run_length, subkeys(key, number))

    def numbers(self, first: int, count: int) -> numpy.ndarray:
        """Return the sample numbers at positions [first, first + count): [count] int64."""
        return self._found.numbers(first, count)


class ByPosition:
    """The numbers at positions, by arithmetic on whole arrays of positions.

    The last numbers that were found are kept: a few cost nearly as much as a thousand.
    """

    def __init__(self, num_samples: int, run_length: int, key):
        self.num_samples, self.run_length = num_samples, run_length
        self._key = key
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
        keys = subkeys(self._key, epochs)
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
        width = WINDOW_RUNS * length
        run_keys = subkeys(keys, 0)
        begins, epoch = groups(run_keys)
        last_run = numpy.full(len(begins), num_runs - 1, numpy.uint64)
        short = decipher(last_run, num_runs, run_keys[begins])[epoch]  # its place
        short_window = short // WINDOW_RUNS

        is_behind = positions + hole >= (short_window + 1) * width
        window = (positions + hole * is_behind) // width
        start = window * width - hole * is_behind
        stop = (window + 1) * width - hole * (window >= short_window)
        size = numpy.minimum(stop, self.num_samples) - start
        row = encipher(positions - start, size, subkeys(keys, window + 1))

        place = window * width + row  # with the hole
        place += hole * ((window == short_window) & (place >= (short + 1) * length - hole))
        begins, group = groups(run_keys, window)
        slots = window[begins, None] * WINDOW_RUNS + numpy.arange(WINDOW_RUNS, dtype=numpy.uint64)
        slot_keys = numpy.repeat(run_keys[begins], WINDOW_RUNS)
        runs = encipher(numpy.minimum(slots, num_runs - 1).ravel(), num_runs, slot_keys)
        slot, within = numpy.divmod(place - window * width, numpy.uint64(length))
        run = runs.reshape(-1, WINDOW_RUNS)[group, slot]
        return run * length + within


def _check_size(name: str, value):
    if not is_integer(value) or not 1 <= value <= 1 << 62:
        raise ConfigurationError(f"{name} = {value!r}; wanted an integer in [1, 2^62]")
