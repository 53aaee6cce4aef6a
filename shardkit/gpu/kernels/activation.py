"""GELU, SiLU, SwiGLU, softmax, each with its gradient, in one pass over the arrays."""

from ...array.backend import xp_of
from ...array.registry import on_cuda
from .arrays import (
    alike,
    by_packs,
    by_rows,
    enter,
    new,
    new_like,
    pack,
    plain,
    real_dtype,
    spread,
    sum_pieces,
)
from .launch import launch

FILE = "activation.cu"
ROWS = 16  # of a piece, whose sum is made in order
COLUMNS = 128  # packs of a block
MAX_GRID_Y = 65535

enter(FILE, "gelu", "gelu_backward", "sigmoid", "silu", "silu_backward", "swiglu")


@on_cuda()
def bias_gelu(x, bias, out=None):
    out = new_like(x, out)
    arrays = plain(x), alike(bias, x), out
    launch(x, FILE, "bias_gelu", _grid(x), (COLUMNS,), *arrays, *x.shape, ROWS)
    return out


@on_cuda()
def bias_gelu_backward(gradient, x, bias, wanted=(True, True), out=None):
    out = new_like(x, out) if wanted[0] else None
    blocks = -(-x.shape[0] // ROWS)
    parts = new(x, (blocks, x.shape[1]), real_dtype(x)) if wanted[1] else None
    arrays = alike(gradient, x), plain(x), alike(bias, x), out, parts
    launch(x, FILE, "bias_gelu_backward", _grid(x), (COLUMNS,), *arrays, *x.shape, ROWS)
    return out, sum_pieces(parts, x) if wanted[1] else None


def _grid(x):
    """Return blocks of COLUMNS packs of columns and ROWS rows; they take more beyond a grid's
    limit.
    """
    blocks = -(-x.shape[0] // ROWS)
    return *spread(x.shape[1], COLUMNS * pack(x)), min(blocks, MAX_GRID_Y)


@on_cuda()
def swiglu_backward(gradient, gate, up, out=(None, None)):
    for_gate, for_up = [new_like(gate, buffer) for buffer in out]
    inputs = [alike(x, gate) for x in (gradient, gate, up)]
    by_packs(gate, FILE, "swiglu_backward", *inputs, for_gate, for_up)
    return for_gate, for_up


@on_cuda()
def softmax(x, dim=-1, out=None):
    return _along(dim, _softmax, x, out=out)


@on_cuda()
def softmax_backward(gradient, y, dim=-1, out=None):
    return _along(dim, _softmax_backward, gradient, y, out=out)


def _along(dim, rows, *arrays, out):
    """Run rows(*arrays, out) along this dim; one that is not the last is copied there."""
    if dim in (-1, arrays[0].ndim - 1):
        return rows(*arrays, new_like(arrays[-1], out))
    xp = xp_of(*arrays)
    turned = [plain(xp.moveaxis(x, dim, -1)) for x in arrays]
    out = new_like(arrays[-1], out)
    out[...] = xp.moveaxis(rows(*turned, new(turned[-1])), -1, dim)
    return out


def _softmax(x, out):
    by_rows("rows.cu", "softmax", x, plain(x), out)
    return out


def _softmax_backward(gradient, y, out):
    by_rows("rows.cu", "softmax_backward", y, alike(gradient, y), plain(y), out)
    return out
