"""The order of samples window by window: each window's hashes are made once, for all its rows.

    epoch     | window 0 | window 1 | ... |      a window is a few runs, or all of a small epoch
    window    key --> tables of the rounds --> rows permuted (kernel `shuffled`) --> samples

The numbers are those of ByPosition (order.py), which hashes for each position; here a hash is made
for each half that a row can have. Some windows are described at once, since a description costs
about as much as a thousand rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy

from ..array import kernels
from .cipher import decipher, encipher, subkeys, tables

WINDOW_RUNS = 4  # runs whose samples are mixed
FEWEST_ROWS = 512  # of a window for which tables pay
MOST_ROWS = 1 << 24  # whose tables take half a megabyte
_ROWS_AT_ONCE = 1 << 16  # of the windows that are described at once
_NUMBERS_AHEAD = 1 << 13  # found at once for callers that go on in small steps
_RUNS_AT_ONCE = 1 << 10  # numbers of runs found at once


@dataclass(frozen=True, eq=False)
class ShuffledWindow:
    """Positions [start, stop) of an epoch, and how they are shuffled among each other.

    ends, shifts  see `shuffled`: slots of rows, and what is added to a row for its sample
    """

    start: int
    stop: int
    ends: numpy.ndarray
    shifts: numpy.ndarray


class ByWindow:
    """The numbers at positions, where windows are neither small nor very large.

    epochs  epoch number -> object with windows(first, count), key(number), and at(position)
    """

    def __init__(self, num_samples: int, epochs, width: int):
        self._num_samples = num_samples
        self._epochs = epochs
        self._at_once = max(_ROWS_AT_ONCE // width, 1)
        self._epoch: tuple[int, Any] = -1, None  # the last that was asked for
        self._known: tuple[int, list[Any]] = -1, []  # number of the first; each with its tables
        self._asked = 0  # the last position that was asked for
        self._found = 0, numpy.empty(0, numpy.int64)  # position of the first, and the numbers

    @staticmethod
    def fits(width: int) -> bool:
        """Return True if tables pay for windows of this many rows."""
        return FEWEST_ROWS <= width <= MOST_ROWS

    def numbers(self, first: int, count: int) -> numpy.ndarray:
        """Return the sample numbers at positions [first, first + count): [count] int64."""
        start, found = self._found
        if not start <= first <= first + count <= start + len(found):
            comes_again = 0 < first - self._asked <= _NUMBERS_AHEAD // 4
            start, found = first, self._numbers(first, max(count, comes_again * _NUMBERS_AHEAD))
            self._found = start, found
        self._asked = first
        return found[first - start : first - start + count].copy()

    def _numbers(self, first: int, count: int) -> numpy.ndarray:
        found = numpy.empty(count, numpy.int64)
        at = 0
        while at < count:
            epoch, position = divmod(first + at, self._num_samples)
            window, rounds = self._window(epoch, position)
            most = min(count - at, window.stop - position)
            found[at : at + most] = kernels.shuffled(
                rounds,
                window.stop - window.start,
                position - window.start,
                most,
                window.ends,
                window.shifts,
            )
            at += most
        return found

    def _window(self, number: int, position: int):
        """Return the window of this position of this epoch, and the tables of its rounds."""
        if self._epoch[0] != number:
            self._epoch = number, self._epochs(number)
            self._known = -1, []
        epoch = self._epoch[1]
        which = epoch.at(position)
        first, known = self._known
        if not first <= which < first + len(known):
            windows = epoch.windows(which, self._at_once)
            sizes = [window.stop - window.start for window in windows]
            keys = epoch.keys(which, len(windows))
            first, known = self._known = which, list(zip(windows, tables(sizes, keys)))
        return known[which - first]


class Single:
    """An epoch that is one window: any sample may stand anywhere."""

    def __init__(self, num_samples: int, key):
        self._num_samples, self._key = num_samples, key

    def at(self, position: int) -> int:
        """Return the number of the window with this position."""
        return 0

    def windows(self, first: int, count: int) -> list[ShuffledWindow]:
        """Return windows from the first on, at most so many."""
        ends = numpy.array([self._num_samples])
        return [ShuffledWindow(0, self._num_samples, ends, numpy.zeros(1, numpy.int64))]

    def keys(self, first: int, count: int) -> numpy.ndarray:
        """Return the keys of these windows."""
        return self._key


class Runs:
    """An epoch in windows of four runs of neighbors; the runs are shuffled.

    The last run is short. Positions that count it as long have a hole behind it, wherever it is
    shuffled to; there run and row are quotient and remainder.
    """

    def __init__(self, num_samples: int, run_length: int, key):
        self._num_samples, self._length = num_samples, run_length
        self._width = WINDOW_RUNS * run_length
        self._num_runs = -(-num_samples // run_length)
        self._hole = self._num_runs * run_length - num_samples
        self._key, self._run_key = key, subkeys(key, 0)
        last = numpy.array([self._num_runs - 1], numpy.uint64)
        self._short = int(decipher(last, self._num_runs, self._run_key)[0])  # place of the last run
        self._known = 0, numpy.empty(0, numpy.int64)  # first slot, and the runs from there on

    def at(self, position: int) -> int:
        """Return the number of the window with this position."""
        behind = self._start(self._short // WINDOW_RUNS + 1)
        return (position + self._hole * (position >= behind)) // self._width

    def _start(self, window: int) -> int:
        is_behind = window > self._short // WINDOW_RUNS
        return min(window * self._width - self._hole * is_behind, self._num_samples)

    def windows(self, first: int, count: int) -> list[ShuffledWindow]:
        """Return windows from the first on, at most so many."""
        count = min(count, -(-self._num_runs // WINDOW_RUNS) - first)
        bounds = [self._start(window) for window in range(first, first + count + 1)]
        runs = self._runs(first * WINDOW_RUNS, count * WINDOW_RUNS)
        lengths = numpy.full(len(runs), self._length)
        if first <= self._short // WINDOW_RUNS < first + count:
            lengths[self._short - first * WINDOW_RUNS] -= self._hole
        starts = numpy.repeat(bounds[:-1], WINDOW_RUNS)[: len(runs)]
        ends = bounds[0] + numpy.cumsum(lengths) - starts
        shifts = runs * self._length - (ends - lengths)
        return [
            ShuffledWindow(start, stop, ends[at : at + WINDOW_RUNS], shifts[at : at + WINDOW_RUNS])
            for start, stop, at in zip(bounds, bounds[1:], range(0, len(runs), WINDOW_RUNS))
        ]

    def _runs(self, slot: int, count: int) -> numpy.ndarray:
        """Return the numbers of the runs that are shuffled to these slots, as far as there are."""
        first, known = self._known
        stop = min(slot + count, self._num_runs)
        if not first <= slot <= stop <= first + len(known):
            last = min(slot + max(count, _RUNS_AT_ONCE), self._num_runs)
            slots = numpy.arange(slot, last, dtype=numpy.uint64)
            found = encipher(slots, self._num_runs, self._run_key)
            first, known = self._known = slot, found.astype(numpy.int64)
        return known[slot - first : stop - first]

    def keys(self, first: int, count: int) -> numpy.ndarray:
        """Return the keys of these windows."""
        return subkeys(self._key, numpy.arange(first + 1, first + 1 + count, dtype=numpy.uint64))
