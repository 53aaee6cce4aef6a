"""A unit: some blocks of the model, and the flat buffers that hold their parameters, gradients and
optimizer state.

    parameters of the unit, end to end in one flat layout:

        | slot a          | slot b  | slot c                     |pad|
        |---- span(0) ----|---- span(1) ----|---- span(2) ----|---- |      what each data rank owns

    gather   shard  [shard] -> whole [size]       all-gather; parameters become views of `whole`
             Where blocks compute in half floats, `whole` is of these: each rank rounds its shard,
             and half the bytes travel.
    release  whole goes back to the pool          (only if the policy shards parameters)
             Where all ranks share memory, `whole` is there once for all of them, each owns its part
             of it, and to gather is to wait until all have written.
    reduce   sum of gradients over ranks          reduce-scatter, or all-reduce if the policy shards nothing
    step     the rule on the elements that this rank updates

What differs between DDP, ZeRO-1, ZeRO-2 and FSDP is decided once, in __init__, from the three
booleans of the policy. The flat buffer is storage and a message; a parameter's identity is its name
and its box, which `pieces` tells.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy

from ...array import fresh, halves, kernels
from ...array.arena import Arena
from ...array.backend import BufferPool, Device
from ...layout.flat import FlatLayout
from ...layout.piece import Piece
from ...layout.policy import Policy
from ..tensor.layers import is_counted
from .gradients import Gradients
from .movement import Movement
from .partition import UnitPlan

NORM_BLOCK = 256  # elements whose squares are summed together; shards are multiples of it


class Memory:
    """What the units of one model share: the device, the arena of their activations, and the pools
    of their whole buffers.

    compute_dtype   of whole parameters; None: dtype
    """

    def __init__(self, device: Device, dtype, compute_dtype=None):
        self.device = device
        self.arena = Arena(device, purpose="activations")
        self.compute_dtype = numpy.dtype(dtype if compute_dtype is None else compute_dtype)
        self.whole_parameters = BufferPool(
            device, self.compute_dtype, purpose="gathered parameters"
        )
        self.whole_gradients = BufferPool(device, dtype, purpose="gradients in flight")

    def places(self, units) -> tuple:
        """Where on a GPU the buffers of these units lie: steps that do the same from there find
        them in the same places.
        """
        wholes = [unit.whole.data.ptr if unit.whole is not None else None for unit in units]
        return wholes, self.whole_parameters.places(), self.whole_gradients.places()


@dataclass(frozen=True, eq=False)
class Holding:
    """One array of a unit, as far as this rank keeps it.

    group      in a checkpoint: "model", or "optimizer/first_moment"
    values     1-D, a view
    pieces     of the local parameters, at their places in `values`
    is_whole   every data rank keeps all of it
    """

    group: str
    values: object
    pieces: list[Piece]
    is_whole: bool


class Unit(Gradients):
    """Blocks of the model whose parameters live, travel and are updated together.

    movement over the data axis; gather and reduce are collective over it
    rule     an optimizer rule; its state is made here, zero

    shard       [layout.shard] what this rank owns, as it is trained; `whole` may hold it rounded
    masters     [layout.size] all as they are trained, where this rank has that; else None
    is_common   the parameters are whole in memory that all ranks of the group share
    """

    def __init__(self, plan: UnitPlan, movement: Movement, policy: Policy, rule, memory: Memory):
        self.plan, self.policy, self.rule = plan, policy, rule
        self.group = group = movement.group
        self.dtype = str(next(iter(plan.parameters.values())).dtype)
        self.layout = FlatLayout.of(
            {name: p.shape for name, p in plan.parameters.items()},
            num_shards=group.world_size,
            alignment=NORM_BLOCK,
            dtype=self.dtype,
        )
        self.span = self.layout.span(group.rank)
        self._memory, self._movement = memory, movement
        self._is_mixed = memory.compute_dtype != self.dtype
        self._own = slice(group.rank * self.layout.shard, (group.rank + 1) * self.layout.shard)
        self._bound = None
        self._gathering = None  # what begin_gather began, until gather
        self._begin_gradients()
        self._allocate()
        self._fill_with_initial_values()

    # ---- storage ---------------------------------------------------------------------------------

    def _allocate(self):
        device, layout, policy = self._memory.device, self.layout, self.policy
        dtype = self._memory.compute_dtype
        self.is_common = self._may_be_read = (
            False  # one `whole` for all ranks; some rank may read it now
        )
        if policy.shard_parameters:
            self.whole = self.group.common(layout.size, dtype) if device.kind == "cpu" else None
            self.is_common = self.whole is not None
            if self.is_common:
                device.accounts.watch(self.whole[self._own], "parameters").fill(0)
        else:
            self.whole = device.zeros(layout.size, dtype, purpose="parameters")
        self._allocate_masters()
        self.is_whole = False
        state_size = layout.shard if policy.shard_optimizer_state else layout.size
        self.state = {
            name: device.zeros(state_size, self.dtype, purpose="optimizer state")
            for name in self.rule.state_names
        }
        self._gradient_shard = (
            device.zeros(layout.shard, self.dtype, purpose="gradients")
            if policy.shard_gradients
            else None
        )

    def _allocate_masters(self):
        """Parts of `whole`, if that is not rounded; else apart, and counted with the optimizer
        state, which they are like.
        """
        device, layout, policy, self.masters = self._memory.device, self.layout, self.policy, None
        if self._is_mixed and policy.shard_optimizer_state:
            self.shard = device.zeros(layout.shard, self.dtype, purpose="optimizer state")
        elif self._is_mixed:
            self.masters = device.zeros(layout.size, self.dtype, purpose="optimizer state")
        elif not policy.shard_parameters:
            self.masters = self.whole
        else:
            self.shard = (
                self.whole[self._own]
                if self.is_common
                else device.zeros(layout.shard, self.dtype, purpose="parameters")
            )
        if self.masters is not None:
            self.shard = self.masters[self._own]

    def _fill_with_initial_values(self):
        """Each rank makes only what it owns; whole buffers are filled by the first gather.

        Parameters that await the values of a checkpoint keep zeros until then.
        """
        for piece in self.layout.pieces(self.group.rank):
            parameter = self.plan.parameters[piece.name]
            if parameter.awaits_values:
                continue
            start = self.span[0] + piece.start - self.layout.slot(piece.name).offset
            values = parameter.initial_span(start, start + piece.stop - piece.start)
            self.shard[piece.start : piece.stop] = self._memory.device.from_host(values)
        for parameter in self.plan.parameters.values():
            parameter.release()

    def start_over(self):
        """Initial values and no optimizer state again; spread() comes next. Collective over the
        data axis.
        """
        self.wait_for_readers()
        self.unbind()
        for parameter in self.plan.parameters.values():
            parameter.renew()
        self._fill_with_initial_values()
        for state in self.state.values():
            state.fill(0)

    @property
    def num_owned(self) -> int:
        """Elements of this rank's span."""
        return self.span[1] - self.span[0]

    def _view(self, buffer, name: str):
        slot = self.layout.slot(name)
        return buffer[slot.offset : slot.offset + slot.size].reshape(slot.shape)

    # ---- parameters ------------------------------------------------------------------------------

    def begin_gather(self):
        """Let the parameters travel from now on; gather() comes next. Collective over the data
        axis; never blocks for long.

        Nothing happens where they are whole, or where gathering is no message.
        """
        if not (self.is_whole or self.is_common or self._is_mixed and self.masters is not None):
            self._take_whole()
            self._gathering = self._movement.begin_gather(self._own_rounded(), self.whole)

    def gather(self):
        """Make the parameters whole and readable. Collective over the data axis."""
        self._take_whole()
        if not self.is_whole:
            self._make_whole()
            self.is_whole = True
        self._may_be_read = self.is_common
        if self._bound is not self.whole:
            for name, parameter in self.plan.parameters.items():
                parameter.bind(self._view(self.whole, name))
            self._bound = self.whole

    def _take_whole(self):
        if self.whole is None:
            self.whole = self._memory.whole_parameters.take(self.layout.size)

    def _make_whole(self):
        """Fill `whole` from what all data ranks own."""
        if self._gathering is not None:
            self._movement.end(self._gathering)
            self._gathering = None
        elif self._is_mixed and self.masters is not None:
            halves.rounded(self.masters, self.whole.dtype, self.whole)
        elif self.is_common:
            self._own_rounded()
            self.group.barrier()
        else:
            self.group.all_gather(self._own_rounded(), self.whole)

    def _own_rounded(self):
        """What this rank owns, as it is lent to blocks; where that is rounded, in its place in
        `whole`.
        """
        return (
            halves.rounded(self.shard, self.whole.dtype, self.whole[self._own])
            if self._is_mixed
            else self.shard
        )

    def release(self):
        """Let the gathered parameters go, if this policy shards them. No communication."""
        if not self.policy.shard_parameters:
            return
        self.unbind()
        if not self.is_common:
            self._memory.whole_parameters.give(self.whole)
            self.whole, self.is_whole = None, False

    def wait_for_readers(self):
        """No rank reads the parameters any more, so that their owners may write them. Collective
        over the data axis.
        """
        if self._may_be_read:
            self.group.barrier()
            self._may_be_read = False

    def unbind(self):
        """The parameters are lent no memory until the next gather. No communication."""
        for parameter in self.plan.parameters.values():
            parameter.release()
        self._bound = None

    def give_up(self):
        """A program failed, on all ranks: what was begun is never used, since messages may still
        write to its memory.
        """
        if self._gathering is not None:
            self._gathering = self.whole = None
        self._reducing = None

    # ---- the update ------------------------------------------------------------------------------

    def _updated(self, buffer, is_shard: bool):
        """The part of `buffer` that this rank updates: its span, or everything if each rank updates
        everything.
        """
        if not self.policy.shard_optimizer_state:
            return buffer[: self.layout.length]
        return buffer[: self.num_owned] if is_shard else buffer[self.span[0] : self.span[1]]

    @property
    def num_updated(self) -> int:
        """Elements that this rank updates: its span, or all if each rank updates everything."""
        return self.num_owned if self.policy.shard_optimizer_state else self.layout.length

    def set_gradient(self, values):
        """Take these [num_updated] as the reduced gradient; drop_gradients() comes first. No
        communication.
        """
        if self.policy.shard_gradients:
            self.gradient = self._gradient_shard
        else:
            self.gradient = self._memory.whole_gradients.take(self.layout.size)
        self.gradient.fill(0)
        self.updated_gradient[...] = values

    def squares(self):
        """Sums of squares of the owned gradient per NORM_BLOCK elements, float64 [shard /
        NORM_BLOCK], zero beyond the end.

        What several tensor ranks hold is zero on all of them but one.
        """
        gradient = self.gradient if self.policy.shard_gradients else self.gradient[self._own]
        copies = [
            piece for piece in self.pieces() if not is_counted(self.plan.parameters[piece.name])
        ]
        if copies:
            gradient = fresh.copy(gradient)
            for piece in copies:
                gradient[piece.start : piece.stop] = 0
        squares = kernels.block_squares(gradient, NORM_BLOCK)
        squares *= self._scale**2
        return squares

    def step(self, number: int, gradient_scale: float = 1.0, learning_rate: float | None = None):
        """Apply the rule to the elements that this rank updates; the next gather spreads the
        result.

        Collective over the data axis, if the gradient was not reduced: see wait_for_readers.

        number          of the optimization step, the first is 1
        gradient_scale  each gradient counts times this, the factor of clipping
        """
        self.wait_for_readers()
        is_shard = self.masters is None
        self.rule.update(
            self._updated(self.shard if is_shard else self.masters, is_shard),
            self._unscaled_gradient(),
            {
                name: self._updated(s, self.policy.shard_optimizer_state)
                for name, s in self.state.items()
            },
            number,
            learning_rate,
            gradient_scale * self._scale,
        )
        if self.policy.shard_optimizer_state or self._is_mixed:
            self.is_whole = False

    # ---- what this rank owns ---------------------------------------------------------------------

    @property
    def owned_parameters(self):
        """[num_owned], a view."""
        return self.shard[: self.num_owned]

    def trained_parameters(self):
        """[layout.length] of all data ranks, not rounded. The unit must be gathered. Collective
        over the data axis.
        """
        trained = self.masters if self._is_mixed else self.whole
        if trained is None:
            trained = self._memory.device.empty(
                self.layout.size, self.dtype, purpose="gathered parameters"
            )
            self.group.all_gather(self.shard, trained)
        return trained[: self.layout.length]

    def owned_state(self, name: str):
        """[num_owned], a view of one array of the optimizer state."""
        state = self.state[name]
        return (
            state[: self.num_owned]
            if self.policy.shard_optimizer_state
            else state[slice(*self.span)]
        )

    def pieces(self):
        """The named boxes that this rank owns: over all data ranks they tile every parameter
        exactly once.
        """
        return self._own_pieces

    @cached_property
    def _own_pieces(self):
        return self.layout.pieces(self.group.rank)

    @cached_property
    def _all_pieces(self):
        return [piece for slot in self.layout.slots for piece in slot.pieces(0, self.layout.length)]

    def _pieces(self, is_whole: bool):
        """The pieces of all elements, or of this rank's span."""
        return self._all_pieces if is_whole else self._own_pieces

    def holdings(self) -> list[Holding]:
        """All that this rank keeps from one step to the next: parameters, and each array of the
        optimizer state.
        """
        has_whole, has_whole_state = self.masters is not None, not self.policy.shard_optimizer_state
        parameters = self.masters[: self.layout.length] if has_whole else self.owned_parameters
        states = [
            Holding(
                f"optimizer/{name}",
                self._updated(state, not has_whole_state),
                self._pieces(has_whole_state),
                has_whole_state,
            )
            for name, state in self.state.items()
        ]
        return [Holding("model", parameters, self._pieces(has_whole), has_whole), *states]

    def spread(self):
        """After the owned parameters and state were written from outside: make copies on other
        ranks follow.

        Collective over the data axis where the policy keeps whole optimizer state; parameters
        follow at the next gather.
        """
        self.is_whole = False
        if not self.policy.shard_optimizer_state:
            for array in [*self.state.values(), *([self.masters] if self._is_mixed else [])]:
                self.group.all_gather(array[self._own], array)

    def follow_masters(self):
        """After the masters were written, on all ranks that have them: what blocks are lent is
        rounded anew.

        Collective over the data axis.
        """
        if self._is_mixed:
            self.is_whole = False
            if not self.policy.shard_parameters:
                self.gather()
