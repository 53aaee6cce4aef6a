"""Hold a part of the data out for validation: a pure function of sizes and percent.

    rows        |..........vv....|....vv..........|.............vv.|    v held out
                 as many stretches of whole runs as there is room for, at most 1024, one in each
                 equal part of all rows, at a place that is drawn once and for all

    documents   whole ones from everywhere; the end of a long one (see `split_documents`)

Nothing is in both parts.
"""

from dataclasses import dataclass

import numpy

from ..array.random import key_of, uniform
from ..errors import CorpusError

_MOST_STRETCHES = 1024
_FEWEST_RUNS = 4  # held out as whole runs; fewer would miss the percentage


@dataclass(frozen=True, eq=False)
class Ranges:
    """Ascending ranges of numbers, as one sequence.

    starts, stops  [k] int64, disjoint and none empty
    """

    starts: numpy.ndarray
    stops: numpy.ndarray

    def __len__(self):
        return int((self.stops - self.starts).sum())

    def numbers(self, positions) -> numpy.ndarray:
        """Return the numbers at these positions of the sequence: [n] int64."""
        ends = numpy.cumsum(self.stops - self.starts)
        which = numpy.searchsorted(ends, positions, side="right")
        return self.stops[which] - (ends[which] - positions)


def split_rows(num_rows: int, percent: float, run_length: int = 1) -> tuple[Ranges, Ranges]:
    """Return (training, validation) of this many rows.

    percent     of the rows to hold out, in (0, 100)
    run_length  whole runs of so many rows are held out if that makes four or more
    Errors: CorpusError if there are fewer than two rows.
    """
    if num_rows < 2:
        raise CorpusError(
            f"{num_rows} row{'s' * (num_rows != 1)} cannot be split into training and validation; "
            "give more rows, or others for validation"
        )
    share = percent / 100
    unit = run_length if share * num_rows / run_length >= _FEWEST_RUNS else 1
    num_units = -(-num_rows // unit)
    num_held = min(max(1, round(share * num_units)), num_units - 1)
    num_stretches = min(num_held, _MOST_STRETCHES)

    cuts = numpy.arange(num_stretches + 1, dtype=numpy.int64)
    parts = cuts * num_units // num_stretches  # where each equal part begins
    lengths = numpy.diff(cuts * num_held // num_stretches)
    lengths = numpy.minimum(lengths, numpy.diff(parts))
    room = numpy.diff(parts) - lengths
    drawn = uniform(key_of("held out", num_rows, run_length), 0, num_stretches)
    starts = parts[:-1] + (drawn * (room + 1)).astype(numpy.int64)
    held = Ranges(starts * unit, numpy.minimum((starts + lengths) * unit, num_rows))
    return _rest(held, num_rows), held


def _rest(held: Ranges, size: int) -> Ranges:
    """Return what lies between the ranges in range(size)."""
    starts = numpy.concatenate([[0], held.stops])
    stops = numpy.concatenate([held.starts, [size]])
    is_any = stops > starts
    return Ranges(starts[is_any], stops[is_any])


def split_documents(sizes, can_cut, percent: float) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return (training, validation) of documents, each a table of [document, first, stop].

        sizes   3 4 2 5 1 3 ...     At each document the share of all so far is due. A document is
                      ^             held out if it fits into what is due and not yet held out.

    A document that is longer than the whole held-out part is cut, and its end is held out. A single
    document is always cut.

    sizes    [d] tokens of each document, or of a group of neighbors
    can_cut  [d] bool, False for groups, which are never cut
    """
    share = percent / 100
    longest = share * sum(sizes)
    training = []
    held_out = []
    passed = 0
    held = 0
    for document, (size, is_one) in enumerate(zip(sizes, can_cut)):
        if is_one and size > longest:
            cut = size - max(1, int(share * size))
            training.append((document, 0, cut))
            held_out.append((document, cut, size))
            continue
        passed += size
        if held + size <= share * passed:
            held += size
            held_out.append((document, 0, size))
        else:
            training.append((document, 0, size))
    return _table(training), _table(held_out)


def _table(rows) -> numpy.ndarray:
    table = numpy.array(rows, numpy.int64).reshape(-1, 3)
    return table[table[:, 2] > table[:, 1]]
