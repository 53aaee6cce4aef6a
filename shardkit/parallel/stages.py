"""Where the units of a model stand: stage by stage along the pipeline, and each stage on one pipeline rank.

    units     0    1    2    3    4    5           places  (0,0) (0,1) (1,0) (1,1) (1,2) (2,0)
    stages    |-- 0 --|---- 1 -----|-2-|           ranks     0     0     1     1     1     2
"""
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ..schedule import Program


class Place(NamedTuple):
    """A unit by its stage and its number in the stage, as actions name it."""

    stage: int
    unit: int


@dataclass(frozen=True)
class Stages:
    """All units of the model in order, and the pipeline rank of each stage.

    units_per_stage   in order
    rank_of           {stage: pipeline rank}
    """

    units_per_stage: tuple[int, ...]
    rank_of: dict[int, int]

    @classmethod
    def of(cls, ranges: list[range], order: Program) -> "Stages":
        """The stages that hold these ranges of units, on the ranks where the order runs them."""
        rank_of = {action.stage: rank for rank, actions in order.items() for action in actions}
        return cls(tuple(len(units) for units in ranges), rank_of)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The place of each unit of the model."""
        return tuple(Place(stage, unit) for stage, count in enumerate(self.units_per_stage) for unit in range(count))

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
        """The place that the output of `place` goes to."""
        is_end = place.unit == self.units_per_stage[place.stage] - 1
        return Place(place.stage + 1, 0) if is_end else Place(place.stage, place.unit + 1)

    def before(self, place: Place) -> Place:
        """The place that the input of `place` comes from."""
        if place.unit:
            return Place(place.stage, place.unit - 1)
        return Place(place.stage - 1, self.units_per_stage[place.stage - 1] - 1)

    def of_rank(self, rank: int) -> list[Place]:
        """The places on one pipeline rank, in order."""
        return [place for place in self.places if self.rank_of[place.stage] == rank]
