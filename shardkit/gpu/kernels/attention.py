"""Causal attention by tiles in shared memory, without the score matrix; rotary positions.

Results lie in memory as [B, S, H, D] behind their shape [B, H, S, D], as the layers around
attention have them, so that no permute has to copy. Inputs may have any strides if their rows [D]
lie in one piece.
"""

from itertools import chain
from math import prod

from ...array.dtypes import is_half
from ...array.reference.attention import rotary_tables
from ...array.registry import KERNELS, on_cuda
from . import tensor_attention
from .arrays import THREADS, new, pack, plain, real, real_dtype, spread
from .launch import MAX_BLOCKS, launch

FILE = "attention.cu"
MAX_SHARED_BYTES = 96 << 10  # of a block; GPUs of compute capability 8.0 on have 99 KB or more
BLOCK = (16, 16)

__all__ = ["causal_attention", "causal_attention_backward", "rotary", "rotary_tables"]


def fits(q) -> bool:
    """Return False for heads too wide for shared memory, or more rows than a grid has blocks.

    Heads may be up to 368 wide, in float64 176.
    """
    return _tile(q) is not None and prod(q.shape[:3]) <= MAX_BLOCKS


@on_cuda(fits=fits)
def causal_attention(q, k, v, scale, first_query, window=None, firsts=None, mask=None, out=None):
    if firsts is not None or mask is not None:
        given = q, k, v, scale, first_query, window, firsts, mask
        return _by_definition("causal_attention", *given, out=out)
    y = _by_position(q) if out is None else out
    log_sums = new(q, q.shape[:3], real_dtype(q))
    if q.size:
        numbers = _numbers(q, k, scale, first_query, window)
        _launch("attention", q, q, 3, numbers, *chain(*_described(q, k, v, y)), log_sums)
    return y, log_sums


@on_cuda(fits=fits)
def causal_attention_backward(
    gradient, q, k, v, y, sums, scale, first, window=None, firsts=None, mask=None, out=3 * (None,)
):
    if firsts is not None or mask is not None:
        given = gradient, q, k, v, y, sums, scale, first, window, firsts, mask
        return _by_definition("causal_attention_backward", *given, out=out)
    for_q, for_k, for_v = [
        _by_position(x) if buffer is None else buffer for x, buffer in zip((q, k, v), out)
    ]
    if q.size == 0:
        for_k[...], for_v[...] = 0, 0
        return for_q, for_k, for_v
    along = new(q, q.shape[:3], real_dtype(q))
    sums = real(sums, q)
    lanes = min(32, 1 << (-(-q.shape[3] // pack(q)) - 1).bit_length())  # of a row
    of_q, of_k, of_v, of_gradient, of_y = _described(q, k, v, gradient, y)
    block = lanes, THREADS // lanes
    grid = spread(prod(q.shape[:3]), block[1])
    pair = *of_gradient, *of_y
    launch(q, "attention_along.cu", "attention_along", grid, block, *pair, along, *q.shape)
    inputs = *of_gradient, *of_q, *of_k, *of_v, sums, along
    numbers = _numbers(q, k, scale, first, window)
    for name, rows, results in (
        ("attention_for_queries", q, (for_q,)),
        ("attention_for_keys", k, (for_k, for_v)),
    ):
        described = chain(*_described(*results))
        _launch(name, q, rows, 4, numbers, *inputs, *described)
    return for_q, for_k, for_v


def _by_definition(name, *args, out):
    """Compute firsts and masks, for which there is no code here: half floats in float32."""
    entry, dtype = KERNELS[name], args[0].dtype
    if is_half(dtype) and entry.half is not None:
        return entry.half(dtype, args, {"out": out})
    return entry.reference(*args, out=out)


def _launch(name, q, rows, num_tiles, numbers, *args):
    """Launch a block for every tile of rows of each head of rows [B, H, S, ...].

    Without tensor cores: in shared memory lie num_tiles tiles of rows and one of scores.
    """
    if tensor_attention.is_served(q):
        return tensor_attention.run(f"tensor_{name}", q, rows, numbers, *args)
    samples, heads, num_rows = rows.shape[:3]
    tile = _tile(q)
    launch(
        q,
        FILE,
        name,
        (samples * heads * -(-num_rows // tile),),
        BLOCK,
        *args,
        *numbers,
        shared_bytes=_shared_bytes(q, tile, num_tiles),
        **_macros(q),
    )


def _numbers(q, k, scale, first_query, window):
    num_queries, num_keys = q.shape[2], k.shape[2]
    first = min(int(first_query), num_keys)  # from there on every query sees all keys
    lowest = -num_queries  # the first key that the first query sees; below 0: none is hidden
    if window is not None:
        lowest = max(int(first_query) - int(window) + 1, lowest)
    counts = q.shape[1], k.shape[1], num_queries, num_keys, q.shape[3]
    return *counts, float(scale), first, lowest


def _described(*arrays):
    """Return for each array, in the dtype of the first, (array, strides of samples, heads and
    rows).

    Strides are in elements. Arrays whose rows [D] do not lie in one piece are copied.
    """
    dtype = arrays[0].dtype
    itemsize = dtype.itemsize
    found = []
    for x in arrays:
        if x.dtype != dtype:
            x = x.astype(dtype)
        samples, heads, rows, element = x.strides
        if element != itemsize and x.shape[3] > 1:
            x = plain(x)
            samples, heads, rows, _ = x.strides
        found.append((x, samples // itemsize, heads // itemsize, rows // itemsize))
    return found


def _macros(q):
    """Return what is fixed when the code is compiled: head dim in steps of 16, size of a tile."""
    return {"DIM": _dim(q), "TILE": _tile(q)}


def _dim(q):
    return max(16, -(-q.shape[3] // 16) * 16)


def _tile(q):
    """Return the queries and keys of a tile that fits into shared memory; None if none does."""
    return next(
        (tile for tile in (64, 32, 16) if _shared_bytes(q, tile, 4) <= MAX_SHARED_BYTES), None
    )


def _shared_bytes(q, tile, num_tiles):
    """Return the bytes of num_tiles tiles of rows and one of scores, with gaps after rows."""
    size = real_dtype(q).itemsize
    gap = 16 // size
    return size * tile * (num_tiles * (_dim(q) + gap) + tile + gap)


def _by_position(x):
    """Return an array of the shape [B, H, S, D] of x that lies in memory as [B, S, H, D]."""
    samples, num_heads, num_rows, head_dim = x.shape
    return new(x, (samples, num_rows, num_heads, head_dim)).swapaxes(1, 2)


@on_cuda()
def rotary(x, cos, sin, out=None):
    """Turn arrays that lie in memory as [B, S, H, D] without copying; so lies the result."""
    if out is None:
        out = _by_position(x) if x.swapaxes(1, 2).flags.c_contiguous else new(x)
    samples, num_heads, num_positions, head_dim = x.shape
    grid = samples * num_positions if x.size else 0
    (of_x,), (of_out,) = _described(x), _described(out)
    arrays = *of_x, real(cos, x), real(sin, x), *of_out
    counts = num_heads, num_positions, head_dim // 2
    launch(x, "rotary.cu", "rotary", (grid,), (THREADS,), *arrays, *counts)
    return out
