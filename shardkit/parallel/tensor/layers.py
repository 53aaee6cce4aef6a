"""Column- and row-parallel layers: linear layers whose weights are cut over the ranks of an axis.

                 x, whole
                    |  enter     copy; backward: all-reduce
        column:  y_r = x W_r^T   W_r: rows of W               own hidden units, no communication
                    |            anything element by element, or attention on own heads
        row:     z_r = y_r V_r^T V_r: columns of V            one term of the sum
                    |  leave     all-reduce; backward: identity
                 z, whole, plus bias

With sequence parallelism (arXiv 2205.05198) each rank holds a slice of the sequence outside of the
regions: enter is an all-gather, leave a reduce-scatter, and norms, dropouts and biases of row
layers see a slice.

Parameters keep their names; those that are cut are a SlicedParameter, and each has a Claim.
conjugate.py has the collectives, plan.py puts these layers into a model.
Source: Megatron-LM (arXiv 1909.08053).
"""

from functools import partial

from ...array.dtypes import wide
from ...comm.backend import CommunicationBackend
from ...errors import ShapeError
from ...layout.cuts import even_span
from ...nn.autograd import Tensor
from ...nn.layers.basic import check_width, input_tensor, is_affine
from ...nn.module import Module, Parameter, members_of
from ...nn.ops import reduction
from ...nn.ops.linear import add_bias, linear
from ..conjugate import all_gather, copy_to_region, reduce_from_region, reduce_scatter

SEQUENCE_DIM = 1  # of activations [batch, sequence, width]


class TensorAxis:
    """The ranks that share each layer, and how activations enter and leave what they share.

    group      the ranks of the axis
    sequence   outside of the regions each rank holds a slice of the sequence
    enter      x -> x as every rank's layers read it
    leave      x -> the sum of what the ranks' layers computed
    Collective over the group: enter in backward, leave in forward; with `sequence` both in both.
    Errors of leave, with `sequence`: ShapeError if the ranks do not divide the sequence.
    """

    def __init__(self, group: CommunicationBackend, sequence: bool = False):
        self.group = group
        self.sequence = sequence
        if sequence:
            self.enter = partial(all_gather, group=group, dim=SEQUENCE_DIM)
            self.leave = self._leave_sliced
        else:
            self.enter = partial(copy_to_region, group=group)
            self.leave = partial(reduce_from_region, group=group)

    def _leave_sliced(self, x: Tensor) -> Tensor:
        self.check_length(x.shape[SEQUENCE_DIM])
        return reduce_scatter(x, self.group, SEQUENCE_DIM)

    def check_length(self, length: int) -> None:
        """Raise ShapeError if each rank holds a slice and the ranks do not divide the sequence."""
        num_ranks = self.group.world_size
        if self.sequence and length % num_ranks:
            raise ShapeError(
                f"a sequence of {length} = {num_ranks} tensor ranks x {length // num_ranks} + "
                f"{length % num_ranks}; sequence parallelism wants one that they divide: pad x, or "
                "turn it off"
            )

    def own_span(self, length: int) -> tuple[int, int]:
        """Return this rank's [start, stop) of `length`."""
        return even_span(length, self.group.world_size, self.group.rank)

    def __deepcopy__(self, memo):
        """Return the axis itself: a copy of a model talks over the same ranks."""
        return self


class ColumnParallelLinear(Module):
    """x weight^T + bias for this rank's output features.

    weight      [out/T, in] local, a box of [out, in]; bias [out/T] local or None
    enters      x is whole and enters here; False inside a Region, where it has entered already
    activation  element by element, after the bias; None: none
    x [..., in] -> [..., out/T] local; backward sums the gradient of x over the ranks
    """

    def __init__(
        self,
        axis: TensorAxis,
        weight: Parameter,
        bias: Parameter | None,
        *,
        enters: bool = True,
        activation=None,
    ):
        self.weight = weight
        self.bias = bias
        self._axis = axis
        self._enters = enters
        self._activation = activation

    @property
    def is_affine(self) -> bool:
        """True if forward(x) is linear(x, weight, bias): x has entered, and nothing follows."""
        is_own = type(self).forward is ColumnParallelLinear.forward
        return is_own and not self._enters and self._activation is None

    def check_input(self, x):
        check_width("a column-parallel layer", x, self.weight.global_shape[1])

    def forward(self, x, activation=None):
        x = input_tensor(x, self.weight.dtype)
        if self._enters:
            x = self._axis.enter(x)
        return linear(x, self.weight, self.bias, activation or self._activation)


@is_affine.register
def _(layer: ColumnParallelLinear) -> bool:
    return layer.is_affine


class RowParallelLinear(Module):
    """x weight^T summed over the ranks, plus bias, once.

    weight [out, in/T] local, a box of [out, in]; bias [out], the same on all ranks, or None
    x [..., in/T] local -> [..., out]; backward gives each rank the gradient of the sum as it is
    """

    def __init__(
        self, axis: TensorAxis, weight: Parameter, bias: Parameter | None, *, activation=None
    ):
        self.weight = weight
        self.bias = bias
        self._axis = axis
        self._activation = activation

    def forward(self, x, activation=None):
        total = self._axis.leave(linear(x, self.weight))
        return add_bias(total, self.bias, activation or self._activation)


class ColumnParallelRMSNorm(Module):
    """RMSNorm of vectors of which each rank holds a slice, such as the queries of its heads.

    weight [own] local, a box of [width]
    x [..., own] local -> [..., own] local: the mean square is that of the whole vector, summed over
    the ranks, and so is its gradient
    Where several ranks hold the same slice, each counts for its share of it.
    """

    def __init__(self, axis: TensorAxis, weight: Parameter, eps: float):
        self.weight = weight
        self.eps = eps
        self._axis = axis
        holders = weight.claim.holders
        self._num_replicas = 1 if holders is None else holders.world_size

    def forward(self, x):
        dtype = wide(x.dtype)
        precise = input_tensor(x, dtype)
        own = reduction.sum(precise * precise, dim=-1, keepdim=True)  # [..., 1]
        group = self._axis.group
        total = copy_to_region(reduce_from_region(own, group), group)
        count = self.weight.global_shape[0] * self._num_replicas
        y = precise * (total / count + self.eps) ** -0.5 * input_tensor(self.weight, dtype)
        return input_tensor(y, x.dtype)


class Region(Module):
    """A module whose column-parallel layers read one x: it enters once for all of them.

    Its members are those of the module inside, so parameters keep their names.
    """

    def __init__(self, axis: TensorAxis, inside: Module):
        self._axis = axis
        self._inside = inside

    def members(self):
        return members_of(self._inside)

    def forward(self, x, *rest):
        return self._inside(self._axis.enter(x), *rest)
