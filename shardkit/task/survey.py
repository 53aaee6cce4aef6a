"""One pass over the rows of a table before training, which ranks share block by block.

    training    | block 0 | block 1 | ... |    each block, on some rank: moments, counts of classes
    validation  | block k | ...                then all blocks, in their order, on one rank

A block has a fixed size, a large row is read part by part, and blocks are merged in their order,
so that no number of ranks changes a bit of the scaling.
"""

from dataclasses import dataclass, field
from itertools import product

import numpy

from ..data.samples import Samples, reader_of
from ..data.scaling import Moments, in_columns
from ..layout.part import Rows, SamplePart
from .form import RowForm

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
        x, y = map(Moments, widths)
        return cls(x, y)

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


def _parts_of(form: RowForm) -> list[SamplePart | None]:
    """Return the parts in which a row is read, whatever the number of ranks; None: whole.

    A row is cut along the first dim that has no columns.
    """
    x_dim = 2 if form.x_axis == 1 else 1
    y_dim = None if len(form.y_shape) < 2 else 2 if form.y_axis == 1 else 1
    if len(form.x_shape) < x_dim:
        return [None]
    lengths = [form.x_shape[x_dim - 1]]
    if y_dim is not None:
        lengths += [form.y_shape[y_dim - 1]]
    count = min(-(-form.elements // _PIECE_ELEMENTS), *lengths)
    return [SamplePart(n, count, x_dim, y_dim) for n in range(count)] if count > 1 else [None]


def _rows_of(values):
    return values.array if isinstance(values, Rows) else values


class TableSurvey:
    """The blocks of the rows of a run.

    training, validation  rows, not scaled
    form                  how the columns lie in x and in the targets, and how many
    check                 function of x that raises ConfigurationError on rows of another form
    """

    def __init__(
        self, training: Samples, validation: Samples, form: RowForm, *, has_classes, check
    ):
        self._parts = training, validation
        self._form, self._has_classes, self._check = form, has_classes, check
        self._rows = max(_BLOCK_ELEMENTS // max(form.elements, 1), 1)
        self._piece = max(_PIECE_ELEMENTS // max(form.elements, 1), 1)
        self._counts = [-(-len(part) // self._rows) for part in self._parts]

    def __len__(self):
        return sum(self._counts)

    def look(self, number: int) -> Findings:
        """Return what a block shows. Errors: ConfigurationError on what is no number, OSError."""
        is_held_out = number >= self._counts[0]
        rows = self._parts[is_held_out]
        begin = (number - is_held_out * self._counts[0]) * self._rows
        end = min(begin + self._rows, len(rows))
        form = self._form
        found = Findings.none(form.widths)
        parts = _parts_of(form)
        read = reader_of(rows)
        pieces = product(range(begin, end, self._piece), parts)
        for first, part in pieces:
            numbers = numpy.arange(first, min(first + self._piece, end))
            x, y = map(_rows_of, read(numbers, part=part))
            self._check(x)
            if y.ndim < 3:  # weights of rows may stand behind the targets
                y = y.reshape(len(y), -1)[:, : form.widths[1]]
            if part is not None and part.number and part.y_dim is None:
                y = y[:0]  # which came with the first part
            columns = in_columns(x, form.x_axis), in_columns(y, form.y_axis)
            found.add(*columns, has_classes=self._has_classes)
        return found

    def merged(self, findings: list[Findings]) -> tuple[Findings, Findings]:
        """Return what the training rows and the validation rows show, from those of all blocks."""
        totals = Findings.none(self._form.widths), Findings.none(self._form.widths)
        for number, found in enumerate(findings):
            totals[number >= self._counts[0]].merge(found)
        return totals
