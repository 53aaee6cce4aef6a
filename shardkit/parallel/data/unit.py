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

from dataclasses import dataclass
from typing import Any

from ...comm.backend import CommunicationBackend
from ...layout.flat import FlatLayout
from ...layout.piece import Piece
from ...optim.groups import rule_for
from ...optim.muon import matrix_rule_of
from .gradients import NORM_BLOCK, Gradients
from .keepers import Keepers
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
               same state (partition.with_rules_apart)

    is_trained                     False: frozen; then it has no gradients (None) and no state
    parameters, gradients, state   what this rank keeps of each; state: {name: keeper}
    group                          the data ranks that share one copy
    updates_all                    every data rank updates all elements, not only its span
    is_released_after_use          the parameters are readable between gather and release only
    is_common                      they lie once in memory that all ranks of the group share
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
        self.plan, self.rule = plan, rule
        self.group = movement.group
        self.dtype = str(next(iter(plan.parameters.values())).dtype)
        self.layout = FlatLayout.of(
            {name: p.shape for name, p in plan.parameters.items()},
            num_shards=self.group.world_size,
            alignment=NORM_BLOCK,
            dtype=self.dtype,
        )
        self._site = site = Site(self.layout, movement, pools)
        self.parameters = keepers.keep_parameters(site)
        self.is_trained = not plan.is_frozen
        groups = groups or {}
        own_rule = rule_for(next(iter(plan.parameters)), rule, groups)
        state_names = own_rule.state_names if self.is_trained else ()
        self.state = {name: keepers.state.of_state(site) for name in state_names}
        self.gradients: Any = Gradients(plan.parameters, site, keepers) if self.is_trained else None
        self._choose(keepers)
        updated = keepers.state.updated(site)
        is_in_groups = bool(groups.keys() & plan.parameters.keys())
        elements = (
            Segments(self.layout, updated, groups).update if is_in_groups else _update_at_once
        )
        is_whole = keepers.state.is_whole
        needs_matrices = matrix_rule_of(own_rule) is not None
        matrices = Matrices(site, elements, updated, groups, is_whole=is_whole)
        self._update = matrices.update if needs_matrices else elements
        self._is_current = False  # `whole` has what all ranks own
        self._may_be_read = False  # another rank may read what this one owns, in common memory
        self._bound = None
        self._fill_with_initial_values()

    def _choose(self, keepers):
        """Decide once what differs between keepers."""
        kept, updated = self.parameters, keepers.state.updated(self._site)
        self.updates_all, self.is_common = keepers.state.is_whole, kept.is_common
        self.is_released_after_use = kept.is_released_after_use
        self._views_last = not self._site.pools.whole_parameters.outlives_views
        self._lends_what_it_trains = kept.whole is kept.array
        self._is_current_after_step = keepers.state.is_whole and self._lends_what_it_trains
        self.num_updated = updated.stop - updated.start
        self.updated_parameters = kept.part(updated)
        self._updated_state = {name: state.part(updated) for name, state in self.state.items()}

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

    def start_over(self) -> None:
        """Make the initial values and zero optimizer state again; spread() comes next.

        Collective over the data axis.
        """
        self.wait_for_readers()
        self.unbind()
        for parameter in self.plan.parameters.values():
            parameter.renew()
        self._fill_with_initial_values()
        self.clear_state()

    def clear_state(self, names=None) -> None:
        """Set the optimizer state of these names to zero; None: all of it. No communication."""
        for name, state in self.state.items():
            if names is None or name in names:
                state.array.fill(0)

    # ---- parameters ------------------------------------------------------------------------------

    @property
    def whole(self):
        """[layout.size], what blocks read; None while released."""
        return self.parameters.whole

    def begin_gather(self) -> None:
        """Post the messages of gather(), if it sends any; gather() comes next.

        Collective over the data axis; never blocks for long.
        """
        if self.parameters.gathers_by_messages and not self._is_current:
            self.parameters.begin_gather()

    def gather(self) -> None:
        """Make all parameters readable. Collective over the data axis."""
        if not self._is_current:
            self.parameters.gather()
            self._is_current = True
        self._may_be_read = self.is_common
        whole = self.parameters.whole
        if self._bound is not whole:
            for slot, parameter in zip(self.layout.slots, self.plan.parameters.values()):
                parameter.bind(whole[slot.offset : slot.stop].reshape(slot.shape))
            self._bound = whole

    def gather_if_lasting(self) -> None:
        """Gather now what stays gathered between two uses. Collective over the data axis."""
        if not self.is_released_after_use:
            self.gather()

    def release(self) -> None:
        """Give the memory of gathered parameters back, if they are kept otherwise."""
        if self.is_released_after_use:
            self.unbind()
            self.parameters.release()
            self._is_current = self._is_current and self.parameters.whole is not None

    def unbind(self) -> None:
        """Take the parameters' memory from them until the next gather. No communication."""
        for parameter in self.plan.parameters.values():
            parameter.release(views_last=self._views_last)
        self._bound = None

    def wait_for_readers(self) -> None:
        """Wait until no rank reads the parameters any more, so that their owners may write them.

        Collective over the group.
        """
        if self._may_be_read:
            self.group.barrier()
            self._may_be_read = False

    def give_up(self) -> None:
        """Forget messages of a failed program: they may still write to their memory."""
        self.parameters.give_up()
        if self.is_trained:
            self.gradients.give_up()

    # ---- the update ------------------------------------------------------------------------------

    def begin_reduce(self) -> None:
        """Post the messages of reduce(), which comes next. Collective over the data axis."""
        self.gradients.begin_reduce()

    def reduce(self, scale: float) -> None:
        """Sum the gradients over the data axis, times `scale`. Collective; see Gradients.reduce."""
        self.gradients.reduce(scale)
        self._may_be_read = False  # every rank is past its backward

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
        self._update(
            self.rule,
            self.updated_parameters,
            gradient,
            self._updated_state,
            number,
            learning_rate,
            gradient_scale * scale,
        )
        self._is_current = self._is_current and self._is_current_after_step

    # ---- what this rank owns and keeps -----------------------------------------------------------

    @property
    def owned_parameters(self):
        """The parameters that this rank owns, as they are trained, a view."""
        return self.parameters.part(self._site.own)

    def owned_state(self, name: str):
        """Return what this rank owns of one array of the optimizer state, a view; None if the unit
        keeps none of this name: it is frozen, or has another rule.
        """
        return self.state[name].part(self._site.own) if name in self.state else None

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
        arrays = {"model": self.parameters}
        arrays |= {f"optimizer/{name}": state for name, state in self.state.items()}
        return [
            Holding(
                group,
                keeper.kept,
                self._site.pieces(keeper.is_whole),
                self._site.replicas(keeper.is_whole),
            )
            for group, keeper in arrays.items()
        ]

    def spread(self) -> None:
        """Make replicas on other ranks follow, after owned parameters and state were written.

        Collective over the data axis; what blocks read follows at the next gather.
        """
        for keeper in (*self.state.values(), self.parameters):
            keeper.spread()
        self._is_current = self._lends_what_it_trains

    def follow_masters(self) -> None:
        """Round anew after master weights were written on all ranks that have them.

        Collective over the data axis.
        """
        if not self._lends_what_it_trains:
            self._is_current = False
            self.gather_if_lasting()


def _update_at_once(rule, *arguments) -> None:
    """Apply a rule that is the same for all parameters of a unit."""
    rule.update(*arguments)
