"""Replicas: arrays that several ranks hold, compared with those of the first holder.

    over data        parameters and optimizer state that their keepers keep whole on every rank, or
                     in several groups of ranks
    over tensor      norms, biases of row layers, shared key heads: claims that have holders
    over pipeline    tied units, and their replicas on the ranks of later users
    over both data and tensor   buffers, on the ranks that compute with them

All holders take the same steps from the same gradients, so no drift is expected. Values that were
written on one rank alone, or a machine that adds differently, show here before they show in the
loss.
"""

from dataclasses import dataclass
from math import inf, isnan, prod

from ...array.backend import is_true, to_host, xp_of
from ...layout.axes import Held, alike
from ..data.unit import Holding, Unit


@dataclass(frozen=True)
class StateDrift:
    """How far the replicas of parameters and optimizer state had drifted from the first holder.

    Parameters
    ----------
    largest
        Absolute difference; inf if a number met one that is not finite.
    tensor
        Where it was, as a checkpoint names it: "optimizer/first_moment/blocks.0.norm.weight"; None
        if nothing drifted.
    by_tensor
        {tensor: largest absolute difference} of all that several ranks hold.
    """

    largest: float
    tensor: str | None
    by_tensor: dict[str, float]

    @classmethod
    def of(cls, by_tensor: dict[str, float]) -> "StateDrift":
        """Return the drift of these tensors; of equal ones the first by name is the largest.

        Parameters
        ----------
        by_tensor
            {tensor: largest absolute difference}.
        """
        by_tensor = dict(sorted(by_tensor.items()))
        worst = max(by_tensor, key=by_tensor.__getitem__, default=None)
        largest = 0.0 if worst is None else by_tensor[worst]
        return cls(largest, worst if largest else None, by_tensor)

    def __str__(self) -> str:
        shared = f"{len(self.by_tensor)} tensors that several ranks hold"
        if self.tensor is None:
            return f"no drift in {shared}"
        drifted = sum(gap > 0 for gap in self.by_tensor.values())
        return f"drift of {self.largest:.3g} in {self.tensor}; {drifted} of {shared} had drifted"


def synchronize_replicas(engine) -> StateDrift:
    """Make all replicas the bits of their first holder, and return how far they were from it.

    Collective over the whole mesh; the result is the same on all ranks. The first holder has the
    lowest data, tensor and pipeline coordinates that hold the box.
    """
    mine: dict[str, float] = {}
    # ranks that share units visit them in one order
    for place in sorted(engine.units.at, key=engine.plan.stages.holder_tag):
        unit = engine.units.at[place]
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
    mine |= _synchronize_buffers(engine)
    return StateDrift.of(_largest_of(engine.mesh.world.all_gather_object(mine)))


def _synchronize_buffers(engine) -> dict[str, float]:
    """Make the buffers of this stage those of its first rank; return how far each was from it.

    Collective over the axes whose ranks run the same blocks.
    """
    groups = [engine.mesh.group(axis) for axis in reversed(alike(Held.BLOCKS))]
    gaps = {}
    for path, _, values in engine.state.buffers.boxes():
        first = values.copy()
        for group in groups:
            group.broadcast(first, 0)
        if any(group.world_size > 1 for group in groups):
            gaps[path] = _largest_gap(values, first)
        values[...] = first
    return gaps


def _of_first_holder(engine, place, unit: Unit, holding: Holding):
    """Return a new array like holding.values, with the first holder's bits in every piece.

    Collective over the ranks that hold the unit.
    """
    first = holding.values.copy()
    for replicas in holding.replicas:
        replicas.broadcast(first, 0)
    for piece in holding.pieces:
        claim = unit.plan.parameters[piece.name].claim
        if claim is not None and claim.holders is not None:
            claim.holders.broadcast(first[piece.start : piece.stop], 0)
    group, tag = engine.mesh.group("pipeline"), engine.plan.stages.holder_tag(place)
    _send_to_replicas(group, _pipeline_holders(engine, place), first, tag)
    return first


def _send_to_replicas(group, ranks, array, tag):
    """Copy the array of the first of these pipeline ranks to all of them."""
    if group.rank != ranks[0]:
        return group.receive(array, ranks[0], tag)
    for handle in [group.isend(array, rank, tag) for rank in ranks[1:]]:
        handle.wait()


def _pipeline_holders(engine, place) -> tuple[int, ...]:
    return engine.plan.stages.holders.get(place, (engine.mesh.coordinates.pipeline,))


def _shared_pieces(engine, place, unit: Unit, holding: Holding):
    """Yield the pieces that other ranks hold too."""
    over_data = prod(replicas.world_size for replicas in holding.replicas)
    over_pipeline = len(_pipeline_holders(engine, place))
    for piece in holding.pieces:
        claim = unit.plan.parameters[piece.name].claim
        over_tensor = 1 if claim is None or claim.holders is None else claim.holders.world_size
        if prod((over_data, over_tensor, over_pipeline)) > 1:
            yield piece


def _largest_gap(values, first) -> float:
    """Return the largest absolute difference in float64; 0 where both are the same or NaN."""
    differs = (values != first) & ((values == values) | (first == first))
    if not is_true(differs.any()):
        return 0.0
    gaps = values[differs].astype("float64") - first[differs].astype("float64")
    gap = float(to_host(xp_of(values).abs(gaps).max()))
    return inf if isnan(gap) else gap


def _largest_of(everyones: list[dict[str, float]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for ours in everyones:
        for tensor, gap in ours.items():
            largest[tensor] = max(largest.get(tensor, 0.0), gap)
    return largest
