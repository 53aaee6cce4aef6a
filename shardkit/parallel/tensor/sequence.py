"""Modules that see a slice: of the sequence under sequence parallelism, or of the features."""

from ...array import fresh
from ...array.backend import xp_of
from ...nn.autograd import Tensor
from ...nn.context import current_context
from ...nn.layers.basic import Dropout
from ...nn.module import Module, Parameter
from ...nn.ops.linear import embedding
from .layers import TensorAxis


class SequenceSlicedEmbedding(Module):
    """Rows of the weight for this rank's slice of ids, such as learned positions.

    weight [rows, width], the same on all ranks, its gradient partial; ids [..., S] -> [..., S/T,
    width] local
    """

    is_table = True

    def __init__(self, axis: TensorAxis, weight: Parameter):
        self.weight = weight
        self._axis = axis

    def forward(self, ids):
        start, stop = self._axis.own_span(ids.shape[-1])
        return embedding(self.weight, ids[..., start:stop])


class SlicedDropout(Module):
    """Dropout on a slice along a dim; it zeroes the elements that it would zero in the whole.

    whole   the dropout that it stands for: one of dropouts.DROPOUTS
    dim     such as 1 of x [batch, S/T, width] local, or -1 of [batch, S, width/T] local; all ranks
            have as much
    """

    def __init__(self, axis: TensorAxis, whole: Dropout, dim: int):
        self.p = whole.p
        self._whole = whole
        self._axis = axis
        self._dim = dim

    def members(self):
        return {}  # those of the whole keep their path, which masks depend on

    def forward(self, x):
        if not current_context().training or self.p == 0:
            return x
        dim = self._dim % x.ndim
        length = x.shape[dim] * self._axis.group.world_size
        shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
        ones = fresh.zeros(shape, x.dtype, xp_of(x.array))
        ones += 1
        mask = self._whole(Tensor(ones))
        start, stop = self._axis.own_span(length)
        return x * mask[(slice(None),) * dim + (slice(start, stop),)]
