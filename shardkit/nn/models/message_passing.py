"""A message-passing network on graphs: nodes ask their neighbors, add what they hear, and change.

    x [batch, nodes, features] -> encode -> steps.0 -> ... -> decode -> [batch, nodes, out]
                                            |
              message  = f(sender, receiver)      for each edge
              heard    = sum of messages          for each receiver
              node    += g(node, heard)

(arXiv 1704.01212.) The graph is the model's own, as for a mesh or a molecule that stays, or each
sample brings its edges: x = (nodes, senders, receivers).
"""

from typing import Any

import numpy

from ...annotations import DTypeLike
from ...arguments import is_among, require
from ...array import fresh
from ...array.backend import xp_of
from ...errors import ConfigurationError, ShapeError
from ..autograd import array_of
from ..layers.basic import Linear, input_tensor, is_affine
from ..module import Module, ModuleList, numbered
from ..ops.activation import silu
from ..ops.gathered import linear_of_gathered, side_by_side
from ..ops.operands import check_ids
from ..ops.reduction import sum
from ..ops.segments import segment_sum
from ..ops.shape import concatenate, reshape
from .model import ReadyModel

READOUTS = ("nodes", "sum")


class WholeGraph:
    """A graph all of whose nodes are here."""

    def reached(self, nodes):
        """Return the nodes among which senders are counted: all of them."""
        return nodes

    def total(self, y):
        """Return the sum over the nodes."""
        return sum(y, 1)


class OwnGraph(WholeGraph):
    """Edges of the model: every sample has the same, and x is the nodes alone."""

    def __init__(self, senders, receivers):
        self.edges = numpy.stack([senders, receivers]).astype(numpy.int64)

    def split(self, x):
        """Return the nodes [batch, nodes, width], and senders and receivers [batch, edges]."""
        xp = xp_of(array_of(x))
        edges = fresh.placed(self.edges, xp)
        return x, *[xp.broadcast_to(ends, (x.shape[0], ends.size)) for ends in edges]

    def join(self, nodes, x):
        """Return what the next block takes, for new nodes in place of those in x."""
        return nodes

    def check(self, x, features):
        """Raise ShapeError unless x is [samples, nodes, features] with the nodes of the edges."""
        least = int(self.edges.max(initial=-1)) + 1
        if x.ndim != 3 or x.shape[2] != features or x.shape[1] < least:
            raise ShapeError(
                f"MessagePassing of x {x.shape}; wanted [samples, nodes, {features}] with at least "
                f"{least} nodes, which the edges name"
            )


class GivenGraph(WholeGraph):
    """Edges of each sample: x is (nodes, senders, receivers), and so is what blocks pass on."""

    def split(self, x):
        """Return nodes [batch, nodes, width], and senders and receivers [batch, edges]."""
        if not isinstance(x, (tuple, list)) or len(x) != 3:
            raise ShapeError(
                "MessagePassing without edges of its own; wanted x = (nodes, senders, receivers)"
            )
        nodes, *ends = x
        return nodes, *[fresh.placed(array_of(each), xp_of(array_of(nodes))) for each in ends]

    def join(self, nodes, x):
        """Return what the next block takes, for new nodes in place of those in x."""
        return (nodes, *x[1:])

    def check(self, x, features):
        """Raise ShapeError unless x is a tuple that fits together."""
        nodes, senders, receivers = self.split(x)
        shapes = [part.shape for part in (nodes, senders, receivers)]
        fits = len(shapes[0]) == 3 and shapes[0][2] == features and shapes[1] == shapes[2]
        if not fits or len(shapes[1]) != 2 or shapes[1][0] != shapes[0][0]:
            raise ShapeError(
                f"MessagePassing of (nodes, senders, receivers) {shapes}; wanted [samples, nodes, "
                f"{features}] and twice [samples, edges]"
            )
        for ends in (senders, receivers):  # of each sample: all nodes become rows of one matrix
            check_ids("MessagePassing", ends, shapes[0][1])


class Encoder(Module):
    """The features of each node, mapped to `width`."""

    def __init__(self, features: int, width: int, graph, *, dtype):
        self.features = features
        self.graph = graph
        self.map = Linear(features, width, dtype=dtype)

    def check_input(self, x):
        self.graph.check(x, self.features)

    def forward(self, x):
        self.check_input(x)
        nodes = input_tensor(self.graph.split(x)[0], self.map.weight.dtype)
        return self.graph.join(silu(self.map(nodes)), x)


class Step(Module):
    """One round of messages along all edges."""

    def __init__(self, width: int, graph, *, dtype):
        self.graph = graph
        self.message = Linear(2 * width, width, dtype=dtype)
        self.update = Linear(2 * width, width, dtype=dtype)
        self.out = Linear(width, width, dtype=dtype)

    def forward(self, x):
        nodes, senders, receivers = self.graph.split(x)
        batch, count, width = nodes.shape
        rows = reshape(nodes, (batch * count, width))
        reached = self.graph.reached(nodes)
        far = rows if reached is nodes else reshape(reached, (-1, width))
        sample = xp_of(rows.array).arange(batch)[:, None]
        senders = (senders + sample * reached.shape[1]).reshape(-1)  # among the rows of all samples
        receivers = (receivers + sample * count).reshape(-1)
        messages = silu(_asked(self, (far, rows), (senders, receivers)))  # [batch * edges, width]
        heard = segment_sum(messages, receivers, batch * count)
        rows = rows + self.out(silu(self.update(concatenate([rows, heard], 1))))
        return self.graph.join(reshape(rows, (batch, count, width)), x)


def _asked(step, tables, indices):
    """Return the message layer of the two ends of each edge, [batch * edges, width]."""
    layer = step.message
    if is_affine(layer):
        return linear_of_gathered(tables, indices, layer.weight, layer.bias)
    return layer(side_by_side(tables, indices))


class Decoder(Module):
    """The answer of each node, or their sum."""

    def __init__(self, width: int, out_features: int, readout: str, graph, *, dtype):
        self.graph = graph
        self.readout = readout
        self.map = Linear(width, out_features, dtype=dtype)

    def forward(self, x):
        y = self.map(self.graph.split(x)[0])
        return self.graph.total(y) if self.readout == "sum" else y


class MessagePassing(ReadyModel):
    """x [batch, nodes, features] -> [batch, nodes, out_features], or [batch, out_features].

    The loss is the mean squared error per element; metrics: RMSE, MAE.

    Parameters
    ----------
    features, out_features
        Of each node, and of the output.
    senders, receivers
        Numbers of nodes [edges]: where each edge comes from, and goes to; None: x = (nodes, senders
        [batch, edges], receivers [batch, edges]).
    width
        Features of each node inside.
    steps
        Rounds of messages, each a block.
    readout
        "nodes", or "sum" over the nodes of a graph.
    seed, dtype
        Of the initial weights: an integer, and a name such as "float32".
    """

    def __init__(
        self,
        features: int,
        out_features: int,
        senders: Any = None,
        receivers: Any = None,
        *,
        width: int = 32,
        steps: int = 3,
        readout: str = "nodes",
        seed: int = 0,
        dtype: DTypeLike = "float32",
    ) -> None:
        sizes = {"features": features, "out_features": out_features}
        dtype = self._checked("MessagePassing", seed, dtype, **sizes, width=width, steps=steps)
        known = ", ".join(READOUTS)
        is_known = is_among(readout, READOUTS)
        require(is_known, "MessagePassing with readout", readout, f"one of {known}")
        ends = _checked_edges(senders, receivers)
        graph = GivenGraph() if ends is None else OwnGraph(*ends)
        self.encode = Encoder(features, width, graph, dtype=dtype)
        self.steps = ModuleList(Step(width, graph, dtype=dtype) for _ in range(steps))
        self.decode = Decoder(width, out_features, readout, graph, dtype=dtype)
        self._finish_for_numbers(seed)

    def blocks(self) -> list[tuple[str, Module]]:
        steps = numbered("steps", self.steps)
        return [("encode", self.encode), *steps, ("decode", self.decode)]


def _checked_edges(senders, receivers):
    """Return two lists of numbers of nodes, or None if there are none of the model's own."""
    if senders is None and receivers is None:
        return None
    ends = [numpy.asarray([] if each is None else each) for each in (senders, receivers)]
    are_numbers = all(each.dtype.kind in "iu" and each.ndim == 1 for each in ends)
    are_alike = ends[0].shape == ends[1].shape
    if not are_numbers or not are_alike or min(e.min(initial=0) for e in ends) < 0:
        raise ConfigurationError(
            "MessagePassing with edges that are not two rows of numbers of nodes of one length; "
            "give senders and receivers, or neither"
        )
    return [each.tolist() for each in ends]
