"""Cuts: a dim becomes even parts, a row of blocks becomes units, and a row of units becomes the
stages of a pipeline.

    blocks   8   90   90   2   60        elements of each; merged until a unit is worth a message
    units    |8   90|  90 |2   60|
    stages   |      |            |       contiguous; the most expensive one is as cheap as possible

The runtime cuts a model here, and so does the planner, which knows only the sizes of its model.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

from ..errors import StagesError


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(dict.fromkeys([*small, *(number // n for n in reversed(small))]))


def even_span(length: int, num_parts: int, part: int) -> tuple[int, int]:
    """Return the run [start, stop) of `length` that is this part's.

    The first length % num_parts parts get one more.
    """
    each, rest = divmod(length, num_parts)
    start = part * each + min(part, rest)
    return start, start + each + (part < rest)


def even_runs(length: int, num_parts: int) -> list[tuple[int, int]]:
    """Return the runs [start, stop) of all parts: even_span of each."""
    return [even_span(length, num_parts, part) for part in range(num_parts)]


def run_of_spans(length: int, num_parts: int, first: int, count: int) -> tuple[int, int]:
    """Return the run [start, stop) of `length` that so many parts from the first on are."""
    start, _ = even_span(length, num_parts, first)
    _, stop = even_span(length, num_parts, first + count - 1)
    return start, stop


def merged_blocks(sizes: Sequence[int], minimum: int) -> list[range]:
    """Return the blocks of each unit: neighbors, merged until they have `minimum` elements.

    The last blocks may join the unit before them.
    sizes   elements of the blocks, in order
    """
    runs = []
    start = size = 0
    for stop, elements in enumerate(sizes, 1):
        size += elements
        if size >= minimum:
            runs.append(range(start, stop))
            start = stop
            size = 0
    if start < len(sizes):
        first = runs.pop().start if runs else 0
        runs.append(range(first, len(sizes)))
    return runs


def minimum_for_stages(sizes: Sequence[int], minimum: int, num_stages: int) -> int:
    """Return the minimum, halved until merged_blocks leaves a unit for each stage, or it is 1."""
    while minimum > 1 and len(merged_blocks(sizes, minimum)) < num_stages:
        minimum //= 2
    return minimum


def balanced_stages(costs: Sequence[float], num_stages: int) -> list[range]:
    """Return the units of each stage: contiguous, none empty, the most expensive one the cheapest.

    costs   of the units, in order, at least 0, in any unit of cost
    Errors: StagesError if there are fewer units than stages.
    """
    if len(costs) < num_stages:
        raise StagesError(
            f"a pipeline of {num_stages} stages needs at least {num_stages} units, but the model "
            f"has {len(costs)}; use fewer stages, more blocks, or a smaller "
            "minimum_parameter_group_size"
        )
    up_to = [0, *accumulate(costs)]
    best: dict[int, Any] = {
        0: (0.0, ())
    }  # units so far -> (cost of the worst stage, where stages begin)
    for stage in range(1, num_stages + 1):
        best = {stop: _best_cut(best, up_to, stage, stop) for stop in range(stage, len(costs) + 1)}
    starts = [*best[len(costs)][1], len(costs)]
    return [range(start, stop) for start, stop in zip(starts, starts[1:])]


def _best_cut(best: dict, up_to: list, stage: int, stop: int) -> tuple[float, tuple[int, ...]]:
    """Return the cheapest way to put the first `stop` units into `stage` stages.

    Among equal ways it is the one whose stages begin earliest.
    best    the cheapest ways with one stage less
    up_to   cost of the first units, by their number
    """
    found = None
    for start in range(stop - 1, stage - 2, -1):
        own = up_to[stop] - up_to[start]
        if found is not None and own > found[0]:
            break  # stages that begin earlier cost even more
        if start in best:
            cost, starts = best[start]
            way = (max(cost, own), (*starts, start))
            found = way if found is None else min(found, way)
    return found
