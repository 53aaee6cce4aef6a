"""Embeddings of bags of ids, and of ids that stand beside numbers in the columns of x."""

from collections.abc import Sequence
from typing import Any

from ...annotations import DTypeLike
from ...arguments import is_among, require
from ...array import fresh
from ...array.backend import is_true, xp_of
from ...errors import ShapeError
from ..autograd import Tensor, array_of
from ..init import Normal
from ..module import Module, ModuleList, Parameter
from ..ops.linear import embedding
from ..ops.operands import check_ids, index_array
from ..ops.segments import segment_max, segment_mean, segment_sum
from ..ops.shape import concatenate
from .basic import Embedding, check_sizes

MODES = {"sum": segment_sum, "mean": segment_mean, "max": segment_max}


class EmbeddingBag(Module):
    """The sum, mean or maximum of the rows of the weight that the ids of a bag name.

    Parameters
    ----------
    num_embeddings, embedding_dim
        Rows of the weight, and elements of each.
    mode
        "sum", "mean" or "max".
    dtype
        Of the parameters, such as "float32".

    Attributes
    ----------
    weight
        [num_embeddings, embedding_dim], initially Normal(1).

    Notes
    -----
    forward(ids [bags, n]), or forward(ids [n], offsets [bags]), where bag b has the ids from
    offsets[b] to offsets[b + 1], returns [bags, embedding_dim]; a bag without ids is 0.
    """

    is_table = True

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        mode: str = "mean",
        dtype: DTypeLike = "float32",
    ) -> None:
        check_sizes("EmbeddingBag", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        known = ", ".join(MODES)
        require(is_among(mode, MODES), "EmbeddingBag with mode", mode, f"one of {known}")
        self.mode = mode
        self.weight = Parameter((num_embeddings, embedding_dim), Normal(1.0), dtype)

    def check_input(self, x: Any) -> None:
        check_ids("EmbeddingBag", x, self.weight.global_shape[0])

    def forward(self, ids: Any, offsets: Any = None) -> Tensor:
        ids = index_array(ids)
        bags, num_bags = _bags_of(ids, offsets)
        rows = embedding(self.weight, ids.reshape(-1))
        return MODES[self.mode](rows, bags, num_bags)


def _bags_of(ids, offsets):
    """Return the number of the bag of each id, in order, and how many bags there are."""
    xp = xp_of(ids)
    if ids.ndim == 2 and offsets is None:
        return xp.repeat(xp.arange(ids.shape[0]), ids.shape[1]), ids.shape[0]
    if ids.ndim != 1 or offsets is None:
        raise ShapeError(
            f"EmbeddingBag of ids {ids.shape} {'without' if offsets is None else 'with'} offsets; "
            "wanted [bags, n] without, or [n] with"
        )
    offsets = fresh.placed(array_of(index_array(offsets)), xp)
    check_ids("EmbeddingBag offsets", offsets, ids.size + 1)
    steps = xp.diff(offsets)
    if offsets.ndim != 1 or offsets.size and is_true((offsets[0] != 0) | (steps < 0).any()):
        raise ShapeError("EmbeddingBag with offsets that do not rise from 0; wanted [bags]")
    return xp.searchsorted(offsets, xp.arange(ids.size), side="right") - 1, offsets.size


class EmbeddedColumns(Module):
    """x with a vector in the place of each of its last columns, whose values are ids.

    Parameters
    ----------
    embeddings
        (rows, width) of each of the last columns of x.
    dtype
        Of the parameters, such as "float32".

    Attributes
    ----------
    tables
        An Embedding for each, initially Normal(1/sqrt(width)).

    Notes
    -----
    forward(x [samples, n + len(embeddings)]) returns [samples, n + the sum of the widths].
    """

    def __init__(
        self, embeddings: Sequence[tuple[int, int]], *, dtype: DTypeLike = "float32"
    ) -> None:
        self.tables = ModuleList(
            Embedding(rows, width, init=Normal(width**-0.5), dtype=dtype)
            for rows, width in embeddings
        )

    def forward(self, x: Tensor) -> Tensor:
        first = x.shape[1] - len(self.tables)
        ids = array_of(x)[:, first:].astype("int64")
        looked_up = [table(ids[:, column]) for column, table in enumerate(self.tables)]
        return concatenate([x[:, :first], *looked_up] if first else looked_up, 1)
