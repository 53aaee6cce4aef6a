"""Orders: which micro-batch each pipeline rank works on next. An order is a program of F, B and W,
nothing else.

Time runs to the right, each cell one second, F, B and W one second each; 3 stages, 4 micro-batches
(the tests draw these):

    gpipe            rank 0   F0 F1 F2 F3  .  .  .  . B0 W0 B1 W1 B2 W2 B3 W3       every rank keeps 4 micro-batches
                     rank 1    . F0 F1 F2 F3  .  . B0 W0 B1 W1 B2 W2 B3 W3  .
                     rank 2    .  . F0 F1 F2 F3 B0 W0 B1 W1 B2 W2 B3 W3  .  .

    one_f_one_b      rank 0   F0 F1 F2  .  . B0 W0 F3 B1 W1  . B2 W2  . B3 W3       keeps 3
                     rank 1    . F0 F1  . B0 W0 F2 B1 W1 F3 B2 W2  . B3 W3  .       keeps 2
                     rank 2    .  . F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3  .  .       keeps 1

    zero_bubble_h1   rank 0   F0 F1 F2  .  . B0 W0 F3 B1 W1 B2 W2 B3 W3       every rank keeps 3
                     rank 1    . F0 F1  . B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
                     rank 2    .  . F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

The dots are the bubble. For p ranks and m micro-batches gpipe and 1f1b idle (p-1) / (m+p-1) of the
time if a backward is one action of two seconds; since the gradient leaves after B and not after W,
it is only 2(p-1) / (3m + 2(p-1)), and with each W put off until its rank would idle only (p-1) /
(3m + p-1). Two ways to less: v stages per rank, each 1/v as long (interleaved_1f1b), and both ideas
at once (zero_bubble.py).

An order says nothing about units, messages or the optimizer; `lowering` adds them, the same way for
every order. Every stage takes its micro-batches in ascending order, F, B and W alike. Whether a W
follows its B at once or much later is free: gradients of micro-batches are added as one fixed tree
over their numbers, in whatever order they are made, and that is why trained bits do not depend on
the mesh.

On one rank gpipe and 1f1b are the two ways to accumulate gradients. See `lowering.expand` for what
that means under FSDP.
"""

from collections.abc import Callable, Iterable

from ..errors import ScheduleError
from .actions import Action, Kind, Program

Turn = tuple[int, int]  # (stage, micro-batch)


def gpipe(stages: int, micro_batches: int) -> Program:
    """All forwards, then all backwards. Every rank keeps the activations of all micro-batches.

    2 stages, 3 micro-batches:      0: 0F0 0F1 0F2 0B0 0W0 0B1 0W1 0B2 0W2
                                    1: 1F0 1F1 1F2 1B0 1W0 1B1 1W1 1B2 1W2
    Source: GPipe (arXiv 1811.06965).
    """
    return _each_stage(stages, micro_batches, warm_up=lambda stage: micro_batches)


def one_f_one_b(stages: int, micro_batches: int) -> Program:
    """A few forwards to fill the pipeline, then one backward after each forward. The bubble is that
    of gpipe, but rank r keeps the activations of at most stages - r micro-batches, however many
    there are.

    2 stages, 3 micro-batches:      0: 0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2
                                    1: 1F0 1B0 1W0 1F1 1B1 1W1 1F2 1B2 1W2
    Source: PipeDream-Flush (arXiv 2006.09503), Megatron-LM (arXiv 2104.04473).
    """
    return _each_stage(stages, micro_batches, warm_up=lambda stage: stages - 1 - stage)


def zero_bubble_h1(stages: int, micro_batches: int) -> Program:
    """1F1B with the W of rank r put off by r micro-batches: each rank has a W to do where it would
    idle. No rank keeps more than min(stages, micro_batches) activations, what the first rank of
    1F1B keeps anyway.

    2 stages, 3 micro-batches:      0: 0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2
                                    1: 1F0 1B0 1F1 1B1 1W0 1F2 1B2 1W1 1W2
    Source: ZB-H1 of Zero Bubble Pipeline Parallelism (arXiv 2401.10241).
    """
    return _each_stage(
        stages, micro_batches, warm_up=lambda stage: stages - 1 - stage, w_delay=lambda stage: stage
    )


def interleaved_1f1b(stages: int, micro_batches: int, ranks: int) -> Program:
    """1F1B over v = stages / ranks stages per rank: stage s on rank s % ranks. A stage is 1/v as
    long, and so is the bubble: (p-1) / (v m + p-1) of the time, for v times as many messages. Rank
    r keeps at most 2(p-1-r) + (v-1)p + 1 activations (of one stage each): one more per rank below
    than 1F1B would need, so that messages travel while the rank works.

    Micro-batches go round in groups of `ranks`: a group through the rank's first stage, then
    through its second, ... If micro_batches is not a multiple, the order is that of the next
    multiple with the micro-batches that do not exist left out. It cannot deadlock, since what stays
    does not wait for what is gone, and it takes no longer than with them. With one stage per rank
    the order is 1F1B.

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
    """mine   the stages of the rank, ascending; the first is the number of the rank"""
    groups = [range(first, first + ranks) for first in range(0, micro_batches, ranks)]
    forwards = [(stage, m) for group in groups for stage in mine for m in group]
    backwards = [(stage, m) for group in groups for stage in reversed(mine) for m in group]
    warm_up = 2 * (ranks - 1 - mine[0]) + (len(mine) - 1) * ranks
    return tuple(
        a for a in _alternating(forwards, backwards, warm_up) if a.micro_batch < micro_batches
    )


def check_counts(stages: int, micro_batches: int, ranks: int) -> None:
    """Return if there is something to schedule. Errors: ScheduleError."""
    if stages < 1 or micro_batches < 1 or ranks < 1:
        raise ScheduleError(
            f"{stages} stages, {micro_batches} micro-batches and {ranks} ranks are no schedule; all must be "
            ">= 1"
        )
    if stages % ranks:
        raise ScheduleError(
            f"{stages} stages on {ranks} ranks leave {stages % ranks} over; every rank must run the same "
            f"number, so take {stages - stages % ranks or ranks} or {stages - stages % ranks + ranks} stages"
        )


def _each_stage(
    stages: int,
    micro_batches: int,
    warm_up: Callable[[int], int],
    w_delay: Callable[[int], int] = lambda stage: 0,
) -> Program:
    """One stage per rank."""
    check_counts(stages, micro_batches, stages)
    program = {}
    for stage in range(stages):
        turns = [(stage, m) for m in range(micro_batches)]
        program[stage] = tuple(_alternating(turns, turns, warm_up(stage), w_delay(stage)))
    return program


def _alternating(
    forwards: list[Turn], backwards: list[Turn], warm_up: int, w_delay: int = 0
) -> Iterable[Action]:
    """`warm_up` forwards, then a forward (while there are any) and a backward in turn; the W of a
    backward comes after the B that is w_delay later, and those that are left come at the end.
    """
    yield from _actions(Kind.FORWARD, forwards[:warm_up])
    for at, turn in enumerate(backwards):
        yield from _actions(Kind.FORWARD, forwards[warm_up + at : warm_up + at + 1])
        yield from _actions(Kind.BACKWARD, [turn])
        yield from _actions(
            Kind.WEIGHT, backwards[at - w_delay : at - w_delay + 1] if at >= w_delay else []
        )
    yield from _actions(Kind.WEIGHT, backwards[max(len(backwards) - w_delay, 0) :])


def _actions(kind: Kind, turns: list[Turn]) -> list[Action]:
    return [Action(kind, stage, None, micro_batch) for stage, micro_batch in turns]
