"""Vocabulary-parallel layers and loss: tables and logits that are cut along the vocabulary, so that
no rank builds the whole logits.

The ranks need not divide the vocabulary: the first ones then have a row more (layout.even_span).
"""

from contextvars import ContextVar
from functools import partial

from ...array import fresh, kernels
from ...array.arena import empty
from ...array.backend import xp_of
from ...comm.collectives.ordered import ordered_all_reduce
from ...comm.operations import ReductionOperation
from ...errors import ShapeError
from ...nn.autograd import array_of, record
from ...nn.late import LateLogits
from ...nn.loss import IGNORED, CrossEntropy
from ...nn.module import Module, Parameter
from ...nn.ops.blocks import goes_by_blocks, sum_by_blocks
from ...nn.ops.elementwise import where
from ...nn.ops.linear import embedding
from ...nn.ops.operands import check_ids, index_array
from ...scoped import Scoped
from ..conjugate import gather_from_region
from .layers import SEQUENCE_DIM, ColumnParallelLinear, TensorAxis

# per thread, since ranks may be threads
_whole_outputs = ContextVar("shardkit_whole_outputs", default=False)


def whole_outputs() -> Scoped:
    """Make a vocabulary-parallel last layer return all logits, for predictions and generated text.

    Its loss takes them too; outside it takes the logits that are cut.
    """
    return Scoped(_whole_outputs, True)


class VocabularyParallelLinear(ColumnParallelLinear):
    """A column-parallel last layer: logits [..., V/T] local, for VocabularyParallelCrossEntropy.

    Inside whole_outputs() it returns [..., V], the same on all ranks, and is collective over the
    axis.
    """

    def forward(self, x):
        y = super().forward(x)
        if not _whole_outputs.get():
            return y
        return gather_from_region(y, self._axis.group, -1, self.weight.global_shape[0])


class VocabularyParallelEmbedding(Module):
    """The row of the whole weight for every id, looked up by the rank that has it.

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
        rows = embedding(self.weight, local)
        return self._axis.leave(where(is_mine[..., None], rows, 0.0))


def _own_ids(ids, start, count):
    """Return ids as numbers of local rows, 0 for those of other ranks, and which are this rank's.

    ids and both results   [...]
    """
    local = ids.astype("int64") - start
    is_mine = (local >= 0) & (local < count)
    return xp_of(ids).where(is_mine, local, 0), is_mine


class VocabularyParallelCrossEntropy(CrossEntropy):
    """Cross-entropy of logits that are cut along the vocabulary; the whole logits are never built.

    prediction   [..., V/T] local, or [..., V] inside whole_outputs()
    y            [...] class numbers in [0, V), the same on all ranks
    `total` of local logits is collective over the axis, and the same on all of its ranks; its
    gradient is local.
    """

    def __init__(self, axis: TensorAxis, num_classes: int, ignore_index: int | None = IGNORED):
        super().__init__(ignore_index)
        self._axis = axis
        self.num_classes = num_classes

    def total(self, prediction, y):
        if _whole_outputs.get():
            return super().total(prediction, y)
        return _cross_entropy(
            prediction, array_of(y), self._axis, self.num_classes, self.ignore_index
        )


def _cross_entropy(logits, targets, axis, num_classes, ignore_index):
    """Return the sum of the losses, a single element. Collective over the axis in forward only.

    logits [..., V/T] local, targets [...]. The backward keeps the logits, and one number and one
    target per row; of LateLogits that nobody read, made by blocks, the gradients.
    """
    is_late = isinstance(logits, LateLogits)
    targets = fresh.placed(targets, xp_of((logits.x if is_late else logits).array))
    start, stop = axis.own_span(num_classes)
    if logits.shape != (*targets.shape, stop - start):
        raise ShapeError(
            f"vocabulary-parallel cross-entropy of logits {logits.shape} and targets "
            f"{targets.shape}; wanted {(*targets.shape, stop - start)}: {stop - start} of "
            f"{num_classes} classes are this rank's"
        )
    flat = targets.reshape(-1)
    rows = (targets.size, stop - start)
    counts = flat == flat if ignore_index is None else flat != ignore_index  # [rows] bool
    check_ids("cross_entropy", flat, num_classes, ignored=ignore_index)
    local, is_mine = _own_ids(flat, start, stop - start)
    if is_late and goes_by_blocks(logits):
        return sum_by_blocks(logits, partial(_judged, local, is_mine, counts, axis.group))
    log_sums, at_target = _reduced_rows(logits.array.reshape(rows), local, is_mine, axis.group)

    def backward(gradient, wanted):
        own_targets = xp_of(local).where(is_mine, local, -1)
        for_rows = kernels.cross_entropy_backward(
            gradient, logits.array.reshape(rows), own_targets, log_sums, counts
        )
        return (for_rows.reshape(logits.shape),)

    losses = xp_of(flat).where(counts, log_sums - at_target, 0)
    return record(losses.sum(), (logits,), backward, needs=(logits,))


def _judged(local, is_mine, counts, group, logits, part, with_gradient):
    """Return the losses of a block, whose logits become their gradients. Collective."""
    log_sums, at_target = _reduced_rows(logits, local[part], is_mine[part], group)
    xp = xp_of(logits)
    if with_gradient:
        own_targets = xp.where(is_mine[part], local[part], -1)
        kernels.cross_entropy_backward(1, logits, own_targets, log_sums, counts[part], out=logits)
    return xp.where(counts[part], log_sums - at_target, 0)


def _reduced_rows(logits, local, is_mine, group):
    """Return the log of the sum of exp over the whole vocabulary, and the target's logit.

    Both are [rows], and the same on all ranks.
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
