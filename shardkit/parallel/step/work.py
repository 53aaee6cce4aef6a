"""What computes: forward, backward and weight gradient of one unit on one micro-batch, each with a
tape of its own.

    F   x --blocks--> output                 the tape is kept, or only x if activations are checkpointed
    B   gradient of output --> gradient of x    forward again first, if only x was kept
    W   what the tape still owes to parameters
"""

from dataclasses import dataclass

from ...array.arena import Arena
from ...array.backend import xp_of
from ...array.dtypes import is_floating
from ...nn.autograd import Tensor, WeightGradients, backward_inputs, no_grad
from ...nn.context import forward_context
from ..data.unit import Unit
from ..pipeline.stages import Place, Stages


@dataclass
class UnitGraph:
    """One unit's work on one micro-batch, from its forward to its weight gradient."""

    input: Tensor
    output: Tensor | None = None  # None while only the input is kept
    weight_gradients: WeightGradients | None = None


class Work:
    """Computes with the units of one pipeline rank.

    units              {place: unit} of this rank
    arena              where received arrays lie
    keep_activations   False: activation checkpointing
    """

    def __init__(
        self, units: dict[Place, Unit], stages: Stages, arena: Arena, *, keep_activations: bool
    ):
        self.units, self.stages = units, stages
        self._arena, self._keep_activations = arena, keep_activations
        self._graphs: dict[tuple[Place, int], UnitGraph] = {}  # (unit, micro-batch)

    def on_tapes_of_its_own(self) -> "Work":
        """Return another that computes with the same units."""
        return Work(self.units, self.stages, self._arena, keep_activations=self._keep_activations)

    def arrival(self, message, shape, dtype):
        """An array for what this message will bring."""
        return self._arena.empty(shape, dtype)

    def forward(self, place: Place, m: int, x, step):
        """The output of a unit for micro-batch m, or its loss, summed over the items."""
        graph = UnitGraph(
            Tensor(x, requires_grad=place != self.stages.first and is_floating(x.dtype))
        )
        if step.loss is not None and self._keep_activations:
            output = graph.output = self._compute(place, m, graph.input, step)
        else:
            with no_grad():
                output = self._compute(place, m, graph.input, step)
        if step.loss is not None:
            self._graphs[place, m] = graph
        return output.array

    def _compute(self, place, m, x, step) -> Tensor:
        """The unit's blocks, and after the last unit the loss, summed over the items of the
        micro-batch.
        """
        with forward_context(step.contexts[m]):
            for block in self.units[place].plan.blocks:
                x = block(x)
            return (
                step.loss.total(x, step.y[m])
                if place == self.stages.last and step.loss is not None
                else x
            )

    def backward(self, place: Place, m: int, gradient, step):
        """The gradient of the unit's input, None for the first unit; `gradient` is None after the
        loss.
        """
        graph = self._graphs[place, m]
        if graph.output is None:
            graph.output = self._compute(place, m, graph.input, step)
        if gradient is None and step.loss_scale != 1.0:  # else it is 1
            gradient = xp_of(graph.output.array).full_like(graph.output.array, step.loss_scale)
        graph.weight_gradients = backward_inputs(graph.output, gradient)
        for_input = graph.input.grad
        graph.input = graph.output = None
        return for_input

    def owners(self, place: Place) -> list[Unit]:
        """The units whose parameters this one uses: itself, and those that lend it some; a copy
        uses none.
        """
        is_copy = self.units[place].plan.is_copy
        return [] if is_copy else [self.units[at] for at in (place, *self.stages.lenders[place])]

    def weight(self, place: Place, m: int, buffers, step) -> None:
        """Write the gradients of the parameters of owners(place), which are bound to these flat
        buffers, one for each.

        Nothing if the memory for the forward was not to be had: then the gradients stay empty.
        """
        graph = self._graphs.pop((place, m), None)
        if graph is not None:
            graph.weight_gradients.run()

    def clear(self) -> None:
        """Forget all that was computed."""
        self._graphs.clear()
