"""The runtime: one loop over the actions of a program, and one table that says what each kind does.

    micro-batch x --F--> unit 0 --F--> unit 1 --SEND, RECV--> unit 2 --F--> ... last unit + loss
                         unit 0 <--B-- unit 1 <--RECV, SEND-- unit 2 <--B-- ...
                           W             W                      W           each unit and micro-batch is computed by itself
                                                                            (work.py), cut at the
                                                                            unit's input

When activations are checkpointed, B runs the forward again, with the same dropout masks, since
these depend on seed, step and sample alone. A unit's gradient is reduced when its last W is done,
and the step is taken when all are. Nothing here knows a policy or a schedule: the one is in the
units, the other in the program.
"""

from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy

from ...array import fresh, products
from ...array.arena import Arena, empty
from ...array.backend import numbers_of, xp_of
from ...comm import Mesh
from ...errors import CommunicationError, OutOfMemoryError, ShardkitError
from ...nn.context import ForwardContext
from ...optim import clip_factor
from ...schedule import COMPUTE, Action, Kind
from ..data.gradients import NORM_BLOCK
from ..data.movement import Movement
from ..data.unit import Unit
from ..pipeline.stages import Place, Stages
from ..pipeline.transfer import Transfers
from .cuda_graphs import CudaGraphs
from .numerics import Numerics
from .votes import describe_shortage
from .work import Work

BLOCK_ERRORS = (
    ShardkitError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
)  # that others are told of


@dataclass
class Step:
    """One run of a program: what goes in, and what comes out.

    x, y            one array per micro-batch; y is empty when only predictions are wanted
    contexts        one ForwardContext per micro-batch
    loss            a Loss, or None for predictions
    number          of the optimization step, the first is 1
    gradient_scale  the sum of gradients is multiplied by this when it is reduced: 1 / items of the
                    global batch
    first_gradient  number of micro-batch 0 among all whose gradients are being summed
    learning_rate   overrides the rule's own
    loss_scale      the gradient of the loss to begin with; gradient_scale takes it out again
    is_good         False: this rank knows that the step must not be taken; CLIP makes it known to
                    all
    failure         what went wrong while this rank computed; the rest of the program then went on
                    with zeros
    form            the same for steps that compute the same on other numbers, on all ranks; None:
                    not to be recorded
    """

    x: list
    y: list = field(default_factory=list)
    contexts: list[ForwardContext] = field(default_factory=list)
    loss: Any = None
    number: int = 1
    gradient_scale: float = 1.0
    first_gradient: int = 0
    learning_rate: float | None = None
    loss_scale: float = 1.0
    is_good: bool = True
    failure: Exception | None = None
    form: Any = None
    losses: dict[int, float] = field(
        default_factory=dict
    )  # micro-batch -> sum over its items, after the run
    predictions: dict[int, Any] = field(
        default_factory=dict
    )  # micro-batch -> output of the last unit
    gradient_norm: float | None = None  # before clipping


class Runtime:
    """Executes programs on the units of one pipeline rank.

    units                   {place: unit} of this rank, in the order of the model
    stages                  of the whole model
    mesh                    CLIP is collective over all its ranks, GATHER and REDUCE over the data
                            axis
    transfers               of this rank, to its neighbors in the pipeline
    movement                of parameters and gradients over the data axis
    arena                   where activations, their gradients and temporaries lie
    numerics                how all of it computes
    max_gradient_norm       for CLIP
    keep_activations        False: activation checkpointing
    """

    def __init__(
        self,
        units: dict[Place, Unit],
        stages: Stages,
        mesh: Mesh,
        transfers: Transfers,
        movement: Movement,
        arena: Arena,
        *,
        numerics: Numerics,
        max_gradient_norm: float | None,
        keep_activations: bool,
    ):
        self.units, self.stages, self.mesh, self.arena = units, stages, mesh, arena
        self.transfers, self.movement = transfers, movement
        self._numerics, self._max_gradient_norm = numerics, max_gradient_norm
        self.graphs: CudaGraphs | None = None  # once it was asked for
        self._work = self.plain_work = Work(units, stages, arena, keep_activations=keep_activations)
        self._opened: Action | None = None  # the last WEIGHT that had its gradient buffers
        self._activations: dict[
            tuple[Place, int], Any
        ] = {}  # (unit, micro-batch) -> its input, waiting for its F
        self._gradients: dict[
            tuple[Place, int], Any
        ] = {}  # gradient of a unit's output, waiting for its B
        self._clip_factor = 1.0
        self._table = {
            Kind.BEGIN_GATHER: self._begin_gather,
            Kind.GATHER: self._gather,
            Kind.RELEASE: self._release,
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.WEIGHT: self._weight,
            Kind.BEGIN_REDUCE: self._begin_reduce,
            Kind.REDUCE: self._reduce,
            Kind.TIE: self._tie,
            Kind.CLIP: self._clip,
            Kind.STEP: self._step,
            Kind.SEND_F: self._send_f,
            Kind.RECV_F: self._recv_f,
            Kind.SEND_B: self._send_b,
            Kind.RECV_B: self._recv_b,
            Kind.WAIT_F: self._wait,
            Kind.WAIT_B: self._wait,
        }
        self._table_without_results = {
            **self._table,
            Kind.FORWARD: self._nothing,
            Kind.BACKWARD: self._nothing,
            Kind.SEND_F: self._send_zeros_f,
            Kind.SEND_B: self._send_zeros_b,
            Kind.RECV_F: self._receive_and_drop,
            Kind.RECV_B: self._receive_and_drop,
        }

    def run(self, actions: tuple[Action, ...], step: Step) -> Step:
        """Execute the actions in order and return the filled-in step. Collective over the mesh.

        A rank that runs out of memory while it computes, or whose block raises, says so in
        step.failure, and goes through the rest with zeros, since the others wait for its messages.
        The caller must ask all ranks before the result is used. Errors, on this rank alone:
        OutOfMemoryError, or the block's own, where that cannot be done.
        """
        try:
            with (
                self.arena.in_use(),
                self._numerics.in_use(),
                products.doing_meanwhile(self.movement.pump),
            ):
                self._work = (
                    self.plain_work if self.graphs is None else self.graphs.begin(actions, step)
                )
                self._run(actions, step)
                step.losses = dict(zip(step.losses, numbers_of(step.losses.values())))
        except BaseException:
            self._give_up()
            raise
        finally:
            self.plain_work.clear()
            self._activations.clear()
            self._gradients.clear()
        if self.graphs is not None:
            self.graphs.end(step)
        return step

    def _run(self, actions, step):
        self.transfers.begin(actions, [x.shape for x in step.x], self._work.arrival)
        self.movement.begin_run()
        for action in actions:
            self.movement.pump()
            try:
                (self._table if step.failure is None else self._table_without_results)[action.kind](
                    action, step
                )
            except MemoryError as error:
                self._go_on_without_memory(action, step, error)
            except BLOCK_ERRORS as error:
                if isinstance(error, CommunicationError) or not self._can_go_on(action, step):
                    raise
                self._go_on_with_zeros(step, error)
        self.transfers.end()

    def _give_up(self):
        for part in (self.transfers, self.movement, *self.units.values(), self.graphs):
            if part is not None:
                part.give_up()

    # ---- parameters ------------------------------------------------------------------------------

    def _begin_gather(self, action, step):
        self.units[_place(action)].begin_gather()

    def _gather(self, action, step):
        self.units[_place(action)].gather()

    def _release(self, action, step):
        self.units[_place(action)].release()

    # ---- one unit, one micro-batch ---------------------------------------------------------------

    def _forward(self, action, step):
        place, m = _place(action), action.micro_batch
        x = step.x[m] if place == self.stages.first else self._activations.pop((place, m))
        self._deliver(place, m, self._work.forward(place, m, x, step), step)

    def _deliver(self, place, m, output, step):
        if place != self.stages.last:
            self._activations[self.stages.after(place), m] = (
                output  # of this rank, or picked up by SEND_F
            )
        elif step.loss is not None:
            step.losses[m] = output.reshape(())  # a number once the program has ended
        else:
            step.predictions[m] = output

    def _backward(self, action, step):
        place, m = _place(action), action.micro_batch
        for_input = self._work.backward(place, m, self._gradients.pop((place, m), None), step)
        if place != self.stages.first:
            self._gradients[self.stages.before(place), m] = for_input

    def _weight(self, action, step):
        place, m = _place(action), action.micro_batch
        owners, user = self._work.owners(place), self.stages.places.index(place)
        buffers = [owner.gradients.open(user) for owner in owners]
        self._opened = action
        try:
            self._work.weight(place, m, buffers, step)
        finally:
            for owner, buffer in zip(owners, buffers):
                owner.gradients.close(user, step.first_gradient + m, buffer)

    # ---- when memory runs out, or a block raises -------------------------------------------------

    def _go_on_without_memory(self, action, step, error):
        if isinstance(error, OutOfMemoryError):
            raise error
        text = describe_shortage(
            self.mesh.rank, f"{action} of step {step.number}", error, self.arena.device
        )
        if not self._can_go_on(action, step):
            raise OutOfMemoryError(text) from error
        self._go_on_with_zeros(step, OutOfMemoryError(text))

    def _can_go_on(self, action, step) -> bool:
        """False where the others cannot be served with zeros."""
        return (
            step.loss is not None
            and self.mesh.size("tensor") == 1
            and not self._is_within_messages(action)
        )

    def _go_on_with_zeros(self, step, failure):
        """Let go of what this step has computed, and say so in the step."""
        step.failure, step.is_good = failure, False
        for results in (self.plain_work, self._activations, self._gradients):
            results.clear()
        self._work = self.plain_work

    def _is_within_messages(self, action) -> bool:
        """True if others may be in the midst of this action with this rank, or if its gradient
        buffer was not to be had.
        """
        is_unopened = action.kind is Kind.WEIGHT and action is not self._opened
        return action.kind not in COMPUTE or is_unopened

    def _nothing(self, action, step):
        """Instead of computing."""

    def _send_zeros_f(self, action, step):
        zeros = self.transfers.zeros(Kind.RECV_F, action.stage + 1, action.micro_batch)
        if zeros is None:  # the next rank waits for a shape that nobody knows yet
            raise step.failure
        self.transfers.send_activation(action.stage, action.micro_batch, zeros)

    def _send_zeros_b(self, action, step):
        zeros = self.transfers.zeros(Kind.RECV_B, action.stage - 1, action.micro_batch)
        self.transfers.send_gradient(action.stage, action.micro_batch, zeros)

    def _receive_and_drop(self, action, step):
        self.transfers.receive(action)

    # ---- between pipeline ranks ------------------------------------------------------------------

    def _send_f(self, action, step):
        array = self._activations.pop((Place(action.stage + 1, 0), action.micro_batch))
        self.transfers.send_activation(action.stage, action.micro_batch, array)

    def _recv_f(self, action, step):
        self._activations[Place(action.stage, 0), action.micro_batch] = self.transfers.receive(
            action
        )

    def _send_b(self, action, step):
        stage, m = action.stage, action.micro_batch
        self.transfers.send_gradient(
            stage, m, self._gradients.pop((self.stages.before(Place(stage, 0)), m))
        )

    def _recv_b(self, action, step):
        last_of_stage = self.stages.before(Place(action.stage + 1, 0))
        self._gradients[last_of_stage, action.micro_batch] = self.transfers.receive(action)

    def _wait(self, action, step):
        self.transfers.wait(
            "F" if action.kind is Kind.WAIT_F else "B", action.stage, action.micro_batch
        )

    # ---- the end of the step ---------------------------------------------------------------------

    def _begin_reduce(self, action, step):
        self.units[_place(action)].begin_reduce()

    def _reduce(self, action, step):
        self.units[_place(action)].reduce(step.gradient_scale)

    def _tie(self, action, step):
        """The gradients of a tied unit and its copies, added in the same order on all pipeline
        ranks that hold one.
        """
        place = _place(action)
        gradient = self.units[place].gradients.updated
        self.transfers.add_over(self.stages.holders[place], gradient, self.stages.holder_tag(place))

    def _clip(self, action, step):
        step.gradient_norm = self.gradient_norm(is_good=step.is_good)
        self._clip_factor = clip_factor(step.gradient_norm, self._max_gradient_norm)

    def gradient_norm(self, *, is_good: bool = True) -> float:
        """The norm of the reduced gradient, each element counted once; NaN if any rank is not good.
        Collective over the mesh.

        Squares are summed per block of NORM_BLOCK elements, blocks in order, units in order: blocks
        never straddle two ranks, so the bits do not depend on the number of ranks.
        """
        data, pipeline = self.mesh.group("data"), self.mesh.group("pipeline")
        units = list(self.units.values())
        local = [unit.gradients.squares() for unit in units]  # [blocks of this rank's shard] each
        xp = xp_of(*local)
        mine = empty(sum(blocks.size for blocks in local) + 1, numpy.float64, xp)
        xp.concatenate([*local, xp.full(1, 0.0 if is_good else nan)], out=mine)
        everyones = empty((data.world_size, mine.size), mine.dtype, xp)
        data.all_gather(mine, everyones.reshape(-1))
        sums, column = [], 0
        for unit, blocks in zip(units, local):
            in_order = fresh.contiguous(everyones[:, column : column + blocks.size]).reshape(
                -1
            )  # all blocks, in flat order
            used = -(
                -unit.layout.length // NORM_BLOCK
            )  # without padding, whose size knows the ranks
            sums.append(in_order[:used].sum())
            column += blocks.size
        *sums, nan_or_zero = numbers_of([*sums, everyones[:, -1].sum()])
        of_units = numpy.full(
            len(self.stages.places), nan_or_zero
        )  # zero where another pipeline rank has the unit
        for place, unit, total in zip(self.units, units, sums):
            of_units[self.stages.places.index(place)] += 0.0 if unit.plan.is_copy else total
        for group in (self.mesh.group("tensor"), pipeline):
            of_ranks = numpy.empty((group.world_size, of_units.size))
            group.all_gather(of_units, of_ranks)
            of_units = of_ranks.sum(0)
        return sum(of_units.tolist()) ** 0.5

    def _step(self, action, step):
        factor = self._clip_factor if self._max_gradient_norm is not None else 1.0
        self.units[_place(action)].step(step.number, factor, step.learning_rate)


def _place(action: Action) -> Place:
    return Place(action.stage, action.unit)
