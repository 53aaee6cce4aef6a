"""One pass over the rows of a table before training, which ranks share block by block.

    training    | block 0 | block 1 | ... |    each block, on some rank: moments, counts of classes
    validation  | block k | ...                then all blocks, in their order, on one rank

A block has a fixed size, and blocks are merged in their order, so that no number of ranks changes
a bit of the scaling.
"""

from dataclasses import dataclass, field

import numpy

from ..data.samples import Samples
from ..errors import ConfigurationError
from .scaling import Moments

_BLOCK_ELEMENTS = 1 << 22  # of work for one rank
_PIECE_ELEMENTS = 1 << 17  # that are read at once, and stay in cache


@dataclass(eq=False)
class Findings:
    """What rows have shown.

    x, y          moments of the columns
    class_counts  [classes] int64: rows of each class; empty of regression
    """

    x: Moments
    y: Moments
    class_counts: numpy.ndarray = field(default_factory=lambda: numpy.zeros(0, numpy.int64))

    @classmethod
    def none(cls, widths: tuple[int, int]) -> "Findings":
        """Return the findings of no rows; widths: columns of x and y."""
        return cls(*map(Moments, widths))

    def add(self, x, y, *, has_classes: bool) -> None:
        """Add rows: x [n, columns], y [n, columns], or class numbers in the first column."""
        self.x.add(x)
        if has_classes:
            self._add_counts(numpy.bincount(y[:, 0].astype(numpy.int64)))
        else:
            self.y.add(y)

    def merge(self, others: "Findings") -> None:
        """Add what other rows have shown."""
        self.x.merge(others.x)
        self.y.merge(others.y)
        self._add_counts(others.class_counts)

    def _add_counts(self, more):
        total = numpy.zeros(max(len(self.class_counts), len(more)), numpy.int64)
        total[: len(self.class_counts)] += self.class_counts
        total[: len(more)] += more
        self.class_counts = total


class TableSurvey:
    """The blocks of the rows of a run.

    training, validation  rows, not scaled
    widths                columns of x, targets
    path                  of the file, for messages
    """

    def __init__(self, training: Samples, validation: Samples, widths, *, has_classes, path):
        self._parts = training, validation
        self._widths, self._has_classes, self._path = widths, has_classes, path
        self._rows = max(_BLOCK_ELEMENTS // max(sum(widths), 1), 1)
        self._piece = max(_PIECE_ELEMENTS // max(sum(widths), 1), 1)
        self._counts = [-(-len(part) // self._rows) for part in self._parts]

    def __len__(self):
        return sum(self._counts)

    def look(self, number: int) -> Findings:
        """Return what a block shows. Errors: ConfigurationError on what is no number, OSError."""
        is_held_out = number >= self._counts[0]
        rows = self._parts[is_held_out]
        begin = (number - is_held_out * self._counts[0]) * self._rows
        end = min(begin + self._rows, len(rows))
        found = Findings.none(self._widths)
        for first in range(begin, end, self._piece):
            x, y = rows.read(numpy.arange(first, min(first + self._piece, end)))
            _check_form(x, self._path)
            targets = y.reshape(len(y), -1)[:, : self._widths[1]]
            found.add(x, targets, has_classes=self._has_classes)
        return found

    def merged(self, findings: list[Findings]) -> tuple[Findings, Findings]:
        """Return what the training rows and the validation rows show, from those of all blocks."""
        totals = Findings.none(self._widths), Findings.none(self._widths)
        for number, found in enumerate(findings):
            totals[number >= self._counts[0]].merge(found)
        return totals


def _check_form(x, path) -> None:
    if x.ndim != 2:
        raise ConfigurationError(
            f"{path}: a row of features has shape {x.shape[1:]}; the task `table` takes vectors, "
            "others need a task of your own"
        )
