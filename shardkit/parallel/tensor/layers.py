"""Tensor parallelism: layers whose weights are cut over the ranks of the tensor axis.

                 x, whole
                    |  enter     copy (its gradient is summed in backward)
        column:  y_r = x W_r^T   W_r: rows of W               own hidden units, no communication
                    |            anything element by element, or attention on own heads
        row:     z_r = y_r V_r^T V_r: columns of V            one term of the sum
                    |  leave     all-reduce
                 z, whole, plus bias

With sequence parallelism (arXiv 2205.05198) what lies outside of the regions holds a slice of the
sequence instead of the whole: enter is an all-gather, leave a reduce-scatter, and norms, dropouts
and biases of row layers see a slice.

Parameters keep their names; those that are cut are a SlicedParameter. Every parameter carries a
Claim, which says which ranks hold the same box and whether their gradients are equal or terms of a
sum. plan.py puts these layers into a model.
Source: Megatron-LM (arXiv 1909.08053).
"""

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ...array import fresh, kernels
from ...array.arena import empty
from ...array.backend import xp_of
from ...comm import CommunicationBackend, ReductionOperation
from ...comm.collectives.ordered import ordered_all_reduce
from ...errors import ShapeError
from ...layout.box import Box
from ...layout.piece import Piece
from ...layout.placement import even_span
from ...nn import ops
from ...nn.autograd import Tensor, array_of, record
from ...nn.context import current_context
from ...nn.layers import check_width, input_tensor
from ...nn.loss import CrossEntropy
from ...nn.module import Module, Parameter, members_of
from ...nn.ops.linear import check_ids, index_array
from . import conjugate

SEQUENCE_DIM = 1  # of activations [batch, sequence, width]

_whole_outputs = ContextVar(
    "shardkit_whole_outputs", default=False
)  # per thread: ranks may be threads


@contextmanager
def whole_outputs():
    """Inside, a vocabulary-parallel last layer returns all logits: for predictions and generated
    text, not for its loss.
    """
    token = _whole_outputs.set(True)
    try:
        yield
    finally:
        _whole_outputs.reset(token)


# ---- who holds what ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Claim:
    """How the ranks of the tensor axis share one parameter.

    kind      "sharded"     no other rank holds this box
              "replicated"  several hold it, and their gradients are equal by construction
              "partial"     several hold it, and each has one term of its gradient: sum_partial adds
                            them
    holders   the ranks that hold this box: all of the tensor axis, or a sub-group; None if sharded
    is_subgroup   holders are some of the axis only: a group that apply_plan made, and close_groups
                  closes
    """

    kind: str
    holders: CommunicationBackend | None = None
    is_subgroup: bool = False

    @property
    def is_counted(self) -> bool:
        """True on exactly one of the ranks that hold the box: the one that counts it in norms and
        writes it to files.
        """
        return self.holders is None or self.holders.rank == 0

    def __str__(self):
        return (
            self.kind if self.holders is None else f"{self.kind} on {self.holders.world_size} ranks"
        )


SHARDED = Claim("sharded")


def sum_partial(parameter: Parameter, gradient):
    """Make the gradient right on all holders of a partial parameter; nothing to do for the others.

    Collective over parameter.claim.holders, if the claim is "partial". In place.
    gradient   of the parameter or any part of it, contiguous; the same part on all holders
    """
    if is_partial(parameter):
        ordered_all_reduce(parameter.claim.holders, gradient.reshape(-1))


def is_partial(parameter: Parameter) -> bool:
    """True if this rank's gradient of the parameter is one term of a sum."""
    return parameter.claim is not None and parameter.claim.kind == "partial"


def is_counted(parameter: Parameter) -> bool:
    """True on exactly one of the tensor ranks that hold the parameter's box."""
    return parameter.claim is None or parameter.claim.is_counted


def global_piece(parameter: Parameter, piece: Piece) -> Piece:
    """A piece of the local parameter as a piece of the whole one; where it is kept stays the
    same.
    """
    offset = tuple(a + b for a, b in zip(piece.box.offset, parameter.box.offset))
    return Piece(
        piece.name, Box(offset, piece.box.shape), piece.start, piece.stop, parameter.global_shape
    )


class TensorAxis:
    """The ranks that share each layer, and how activations enter and leave what they share.

    group      the tensor axis
    sequence   outside of the regions each rank holds a slice of the sequence
    """

    def __init__(self, group: CommunicationBackend, sequence: bool = False):
        self.group, self.sequence = group, sequence

    def enter(self, x: Tensor) -> Tensor:
        """x as every rank's layers read it. Collective over the group (backward; with `sequence`,
        forward too).
        """
        if self.sequence:
            return conjugate.all_gather(x, self.group, SEQUENCE_DIM)
        return conjugate.copy_to_region(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """The sum of what the ranks' layers computed. Collective over the group (with `sequence`,
        in backward too).

        Errors: ShapeError if `sequence` is set and the ranks do not divide the sequence.
        """
        if not self.sequence:
            return conjugate.reduce_from_region(x, self.group)
        self.check_length(x.shape[SEQUENCE_DIM])
        return conjugate.reduce_scatter(x, self.group, SEQUENCE_DIM)

    def check_length(self, length: int):
        """Errors: ShapeError if `sequence` is set and the ranks do not divide a sequence of this
        length.
        """
        num_ranks = self.group.world_size
        if self.sequence and length % num_ranks:
            raise ShapeError(
                f"a sequence of {length} = {num_ranks} tensor ranks x {length // num_ranks} + "
                f"{length % num_ranks}; sequence parallelism wants one that they divide: pad x, or turn it off"
            )

    def own_span(self, length: int) -> tuple[int, int]:
        """This rank's [start, stop) of `length`."""
        return even_span(length, self.group.world_size, self.group.rank)

    def __deepcopy__(self, memo):
        """A copy of a model talks over the same ranks."""
        return self


# ---- layers --------------------------------------------------------------------------------------


class ColumnParallelLinear(Module):
    """x weight^T + bias for this rank's output features.

    weight      [out/T, in] local, a box of [out, in]; bias [out/T] local or None
    enters      x is whole and enters here; False inside a Region, where it has entered already
    activation  after it, element by element; None: none
    x [..., in] -> [..., out/T] local
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
        self.weight, self.bias = weight, bias
        self._axis, self._enters, self._activation = axis, enters, activation

    def check_input(self, x):
        check_width("a column-parallel layer", x, self.weight.global_shape[1])

    def forward(self, x, activation=None):
        x = input_tensor(x, self.weight.dtype)
        return ops.linear(
            self._axis.enter(x) if self._enters else x,
            self.weight,
            self.bias,
            activation or self._activation,
        )


class VocabularyParallelLinear(ColumnParallelLinear):
    """A column-parallel last layer: logits [..., V/T] local, for VocabularyParallelCrossEntropy.

    Inside whole_outputs(): [..., V], the same on all ranks. Collective over the tensor axis there.
    """

    def forward(self, x):
        y = super().forward(x)
        return conjugate.gather_from_region(y, self._axis.group, -1) if _whole_outputs.get() else y


class RowParallelLinear(Module):
    """x weight^T summed over the ranks, plus bias, once.

    weight [out, in/T] local, a box of [out, in]; bias [out], the same on all ranks, or None
    x [..., in/T] local -> [..., out]
    """

    def __init__(
        self, axis: TensorAxis, weight: Parameter, bias: Parameter | None, *, activation=None
    ):
        self.weight, self.bias = weight, bias
        self._axis, self._activation = axis, activation

    def forward(self, x, activation=None):
        return ops.add_bias(
            self._axis.leave(ops.linear(x, self.weight)), self.bias, activation or self._activation
        )


class VocabularyParallelEmbedding(Module):
    """Row `id` of the whole weight for every id, looked up by the rank that has it.

    weight [V/T, width] local, a box of [V, width]
    ids [...] integers in [0, V), the same on all ranks -> [..., width]
    Errors: ShapeError on other ids.
    """

    is_table = True

    def __init__(self, axis: TensorAxis, weight: Parameter):
        self.weight = weight
        self._axis = axis

    def check_input(self, x):
        check_ids("embedding", x, self.weight.global_shape[0])
        if x.ndim > SEQUENCE_DIM:
            self._axis.check_length(x.shape[SEQUENCE_DIM])

    def forward(self, ids):
        ids = index_array(ids)
        check_ids("embedding", ids, self.weight.global_shape[0])
        ids = fresh.placed(ids, xp_of(self.weight.array))
        local, is_mine = _own_ids(ids, self.weight.box.offset[0], self.weight.shape[0])
        rows = ops.embedding(self.weight, local, is_checked=True)
        return self._axis.leave(ops.where(is_mine[..., None], rows, 0.0))


def _own_ids(ids, start, count):
    """ids as numbers of local rows (0 for those of other ranks), and which are this rank's; both
    [...].
    """
    local = ids.astype("int64") - start
    is_mine = (local >= 0) & (local < count)
    return xp_of(ids).where(is_mine, local, 0), is_mine


class Region(Module):
    """A module whose column-parallel layers read one x: it enters once for all of them.

    Its members are those of the module inside, so parameters keep their names.
    """

    def __init__(self, axis: TensorAxis, inside: Module):
        self._axis, self._inside = axis, inside

    def members(self):
        return members_of(self._inside)

    def forward(self, x, *rest):
        return self._inside(self._axis.enter(x), *rest)


# ---- what sees a slice of the sequence -----------------------------------------------------------


class SequenceSlicedEmbedding(Module):
    """Rows of the weight for this rank's slice of ids: learned positions under sequence
    parallelism.

    weight [rows, width], the same on all ranks, its gradient partial; ids [S] -> [S/T, width] local
    """

    is_table = True

    def __init__(self, axis: TensorAxis, weight: Parameter):
        self.weight = weight
        self._axis = axis

    def forward(self, ids):
        start, stop = self._axis.own_span(len(ids))
        return ops.embedding(self.weight, ids[start:stop])


class SequenceSlicedDropout(Module):
    """Dropout on a slice of the sequence, with the elements zeroed that would be if it were whole.

    x [batch, S/T, width] local
    """

    def __init__(self, axis: TensorAxis, p: float):
        self.p = p
        self._axis = axis

    def forward(self, x):
        context = current_context()
        if not context.training or self.p == 0:
            return x
        length = x.shape[SEQUENCE_DIM] * self._axis.group.world_size
        ones = fresh.zeros((x.shape[0], length, *x.shape[2:]), x.dtype, xp_of(x.array))
        ones += 1
        start, stop = self._axis.own_span(length)
        return x * ops.dropout(Tensor(ones), self.p, self.path_in_model, context)[:, start:stop]


# ---- the loss ------------------------------------------------------------------------------------


class VocabularyParallelCrossEntropy(CrossEntropy):
    """Cross-entropy of logits that are cut along the vocabulary; the whole logits are never built.

    prediction   [..., V/T] local; y [...] class numbers in [0, V), the same on all ranks
    `total` is collective over the tensor axis, and the same on all of its ranks; its gradient is
    local.
    """

    def __init__(self, axis: TensorAxis, num_classes: int, ignore_index: int | None = None):
        super().__init__(ignore_index)
        self._axis, self.num_classes = axis, num_classes

    def total(self, prediction, y):
        return _cross_entropy(
            prediction,
            fresh.placed(array_of(y), xp_of(prediction.array)),
            self._axis,
            self.num_classes,
            self.ignore_index,
        )


def _cross_entropy(logits, targets, axis, num_classes, ignore_index):
    """The sum of the losses, a single element. Collective over the tensor axis in forward only.

    logits [..., V/T] local, targets [...]. Kept for the backward: the logits, one number and one
    target per row.
    """
    start, stop = axis.own_span(num_classes)
    if logits.shape != (*targets.shape, stop - start):
        raise ShapeError(
            f"vocabulary-parallel cross-entropy of logits {logits.shape} and targets {targets.shape}; wanted "
            f"{(*targets.shape, stop - start)}: {stop - start} of {num_classes} classes are this rank's"
        )
    flat, rows = targets.reshape(-1), (targets.size, stop - start)
    counts = flat == flat if ignore_index is None else flat != ignore_index  # [rows] bool
    check_ids("cross_entropy", flat, num_classes, ignored=ignore_index)
    local, is_mine = _own_ids(flat, start, stop - start)
    log_sums, at_target = _reduced_rows(logits.array.reshape(rows), local, is_mine, axis.group)

    def backward(gradient, wanted):
        own_targets = xp_of(local).where(is_mine, local, -1)
        for_rows = kernels.cross_entropy_backward(
            gradient, logits.array.reshape(rows), own_targets, log_sums, counts
        )
        return (for_rows.reshape(logits.shape),)

    losses = xp_of(flat).where(counts, log_sums - at_target, 0)
    return record(losses.sum(), (logits,), backward, needs=(logits,))


def _reduced_rows(logits, local, is_mine, group):
    """log of the sum of exp over the whole vocabulary, and the target's logit: [rows] each, the
    same on all ranks.

    Collective over the group: the maximum of [rows], then the sum of [2, rows].
    """
    xp = xp_of(logits)
    _, own = kernels.cross_entropy(logits, local)  # log of this rank's sum of exp
    top = fresh.copy(own)
    group.all_reduce(top, ReductionOperation.MAX)
    sums = empty((2, *own.shape), own.dtype, xp)
    sums[0] = xp.exp(own - top)
    sums[1] = xp.where(is_mine, logits[xp.arange(local.size), local], 0)
    ordered_all_reduce(group, sums.reshape(-1))
    return top + xp.log(sums[0]), sums[1]
