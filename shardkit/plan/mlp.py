"""An MLP on rows of a table: its sizes, what its layers keep, their seconds.

    features    dense 0      dense 1      dense 2
      x      -> in, out   -> in, out   -> in, out    sizes[0], sizes[1], ... elements of a row

A row has one item, so that a micro-batch of n rows multiplies matrices of n rows. The tests compare
all of this with nn.models.MLP and its tape.
"""

from dataclasses import dataclass
from itertools import pairwise

from .activations import Row, tables
from .collectives import ALL_REDUCE, RankGroup, collective_seconds
from .operations import BlockSeconds, Setting, accumulation_seconds, seconds
from .shape import Shape, division
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

    def layer(self, block: str, tensor: int = 1) -> "_Layer":
        """Return a layer as one tensor rank has it."""
        index = int(block.removeprefix("dense "))
        ends = self.sizes[index], self.sizes[index + 1]
        num_cut = (len(self.sizes) - 1) // 2 * 2
        style = ("column", "row")[index % 2] if tensor > 1 and index < num_cut else None
        return _Layer(*ends, style, tensor)

    def is_last(self, block: str) -> bool:
        return block == self.blocks[-1]

    def block_elements(self, block, tensor=1):
        return 0 if block == "features" else self.layer(block, tensor).elements

    def multiplied_elements(self, block, tensor=1):
        if block == "features":
            return 0
        layer = self.layer(block, tensor)
        return layer.own_into * layer.own_out

    def input_elements(self, block):
        return 0 if block == "features" else self.layer(block).into

    def is_recomputed(self, block, splits_backward):
        return block != "features"

    @property
    def num_flops_per_item(self) -> int:
        return 6 * sum(into * out for into, out in pairwise(self.sizes))

    def why_not_cut(self, tensor, is_sequence_parallel):
        if tensor == 1:
            return None
        if is_sequence_parallel:
            return "rows have no sequence to be cut"
        layers = [self.layer(block, tensor) for block in self.blocks[1:]]
        uneven = [layer.out for layer in layers if layer.style == "column" and layer.out % tensor]
        if uneven:
            units = uneven[0]
            return division(f"{units} hidden units", f"{tensor} tensor ranks", units, tensor)
        return None


@dataclass(frozen=True)
class _Layer:
    """A dense layer on one tensor rank: `column` has a part of its units, `row` of its inputs."""

    into: int
    out: int
    style: str | None
    tensor: int

    @property
    def own_into(self) -> int:
        return self.into // self.tensor if self.style == "row" else self.into

    @property
    def own_out(self) -> int:
        return self.out // self.tensor if self.style == "column" else self.out

    @property
    def elements(self) -> int:
        """The number of parameters; a row layer has its whole bias."""
        return self.own_into * self.own_out + self.own_out


@tables.register
def _(shape: MLPShape, software: Software) -> dict:
    """Return the rows of the tape: the inputs of matrices and of activations."""
    found = {"features": ([], [], [])}
    for block in shape.blocks[1:]:
        layer = shape.layer(block, tensor=2)  # on any number, where arrays live is the same
        at_x = "inside" if layer.style == "row" else "entered"
        at_y = "inside" if layer.style == "column" else "outside"
        kept = [Row(layer.into, at_x)]
        if shape.is_last(block) and shape.is_of_classes:
            kept += [Row(layer.out, at_y), Row(3, "outside", 4)]  # logits; numbers of a row
        elif shape.is_last(block):
            kept += [Row(2 * layer.out, at_y)]  # prediction and difference
        elif shape.activation in _KEEPS_INPUT:
            kept += [Row(layer.out, at_y)]
        both = [Row(layer.into, at_x), Row(layer.out, at_y)]
        found[block] = kept, both, both
    return found


@seconds.register
def _(shape: MLPShape, block: str, at: Setting) -> BlockSeconds:
    """Return the seconds of three products, and of the passes of bias and activation.

    Tensor ranks add up the outputs of a row layer, and the input gradients of a column layer.
    """
    if block == "features":
        return BlockSeconds(0.0, 0.0, 0.0)
    layer = shape.layer(block, at.tensor)
    into, out, rows = layer.own_into, layer.own_out, at.tokens
    passes = at.elements(3 * rows * out)
    sums = {"row": _sum(at, layer.out), "column": _sum(at, layer.into)}
    of_forward = sums["row"] if layer.style == "row" else 0.0
    is_inner = layer.style == "column" and block != shape.blocks[1]  # x needs no gradient
    of_backward = sums["column"] if is_inner else 0.0
    forward = at.product(rows, out, into) + passes + at.calls(_CALLS) + of_forward
    again = forward if at.recomputation == "full" else 0.0
    backward = at.product(rows, into, out) + passes + at.calls(_CALLS / 2) + of_backward + again
    weight = at.product(out, into, rows) + accumulation_seconds(at, block) + at.calls(_CALLS / 2)
    repeats = 2 if at.recomputation == "full" else 1
    return BlockSeconds(forward, backward, weight, repeats * of_forward + of_backward)


def _sum(at: Setting, elements: int) -> float:
    """Return the seconds to add up so many activations of a row over the tensor ranks."""
    num_bytes = at.tokens * elements * at.software.activation_bytes
    return collective_seconds(at.cluster, ALL_REDUCE, num_bytes, RankGroup(at.tensor, 1))
