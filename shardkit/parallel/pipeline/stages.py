"""Where the units of a model stand: stage by stage along the pipeline, and each stage on one
pipeline rank.

    units     0    1    2    3    4    5           places  (0,0) (0,1) (1,0) (1,1) (1,2) (2,0)
    stages    |-- 0 --|---- 1 -----|-2-|           ranks     0     0     1     1     1     2

Tied weights belong to the unit that uses them first. If a later user stands on another rank, its
stage begins with a copy of that unit: no blocks, the same parameters. Owner and copies add up their
gradients (TIE) and take the same steps.

A unit may have parts: those of a single block, and what is frozen, or keeps other optimizer state,
of one that is trained. They come after all units of their stage, and nothing flows through them.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...nn.module import Module
from ...schedule.actions import Program
from ...schedule.lowering import Uses
from ..data.partition import UnitPlan


class Place(NamedTuple):
    """A unit by its stage and its number in the stage, as actions name it."""

    stage: int
    unit: int


@dataclass(frozen=True)
class Stages:
    """All units of the model in order, and the pipeline rank of each stage.

    plans     {place: plan of the unit}, in order
    rank_of   {stage: pipeline rank}
    lenders   {place: places on the same rank whose parameters it borrows}
    holders   {place of a tied unit or copy: pipeline ranks that hold one, the owner's first}
    parts     {place of a unit with parts: their places}; copies have parts, too
    idle      places of units that rest, for another objective trains them
    """

    plans: dict[Place, UnitPlan]
    rank_of: dict[int, int]
    lenders: dict[Place, tuple[Place, ...]]
    holders: dict[Place, tuple[int, ...]]
    parts: dict[Place, tuple[Place, ...]]
    idle: frozenset[Place] = frozenset()

    @classmethod
    def of(cls, units: list[UnitPlan], ranges: list[range], order: Program) -> "Stages":
        """Return the stages that hold these ranges of units, on the ranks where the order runs
        them.
        """
        rank_of = {action.stage: rank for rank, actions in order.items() for action in actions}
        plans = {}
        lenders = {}
        parts = {}
        at = {}  # (unit, rank) -> where its parameters are on that rank
        for stage, here in enumerate(ranges):
            rank, flow = rank_of[stage], {}
            for index in here:
                for lender in units[index].lenders:
                    if (lender, rank) not in at:
                        at[lender, rank] = Place(stage, len(flow))
                        flow[at[lender, rank]] = units[lender].copied()
                place = at[index, rank] = Place(stage, len(flow))
                flow[place] = units[index]
                lenders[place] = tuple(at[lender, rank] for lender in units[index].lenders)
            plans.update(flow)
            number = len(flow)
            for place, unit in flow.items():
                inside = {Place(stage, number + i): part for i, part in enumerate(unit.parts)}
                plans.update(inside)
                number += len(inside)
                if inside:
                    parts[place] = tuple(inside)
        holders = {}
        for unit in {unit for (unit, _), place in at.items() if plans[place].is_copy}:
            # In the order of the model, the owner first.
            ranks = tuple(rank for (other, rank) in at if other == unit)
            of_unit = [place for (other, _), place in at.items() if other == unit]
            with_parts = [each for place in of_unit for each in (place, *parts.get(place, ()))]
            holders.update(dict.fromkeys(with_parts, ranks))
        return cls(plans, rank_of, lenders, holders, parts)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The place of each unit of the model, copies included."""
        return tuple(self.plans)

    @cached_property
    def frozen(self) -> frozenset[Place]:
        """The places of units whose parameters take no gradient."""
        return self.idle | {place for place, plan in self.plans.items() if plan.is_frozen}

    @cached_property
    def first_trained(self) -> Place:
        """Where the backward ends: the first unit that uses parameters that are trained."""
        return min(filter(self.uses.trained, self.lenders))

    @cached_property
    def uses(self) -> Uses:
        """Where the parameters lie that a unit uses."""
        borrows = {place: lenders for place, lenders in self.lenders.items() if lenders}
        return Uses(borrows, self.parts, self.frozen)

    @property
    def are_of_modules(self) -> bool:
        """True if the units are parts of a single block, which its modules can gather."""
        return bool(self.parts) and sum(len(plan.blocks) for plan in self.plans.values()) == 1

    @cached_property
    def units_per_stage(self) -> tuple[int, ...]:
        """Units of each stage that activations flow through, copies included."""
        inside = {part for parts in self.parts.values() for part in parts}
        return tuple(
            sum(place.stage == stage and place not in inside for place in self.plans)
            for stage in range(self.places[-1].stage + 1)
        )

    @property
    def first(self) -> Place:
        """Where x goes in."""
        return Place(0, 0)

    @property
    def last(self) -> Place:
        """Where predictions and losses come out."""
        return Place(len(self.units_per_stage) - 1, self.units_per_stage[-1] - 1)

    @property
    def last_rank(self) -> int:
        """The pipeline rank of the last stage."""
        return self.rank_of[len(self.units_per_stage) - 1]

    def after(self, place: Place) -> Place:
        """Return the place that the output of `place` goes to."""
        is_end = place.unit == self.units_per_stage[place.stage] - 1
        return Place(place.stage + 1, 0) if is_end else Place(place.stage, place.unit + 1)

    def before(self, place: Place) -> Place:
        """Return the place that the input of `place` comes from."""
        if place.unit:
            return Place(place.stage, place.unit - 1)
        return Place(place.stage - 1, self.units_per_stage[place.stage - 1] - 1)

    def of_rank(self, rank: int) -> list[Place]:
        """Return the places on one pipeline rank, in order."""
        return [place for place in self.places if self.rank_of[place.stage] == rank]

    def blocks_of(self, rank: int) -> dict[int, list[Module]]:
        """Return {stage: its blocks} of one pipeline rank, in order."""
        return {
            stage: [
                block
                for place, plan in self.plans.items()
                if place.stage == stage
                for block in plan.blocks
            ]
            for stage, at in sorted(self.rank_of.items())
            if at == rank
        }

    def holder_tag(self, place: Place) -> int:
        """Return a number that a tied unit shares with its replicas and with nothing else."""
        names = self.plans[place].parameters.keys()
        return min(
            i for i, other in enumerate(self.places) if self.plans[other].parameters.keys() == names
        )
