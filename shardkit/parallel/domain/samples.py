"""Parts of batches on the ranks that share samples.

    x, y as every rank is given them   --own rows-->  model  -->  own rows of the prediction, loss
                                                             or   the whole prediction: one rank
                                                                  counts its loss, the others 0

All ranks that share samples are given the same whole ones, or each the slab that it has read. A
loss is a sum over items, so that of a sample is the sum over its parts; the engine adds losses,
counts and gradients over these ranks as over data ranks.
"""

import zlib
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy

from ...annotations import Shape
from ...arguments import require
from ...array.backend import is_array
from ...comm.backend import CommunicationBackend
from ...comm.failure.agreement import CommonNumber, collectively
from ...comm.mesh import Mesh
from ...errors import ConfigurationError, ShapeError, ShardingError
from ...layout.part import Index, Rows, SamplePart, dim_spans, in_words, with_length
from ...nn import loss as counted
from ...nn import losses
from ...nn.autograd import Tensor
from ...nn.loss import Loss, parts_noted
from ...nn.metrics import Metric
from ...nn.module import Module
from ...nn.objectives import owners_in
from ...tree import leaves, map_tree, structure
from ..conjugate import all_gather, gathered
from ..tensor.vocabulary import VocabularyParallelCrossEntropy
from .axis import ADVICE, DomainAxis
from .plan import cut_layers
from .slab_group import SlabGroup
from .slabs import SUM, cut, through_slabs
from .wanted import check_slabs, lines_of

# {loss that works on parts: dims that its targets have fewer than predictions, before the cut}
LOSSES: dict[type[Loss], int] = {
    **dict.fromkeys((counted.MeanSquaredError, counted.CrossEntropy), 0),
    **dict.fromkeys((losses.L1Loss, losses.MSELoss, losses.HuberLoss, losses.SmoothL1Loss), 0),
    **dict.fromkeys((losses.BCEWithLogitsLoss, losses.GaussianNLLLoss), 0),
    VocabularyParallelCrossEntropy: 0,
    **dict.fromkeys((losses.NLLLoss, losses.CrossEntropyLoss), 1),
    losses.RelativeL2Loss: 0,
}
MARKED = 8  # elements along each dim, at least, by which whole samples are told from others
OF_WHOLE = (losses.RelativeL2Loss,)  # counted for each sample: predictions are joined for it


def cut_samples(model: Module, config, mesh: Mesh) -> "SampleParts | None":
    """Make layers of the model work on this domain rank's part of each sample, if it has one."""
    domain = mesh.group("domain")
    slabs, lines = config.domain_slabs, lines_of(config, mesh)
    if domain.world_size == 1 and slabs is None:
        return None
    owned, wanted = owners_in(model, config.loss), "1: several objectives read whole predictions"
    require(not owned, "domain", domain.world_size, wanted)
    if config.device == "cuda" or config.sequence_parallel:
        what = "sequence_parallel" if config.sequence_parallel else 'device = "cuda"'
        raise ConfigurationError(
            f"{domain.world_size} domain ranks with {what}; samples are cut on CPUs and without "
            "sequence parallelism: leave one of them out"
        )
    if slabs is not None:
        check_slabs(config, mesh, slabs)
    how = {"follows": mesh.size("pipeline") == 1, "num_slabs": slabs, "lines": lines}
    return SampleParts(model, domain, config.loss or model.loss, **how)


class SampleParts:
    """Ranks share samples: a rank's x is its rows of each.

    model          whose layers are cut, in place
    group          the ranks that share samples
    follows        all layers run on each of them
    num_slabs      that layers compute for themselves, a power of two that the ranks divide; None:
                   each rank computes with all of its rows
    lines          of a grid of ranks, along each dim of samples: those that differ along it alone
    counts_whole   of what is the same on all of them, this rank counts it
    Errors: those of plan.cut_layers(); ShardingError for a loss that is no sum over rows.
    """

    def __init__(
        self,
        model: Module,
        group: CommunicationBackend,
        loss: Any,
        *,
        follows: bool = True,
        num_slabs: int | None = None,
        lines: tuple[CommunicationBackend, ...] = (),
    ):
        self._ranks = group
        parts = group if num_slabs is None else SlabGroup(group, num_slabs)
        follows = follows and num_slabs is None  # slabs do not meet the same layer at one time
        found = cut_layers(model, parts, follows=follows, lines=lines)
        self._axis, self._behind, self._is_joined = found
        slabs = self._axis.group  # of a copy of a model those of the model
        self._slabs = slabs if isinstance(slabs, SlabGroup) else None
        places = [(line.rank, line.world_size) for line in lines or (group,)]
        part = SamplePart(*places[0], self._axis.dim, beside=tuple(places[1:]))
        self._part = part if self._slabs is None else replace(part, slabs=self._slabs.num_own)
        self.counts_whole = group.rank == 0
        if loss is not None:
            self._dim_of_targets(counted.as_loss(loss))

    def run(self, block: Module, x: Any) -> Any:
        """Return block(x); where x is in slabs, made for each by itself. Collective then."""
        path = block.path_in_model
        if self._slabs is None or path not in self._axis.passed:
            return block(x)
        parameters = [*block.named_parameters().values()]
        return through_slabs(self._slabs, block, x, *self._axis.passed[path], parameters)

    def own(self, x: Any) -> Any:
        """Return what this rank's model is given of x. Errors: ShapeError if it cannot be cut."""
        if not is_array(x) and not isinstance(x, Rows):
            raise ShapeError(f"x is {structure(x)}, whose samples are to be cut; wanted one array")
        if self._axis.dim == 1 and x.ndim == 2 and x.dtype.kind == "f":
            raise ShapeError(
                f"x has shape {x.shape}, but domain ranks share tokens; wanted "
                "[samples, tokens, features], numbers of tokens, or a grid and layers of grids"
            )
        is_last = x.ndim == self._axis.axes[-1].dim + 1
        if self._axis.along_last and is_last and x.dtype.kind == "f":
            raise ShapeError(
                f"{self._axis.along_last} computes along the last dim of x {x.shape}, which "
                "domain ranks share; use a layer of another dim, or leave domain at 1"
            )
        part = self._rows("x", x, self._axis.dim)
        self._axis.begin(x.shape)
        return part

    def part_of_batch(self, x: Any, y: Any, loss: Loss) -> tuple[Any, Any, Loss]:
        """Return x, y and the loss of what this rank computes.

        Errors: ShapeError; ShardingError for a loss that is no sum over rows.
        """
        dim = self._dim_of_targets(loss)
        if self._is_joined:
            return self.own(x), y, CountedOnce(loss, self.counts_whole)
        if type(loss) in OF_WHOLE:
            loss = OfWhole(loss, self._whole, self.counts_whole)
        else:
            self._check_factors(loss, y, dim)
            lengths = y.shape[dim : dim + len(self._behind.axes)]
            loss = CountedInParts(loss, self._behind, lengths)
            loss = (
                loss
                if self._slabs is None
                else CountedInSlabs(loss, self._slabs, self._behind.dim, dim)
            )
        return self.own(x), self._rows("y", y, dim), loss

    def check_same(self, *trees: Any) -> None:
        """Raise ShapeError on all these ranks if one was given arrays of other shapes, or other
        whole samples, as far as a few of their elements tell.

        Collective over the ranks that share samples.
        """
        shapes = [[leaf.shape for leaf in leaves(tree)] for tree in trees]
        marks = [[_mark(leaf) for leaf in leaves(tree)] for tree in trees]
        common = CommonNumber()
        with collectively(self._ranks, common):
            common.value = zlib.crc32(repr((shapes, marks)).encode())
        if not common.is_common:
            raise ShapeError(
                f"domain ranks were given x and y of several shapes, or other ones, here {shapes}; "
                "wanted the same whole samples on all ranks of a replica: take them with "
                "split_batch(model.mesh, x, y); of rows that a rank has read alone, "
                "domain_part(model).x(rows, length)"
            )

    def _rows(self, what, array, dim):
        for at, axis in enumerate(self._axis.axes, dim):
            num_ranks = axis.group.world_size
            if array.ndim <= at or array.shape[at] < num_ranks:
                raise ShapeError(
                    f"{what} has shape {array.shape}, whose dim {at} is to be cut into {num_ranks} "
                    f"parts, none of them empty; {ADVICE}"
                )
        if not isinstance(array, Rows):
            return array[self._inside(array.shape, dim)]
        wanted = dim_spans(dim, self._inside(array.shape, dim), array.shape)
        if array.cuts != wanted:
            raise ShapeError(
                f"{what} is {array!r}; wanted rows {in_words(wanted)} on this domain rank: read "
                "those of domain_part(model)"
            )
        return array.array

    def _inside(self, shape: Shape, dim: int) -> Index:
        """Return where what this rank has lies in whole arrays, of which each rank has some."""
        inside = self._part.inside(shape, dim)
        assert inside is not None
        return inside

    def forms_of(self, x: Any) -> list:
        """Return arrays that a model must take if it is to take x: of a slab one of the shape of
        whole samples, without their memory; of integers one of the lowest, and one of the highest.

        Errors: ShapeError if x is another slab than this rank's.
        """
        if not isinstance(x, Rows):
            return [x]
        rows = self._rows("x", x, self._axis.dim)
        values = [numpy.zeros((), rows.dtype)]
        if rows.dtype.kind in "iu" and rows.size:
            values = [rows.min(), rows.max()]
        return [numpy.broadcast_to(value, x.shape) for value in values]

    def targets_form(self, y: Any, prediction_shape: Shape | None) -> tuple[Any, Shape | None]:
        """Return y as an array, and the shape of its predictions: of a slab those of its rows.

        Errors: ShapeError where targets are of whole samples.
        """
        if not isinstance(y, Rows):
            return y, prediction_shape
        if self._is_joined:
            raise ShapeError(
                f"y is {y!r}, but this model joins the parts of samples; wanted y of whole samples"
            )
        shape = prediction_shape
        for axis, own in zip(self._behind.axes, y.cuts):
            dim, length = axis.dim, own.length
            if shape is not None and len(shape) > dim and shape[dim] == length:
                shape = with_length(shape, dim, own.stop - own.start)
        return y.array, shape

    def part(self, loss: Any) -> SamplePart:
        """Return which part of each sample this rank needs; loss: a Loss, or None."""
        dim = self._behind.dim
        of_targets = dim if loss is None else self._dim_of_targets(counted.as_loss(loss))
        y_dim = None if self._is_joined else of_targets
        return replace(self._part, y_dim=y_dim)

    def _dim_of_targets(self, loss: Loss) -> int:
        """Return the dim of y that is cut.

        Errors: ShardingError if the loss is no sum over rows.
        """
        fewer = LOSSES.get(type(loss))
        if self._is_joined:
            return 0
        if self._slabs is not None and getattr(loss, "weight", None) is not None:
            raise ShardingError(
                f"{type(loss).__name__} with weights, whose sum is no whole number, of samples in "
                "slabs; wanted weight = None, or domain_slabs = None"
            )
        if fewer is None or self._behind.dim <= fewer:
            raise ShardingError(
                f"{type(loss).__name__} of predictions that are cut along dim {self._behind.dim}: "
                "it is not known as a sum over their parts; use one of "
                f"{', '.join(kind.__name__ for kind in LOSSES)}, or leave domain at 1"
            )
        return self._behind.dim - fewer

    def adds_parts(self, loss: Loss, metrics: Iterable[Metric]) -> bool:
        """Return True if loss and metrics of whole samples are sums of those of their parts."""
        fewer = LOSSES.get(type(loss))
        is_sum = fewer is not None and self._behind.dim > fewer and type(loss) not in OF_WHOLE
        is_sum = is_sum and self._slabs is None  # figures are made of joined predictions
        return is_sum and not self._is_joined and all(metric.adds_parts for metric in metrics)

    def pair(self, prediction: Any, y: Any, loss: Loss, *, in_parts: bool) -> tuple[Any, Any]:
        """Return a prediction of this rank's rows and its targets, as figures are made of them.

        Collective over the ranks that share samples.
        in_parts   of the own rows; otherwise of whole samples, on all ranks
        """
        if in_parts:
            dim = self._dim_of_targets(loss)
            self._check_factors(loss, y, dim)
            return prediction, self._rows("y", y, dim)
        return self.joined(prediction), self.whole_of(y)

    def _check_factors(self, loss: Loss, y, dim: int) -> None:
        """Raise ShardingError if a factor of the loss differs along a dim of y that is cut."""
        factors = getattr(loss, "pos_weight", None)
        before = 0 if factors is None else y.ndim - factors.ndim
        for at, _ in enumerate(self._behind.axes, dim):
            if factors is not None and at >= before and factors.shape[at - before] > 1:
                raise ShardingError(
                    f"{type(loss).__name__} with pos_weight of shape {factors.shape}, which "
                    f"differs along dim {at} of y {y.shape}, whose parts domain ranks have; wanted "
                    "one that is 1 long there, or domain 1"
                )

    def refuse_texts(self) -> None:
        """Raise ShardingError: a text that grows has no parts."""
        raise ShardingError(
            "a text that is being written cannot be cut over domain ranks; generate on a mesh with "
            "domain 1: by shardkit generate, or a model that loads this checkpoint"
        )

    def joined(self, prediction: Any) -> Any:
        """Return the prediction for whole samples. Collective over the ranks that share them."""
        if self._is_joined or prediction is None:
            return prediction
        return map_tree(self._whole, prediction)

    def in_place(self, prediction: Any) -> Any:
        """Return the prediction of this rank's rows as slabs, whole where it is the same on all.

        Collective over the ranks that share samples.
        """
        if self._is_joined or prediction is None:
            return prediction
        return map_tree(self._slab, prediction)

    def whole_of(self, tree: Any) -> Any:
        """Return a tree with its slabs made whole. Collective over the ranks that share them."""
        return map_tree(self._joined_slab, tree)

    def _joined_slab(self, leaf):
        if not isinstance(leaf, Rows):
            return leaf
        groups = [axis.group for axis in self._axis.axes]

        def whole(part):
            for group, own in zip(groups, leaf.cuts):
                part = gathered(part, group, own.dim, own.length)
            return part

        return self._of_slabs(leaf.array, leaf.dim, whole)

    def _slab(self, array):
        axis = self._behind
        what = "the prediction"
        lengths = self._of_slabs(array, axis.dim, lambda part: axis.lengths(part, what))
        shape = (*array.shape[: axis.dim], *lengths)
        return Rows.at(array, axis.dim, self._inside(shape, axis.dim), shape)

    def _whole(self, array):
        """Return a whole array of parts, or a Tensor with its gradient."""
        axis = self._behind
        is_tensor = isinstance(array, Tensor)

        def whole(part):
            gather = all_gather if is_tensor else gathered
            for each, length in zip(axis.axes, axis.lengths(part, "the prediction")):
                part = gather(part, each.group, each.dim, length)
            return part

        if is_tensor and self._slabs is not None:
            return through_slabs(self._slabs, whole, array, axis.dim, None)
        return self._of_slabs(array, axis.dim, whole)

    def _of_slabs(self, array, dim, function):
        """Return function(array), whose result is the same for all parts: those of slabs too."""
        if self._slabs is None:
            return function(array)
        parts = cut(array, dim, self._slabs.num_own)
        return self._slabs.run(lambda number: function(parts[number]))[0]


def _mark(leaf) -> int:
    """Return a checksum of a few elements of whole samples, spread over them; 0 of a part."""
    if isinstance(leaf, Rows):
        return 0
    steps = [slice(None, None, max(size // MARKED, 1)) for size in leaf.shape]
    return zlib.crc32(leaf[tuple(steps)].tobytes())


class OfWhole(Loss):
    """A loss of whole samples: their parts are joined, and one rank counts it."""

    def __init__(self, loss: Loss, whole: Callable[[Any], Any], counts: bool):
        self._once = CountedOnce(loss, counts)
        self._whole = whole

    def total(self, prediction: Any, y: Any):
        return self._once.total(self._whole(prediction), self._whole(y))

    def count(self, y: Any) -> float:
        return self._once.count(y)


class CountedInParts(Loss):
    """A loss of parts of predictions, whose whole must be as long as that of the targets."""

    def __init__(self, loss: Loss, axis: DomainAxis, lengths: Shape):
        self._loss = loss
        self._axis = axis
        self._lengths = lengths

    def total(self, prediction: Any, y: Any):
        """Return the sum over the own parts. Collective over the axis.

        Errors, on all its ranks: ShapeError unless predictions and targets have as many rows.
        """
        first = leaves(prediction)[0]
        found = self._axis.lengths(first, "the loss")
        for axis, length, wanted in zip(self._axis.axes, found, self._lengths):
            if length != wanted:
                raise ShapeError(
                    f"a loss of predictions with {length} rows along dim {axis.dim} and targets "
                    f"with {wanted}, whose parts domain ranks have; wanted as many in both"
                )
        return self._loss.total(prediction, y)

    def count(self, y: Any) -> float:
        return self._loss.count(y)


class CountedInSlabs(Loss):
    """A loss of parts whose sum is that of slabs, each by itself: over all of them on the first
    rank, and 0 on others.

    dim, y_dim   of predictions and of targets, along which they are cut
    """

    def __init__(self, loss: Loss, slabs: SlabGroup, dim: int, y_dim: int):
        self._loss = loss
        self._slabs = slabs
        self._dims = dim, y_dim

    def total(self, prediction: Any, y: Any):
        dim, y_dim = self._dims
        targets = cut(y, y_dim, self._slabs.num_own)

        def total(part):
            return self._loss.total(part, targets[self._slabs.own])

        return through_slabs(self._slabs, total, prediction, dim, SUM)

    def count(self, y: Any) -> float:
        return self._loss.count(y)


class CountedOnce(Loss):
    """A loss of predictions that several ranks have alike: all but one count nothing.

    Their gradients are exact zeros, so that sums over ranks have the bits of the one.
    """

    def __init__(self, loss: Loss, counts: bool):
        self._loss = loss
        self._factor = 1.0 if counts else 0.0

    def total(self, prediction: Any, y: Any):
        with parts_noted(None) if self._factor == 0 else nullcontext():
            return self._loss.total(prediction, y) * self._factor

    def count(self, y: Any) -> float:
        return self._loss.count(y) * self._factor
