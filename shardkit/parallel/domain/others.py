"""Dropouts that zero what they would zero in whole samples, and layers that join their parts."""

from itertools import product

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
        dim = self.axis.dim
        length = self.axis.length(x, self.path_in_model)
        start, _ = self.axis.own_span(length)
        size = x.size // x.shape[0] // x.shape[dim] * length  # of a whole sample
        parts = (context.seed, "dropout", self.path_in_model, context.step)
        key = key_of(*parts, *next_call(self.path_in_model, context), size)
        first = context.first_sample * size

        def drop(array):
            return _dropped(array, dim, length, start, key, first, p)

        return record(drop(x.array), (x,), lambda gradient, wanted: (drop(gradient),))


def _dropped(array, dim, length, start, key, first, p):
    """Return an array [..., part, ...] dropped; `first` is the number of the first element of the
    whole, `start` of the own rows.
    """
    result = empty(array.shape, array.dtype, xp_of(array))
    row = array[(0,) * (dim + 1)].size
    for number, place in enumerate(product(*map(range, array.shape[:dim]))):
        at = first + (number * length + start) * row
        result[place] = kernels.dropout(array[place], key, at, p)
    return result


class JoinedParts(CutLayer):
    """A layer that reads the whole of each sample: its parts are gathered first."""

    leaves_parts = False

    def forward(self, x):
        length = self.axis.length(x, self.path_in_model)
        return self._whole.forward(all_gather(x, self.axis.group, self.axis.dim, length))


class AlongAnother(CutLayer):
    """A layer of one dim, which must not be the one that is cut."""

    def forward(self, x):
        if self._whole.dim % x.ndim == self.axis.dim:
            raise ShardingError(
                f"{self.path_in_model}, a {type(self._whole).__name__}, goes along dim "
                f"{self.axis.dim} of x {x.shape}, which domain ranks share; wanted another dim"
            )
        return self._whole.forward(x)
