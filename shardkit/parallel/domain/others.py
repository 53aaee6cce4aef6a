"""Dropouts that zero what they would zero in whole samples, and layers that join their parts."""

from itertools import product
from math import prod
from operator import mul

from ...array import kernels
from ...array.arena import empty
from ...array.backend import xp_of
from ...array.random import key_of
from ...errors import ShardingError
from ...nn.autograd import record
from ...nn.context import current_context, next_call
from ...nn.module import Module
from ..conjugate import all_gather
from ..tensor.dropouts import masks_elements
from .axis import CutLayer, DomainAxis


@masks_elements
class CutDropout(CutLayer):
    """Dropout of this rank's part of x, by the places of its elements in whole samples.

    sample_dim   of x here, if that is another than in the whole layer
    """

    def __init__(self, axis: DomainAxis, whole: Module, sample_dim: int | None = None):
        super().__init__(axis, whole)
        if sample_dim is not None:
            self.sample_dim = sample_dim

    def forward(self, x):
        context, p = current_context(), self.p
        if not context.training or p == 0:
            return x
        if self.sample_dim not in ("rows", 0) or context.num_samples not in (
            None,
            x.shape[0],
        ):
            raise ShardingError(
                f"dropout {self.path_in_model} of x {x.shape} with sample_dim = "
                f"{self.sample_dim!r}, whose samples are cut; wanted them along dim 0, and "
                "sample_dim = 'rows' or 0"
            )
        axes = self.axis.axes
        whole = [*x.shape]
        starts = [0] * (axes[-1].dim + 1)
        for axis, length in zip(axes, self.axis.lengths(x, self.path_in_model)):
            whole[axis.dim] = length
            starts[axis.dim] = axis.own_span(length)[0]
        size = prod(whole[1:])  # of a whole sample
        parts = (context.seed, "dropout", self.path_in_model, context.step)
        key = key_of(*parts, *next_call(self.path_in_model, context), size)
        first = context.first_sample * size

        def drop(array):
            return _dropped(array, whole, starts, key, first, p)

        return record(drop(x.array), (x,), lambda gradient, wanted: (drop(gradient),))


def _dropped(array, whole, starts, key, first, p):
    """Return an array [..., part, ...] dropped.

    whole    its shape without a cut
    starts   of the own part, along each dim up to the last that is cut
    first    the number of the first element of the whole
    """
    result = empty(array.shape, array.dtype, xp_of(array))
    num_dims = len(starts)
    row = prod(whole[num_dims:])
    strides = [prod(whole[dim + 1 : num_dims]) for dim in range(num_dims)]
    own = sum(map(mul, starts, strides))
    for place in product(*map(range, array.shape[: num_dims - 1])):
        at = first + (own + sum(map(mul, place, strides))) * row
        result[place] = kernels.dropout(array[place], key, at, p)
    return result


class JoinedParts(CutLayer):
    """A layer that reads the whole of each sample: its parts are gathered first."""

    leaves_parts = False

    def forward(self, x):
        for axis, length in zip(self.axis.axes, self.axis.lengths(x, self.path_in_model)):
            x = all_gather(x, axis.group, axis.dim, length)
        return self._whole.forward(x)


class AlongAnother(CutLayer):
    """A layer of one dim, which must not be the one that is cut."""

    def forward(self, x):
        dim = self._whole.dim % x.ndim
        if any([dim == axis.dim for axis in self.axis.axes]):
            raise ShardingError(
                f"{self.path_in_model}, a {type(self._whole).__name__}, goes along dim {dim} of x "
                f"{x.shape}, which domain ranks share; wanted another dim"
            )
        return self._whole.forward(x)
