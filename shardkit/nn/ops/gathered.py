"""A linear map of rows that stand side by side, each gathered from a table: of edges, in graphs.

    x [N, a], y [M, b], ids i, j [E]     concatenate([x[i], y[j]], 1) weight^T + bias
                                         = (x weight[:, :a]^T)[i] + (y weight[:, a:]^T)[j] + bias

The products are of the tables, and what is gathered are results: where a row of a table is taken
several times, that is as many times less to multiply, and the rows are never put side by side.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy

from ...array import fresh, halves, kernels, products
from ...array.arena import empty
from ..autograd import Tensor, record
from .broadcast import summed
from .indexing import index_select
from .linear import linear, product
from .segments import segment_sum
from .shape import concatenate, getitem


def linear_of_gathered(
    tables: Sequence[Tensor], indices: Sequence[Any], weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return linear(concatenate([table[index] for each], 1), weight, bias): [E, out].

    Parameters
    ----------
    tables
        [rows, width] each, of the dtype of the weight [out, all widths].
    indices
        [E] each: integers in [0, rows), checked by the caller.

    Notes
    -----
    The gradients of a row of a table are added in the order of the index, before they meet the
    weight.
    """
    if not _is_of_numbers(weight, tables):
        return linear(side_by_side(tables, indices), weight, bias)
    columns = _columns([table.shape[1] for table in tables])
    y = _gathered_sum(tables, indices, columns, weight)
    if bias is not None:
        halves.add_row_in_place(y, bias.array)
    shape, dtype = weight.shape, weight.gradient_dtype
    bias_dtype = None if bias is None else bias.gradient_dtype
    sizes = [len(table.array) for table in tables]

    def backward(gradient, wanted):
        *want_tables, want_weight, want_bias = wanted
        for_weight = empty(shape, dtype) if want_weight else None
        for_tables: list[Any] = [None] * len(sizes)
        for at, (table, index, part) in enumerate(zip(tables, indices, columns)):
            if not (want_tables[at] or want_weight):
                continue
            by_row = kernels.embedding_backward(gradient, index, sizes[at])  # [rows, out]
            if want_tables[at]:
                for_tables[at] = products.matmul(by_row, weight.array[:, part])
            if want_weight:
                products.matmul(by_row.T, table.array, out=for_weight[:, part])
        for_bias = halves.total(gradient, (0,), dtype=bias_dtype) if want_bias else None
        return (*for_tables, for_weight, for_bias)

    def differentiable(gradient, wanted, output):
        *want_tables, want_weight, want_bias = wanted
        rows = side_by_side(tables, indices) if want_weight else None
        by_edge = product(gradient, weight) if True in want_tables else None
        return (
            *[
                segment_sum(getitem(by_edge, (slice(None), part)), index, size) if want else None
                for part, index, size, want in zip(columns, indices, sizes, want_tables)
            ],
            summed(product(gradient, rows, turn_x=True), (shape, dtype)) if want_weight else None,
            summed(gradient, (shape[:1], bias_dtype)) if want_bias else None,
        )

    return record(
        y,
        (*tables, weight, bias),
        backward,
        needs=(*tables, weight),
        is_one_pass=True,
        differentiable=differentiable,
    )


def _is_of_numbers(weight, tables) -> bool:
    """Return True for NumPy arrays of one dtype, but half floats, which are rounded but once."""
    arrays = [weight.array, *[table.array for table in tables]]
    dtype = arrays[0].dtype
    return (
        dtype.kind == "f"
        and dtype.itemsize > 2
        and all(type(array) is numpy.ndarray and array.dtype == dtype for array in arrays)
    )


def _columns(widths) -> list[slice]:
    """Return which columns of the weight meet each table."""
    return [slice(*ends) for ends in pairwise(accumulate(widths, initial=0))]


def _gathered_sum(tables, indices, columns, weight):
    """Return the sum over the tables of what their rows make with their columns: [E, out]."""
    y = None
    for table, index, part in zip(tables, indices, columns):
        by_row = products.matmul(table.array, weight.array[:, part].T)
        made = fresh.rows(by_row, index)
        if y is None:
            y = made
        else:
            y += made
    return y


def side_by_side(tables: Sequence[Tensor], indices: Sequence[Any]) -> Tensor:
    """Return the rows of the tables that the indices name, beside each other."""
    rows = [index_select(table, 0, index) for table, index in zip(tables, indices)]
    return concatenate(rows, 1)
