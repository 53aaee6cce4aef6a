"""The registry of orders. An order enters it with a decorator that says what is particular to it;
settings, help, drawings and the planner find it here.

    @order("1f1b", live_rule=lambda ranks, virtual, micro_batches, rank: ...)
    def one_f_one_b(stages, micro_batches): ...

    order_named("zb-v")(4, 16)              the program of 16 micro-batches on 4 pipeline ranks
    order_named("zb-v").num_stages(4)       8: into how many stages the model must be cut
    order_named("zb-v").rank_of(7, 4)       0: the rank of stage 7
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..arguments import nearest
from ..errors import ScheduleError
from .actions import Program, peak_live


def rank_of(stage: int, pipeline_size: int) -> int:
    """Return the pipeline rank of a stage; with more stages than ranks they go round."""
    return stage % pipeline_size


def _forward_and_backward(forward: float, backward: float, weight: float) -> float:
    return forward + backward


@dataclass(frozen=True, slots=True)
class Order:
    """An order with a name; calling it makes the program.

    build             (stages, micro-batches) -> program; with several stages per rank it takes
                      (stages, micro-batches, ranks)
    stages_per_rank   the default
    is_flexible       any other number of stages per rank may be asked for
    rank_of           (stage, ranks) -> rank
    forwards_first    every forward comes before the first backward
    delays_weights    a weight gradient may come long after its input gradient
    live_rule         (ranks, stages per rank, micro-batches, rank) -> what `peak_live` counts, or
                      a little more; None: count it in the program
    idle_seconds      (forward, backward, weight) seconds of a stage -> what each rank after the
                      first adds to the bubble
    quick_ranks       the most ranks for which the program is made quickly; None: no limit
    """

    name: str
    build: Callable[..., Program]
    stages_per_rank: int = 1
    is_flexible: bool = False
    rank_of: Callable[[int, int], int] = rank_of
    forwards_first: bool = False
    delays_weights: bool = False
    live_rule: Callable[[int, int, int, int], int] | None = None
    idle_seconds: Callable[[float, float, float], float] = _forward_and_backward
    quick_ranks: int | None = None

    def __call__(self, ranks: int, micro_batches: int, virtual: int | None = None) -> Program:
        """Return the program for this many pipeline ranks, with `virtual` stages on each.

        Errors: ScheduleError if there is nothing to schedule, or the order does not run that many
        stages per rank.
        """
        stages = self.num_stages(ranks, virtual)
        if self.stages_per_rank == 1:
            return self.build(stages, micro_batches)
        return self.build(stages, micro_batches, ranks)

    def num_stages(self, ranks: int, virtual: int | None = None) -> int:
        """Return into how many stages the model must be cut. Errors: ScheduleError as above."""
        virtual = self.stages_per_rank if virtual is None else virtual
        if virtual != self.stages_per_rank and (virtual < 1 or not self.is_flexible):
            wanted = "at least 1" if self.is_flexible else self.stages_per_rank
            flexible = ", ".join(name for name, order in ORDERS.items() if order.is_flexible)
            raise ScheduleError(
                f"{virtual} stages per rank were asked of {self.name}, which runs {wanted}; "
                f"{flexible} takes any number"
            )
        return ranks * virtual

    def most_alive(self, ranks: int, virtual: int, micro_batches: int, rank: int) -> int:
        """Return the most pairs of stage and micro-batch that are alive on a pipeline rank."""
        if self.live_rule is None:
            return peak_live(self(ranks, micro_batches, virtual)[rank])
        return self.live_rule(ranks, virtual, micro_batches, rank)


ORDERS: dict[str, Order] = {}


def order(name: str, **particulars) -> Callable[[Callable], Callable]:
    """Enter the decorated function as the order of this name; the rest are fields of Order."""

    def enter(build: Callable[..., Program]) -> Callable[..., Program]:
        assert name not in ORDERS, f"two orders are named {name}"
        ORDERS[name] = Order(name, build, **particulars)
        return build

    return enter


def order_named(name: str) -> Order:
    """Return the order of this name. Errors: ScheduleError with the nearest name."""
    if name in ORDERS:
        return ORDERS[name]
    near = nearest(str(name), ORDERS)
    advice = f"did you mean {near!r}? The" if near else "the"
    raise ScheduleError(f"no order is named {name!r}; {advice} orders are {', '.join(ORDERS)}")
