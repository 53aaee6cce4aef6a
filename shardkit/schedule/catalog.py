"""Catalog: the orders by name, with how many stages each wants and on which rank each stage lives.

order = order_named("zb-v")
order(4, 16)              the program of 16 micro-batches on 4 pipeline ranks
order.num_stages(4)       8: into how many stages the model must be cut
order.rank_of(7, 4)       0: the rank of stage 7
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..arguments import nearest
from ..errors import ScheduleError
from .actions import Program
from .orders import gpipe, interleaved_1f1b, one_f_one_b, zero_bubble_h1
from .zero_bubble import v_shape, zero_bubble_v


def rank_of(stage: int, pipeline_size: int) -> int:
    """The pipeline rank that runs a stage; with more stages than ranks they go round."""
    return stage % pipeline_size


@dataclass(frozen=True, slots=True)
class Order:
    """An order with a name; calling it makes the program.

    build             (stages, micro-batches, ranks) -> program
    stages_per_rank   when nothing else is asked for
    is_flexible       any other number of stages per rank may be asked for
    rank_of           (stage, ranks) -> rank
    """

    name: str
    build: Callable[[int, int, int], Program]
    stages_per_rank: int = 1
    is_flexible: bool = False
    rank_of: Callable[[int, int], int] = rank_of

    def __call__(self, ranks: int, micro_batches: int, virtual: int | None = None) -> Program:
        """The program for this many pipeline ranks, with `virtual` stages on each.

        Errors: ScheduleError if there is nothing to schedule, or the order does not run that many
        stages per rank.
        """
        return self.build(self.num_stages(ranks, virtual), micro_batches, ranks)

    def num_stages(self, ranks: int, virtual: int | None = None) -> int:
        """Into how many stages the model must be cut. Errors: ScheduleError as above."""
        virtual = self.stages_per_rank if virtual is None else virtual
        if virtual != self.stages_per_rank and (virtual < 1 or not self.is_flexible):
            wanted = "at least 1" if self.is_flexible else self.stages_per_rank
            raise ScheduleError(
                f"{virtual} stages per rank were asked of {self.name}, which runs {wanted}; "
                f"{', '.join(name for name, order in ORDERS.items() if order.is_flexible)} takes any number"
            )
        return ranks * virtual


def _one_stage_per_rank(build: Callable[[int, int], Program]) -> Callable[[int, int, int], Program]:
    return lambda stages, micro_batches, ranks: build(stages, micro_batches)


ORDERS: dict[str, Order] = {
    order.name: order
    for order in (
        Order("gpipe", _one_stage_per_rank(gpipe)),
        Order("1f1b", _one_stage_per_rank(one_f_one_b)),
        Order("interleaved", interleaved_1f1b, stages_per_rank=2, is_flexible=True),
        Order("zb-h1", _one_stage_per_rank(zero_bubble_h1)),
        Order("zb-v", zero_bubble_v, stages_per_rank=2, rank_of=v_shape),
    )
}


def order_named(name: str) -> Order:
    """The order with this name. Errors: ScheduleError with the nearest name if there is none."""
    if name in ORDERS:
        return ORDERS[name]
    near = nearest(str(name), ORDERS)
    advice = f"did you mean {near!r}? The" if near else "the"
    raise ScheduleError(f"no order is named {name!r}; {advice} orders are {', '.join(ORDERS)}")
