"""A unit: some blocks of the model, and the flat arrays of their parameters and optimizer state.

    parameters of the unit, end to end in one flat layout:

        | slot a          | slot b  | slot c                     |pad|
        |---- span(0) ----|---- span(1) ----|---- span(2) ----|---- |      of each rank of a group

    gather   every element readable on this rank; the parameters become views of `whole`
    release  the memory of gathered parameters goes back, if their keeper gathers for use only
    reduce   the sum of gradients over ranks, of which the keeper of gradients keeps its part
    step     the optimizer rule, on the elements that this rank updates

What differs between DDP, ZeRO-1, ZeRO-2 and FSDP is which keepers a unit has (keepers.py). A group
is the data axis; under HSDP it is a run of it, and the same span of each group is owned in parts.
The flat arrays are storage and messages; a parameter's identity is its name and its box, as
`pieces` gives them.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...comm.backend import CommunicationBackend
from ...layout.flat import FlatLayout
from ...layout.piece import Piece
from ...optim.groups import rule_for
from ...optim.muon import matrix_rule_of
from .gradients import NORM_BLOCK, Gradients
from .keepers import Freshness, Keepers
from .matrices import Matrices
from .movement import Movement
from .partition import UnitPlan
from .segments import Segments
from .site import Pools, Site


@dataclass(frozen=True, eq=False)
class Holding:
    """One array of a unit, as far as this rank keeps it.

    group      in a checkpoint: "model", or "optimizer/first_moment"
    values     1-D, a view
    pieces     of the local parameters, at their places in `values`
    replicas   groups of data ranks over which it is the same on all
    """

    group: str
    values: Any
    pieces: list[Piece]
    replicas: tuple[CommunicationBackend, ...]


class Unit:
    """Blocks of the model whose parameters live, travel and are updated together.

    movement   over the data axis; gather and reduce are collective over it
    rule       an optimizer rule; its state is made here, zero
    groups     {name: group} of parameters for which the rule is another; all of a unit keep the
               same state (partition.with_groups)

    parameters   the keeper of what this rank trains of them
    device       where its arrays lie
    lent         the keeper of what blocks read: the same, unless that is rounded
    freshness    what they would read now
    gradients    None if the unit is frozen; then its optimizer has no state
    """

    def __init__(
        self,
        plan: UnitPlan,
        movement: Movement,
        keepers: Keepers,
        rule,
        pools: Pools,
        groups: dict | None = None,
    ):
        self.plan = plan
        self.device = pools.device
        self.layout = FlatLayout.of(
            {name: p.shape for name, p in plan.parameters.items()},
            num_shards=movement.group.world_size,
            alignment=NORM_BLOCK,
            dtype=plan.dtype,
        )
        self._site = site = Site(self.layout, movement, pools)
        self.parameters, self.lent, self._source = keepers.keep_parameters(site)
        self.optimizer = OptimizerStep(plan, site, keepers, self.parameters, rule, groups or {})
        self.gradients: Any = None if plan.is_frozen else Gradients(plan.parameters, site, keepers)
        states = {f"optimizer/{name}": state for name, state in self.optimizer.state.items()}
        self._kept = {"model": self.parameters, **states}  # by group in a checkpoint
        self._note(Freshness.STALE)
        self._after_step = keepers.state.after_step(self._source)
        self._bound = None  # the array that parameters are views of
        self._fill_with_initial_values()

    @property
    def group(self) -> CommunicationBackend:
        """The data ranks that share one copy."""
        return self._site.movement.group

    @property
    def dtype(self) -> str:
        """The dtype that the parameters are trained in."""
        return self.layout.dtype

    def _fill_with_initial_values(self):
        """Make this rank's span; whole arrays are filled by the first gather.

        Parameters that await the values of a checkpoint keep zeros until then.
        """
        shard, start_of_span = self.parameters.shard, self._site.span.start
        for piece in self._site.span_pieces:
            parameter = self.plan.parameters[piece.name]
            if parameter.awaits_values:
                continue
            start = start_of_span + piece.start - self.layout.slot(piece.name).offset
            values = parameter.initial_span(start, start + piece.stop - piece.start)
            shard[piece.start : piece.stop] = self._site.pools.device.from_host(values)
        for parameter in self.plan.parameters.values():
            parameter.release()

    def use_rule(self, rule) -> None:
        """Go on with another rule, which keeps the same state. No communication."""
        self.optimizer.rule = rule

    def start_over(self) -> None:
        """Make the initial values and zero optimizer state again; spread() comes next.

        Collective over the data axis.
        """
        self.wait_for_readers()
        self.unbind()
        for parameter in self.plan.parameters.values():
            parameter.renew()
        self._fill_with_initial_values()
        self.optimizer.clear()

    # ---- parameters ------------------------------------------------------------------------------

    @property
    def whole(self):
        """[layout.size], what blocks read; None while released."""
        return self.lent.whole

    def begin_gather(self) -> None:
        """Post the messages of gather(), if it sends any; gather() comes next.

        Collective over the data axis; never blocks for long.
        """
        if self.freshness is not Freshness.CURRENT:
            self._source.begin_gather()

    def gather(self) -> None:
        """Make all parameters readable. Collective over the data axis."""
        if self.freshness is not Freshness.CURRENT:
            self._source.gather()
            self.freshness = Freshness.CURRENT
        self.lent.begin_reading()
        whole = self.lent.whole
        if self._bound is not whole:
            for (where, shape), parameter in zip(self._site.slots, self.plan.parameters.values()):
                parameter.bind(whole[where].reshape(shape))
            self._bound = whole

    def gather_if_lasting(self) -> None:
        """Gather now what stays gathered between two uses. Collective over the data axis."""
        self.lent.settle(self.gather)

    def release(self) -> None:
        """Give the memory of gathered parameters back, if they are gathered for use only."""
        self.lent.release(self.unbind)
        self._note(self.freshness)

    def unbind(self) -> None:
        """Take the parameters' memory from them until the next gather. No communication."""
        views_last = not self._site.pools.whole_parameters.outlives_views
        for parameter in self.plan.parameters.values():
            parameter.release(views_last=views_last)
        self._bound = None

    def _note(self, freshness: Freshness):
        """Note what blocks would read, if they find anything."""
        self.freshness = Freshness.STALE if self.lent.whole is None else freshness

    def wait_for_readers(self) -> None:
        """Wait until no rank reads the parameters any more, so that their owners may write them.

        Collective over the group.
        """
        self.lent.wait_for_readers()

    def give_up(self) -> None:
        """Forget messages of a failed program: they may still write to their memory."""
        self.lent.give_up()
        self._note(self.freshness)
        if self.gradients is not None:
            self.gradients.give_up()

    # ---- the update ------------------------------------------------------------------------------

    def begin_reduce(self) -> None:
        """Post the messages of reduce(), which comes next. Collective over the data axis."""
        self.gradients.begin_reduce()

    def reduce(self, scale: float) -> None:
        """Sum the gradients over the data axis, times `scale`. Collective; see Gradients.reduce."""
        self.gradients.reduce(scale)
        self.lent.end_reading()  # every rank is past its backward

    def step(
        self, number: int, gradient_scale: float = 1.0, learning_rate: float | None = None
    ) -> None:
        """Apply the rule to the elements that this rank updates; the next gather spreads them.

        number          of the optimization step, the first is 1
        gradient_scale  the factor of clipping, by which each gradient is multiplied
        Collective over the data axis, if the gradient was not reduced (see wait_for_readers), or
        the rule needs whole matrices.
        """
        self.wait_for_readers()
        gradient, scale = self.gradients.unscaled()
        self.optimizer.take(number, gradient, gradient_scale * scale, learning_rate)
        self.freshness = min(self.freshness, self._after_step)

    # ---- what this rank owns and keeps -----------------------------------------------------------

    @property
    def owned_parameters(self):
        """The parameters that this rank owns, as they are trained, a view."""
        return self.parameters.part(self._site.own)

    def owned_arrays(self) -> dict[str, Any]:
        """Return {group in a checkpoint: view of what this rank owns}: parameters and the state."""
        return {group: keeper.part(self._site.own) for group, keeper in self._kept.items()}

    def trained_parameters(self):
        """Return [layout.length] of all data ranks, not rounded. The unit must be gathered.

        Collective over the data axis.
        """
        return self.parameters.everyones()

    def pieces(self) -> list[Piece]:
        """Return the named boxes that this rank owns; those of all ranks tile each parameter."""
        return self._site.own_pieces

    def holdings(self) -> list[Holding]:
        """Return what this rank keeps between steps: parameters and each array of the state."""
        return [
            Holding(group, keeper.kept, keeper.pieces(self._site), keeper.replicas(self._site))
            for group, keeper in self._kept.items()
        ]

    def spread(self) -> None:
        """Make replicas on other ranks follow, after owned parameters and state were written.

        Collective over the data axis; what blocks read follows at the next gather.
        """
        for keeper in (*self.optimizer.state.values(), self.parameters):
            keeper.spread()
        self._note(self._source.after_spread)

    def follow_masters(self) -> None:
        """Round anew after master weights were written on all ranks that have them.

        Collective over the data axis.
        """
        self.freshness = min(self.freshness, self._source.after_spread)
        self.gather_if_lasting()


class OptimizerStep:
    """What a rank updates of a unit.

    kept     the keeper of the parameters
    groups   {name: group} of parameters for which the rule is another

    rule          of the others
    state         {name: keeper}, made here, zero; nothing if the unit is frozen
    parameters    the elements that this rank updates, a view
    updates_all   every rank of the group updates all elements, not only its span
    """

    def __init__(self, plan: UnitPlan, site: Site, keepers: Keepers, kept, rule, groups: dict):
        self.rule = rule
        own_rule = rule_for(next(iter(plan.parameters)), rule, groups)
        names = () if plan.is_frozen else own_rule.state_names
        updated = keepers.state.updated(site)
        self.parameters = kept.part(updated)
        self.updates_all = keepers.state.updates_all
        self.state = {name: keepers.state.of_state(site) for name in names}
        self._updated_state = {name: state.part(updated) for name, state in self.state.items()}
        self._apply: Any = _apply_at_once
        if groups.keys() & plan.parameters.keys():
            self._apply = Segments(site.layout, updated, groups).update
        if matrix_rule_of(own_rule) is not None:
            self._apply = Matrices(site, self._apply, updated, groups, keepers.state).update

    def take(
        self, number: int, gradient, gradient_scale: float, learning_rate: float | None
    ) -> None:
        """Apply the rule. Collective over the data axis, if it needs whole matrices."""
        self._apply(
            self.rule,
            self.parameters,
            gradient,
            self._updated_state,
            number,
            learning_rate,
            gradient_scale,
        )

    def clear(self, names=None) -> None:
        """Set the state of these names to zero; None: all of it. No communication."""
        for name, state in self.state.items():
            if names is None or name in names:
                state.array.fill(0)


def _apply_at_once(rule, *arguments) -> None:
    """Apply a rule that is the same for all parameters of a unit."""
    rule.update(*arguments)


class Units:
    """The units of one pipeline rank, in the order of the model, and views of them.

    at    {place in the pipeline: unit}
    all   without their places
    """

    def __init__(self, at: dict[Any, Unit]):
        self.at = at
        self.all = tuple(at.values())

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Unit]:
        return iter(self.all)

    def __getitem__(self, number: int) -> Unit:
        return self.all[number]

    def outside(self, places: Collection) -> "Units":
        """Return the units at other places than these."""
        return Units({place: unit for place, unit in self.at.items() if place not in places})

    @cached_property
    def own(self) -> "Units":
        """The units that are not copies of another pipeline rank's."""
        return Units({place: unit for place, unit in self.at.items() if not unit.plan.is_copy})

    @cached_property
    def trained(self) -> "Units":
        """The units that are not frozen: they have gradients."""
        return Units({place: unit for place, unit in self.at.items() if not unit.plan.is_frozen})
