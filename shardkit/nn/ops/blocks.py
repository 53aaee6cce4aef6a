"""Cross-entropy over a large vocabulary by blocks of rows: the logits are never there as a whole.

    for ROWS_OF_BLOCK rows at a time
        block = x_rows weight^T             [rows, V]
        block -> losses, softmax - one-hot  in the block's own memory
        for_x[rows] = block weight          the gradients, while the block is there
        for_weight += block^T x_rows

So the product is not computed twice, and the forward keeps [rows, width] and [V, width] for the
backward in place of [rows, V]. Sources: Liger kernels (arXiv 2410.10989) for gradients in the
forward, cut cross-entropy (arXiv 2411.09009) for logits that are not kept.
"""

from math import prod

import numpy

from ...array import fresh, products
from ...array.arena import empty
from ...array.backend import is_device_array, xp_of
from ...array.dtypes import FLOAT32, is_half
from ...array.halves import rounded, widened
from ..autograd import Tensor, record
from ..late import LateLogits

ROWS_OF_BLOCK = 1024  # so many terms of for_weight make up for reading and writing it once more


def goes_by_blocks(logits: LateLogits) -> bool:
    """Return True if the logits were not read yet, and blocks of them take less memory."""
    return (
        logits.is_unread
        and are_worth_it(prod(logits.shape[:-1]), logits.x.shape[-1])
        and suit_blocks(logits.dtype)
    )


def suit_blocks(dtype) -> bool:
    """Return True if logits of this dtype may have their gradients in the forward.

    float16 may not: its loss is scaled against what vanishes, before the backward.
    """
    return str(dtype) != "float16"


def are_worth_it(num_rows: float, width: int) -> bool:
    """Return True if blocks take less memory than logits of so many rows, and their gradient."""
    return num_rows >= 2 * width


def sum_by_blocks(logits: LateLogits, judge, scale: float = 1.0) -> Tensor:
    """Return the sum of all losses times scale, a single element.

    judge   (block of logits [n, V] float32 or float64, on a GPU also half floats, slice of rows,
            whether the gradient is wanted) -> losses [n]; it puts the gradient of their sum into
            the block
    """
    x, weight = logits.x, logits.weight
    shape, num_classes = x.shape, weight.shape[0]
    rows = x.array.reshape(-1, shape[-1])
    wanted = (x.requires_grad, weight.requires_grad) if logits.requires_grad else (False, False)
    xp = xp_of(rows)
    kept = (
        empty(rows.shape, rows.dtype, xp) if wanted[0] else None,
        empty(weight.shape, weight.gradient_dtype, xp) if wanted[1] else None,
    )
    wide = FLOAT32 if is_half(rows.dtype) else rows.dtype
    losses = empty(len(rows), wide, xp)
    most, dtype = ROWS_OF_BLOCK, wide
    if xp is not numpy:  # a GPU adds up in float32 whatever the dtype
        most, dtype = most * wide.itemsize // rows.itemsize, rows.dtype
    blocks = empty((min(most, len(rows)), num_classes), dtype, xp)
    for start in range(0, len(rows), most):
        part = slice(start, min(start + most, len(rows)))
        block = blocks[: part.stop - start]
        products.matmul(rows[part], weight.array.T, out=block)
        losses[part] = judge(block, part, True in wanted)
        _keep(kept, rounded(block, rows.dtype), rows, weight.array, part)

    def backward(gradient, wanted):
        for_x, for_weight = [_times(array, gradient * scale) for array in kept]
        return for_x if for_x is None else for_x.reshape(shape), for_weight

    return record(losses.sum() * scale, (x, weight), backward, is_one_pass=True)


def _keep(kept, block, rows, weight, part):
    """Add what a block of gradients of logits gives to the gradients of x and of the weight."""
    for_x, for_weight = kept
    if for_x is not None:
        products.matmul(block, weight, out=for_x[part])
    if for_weight is not None and part.start == 0:
        products.matmul(block.T, rows[part], out=for_weight)
    elif for_weight is not None:
        products.add_product(block.T, rows[part], for_weight)


def _times(array, factor):
    """Return array times a number: itself if that is 1."""
    if array is None or not is_device_array(factor) and factor == 1:
        return array
    wide = widened(array)
    factor = factor.astype(wide.dtype) if is_device_array(factor) else wide.dtype.type(factor)
    return rounded(fresh.compute("multiply", wide, factor), array.dtype)
