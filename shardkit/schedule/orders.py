"""Orders: which micro-batch each pipeline rank works on next. An order is a program of F, B and W, nothing else.

Time runs to the right, each cell one second, F, B and W one second each; 3 stages, 4 micro-batches (the tests draw these):

    gpipe         rank 0   F0 F1 F2 F3  .  .  .  . B0 W0 B1 W1 B2 W2 B3 W3       every rank keeps 4 micro-batches
                  rank 1    . F0 F1 F2 F3  .  . B0 W0 B1 W1 B2 W2 B3 W3  .
                  rank 2    .  . F0 F1 F2 F3 B0 W0 B1 W1 B2 W2 B3 W3  .  .

    one_f_one_b   rank 0   F0 F1 F2  .  . B0 W0 F3 B1 W1  . B2 W2  . B3 W3       keeps 3
                  rank 1    . F0 F1  . B0 W0 F2 B1 W1 F3 B2 W2  . B3 W3  .       keeps 2
                  rank 2    .  . F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3  .  .       keeps 1

The dots are the bubble. For p stages and m micro-batches both orders idle (p-1) / (m+p-1) of the time if a backward is one
action of two seconds; since the gradient leaves after B and not after W, it is only 2(p-1) / (3m + 2(p-1)).

An order says nothing about units, messages or the optimizer; `lowering` adds them, the same way for every order. In both
orders here W follows its B directly, and every rank takes the backwards in ascending order, because the gradients of the
micro-batches are added as one fixed tree over ascending micro-batches (that is why trained bits do not depend on the mesh).

On one stage the two are the two ways to accumulate gradients. See `lowering.expand` for what that means under FSDP.
"""
from difflib import get_close_matches
from typing import Callable

from ..errors import ScheduleError
from .actions import Action, Kind, Program


def gpipe(stages: int, micro_batches: int) -> Program:
    """All forwards, then all backwards. Every rank keeps the activations of all micro-batches.

    2 stages, 3 micro-batches:      0: 0F0 0F1 0F2 0B0 0W0 0B1 0W1 0B2 0W2
                                    1: 1F0 1F1 1F2 1B0 1W0 1B1 1W1 1B2 1W2
    Source: GPipe (arXiv 1811.06965).
    """
    return _each_stage(stages, micro_batches, warm_up=lambda stage: micro_batches)


def one_f_one_b(stages: int, micro_batches: int) -> Program:
    """A few forwards to fill the pipeline, then one backward after each forward. The bubble is that of gpipe, but rank r
    keeps the activations of at most stages - r micro-batches, however many there are.

    2 stages, 3 micro-batches:      0: 0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2
                                    1: 1F0 1B0 1W0 1F1 1B1 1W1 1F2 1B2 1W2
    Source: PipeDream-Flush (arXiv 2006.09503), Megatron-LM (arXiv 2104.04473).
    """
    return _each_stage(stages, micro_batches, warm_up=lambda stage: stages - 1 - stage)


ORDERS: dict[str, Callable[[int, int], Program]] = {"gpipe": gpipe, "1f1b": one_f_one_b}


def order_named(name: str) -> Callable[[int, int], Program]:
    """The order with this name. Errors: ScheduleError with the nearest name if there is none."""
    if name in ORDERS:
        return ORDERS[name]
    nearest = get_close_matches(str(name).lower(), ORDERS, n=1, cutoff=0.3)
    advice = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise ScheduleError(f"no order is named {name!r}; {advice}The orders are {', '.join(ORDERS)}")


def rank_of(stage: int, pipeline_size: int) -> int:
    """The pipeline rank that runs a stage; with more stages than ranks they go round."""
    return stage % pipeline_size


def _each_stage(stages: int, micro_batches: int, warm_up: Callable[[int], int]) -> Program:
    if stages < 1 or micro_batches < 1:
        raise ScheduleError(f"{stages} stages and {micro_batches} micro-batches are no schedule; both must be >= 1")
    return {rank_of(stage, stages): _stage_order(stage, micro_batches, warm_up(stage)) for stage in range(stages)}


def _stage_order(stage: int, micro_batches: int, warm_up: int) -> tuple[Action, ...]:
    """`warm_up` forwards, then a forward (while there are any) and a backward in turn."""
    forwards = [Action(Kind.FORWARD, stage, None, m) for m in range(micro_batches)]
    actions = forwards[:warm_up]
    for m in range(micro_batches):
        actions += forwards[warm_up + m:warm_up + m + 1]
        actions += [Action(Kind.BACKWARD, stage, None, m), Action(Kind.WEIGHT, stage, None, m)]
    return tuple(actions)
