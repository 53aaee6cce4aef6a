"""What several ranks hold copies of: compared with the first holder, and made its bits again.

    over data        parameters and optimizer state, as far as the policy keeps them whole on every
                     rank
    over tensor      norms, biases of row layers, shared key heads: parameters whose claim has
                     holders
    over pipeline    tied units, and their copies on the ranks of later users

All holders take the same steps from the same gradients, so there is no drift to expect. What was
written on one rank alone, or a machine that adds otherwise than its peers, shows here before it
shows in the loss.
"""

from dataclasses import dataclass
from math import inf, isnan, prod

from ...array.backend import xp_of
from ..data.unit import Holding, Unit


@dataclass(frozen=True)
class StateDrift:
    """How far the copies of parameters and optimizer state had drifted from their first holder.

    largest     absolute difference; inf if a number met one that is not finite
    tensor      where it was, as a checkpoint names it:
                "optimizer/first_moment/blocks.0.norm.weight"; None if nothing drifted
    by_tensor   {tensor: largest absolute difference} of all that several ranks hold
    """

    largest: float
    tensor: str | None
    by_tensor: dict[str, float]

    @classmethod
    def of(cls, by_tensor: dict[str, float]) -> "StateDrift":
        """The drift of these tensors; the first by name of equal ones counts as the largest."""
        by_tensor = dict(sorted(by_tensor.items()))
        worst = max(by_tensor, key=by_tensor.get, default=None)
        largest = by_tensor.get(worst, 0.0)
        return cls(largest, worst if largest else None, by_tensor)

    def __str__(self):
        shared = f"{len(self.by_tensor)} tensors that several ranks hold"
        if self.tensor is None:
            return f"no drift in {shared}"
        drifted = sum(gap > 0 for gap in self.by_tensor.values())
        return f"drift of {self.largest:.3g} in {self.tensor}; {drifted} of {shared} had drifted"


def synchronize_copies(engine) -> StateDrift:
    """Make all copies the bits of their first holder, and tell how far they were from it, the same
    on all ranks.

    Collective over the whole mesh. The first holder has the lowest data, tensor and pipeline
    coordinates that hold the box.
    """
    mine: dict[str, float] = {}
    for place in sorted(
        engine.units_by_place, key=engine.stages.holder_tag
    ):  # ranks that share units come to them in one order
        unit = engine.units_by_place[place]
        unit.wait_for_readers()
        for holding in unit.holdings():
            first = _of_first_holder(engine, place, unit, holding)
            for piece in _shared_pieces(engine, place, unit, holding):
                tensor, part = f"{holding.group}/{piece.name}", slice(piece.start, piece.stop)
                mine[tensor] = max(
                    mine.get(tensor, 0.0), _largest_gap(holding.values[part], first[part])
                )
            holding.values[...] = first
        unit.follow_masters()
    return StateDrift.of(_largest_of(engine.mesh.world.all_gather_object(mine)))


def _of_first_holder(engine, place, unit: Unit, holding: Holding):
    """A new array like holding.values, with the first holder's bits in every piece. Collective over
    those who hold the unit.
    """
    first = holding.values.copy()
    if holding.is_whole:
        engine.data.broadcast(first, 0)
    for piece in holding.pieces:
        claim = unit.plan.parameters[piece.name].claim
        if claim is not None and claim.holders is not None:
            claim.holders.broadcast(first[piece.start : piece.stop], 0)
    _send_to_copies(
        engine.pipeline, _pipeline_holders(engine, place), first, engine.stages.holder_tag(place)
    )
    return first


def _send_to_copies(group, ranks, array, tag):
    """The array of the first of these pipeline ranks, on all of them."""
    if group.rank != ranks[0]:
        return group.receive(array, ranks[0], tag)
    for handle in [group.isend(array, rank, tag) for rank in ranks[1:]]:
        handle.wait()


def _pipeline_holders(engine, place) -> tuple[int, ...]:
    return engine.stages.holders.get(place, (engine.pipeline.rank,))


def _shared_pieces(engine, place, unit: Unit, holding: Holding):
    """The pieces that other ranks hold too."""
    over_data, over_pipeline = (
        engine.data.world_size if holding.is_whole else 1,
        len(_pipeline_holders(engine, place)),
    )
    for piece in holding.pieces:
        claim = unit.plan.parameters[piece.name].claim
        over_tensor = 1 if claim is None or claim.holders is None else claim.holders.world_size
        if prod((over_data, over_tensor, over_pipeline)) > 1:
            yield piece


def _largest_gap(values, first) -> float:
    """The largest absolute difference in float64; 0 where both are the same or both are NaN."""
    differs = (values != first) & ((values == values) | (first == first))
    if not differs.any():
        return 0.0
    gap = float(
        xp_of(values)
        .abs(values[differs].astype("float64") - first[differs].astype("float64"))
        .max()
    )
    return inf if isnan(gap) else gap


def _largest_of(everyones: list[dict[str, float]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for ours in everyones:
        for tensor, gap in ours.items():
            largest[tensor] = max(largest.get(tensor, 0.0), gap)
    return largest
