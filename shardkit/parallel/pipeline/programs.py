"""The programs of one pipeline rank: of a step as it is lowered, of the same step with messages
ahead, and of predictions.

plain     ... 0.1W0 0.1RELEASE 0.1REDUCE 0.0GATHER 0.0B0 ...
ahead     ... 0.1W0 0.1RELEASE 0.1BEGIN_REDUCE 0.0GATHER 0.0B0 ... 0.1REDUCE
forward   ... 0.0F0 0.0RELEASE 0.1GATHER 0.1F0 0.1RELEASE
"""

from dataclasses import dataclass, replace

from ...schedule.actions import Action, Kind, Program
from ...schedule.lowering import add_gathers, add_transfers, expand, lower
from ...schedule.overlap import begin_gathers, begin_reductions
from .stages import Stages

Actions = tuple[Action, ...]

_REDUCTION = (Kind.BEGIN_REDUCE, Kind.REDUCE, Kind.TIE)
_UPDATE = (Kind.CLIP, Kind.STEP)


@dataclass(frozen=True)
class StepProgram:
    """One step, whole and in parts.

    gradients     all but clip and step
    local         of these, what does not reduce
    reduction     of these, what does
    ties, clip, step   the actions of these kinds
    """

    whole: Actions
    gradients: Actions
    local: Actions
    reduction: Actions
    ties: Actions
    clip: Actions
    step: Actions

    @classmethod
    def of(cls, whole: Actions) -> "StepProgram":
        """Cut the program of a step into its parts."""
        return cls(
            whole,
            _without(whole, _UPDATE),
            _without(whole, (*_REDUCTION, *_UPDATE)),
            _only(whole, _REDUCTION),
            _only(whole, (Kind.TIE,)),
            _only(whole, (Kind.CLIP,)),
            _only(whole, (Kind.STEP,)),
        )


def _only(actions, kinds) -> Actions:
    return tuple(action for action in actions if action.kind in kinds)


def _without(actions, kinds) -> Actions:
    return tuple(action for action in actions if action.kind not in kinds)


@dataclass(frozen=True)
class Programs:
    """What one pipeline rank executes. `ahead` is `plain` where no message can be begun ahead."""

    plain: StepProgram
    ahead: StepProgram
    forward: Actions

    @classmethod
    def of(
        cls,
        order: Program,
        stages: Stages,
        pipeline_rank: int,
        *,
        clip: bool,
        begins_gathers: bool,
        begins_reductions: bool,
        gathers_parts: bool = True,
    ) -> "Programs":
        """Return the programs of this rank.

        begins_gathers, begins_reductions   what can travel while units compute
        gathers_parts   False: a unit with parts gathers and reduces them while it computes
        """
        units_per_stage = dict(enumerate(stages.units_per_stage))
        uses = replace(stages.uses, gathers_parts=gathers_parts)
        plain = ahead = lower(order, units_per_stage, uses, clip=clip, ties=stages.holders)
        if begins_gathers:
            ahead = begin_gathers(ahead)
        if begins_reductions:
            ahead = begin_reductions(ahead)
        forward = expand(_forward_order(order, stages), units_per_stage)
        forward = add_transfers(add_gathers(forward, uses))
        return cls(
            StepProgram.of(plain[pipeline_rank]),
            StepProgram.of(ahead[pipeline_rank]),
            forward[pipeline_rank],
        )


def _forward_order(order: Program, stages: Stages) -> Program:
    """Return the order of one micro-batch through all stages."""
    return {
        rank: tuple(
            Action(Kind.FORWARD, stage, None, 0)
            for stage, at in sorted(stages.rank_of.items())
            if at == rank
        )
        for rank in order
    }
