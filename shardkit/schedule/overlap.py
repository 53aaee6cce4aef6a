"""Overlap: a pass that lets messages between data ranks travel while the units compute.

    as lowered    0.0GATHER 0.0F0 0.0RELEASE 0.1GATHER 0.1F0 0.1B0 0.1W0 0.1RELEASE 0.1REDUCE ...
    overlapped    0.0GATHER 0.1BEGIN_GATHER 0.0F0 0.0RELEASE 0.1GATHER ... 0.1RELEASE
                  0.1BEGIN_REDUCE ... 0.1REDUCE

A BEGIN posts messages and goes on; the GATHER or REDUCE of the unit, which stays where its result
is needed, waits for them. At most one gather and one reduction are under way, so at most one more
unit of each is whole at a time.
Source: the prefetching of PyTorch's FSDP (arXiv 2304.11277).
"""

from collections import defaultdict
from typing import Any

from .actions import Action, Kind, Program

_END_OF_STEP = (Kind.TIE, Kind.CLIP, Kind.STEP)


def begin_gathers(program: Program) -> Program:
    """Begin each GATHER but the first one visit ahead: after the GATHER before it, if released.

        >>> program = from_text("0: 0.0GATHER 0.0F0 0.0RELEASE 0.1GATHER 0.1F0 0.0GATHER")
        >>> print(to_text(begin_gathers(program)))
        0: 0.0GATHER 0.1BEGIN_GATHER 0.0F0 0.0RELEASE 0.1GATHER 0.0BEGIN_GATHER 0.1F0 0.0GATHER

    A gather of a unit that is whole begins once it is released. Units that are gathered together
    begin together:

        >>> program = from_text("0: 0.0GATHER 0.0F0 0.0RELEASE 0.0GATHER 0.1GATHER 0.1F0")
        >>> print(to_text(begin_gathers(program)))
        0: 0.0GATHER 0.1BEGIN_GATHER 0.0F0 0.0RELEASE 0.0BEGIN_GATHER 0.0GATHER 0.1GATHER 0.1F0
    """
    return {rank: _with_gathers_begun(actions) for rank, actions in program.items()}


def _with_gathers_begun(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    begun_after = defaultdict(list)  # position: the BEGINs that stand after it
    released_at = {}
    last = None  # where the last GATHERs ended
    before = None  # and those before them
    for at, action in enumerate(actions):
        unit = action.stage, action.unit
        if action.kind is Kind.RELEASE:
            released_at[unit] = at
        elif action.kind is Kind.GATHER:
            if last is not None and last != at - 1:
                before = last
            last = at
            if before is not None:
                begun_after[max(before, released_at.get(unit, before))].append(
                    Action(Kind.BEGIN_GATHER, *unit)
                )
    return tuple(b for at, action in enumerate(actions) for b in (action, *begun_after[at]))


def begin_reductions(program: Program) -> Program:
    """Begin each REDUCE where it stood; end it where the next begins, or at the end of the step.

    >>> program = from_text("0: 0.1W0 0.1REDUCE 0.0B0 0.0W0 0.0REDUCE CLIP 0.0STEP")
    >>> print(to_text(begin_reductions(program)))
    0: 0.1W0 0.1BEGIN_REDUCE 0.0B0 0.0W0 0.1REDUCE 0.0BEGIN_REDUCE 0.0REDUCE CLIP 0.0STEP
    """
    return {rank: _with_reductions_begun(actions) for rank, actions in program.items()}


def _with_reductions_begun(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    result = []
    under_way: list[Any] = []
    for action in actions:
        if action.kind is Kind.REDUCE or action.kind in _END_OF_STEP:
            result += under_way
            under_way = []
        if action.kind is Kind.REDUCE:
            result.append(Action(Kind.BEGIN_REDUCE, action.stage, action.unit))
            under_way = [action]
        else:
            result.append(action)
    return (*result, *under_way)
