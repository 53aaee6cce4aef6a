"""Modules that see a slice of the sequence under sequence parallelism."""

from ...array import fresh
from ...array.backend import xp_of
from ...nn.autograd import Tensor
from ...nn.context import current_context
from ...nn.layers.basic import Dropout
from ...nn.module import Module, Parameter
from ...nn.ops.linear import embedding
from ...nn.ops.normalization import dropout
from .layers import SEQUENCE_DIM, TensorAxis


class SequenceSlicedEmbedding(Module):
    """Rows of the weight for this rank's slice of ids, such as learned positions.

    weight [rows, width], the same on all ranks, its gradient partial; ids [S] -> [S/T, width] local
    """

    is_table = True

    def __init__(self, axis: TensorAxis, weight: Parameter):
        self.weight = weight
        self._axis = axis

    def forward(self, ids):
        start, stop = self._axis.own_span(len(ids))
        return embedding(self.weight, ids[start:stop])


class SequenceSlicedDropout(Module):
    """Dropout on a slice of the sequence; it zeroes the elements that it would zero in the whole.

    x [batch, S/T, width] local
    """

    def __init__(self, axis: TensorAxis, whole: Dropout):
        self.p = whole.p
        self.sample_dim = whole.sample_dim
        self._axis = axis

    def forward(self, x):
        context = current_context()
        if not context.training or self.p == 0:
            return x
        length = x.shape[SEQUENCE_DIM] * self._axis.group.world_size
        ones = fresh.zeros((x.shape[0], length, *x.shape[2:]), x.dtype, xp_of(x.array))
        ones += 1
        start, stop = self._axis.own_span(length)
        path = self.path_in_model
        mask = dropout(Tensor(ones), self.p, path, context, self.sample_dim)
        return x * mask[:, start:stop]
