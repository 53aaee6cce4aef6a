"""Prepare the arrays of callers for CUDA kernels, and share their elements out over threads."""

import functools
from math import prod

import numpy

from ...array.backend import xp_of
from ...array.dtypes import FLOAT32
from ...array.registry import KERNELS, on_cuda
from .launch import MAX_BLOCKS, launch

FLOAT64 = numpy.dtype("float64")
THREADS = 256
PACK_BYTES = 16  # of one load


def plain(x):
    """Return x itself if it is C-contiguous, else a copy that is."""
    return x if x.flags.c_contiguous else xp_of(x).ascontiguousarray(x)


def alike(x, like):
    """Return x, C-contiguous, in the dtype of `like`, since kernels take arrays of one dtype."""
    return plain(x if x.dtype == like.dtype else x.astype(like.dtype))


def real_dtype(x):
    """Return the dtype of sums and of numbers per row: float32, or float64 for float64."""
    return FLOAT64 if x.dtype.char == "d" else FLOAT32


def real(x, like):
    """Return x, C-contiguous, in the real_dtype of `like`."""
    dtype = real_dtype(like)
    return plain(x if x.dtype == dtype else x.astype(dtype))


def new(x, shape=None, dtype=None):
    """Return a new array on the device of x, of its shape and dtype unless others are given."""
    return type(x)(x.shape if shape is None else shape, x.dtype if dtype is None else dtype)


def new_like(x, out=None):
    """Return out if it is given, else a new array of the shape and dtype of x, C-contiguous."""
    assert out is None or (out.dtype == x.dtype and out.flags.c_contiguous)
    return new(x) if out is None else out


def pack(x) -> int:
    """Return how many numbers of x one load takes."""
    return PACK_BYTES // x.dtype.itemsize


def spread(num_items: int, per_block: int = THREADS) -> tuple:
    """Return a grid of blocks for so many items."""
    return (min(-(-num_items // per_block), MAX_BLOCKS),)


def elementwise(file, name, *inputs, out=None):
    """Run kernel(*inputs, out, n) on arrays of one shape, and return out or a new array."""
    out = new_like(inputs[0], out)
    by_packs(out, file, name, *[alike(x, out) for x in inputs], out)
    return out


def by_packs(x, file, name, *args, loaded=None, loads=1, **how):
    """Run kernel(*args, n) on the n elements of x; a thread takes so many loads of them.

    loaded   the array that is loaded; None: x
    """
    numbers = loads * pack(x if loaded is None else loaded)
    grid = spread(x.size, THREADS * numbers)
    launch(x, file, name, grid, (THREADS,), *args, x.size, **how)


def enter(file, *names, **others):
    """Let code that takes numbers one by one compute kernels, by name or as {kernel: its code}."""

    def entered(kernel, code):
        @on_cuda()
        @functools.wraps(KERNELS[kernel].reference)
        def launcher(*inputs, out=None):
            return elementwise(file, code, *inputs, out=out)

    for kernel, code in {**dict(zip(names, names)), **others}.items():
        entered(kernel, code)


def row_threads(x) -> tuple:
    """Return (threads for a row, rows of a block) for rows of the width of x."""
    return _row_threads(-(-x.shape[-1] // pack(x)))


@functools.cache
def _row_threads(packs) -> tuple:
    """Return row_threads for rows of so many packs.

    The width alone decides, since sums depend on it. Narrow rows get a warp each, and several of
    them a block; wide ones a block of at most 1024 threads.
    """
    for threads, most in ((32, 128), (128, 1024), (256, 8192)):
        if packs <= most:
            return threads, THREADS // threads if threads == 32 else 1
    return 1024, 1


def by_rows(file, name, x, *args):
    """Run kernel(*args, num_rows, width) on x [..., width], with threads as row_threads says."""
    num_rows = prod(x.shape[:-1])
    block = row_threads(x)
    launch(x, file, name, spread(num_rows, block[1]), block, *args, num_rows, x.shape[-1])


def sum_pieces(pieces, like, out=None):
    """Return the sums [..., D] of pieces [..., P, D], always in the same order."""
    *leading, num_pieces, width = pieces.shape
    out = new(like, (*leading, width), pieces.dtype) if out is None else out
    launch(
        pieces,
        "columns.cu",
        "sum_pieces",
        (-(-width // 32), prod(leading)),
        (32, 32),
        pieces,
        out,
        num_pieces,
        width,
    )
    return out
