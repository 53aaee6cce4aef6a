"""The programs of one pipeline rank: of a step as it is lowered, of the same step with messages
ahead, and of predictions.

plain     ... 0.1W0 0.1RELEASE 0.1REDUCE 0.0GATHER 0.0B0 ...
ahead     ... 0.1W0 0.1RELEASE 0.1BEGIN_REDUCE 0.0GATHER 0.0B0 ... 0.1REDUCE
forward   ... 0.0F0 0.0RELEASE 0.1GATHER 0.1F0 0.1RELEASE
"""

from dataclasses import dataclass

from ...schedule import (
    Action,
    Kind,
    Program,
    add_gathers,
    add_transfers,
    begin_gathers,
    begin_reductions,
    expand,
    lower,
)
from .stages import Stages

Actions = tuple[Action, ...]


@dataclass(frozen=True)
class Programs:
    """What the runtime executes. `ahead` is `plain` where no message can be begun ahead."""

    plain: Actions
    ahead: Actions
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
    ) -> "Programs":
        """Those of this rank.

        begins_gathers, begins_reductions   what can travel while units compute
        """
        units_per_stage = dict(enumerate(stages.units_per_stage))
        borrows = {place: lenders for place, lenders in stages.lenders.items() if lenders}
        plain = ahead = lower(
            order, units_per_stage, clip=clip, borrows=borrows, ties=stages.holders
        )
        ahead = begin_gathers(ahead) if begins_gathers else ahead
        ahead = begin_reductions(ahead) if begins_reductions else ahead
        forward = add_transfers(
            add_gathers(expand(_forward_order(order, stages), units_per_stage), borrows=borrows)
        )
        return cls(*(program[pipeline_rank] for program in (plain, ahead, forward)))


def _forward_order(order: Program, stages: Stages) -> Program:
    """One micro-batch through all stages."""
    return {
        rank: tuple(
            Action(Kind.FORWARD, stage, None, 0)
            for stage, at in sorted(stages.rank_of.items())
            if at == rank
        )
        for rank in order
    }
