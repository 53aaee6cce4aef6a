"""The update: what actions do with reduced gradients, once those of all units are there."""

from math import isfinite, nan

import numpy

from ...array import fresh
from ...array.arena import empty
from ...array.backend import is_array, xp_of
from ...comm.collectives.ordered import ordered_sum
from ...comm.mesh import Mesh
from ...layout.axes import Held, apart
from ...schedule.actions import Kind
from ..data.gradients import NORM_BLOCK
from ..data.movement import Movement
from ..data.unit import Units
from ..pipeline.stages import Place, Stages
from .inputs import Results, Update
from .votes import fetch


class Updates:
    """The units of one pipeline rank.

    units       of this rank
    stages      of the whole model
    mesh        CLIP is collective over all its ranks
    movement    of these units
    transfers   of this rank, for gradients of tied units
    """

    def __init__(self, units: Units, stages: Stages, mesh: Mesh, movement: Movement, transfers):
        self._units = units.outside(stages.frozen)
        self._stages = stages
        self._movement = movement
        self._transfers = transfers
        groups = [mesh.group(axis) for axis in reversed(apart(Held.PARAMETERS))]
        self._apart = [group for group in groups if group.world_size > 1]
        self._number = {place: number for number, place in enumerate(stages.places)}

    @property
    def table(self) -> dict:
        """What ends a step: gradients of ties, the norm that clips, the rule."""
        return {Kind.TIE: self._tie, Kind.CLIP: self._clip, Kind.STEP: self._step}

    def _tie(self, action, inputs, results):
        """Add the gradients of a tied unit and its replicas, in one order on all their ranks."""
        place = Place(action.stage, action.unit)
        ranks, tag = self._stages.holders[place], self._stages.holder_tag(place)
        self._transfers.add_over(ranks, self._units.at[place].gradients.updated, tag)

    def _clip(self, action, inputs, results):
        results.gradient_norm = self._gradient_norm(inputs.update)

    def _step(self, action, inputs, results):
        update = inputs.update
        self._units.at[action.stage, action.unit].step(
            update.number, update.clip_factor, update.learning_rate
        )

    def _gradient_norm(self, update: Update) -> float:
        """Return the norm of the reduced gradient of what is trained, each element counted once;
        NaN if any rank is not good, or a loss of it is not finite.

        Collective over the mesh. Squares are summed per block of NORM_BLOCK elements, blocks in
        order, units by their sums: blocks never straddle two ranks, so the bits do not depend on
        the number of ranks.
        """
        sharing = self._movement.group
        units = self._units.at
        # [blocks of this rank's shard] each.
        local = [unit.gradients.squares() for unit in units.values()]
        computed = update.computed or Results()
        losses = computed.losses.values()
        xp = xp_of(*local, *filter(is_array, losses))
        mine = empty(sum(blocks.size for blocks in local) + 1, numpy.float64, xp)
        xp.concatenate([*local, _vote(xp, update.is_good, losses)], out=mine)
        everyones = mine[None]
        if sharing.world_size > 1:
            everyones = empty((sharing.world_size, mine.size), mine.dtype, xp)
            sharing.all_gather(mine, everyones.reshape(-1))
        sums, column = [], 0
        for unit, blocks in zip(units.values(), local):
            # all blocks, in flat order
            in_order = fresh.contiguous(everyones[:, column : column + blocks.size]).reshape(-1)
            # without padding, whose size depends on the number of ranks
            used = -(-unit.layout.length // NORM_BLOCK)
            sums.append(in_order[:used].sum())
            column += blocks.size
        *sums, nan_or_zero = fetch(computed, *sums, everyones[:, -1].sum())
        for group in self._movement.between:
            (nan_or_zero,) = ordered_sum(group, [nan_or_zero])
        return self._norm_over_stages(units, sums, nan_or_zero)

    def _norm_over_stages(self, units: dict, sums: list[float], nan_or_zero: float) -> float:
        """Return the norm from sums of squares of these units of this rank."""
        of_units = numpy.full(len(self._number), nan_or_zero)
        for place, total in zip(units, sums):
            counts = place in self._units.own.at
            of_units[self._number[place]] += total if counts else 0.0
        for group in self._apart:
            of_ranks = numpy.empty((group.world_size, of_units.size))
            group.all_gather(of_units, of_ranks)
            of_units = of_ranks.sum(0)
        # By size: parts of units stand behind all units of their stage, so places differ by mesh.
        return sum(sorted(of_units.tolist())) ** 0.5


def _vote(xp, is_good: bool, losses):
    """Return an array [1]: 0, or NaN if the rank is not good or a loss is not finite.

    Losses on a GPU are judged there, so that the host need not wait for them first.
    """
    on_host = [loss for loss in losses if not is_array(loss)]
    vote = xp.full(1, 0.0 if is_good and all(map(isfinite, on_host)) else nan)
    there = [loss for loss in losses if is_array(loss)]
    if there:
        vote += (0 * xp.stack(there)).sum()
    return vote
