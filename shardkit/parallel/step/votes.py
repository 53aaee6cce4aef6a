"""What the ranks tell each other at the end of a step: its loss, whether it counts, and whether a
rank could not go on in it.

    losses of the last stages --down each pipeline, then over the data axis--> the mean on all ranks
    losses, gradients of all ranks --> one number that every rank has anyway (the gradient norm) -->
    NaN or infinite: no step

A rank whose loss is bad, or that had to go on with zeros since memory ran out or a block raised,
makes it NaN for all. So a good step costs no message; only after a bad one the ranks tell each
other what happened.
"""

from dataclasses import dataclass
from itertools import chain
from math import isfinite, nan
from typing import Any

import numpy

from ...array.backend import is_array, numbers_of
from ...comm.backend import CommunicationBackend
from ...comm.collectives.ordered import ordered_sum
from ...comm.failure.agreement import agree, raise_together
from ...comm.mesh import Mesh
from ...layout.axes import COPIES
from .batch import tree_total
from .inputs import Results

NOTHING_COUNTS = "no label of the global batch counts"
_MOST_RANKS = 8  # named in a message


@dataclass(frozen=True)
class SkippedStep:
    """A step that changed neither parameters nor optimizer state, on any rank.

    number          of the step, the first is 1
    loss            of the global batch; None where only gradients were at hand
    gradient_norm   before clipping; None if nothing clips
    ranks           world ranks whose own loss was NaN or infinite; () if it came with the gradients
    is_empty        nothing was there to take a mean of: all labels are to be ignored
    """

    number: int
    loss: float | None
    gradient_norm: float | None
    ranks: tuple[int, ...]
    is_empty: bool = False

    def __str__(self):
        if self.is_empty:
            return f"step {self.number} skipped: {NOTHING_COUNTS}"
        figures = {"loss": self.loss, "gradient norm": self.gradient_norm}
        text = ", ".join(
            f"{name} {value:g}"
            for name, value in figures.items()
            if value is not None and not isfinite(value)
        )
        return f"step {self.number} skipped: {text or 'gradients NaN or infinite'}{self._origin()}"

    def _origin(self):
        if not self.ranks:
            return ", in the gradients"
        named = ", ".join(map(str, self.ranks[:_MOST_RANKS])) + (
            " ..." if len(self.ranks) > _MOST_RANKS else ""
        )
        return f", in the loss on rank{'s' if len(self.ranks) > 1 else ''} {named}"


class Skips:
    """How many steps of a run changed nothing: in all, and in a row up to now."""

    def __init__(self, total: int = 0):
        self.total, self.in_a_row = total, 0
        self.last: SkippedStep | None = None  # None if the last step was taken

    def count(self, skip: SkippedStep | None) -> None:
        """Count one step: skipped, or taken if `skip` is None."""
        self.last = skip
        self.total += skip is not None
        self.in_a_row = self.in_a_row + 1 if skip is not None else 0


def fetch(results: Results, *scalars) -> list[float]:
    """Return these arrays of one element as Python numbers, and make the losses such too.

    All that lies on a GPU comes in one transfer, which the host waits for.
    """
    tables: list[dict[Any, Any]] = [results.losses, *results.parts.values()]
    waiting = [(table, key) for table in tables for key in table if is_array(table[key])]
    numbers = numbers_of([*scalars, *[table[key] for table, key in waiting]])
    for (table, key), number in zip(waiting, numbers[len(scalars) :]):
        table[key] = number
    return numbers[: len(scalars)]


class StepLosses:
    """The losses that the last stage of each pipeline has, summed on all ranks.

    last_rank        of a pipeline: the one that has the last stage
    may_have_parts   the usual loss is a function, which may return several means
    """

    def __init__(self, mesh: Mesh, last_rank: int, *, may_have_parts: bool = False):
        self._pipeline, self._data = mesh.group("pipeline"), mesh.group(COPIES)
        self._last_rank, self._may_have_parts = last_rank, may_have_parts
        self._last: dict[str, tuple[dict, float]] = {}  # parts and items, by objective

    def mean_of(self, results: Results, items: float, objective: str = "") -> float:
        """Return the mean loss of a step: NaN if there are no items. Collective.

        Losses of micro-batches, then of ranks, are summed in the tree order of their gradients.
        """
        fetch(results)
        self._last[objective] = results.parts, items
        losses = results.losses  # of the last stage; others have none
        own = tree_total([losses[m] for m in sorted(losses)] or [0.0])
        return mean(self.summed([own])[0], items)

    def parts(self) -> dict[str, float]:
        """Return the mean of each part that losses of the last steps have. Collective."""
        found: dict[str, float] = {}
        for parts, items in self._last.values() if self._may_have_parts else ():
            own = _summed_by_name([parts[m] for m in sorted(parts)])
            everyones = self._data.all_gather_object(own)
            everyones = self._pipeline.broadcast_object(everyones, self._last_rank)
            totals = _summed_by_name(everyones)
            found |= {name: mean(total, items) for name, total in totals.items()}
        return found

    def summed(self, numbers: list[float]) -> list[float]:
        """Return the sums over COPIES of what the last stage of each has. Collective.

        Down each pipeline first: then every rank needs its sum, and none adds numbers that nobody
        reads.
        """
        box = numpy.array(numbers, numpy.float64)
        self._pipeline.broadcast(box, self._last_rank)
        return ordered_sum(self._data, box).tolist()


def mean(total: float, items: float) -> float:
    """Return the mean over so many items; NaN of none."""
    return total / items if items else nan


def is_agreed_good(
    world: CommunicationBackend,
    gradient_norm: float | None,
    is_good: bool,
    computed: Results,
    units,
) -> bool:
    """Return whether the step is to be taken, the same on all ranks.

    Collective if nothing clips, else without communication.

    gradient_norm   NaN if any rank is not good; None if nothing clips
    is_good         False if this rank knows that the step must not be taken
    computed        whose losses are fetched with the gradients' squares, and have to be finite
    """
    if gradient_norm is not None:
        return isfinite(gradient_norm)
    squares = fetch(computed, *[unit.gradients.squares().sum() for unit in units])
    numbers = [*squares, *computed.losses.values()]
    return not agree(world, not (is_good and all(map(isfinite, numbers))))


def ranks_with_bad_losses(world: CommunicationBackend, losses) -> tuple[int, ...]:
    """Return the world ranks whose own losses are NaN or infinite. Collective."""
    are_bad = world.all_gather_object(not all(map(isfinite, losses)))
    return tuple(rank for rank, is_bad in enumerate(are_bad) if is_bad)


def raise_failure(world: CommunicationBackend, failure: Exception | None) -> None:
    """Raise on all ranks what stopped the first rank that was stopped, or this one. Collective."""
    if agree(world, failure is not None):
        raise_together(world, failure)


def _summed_by_name(tables: list[dict[str, float]]) -> dict[str, float]:
    """Return the sums of numbers of one name, in the tree order; a table may lack some names."""
    return {
        name: tree_total([each.get(name, 0.0) for each in tables])
        for name in dict.fromkeys(chain.from_iterable(tables))
    }
