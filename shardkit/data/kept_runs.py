"""Runs of rows that are read whole, one read each, and kept while an order comes back to them.

    file     | run 0 | run 1 | ...                    one read each, in the order of the file
    buffer   | run 7 | run 2 | ... | eight runs       rows are taken from here, in any order

An order mixes the rows of four runs (windows.py), so eight runs are two windows: the one that is
read from and, at its end, the next. Where many ranks share each window, a rank wants few rows of a
run, and where rows are wanted from everywhere there are too many runs: `take` declines both.
"""

import numpy

from ..array import kernels
from .windows import WINDOW_RUNS

_NUM_KEPT = 2 * WINDOW_RUNS
_MOST_RUN_BYTES = 1 << 20
_MOST_WASTE = 2.5  # rows that are read for one that is asked for
_CHEAP_BYTES = 1 << 10  # read for one row, whatever its size, in the time that its address takes


class KeptRuns:
    """The last runs of a file that were read.

    read_run  (number of a run, array [length, row_bytes] uint8 to fill); errors: OSError
    num_runs  all but the last of them `length` rows long
    """

    def __init__(self, read_run, num_runs: int, length: int, row_bytes: int):
        self._read_run = read_run
        self._length = length
        self._rows = numpy.empty((_NUM_KEPT * length, row_bytes), numpy.uint8)
        self._slot_of = numpy.full(num_runs, -1, numpy.int32)
        self._is_wanted = numpy.zeros(num_runs, bool)
        self._run_in = [-1] * _NUM_KEPT
        self._worth_reading = max(_MOST_WASTE, _CHEAP_BYTES / row_bytes)  # rows for one
        self._num_asked = _NUM_KEPT * length  # rows; two windows are read on trust
        self._num_read = 0

    @staticmethod
    def fits(num_runs: int, run_bytes: int) -> bool:
        """Return True if runs of this size are worth keeping."""
        return num_runs > 1 and 0 < run_bytes <= _MOST_RUN_BYTES

    def take(self, numbers) -> numpy.ndarray | None:
        """Return these rows as bytes [n, row_bytes]; None if reading whole runs would be waste.

        Errors: OSError.
        """
        found = numpy.empty((len(numbers), self._rows.shape[1]), numpy.uint8)
        most = WINDOW_RUNS * self._length  # of an order, these are in two windows
        at = self._copied(numbers, found)
        while at < len(numbers):
            if not self._read_runs_of(numbers[at : at + most]):
                return None
            at += self._copied(numbers[at:], found[at:])
        self._num_asked += len(numbers)
        return found

    def _copied(self, numbers, found) -> int:
        """Copy rows as far as their runs are kept; return how many."""
        return len(kernels.rows_kept(self._rows, self._slot_of, self._length, numbers, found))

    def _read_runs_of(self, numbers) -> bool:
        """Read the runs of these rows; return False if it is not worth it."""
        self._is_wanted[numbers // self._length] = True
        wanted = numpy.flatnonzero(self._is_wanted)
        self._is_wanted[wanted] = False
        if len(wanted) > _NUM_KEPT or self._num_read > self._num_asked * self._worth_reading:
            return False
        self._read(wanted.tolist())
        return True

    def _read(self, wanted: list[int]) -> None:
        """Read the runs of these that are not kept, in place of runs that are none of these."""
        free = [slot for slot, run in enumerate(self._run_in) if run not in wanted]
        missing = [run for run in wanted if run not in self._run_in]
        for run, slot in zip(missing, free):
            if self._run_in[slot] >= 0:
                self._slot_of[self._run_in[slot]] = -1
            self._run_in[slot] = -1  # until it is read
            self._read_run(run, self._rows[slot * self._length :][: self._length])
            self._run_in[slot], self._slot_of[run] = run, slot
            self._num_read += self._length
