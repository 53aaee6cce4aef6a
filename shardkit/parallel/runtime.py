"""The runtime: one loop over the actions of a program, and one table that says what each kind does.

    micro-batch x --F--> unit 0 --F--> unit 1 --F--> ... last unit + loss
                         unit 0 <--B-- unit 1 <--B-- ...                    each unit and micro-batch has a graph of its own,
                           W             W                                  cut at the unit's input

Between F and B the graph of a unit lives here, or only its input when activations are checkpointed: then B runs the forward
again, with the same dropout masks, since these depend on seed, step and sample alone. A unit's gradient is reduced when its
last W is done, and the step is taken when all are. Nothing here knows a policy or a schedule: the one is in the units, the
other in the program.
"""
from dataclasses import dataclass, field
from typing import Any

from ..array.backend import xp_of
from ..comm import Mesh
from ..nn.autograd import Tensor, WeightGradients, backward_inputs, no_grad
from ..nn.context import ForwardContext, forward_context
from ..optim import clip_factor
from ..schedule import Action, Kind
from .unit import NORM_BLOCK, Unit


@dataclass
class Step:
    """One run of a program: what goes in, and what comes out.

    x, y            one array per micro-batch; y is empty when only predictions are wanted
    contexts        one ForwardContext per micro-batch
    loss            a Loss, or None for predictions
    number          of the optimisation step, the first is 1
    gradient_scale  the sum of gradients is multiplied by this when it is reduced: 1 / items of the global batch
    first_gradient  number of micro-batch 0 among all whose gradients are being summed
    learning_rate   overrides the rule's own
    """

    x: list
    y: list = field(default_factory=list)
    contexts: list[ForwardContext] = field(default_factory=list)
    loss: Any = None
    number: int = 1
    gradient_scale: float = 1.0
    first_gradient: int = 0
    learning_rate: float | None = None
    losses: dict[int, float] = field(default_factory=dict)           # micro-batch -> sum over its items
    predictions: dict[int, Any] = field(default_factory=dict)        # micro-batch -> output of the last unit
    gradient_norm: float | None = None                               # before clipping


@dataclass
class UnitGraph:
    """One unit's work on one micro-batch, from its forward to its weight gradient."""

    input: Tensor
    output: Tensor | None = None            # None while only the input is kept
    weight_gradients: WeightGradients | None = None


class Runtime:
    """Executes programs on the units of one pipeline rank.

    units                   in order; the index of a unit is its number in the actions
    mesh                    CLIP is collective over all its ranks, GATHER and REDUCE over the data axis
    max_gradient_norm       for CLIP
    keep_activations        False: activation checkpointing
    """

    def __init__(self, units: list[Unit], mesh: Mesh, *, max_gradient_norm: float | None, keep_activations: bool):
        self.units, self.mesh = units, mesh
        self._max_gradient_norm, self._keep_activations = max_gradient_norm, keep_activations
        self._graphs: dict[tuple[int, int], UnitGraph] = {}          # (unit, micro-batch)
        self._activations: dict[tuple[int, int], Any] = {}           # input of a unit, waiting for its F
        self._gradients: dict[tuple[int, int], Any] = {}             # gradient of a unit's output, waiting for its B
        self._clip_factor = 1.0
        self._table = {Kind.GATHER: self._gather, Kind.RELEASE: self._release, Kind.FORWARD: self._forward,
                       Kind.BACKWARD: self._backward, Kind.WEIGHT: self._weight, Kind.REDUCE: self._reduce,
                       Kind.CLIP: self._clip, Kind.STEP: self._step}

    def run(self, actions: tuple[Action, ...], step: Step) -> Step:
        """Execute the actions in order and return the filled-in step. Collective over the mesh."""
        try:
            for action in actions:
                self._table[action.kind](action, step)
        finally:
            self._forget()
        return step

    def _forget(self):
        """Nothing of a step outlives it, even one that failed half-way."""
        self._graphs.clear()
        self._activations.clear()
        self._gradients.clear()

    # ---- parameters ----------------------------------------------------------------------------------------------

    def _gather(self, action, step):
        self.units[action.unit].gather()

    def _release(self, action, step):
        self.units[action.unit].release()

    # ---- one unit, one micro-batch -------------------------------------------------------------------------------

    def _forward(self, action, step):
        u, m = action.unit, action.micro_batch
        x = step.x[m] if u == 0 else self._activations.pop((u, m))
        is_differentiable = u > 0 and x.dtype.kind == "f"
        graph = UnitGraph(Tensor(x, requires_grad=is_differentiable))
        if step.loss is not None and self._keep_activations:
            output = graph.output = self._compute(u, m, graph.input, step)
        else:
            with no_grad():
                output = self._compute(u, m, graph.input, step)
        if step.loss is not None:
            self._graphs[u, m] = graph
        self._deliver(u, m, output.array, step)

    def _compute(self, u, m, x, step) -> Tensor:
        """The unit's blocks, and after the last unit the loss, summed over the items of the micro-batch."""
        with forward_context(step.contexts[m]):
            for block in self.units[u].plan.blocks:
                x = block(x)
            return step.loss.total(x, step.y[m]) if self._is_last(u) and step.loss is not None else x

    def _deliver(self, u, m, output, step):
        if not self._is_last(u):
            self._activations[u + 1, m] = output
        elif step.loss is not None:
            step.losses[m] = float(output)
        else:
            step.predictions[m] = output

    def _is_last(self, u) -> bool:
        return u == len(self.units) - 1

    def _backward(self, action, step):
        u, m = action.unit, action.micro_batch
        graph = self._graphs[u, m]
        if graph.output is None:
            graph.output = self._compute(u, m, graph.input, step)
        gradient = self._gradients.pop((u, m), None)                 # None after the loss: its gradient is 1
        graph.weight_gradients = backward_inputs(graph.output, gradient)
        if u > 0:
            self._gradients[u - 1, m] = graph.input.grad
        graph.input = graph.output = None

    def _weight(self, action, step):
        u, m = action.unit, action.micro_batch
        owners = [self.units[i] for i in (u, *self.units[u].plan.lenders)]
        buffers = [owner.open_gradient(u) for owner in owners]
        self._graphs.pop((u, m)).weight_gradients.run()
        for owner, buffer in zip(owners, buffers):
            owner.close_gradient(u, step.first_gradient + m, buffer)

    # ---- the end of the step -------------------------------------------------------------------------------------

    def _reduce(self, action, step):
        self.units[action.unit].reduce(step.gradient_scale)

    def _clip(self, action, step):
        step.gradient_norm = self.gradient_norm()
        self._clip_factor = clip_factor(step.gradient_norm, self._max_gradient_norm)

    def gradient_norm(self) -> float:
        """The norm of the reduced gradient, each element counted once. Collective over the data axis.

        Squares are summed per block of NORM_BLOCK elements, blocks in order, units in order: blocks never straddle two
        ranks, so the bits do not depend on the number of ranks.
        """
        group = self.mesh.group("data")
        local = [unit.squares() for unit in self.units]                        # [blocks of this rank's shard] each
        mine = xp_of(*local).concatenate(local)
        everyones = xp_of(mine).empty((group.world_size, mine.size), mine.dtype)
        group.all_gather(mine, everyones.reshape(-1))
        total, column = 0.0, 0
        for unit, blocks in zip(self.units, local):
            in_order = everyones[:, column:column + blocks.size].reshape(-1)   # all blocks of the unit, in flat order
            used = -(-unit.layout.length // NORM_BLOCK)                        # without padding, whose size knows the ranks
            total += float(in_order[:used].sum())
            column += blocks.size
        return total ** 0.5

    def _step(self, action, step):
        factor = self._clip_factor if self._max_gradient_norm is not None else 1.0
        self.units[action.unit].step(step.number, factor, step.learning_rate)
