"""What computes: forward, backward and weight gradient of one unit on one micro-batch, each with a
tape of its own.

    F   x --blocks--> output                    the tape is kept, or only x with checkpointing;
                                                each is an array or a tree of arrays
    B   gradient of output --> gradient of x    forward again first, if only x was kept
    W   what the tape still owes to parameters

A second forward has the same dropout masks, for they depend on seed, step, sample and the number of
the call in its block alone, and what its buffers observe does not count.
"""

from dataclasses import dataclass
from typing import Any

from ...array.arena import Arena
from ...array.backend import is_array, xp_of
from ...array.dtypes import is_floating
from ...errors import PeerError
from ...nn.autograd import Passage, Tensor, WeightGradients, no_grad
from ...nn.buffer import unobserved
from ...nn.context import forward_context, late_logits, run_block
from ...nn.module import Module
from ...nn.trees import arrays_of, as_tensors, check_output, gradients_of
from ..data.unit import Unit, Units
from ..pipeline.form import NOTHING
from ..pipeline.stages import Place, Stages
from .gathering import Gathering
from .inputs import Inputs


@dataclass
class UnitGraph:
    """One unit's work on one micro-batch, from its forward to its weight gradient.

    input    a Tensor, or a tree of Tensors
    output   a Tensor, or a tree of Tensors and arrays; None while only the input is kept
    """

    input: Any
    output: Any = None
    weight_gradients: WeightGradients | None = None


class Work:
    """Computes with the units of one pipeline rank.

    units              of this rank
    arena              where received arrays lie
    gathering          sees to it that their parameters are whole (gathering.py)
    keep_activations   False for activation checkpointing
    """

    def __init__(
        self,
        units: Units,
        stages: Stages,
        arena: Arena,
        gathering: Gathering,
        *,
        keep_activations: bool,
    ):
        self.units = units
        self.stages = stages
        self.gathering = gathering
        self._first_trained = stages.first_trained
        self._last = stages.last
        self._blocks = _numbered_blocks(stages)
        self._arena = arena
        self._keep_activations = keep_activations
        self._graphs: dict[tuple[Place, int], UnitGraph] = {}  # (unit, micro-batch)

    def on_tapes_of_its_own(self) -> "Work":
        """Return another that computes with the same units."""
        return Work(
            self.units,
            self.stages,
            self._arena,
            self.gathering,
            keep_activations=self._keep_activations,
        )

    def arrival(self, message, shape, dtype):
        """Return an array for what this message will bring."""
        return self._arena.empty(shape, dtype)

    def forward(self, place: Place, m: int, x, inputs: Inputs):
        """Return the output of a unit for micro-batch m, or its loss, summed over the items."""
        with self.gathering.around("forward", place, m, inputs):
            return self._forward(place, m, x, inputs)

    def _forward(self, place, m, x, inputs):
        if is_array(x) and x.shape == NOTHING:
            raise PeerError("a stage before this one failed")
        context = inputs.micro_batches[m].context
        learns = inputs.loss is not None and place >= self._first_trained
        takes_gradient = place > self._first_trained
        if is_array(x):
            graph = UnitGraph(Passage(x, takes_gradient and is_floating(x.dtype)))
        else:
            graph = UnitGraph(as_tensors(x, takes_gradient=takes_gradient))
        if learns and self._keep_activations:
            output = graph.output = self._compute(place, m, graph.input, inputs, context)
        else:
            with no_grad():
                output = self._compute(place, m, graph.input, inputs, context)
        if learns:
            self._graphs[place, m] = graph
        return output.array if isinstance(output, Tensor) else arrays_of(output)

    def _compute(self, place, m, x, inputs, context):
        """Run the unit's blocks, and after the last unit the loss, summed over the items."""
        with forward_context(context):
            if place != self._last or inputs.loss is None:
                return self._through_blocks(place, x)
            with late_logits():
                x = self._through_blocks(place, x)
                return inputs.loss.total(x, inputs.micro_batches[m].y)

    def _through_blocks(self, place, x):
        for home, number, block in self._blocks[place]:
            x = run_block(home, number, block, x)
            if not isinstance(x, Tensor):
                check_output(x)
        return x

    def backward(self, place: Place, m: int, gradient, inputs: Inputs):
        """Return the gradient of the unit's input, or None for the first unit that is trained.

        gradient   of the unit's output, of a tree a list; None after the loss
        """
        with self.gathering.around("backward", place, m, inputs):
            return self._backward(place, m, gradient, inputs)

    def _backward(self, place, m, gradient, inputs):
        graph = self._graphs[place, m]
        if graph.output is None:
            again = inputs.micro_batches[m].context.observed_by(unobserved)
            graph.output = self._compute(place, m, graph.input, inputs, again)
        if gradient is None and inputs.loss_scale != 1.0:  # else it is 1
            gradient = xp_of(graph.output.array).full_like(graph.output.array, inputs.loss_scale)
        graph.weight_gradients = self.gathering.walk(place, graph.output, gradient, m, inputs)
        for_input = None
        if place > self._first_trained:
            is_usual = type(graph.input) is Passage and graph.input.grad is not None
            for_input = graph.input.grad if is_usual else gradients_of(graph.input)
        graph.input = graph.output = None
        return for_input

    def owners(self, place: Place) -> list[Unit]:
        """Return the units to whose parameters weight() gives gradients."""
        return self.gathering.owners(place)

    def weight(self, place: Place, m: int, buffers, inputs: Inputs) -> None:
        """Write the gradients of the parameters of owners(place).

        buffers   flat gradient buffers that the parameters are bound to, one for each owner
        """
        self._graphs.pop((place, m)).weight_gradients.run()

    def clear(self) -> None:
        """Forget all that was computed."""
        self._graphs.clear()


def _numbered_blocks(stages: Stages) -> dict[Place, list[tuple]]:
    """Return (home, number in the model, block) of all blocks of each unit, as run_block has it.

    A block that is in the model twice is at home where it comes first.
    """
    numbered: dict[Place, list[tuple]] = {}
    seen: list[Module] = []
    for place, plan in stages.plans.items():
        numbered[place] = []
        for block in plan.blocks:
            home = None if any(block is one for one in seen) else block.path_in_model
            numbered[place].append((home, len(seen), block))
            seen.append(block)
    return numbered
