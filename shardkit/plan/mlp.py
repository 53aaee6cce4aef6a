"""An MLP on rows of a table: its sizes, what its layers keep, their seconds.

    features    dense 0      dense 1      dense 2
      x      -> in, out   -> in, out   -> in, out    sizes[0], sizes[1], ... elements of a row

A row has one item, so that a micro-batch of n rows multiplies matrices of n rows. The tests compare
all of this with nn.models.MLP and its tape.
"""

from dataclasses import dataclass
from itertools import pairwise

from .activations import Row, tables
from .operations import BlockSeconds, Setting, accumulation_seconds, seconds
from .shape import Shape
from .software import Software

_KEEPS_INPUT = ("gelu", "silu")  # for their gradients; the others take their output, the next x
_CALLS = 4  # of kernels from Python in the forward of a layer; half as many in each backward


@dataclass(frozen=True)
class MLPShape(Shape):
    """An MLP by its sizes.

    sizes           of the input, of each hidden layer, of the output
    activation      between the layers
    is_of_classes   its loss is the cross-entropy, not the squared error
    """

    sizes: tuple[int, ...]
    activation: str = "gelu"
    is_of_classes: bool = False

    sequence_length = 1
    is_uniform = False
    words = "rows", "rows"

    @property
    def message_elements(self) -> int:
        return max(self.sizes[:-1])

    @property
    def blocks(self) -> tuple[str, ...]:
        return ("features", *(f"dense {index}" for index in range(len(self.sizes) - 1)))

    def ends(self, block: str) -> tuple[int, int]:
        """Return (in, out) of a layer."""
        index = int(block.removeprefix("dense "))
        return self.sizes[index], self.sizes[index + 1]

    def is_last(self, block: str) -> bool:
        return block == self.blocks[-1]

    def block_elements(self, block, tensor=1):
        if block == "features":
            return 0
        into, out = self.ends(block)
        return into * out + out

    def multiplied_elements(self, block, tensor=1):
        if block == "features":
            return 0
        into, out = self.ends(block)
        return into * out

    def input_elements(self, block):
        return 0 if block == "features" else self.ends(block)[0]

    def is_recomputed(self, block, splits_backward):
        return block != "features"

    @property
    def num_flops_per_item(self) -> int:
        return 6 * sum(into * out for into, out in pairwise(self.sizes))

    def why_not_cut(self, tensor, is_sequence_parallel):
        return None if tensor == 1 else "an MLP has no tensor plan of its own"


@tables.register
def _(shape: MLPShape, software: Software) -> dict:
    """Return the rows of the tape: the inputs of matrices and of activations."""
    found = {"features": ([], [], [])}
    for block in shape.blocks[1:]:
        into, out = shape.ends(block)
        kept = [Row(into, "outside")]
        if shape.is_last(block) and shape.is_of_classes:
            kept += [Row(out, "outside"), Row(3, "outside", 4)]  # logits; numbers of a row
        elif shape.is_last(block):
            kept += [Row(2 * out, "outside")]  # prediction and difference
        elif shape.activation in _KEEPS_INPUT:
            kept += [Row(out, "outside")]
        deferred = [Row(into + out, "outside")]
        found[block] = kept, deferred, [Row(into + out, "outside")]
    return found


@seconds.register
def _(shape: MLPShape, block: str, at: Setting) -> BlockSeconds:
    """Return the seconds of three products, and of the passes of bias and activation."""
    if block == "features":
        return BlockSeconds(0.0, 0.0, 0.0)
    into, out = shape.ends(block)
    rows = at.tokens
    forward = at.product(rows, out, into) + at.elements(3 * rows * out) + at.calls(_CALLS)
    again = forward if at.recomputation == "full" else 0.0
    backward = at.product(rows, into, out) + at.elements(3 * rows * out) + at.calls(_CALLS / 2)
    weight = at.product(out, into, rows) + accumulation_seconds(at, block) + at.calls(_CALLS / 2)
    return BlockSeconds(forward, backward + again, weight)
