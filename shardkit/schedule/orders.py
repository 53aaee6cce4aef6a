"""Orders: which micro-batch each pipeline rank works on next. An order is a program of F, B and W
and nothing else.

Time runs to the right, each cell is one second, and F, B and W take one second each; 3 stages, 4
micro-batches (the tests draw these):

    gpipe            rank 0   F0 F1 F2 F3  .  .  .  . B0 W0 B1 W1 B2 W2 B3 W3       every rank
                     rank 1    . F0 F1 F2 F3  .  . B0 W0 B1 W1 B2 W2 B3 W3  .       keeps 4
                     rank 2    .  . F0 F1 F2 F3 B0 W0 B1 W1 B2 W2 B3 W3  .  .

    one_f_one_b      rank 0   F0 F1 F2  .  . B0 W0 F3 B1 W1  . B2 W2  . B3 W3       keeps 3
                     rank 1    . F0 F1  . B0 W0 F2 B1 W1 F3 B2 W2  . B3 W3  .       keeps 2
                     rank 2    .  . F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3  .  .       keeps 1

    zero_bubble_h1   rank 0   F0 F1 F2  .  . B0 W0 F3 B1 W1 B2 W2 B3 W3       every rank
                     rank 1    . F0 F1  . B0 F2 B1 W0 F3 B2 W1 B3 W2 W3       keeps 3
                     rank 2    .  . F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

The dots are the bubble. For p ranks and m micro-batches, gpipe and 1f1b idle for (p-1) / (m+p-1) of
the time if a backward is one action of two seconds. The gradient leaves after B and not after W, so
the bubble is only 2(p-1) / (3m + 2(p-1)); with each W delayed until its rank would idle it is
(p-1) / (3m + p-1). Two ways shorten it further: v stages per rank, each 1/v as long
(interleaved_1f1b), and both ideas together (zero_bubble.py).

An order says nothing about units, messages or the optimizer; `lowering` adds them in the same way
for every order. Every stage takes its micro-batches in ascending order, in F, B and W alike. A W
may follow its B immediately or much later: gradients of micro-batches are added as one fixed tree
over their numbers, in whatever order they are made, so the trained bits do not depend on the mesh.

On one rank gpipe and 1f1b are the two ways to accumulate gradients; `lowering.expand` says what
that means under FSDP.
"""

from collections.abc import Iterable

from ..errors import ScheduleError
from .actions import Action, Kind, Program
from .catalog import order

Turn = tuple[int, int]  # (stage, micro-batch)


@order("gpipe", forwards_first=True, live_rule=lambda ranks, virtual, m, rank: m)
def gpipe(stages: int, micro_batches: int) -> Program:
    """Run all forwards, then all backwards. Every rank keeps the activations of all micro-batches.

    2 stages, 3 micro-batches:      0: 0F0 0F1 0F2 0B0 0W0 0B1 0W1 0B2 0W2
                                    1: 1F0 1F1 1F2 1B0 1W0 1B1 1W1 1B2 1W2
    Source: GPipe (arXiv 1811.06965).
    """
    return _each_stage(stages, micro_batches, warm_up=lambda stage: micro_batches)


@order("1f1b", live_rule=lambda ranks, virtual, m, rank: min(m, ranks - rank))
def one_f_one_b(stages: int, micro_batches: int) -> Program:
    """Fill the pipeline with a few forwards, then run one backward after each forward.

    The bubble is as long as that of gpipe, but rank r keeps the activations of at most stages - r
    micro-batches, however many there are.

    2 stages, 3 micro-batches:      0: 0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2
                                    1: 1F0 1B0 1W0 1F1 1B1 1W1 1F2 1B2 1W2
    Source: PipeDream-Flush (arXiv 2006.09503), Megatron-LM (arXiv 2104.04473).
    """
    return _each_stage(stages, micro_batches, warm_up=lambda stage: stages - 1 - stage)


def _interleaved_alive(ranks: int, virtual: int, micro_batches: int, rank: int) -> int:
    if virtual == 1:
        return min(micro_batches, ranks - rank)
    return min(2 * (ranks - 1 - rank) + (virtual - 1) * ranks + 1, virtual * micro_batches)


@order("interleaved", stages_per_rank=2, is_flexible=True, live_rule=_interleaved_alive)
def interleaved_1f1b(stages: int, micro_batches: int, ranks: int) -> Program:
    """Run 1F1B over v = stages / ranks stages per rank: stage s on rank s % ranks.

    A stage is 1/v as long, and so is the bubble: (p-1) / (v m + p-1) of the time, for v times as
    many messages. Rank r keeps at most 2(p-1-r) + (v-1)p + 1 activations (of one stage each): one
    more per rank below than 1F1B would need, so that messages travel while the rank works.

    Micro-batches go round in groups of `ranks`: a group through the rank's first stage, then
    through its second, ... If micro_batches is not a multiple, the order is that of the next
    multiple without the micro-batches that do not exist. It cannot deadlock, since no action that
    remains waits for one that was left out, and it takes no longer than with them. With one stage
    per rank the order is 1F1B.

    4 stages, 2 micro-batches, 2 ranks:     0: 0F0 0F1 2F0 2F1 2B0 2W0 2B1 2W1 0B0 0W0 0B1 0W1
                                            1: 1F0 1F1 3F0 3B0 3W0 3F1 3B1 3W1 1B0 1W0 1B1 1W1
    Source: Megatron-LM (arXiv 2104.04473), section 2.2.
    """
    check_counts(stages, micro_batches, ranks)
    if stages == ranks:
        return one_f_one_b(stages, micro_batches)
    return {
        rank: _interleaved_rank(range(rank, stages, ranks), micro_batches, ranks)
        for rank in range(ranks)
    }


def _interleaved_rank(mine: range, micro_batches: int, ranks: int) -> tuple[Action, ...]:
    """Return the actions of one rank.

    mine   its stages, ascending; the first is the number of the rank
    """
    groups = [range(first, first + ranks) for first in range(0, micro_batches, ranks)]
    forwards = [(stage, m) for group in groups for stage in mine for m in group]
    backwards = [(stage, m) for group in groups for stage in reversed(mine) for m in group]
    warm_up = 2 * (ranks - 1 - mine[0]) + (len(mine) - 1) * ranks
    return tuple(
        a for a in _alternating(forwards, backwards, warm_up) if a.micro_batch < micro_batches
    )


@order(
    "zb-h1",
    delays_weights=True,
    live_rule=lambda ranks, virtual, m, rank: min(m, ranks),
    idle_seconds=lambda forward, backward, weight: max(forward + backward - weight, 0.0),
)
def zero_bubble_h1(stages: int, micro_batches: int) -> Program:
    """Run 1F1B with the W of rank r delayed by r micro-batches, so that it fills the bubble.

    No rank keeps more than min(stages, micro_batches) activations, which the first rank of 1F1B
    keeps anyway.

    2 stages, 3 micro-batches:      0: 0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2
                                    1: 1F0 1B0 1F1 1B1 1W0 1F2 1B2 1W1 1W2
    Source: ZB-H1 of Zero Bubble Pipeline Parallelism (arXiv 2401.10241).
    """
    return _each_stage(
        stages, micro_batches, warm_up=lambda stage: stages - 1 - stage, w_delay=lambda stage: stage
    )


def check_counts(stages: int, micro_batches: int, ranks: int) -> None:
    """Check that there is something to schedule. Errors: ScheduleError."""
    if stages < 1 or micro_batches < 1 or ranks < 1:
        raise ScheduleError(
            f"{stages} stages, {micro_batches} micro-batches and {ranks} ranks are no schedule; "
            "all must be >= 1"
        )
    if stages % ranks:
        fewer = stages - stages % ranks
        raise ScheduleError(
            f"{stages} stages on {ranks} ranks leave {stages % ranks} over; every rank must run "
            f"the same number, so take {fewer or ranks} or {fewer + ranks} stages"
        )


def _each_stage(stages: int, micro_batches: int, warm_up, w_delay=lambda stage: 0) -> Program:
    """Return the program of an order with one stage per rank.

    warm_up   stage -> forwards before its first backward
    w_delay   stage -> by how many micro-batches its W comes after its B
    """
    check_counts(stages, micro_batches, stages)
    program = {}
    for stage in range(stages):
        turns = [(stage, m) for m in range(micro_batches)]
        program[stage] = tuple(_alternating(turns, turns, warm_up(stage), w_delay(stage)))
    return program


def _alternating(
    forwards: list[Turn], backwards: list[Turn], warm_up: int, w_delay: int = 0
) -> Iterable[Action]:
    """Yield `warm_up` forwards, then a forward, while there are any, and a backward in turn.

    The W of a backward comes after the B that is w_delay later; the remaining ones come at the end.
    """
    yield from _actions(Kind.FORWARD, forwards[:warm_up])
    for at, turn in enumerate(backwards):
        yield from _actions(Kind.FORWARD, forwards[warm_up + at : warm_up + at + 1])
        yield from _actions(Kind.BACKWARD, [turn])
        if at >= w_delay:
            yield from _actions(Kind.WEIGHT, [backwards[at - w_delay]])
    yield from _actions(Kind.WEIGHT, backwards[max(len(backwards) - w_delay, 0) :])


def _actions(kind: Kind, turns: list[Turn]) -> list[Action]:
    return [Action(kind, stage, None, micro_batch) for stage, micro_batch in turns]
