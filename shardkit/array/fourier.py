"""Fourier transforms along any dims; spectra of real signals are pairs of numbers [..., 2].

    spectra    x [..., n] -> [..., n/2 + 1, 2]        signals    the way back

On CPUs with AVX-512 real float32 is transformed by loops of this package where the last of the dims
is the last of the array and even, and all sizes are products of 2, 3 and 5: block by block, so that
all dims of one pass through the cache. SciPy does the rest for NumPy arrays, and CuPy for its own.
SciPy too transforms several rows at once in vectors, and float32 in float32; NumPy goes row by row,
3 to 5 times as long. Which one computes depends on sizes that are transformed, the dtype and the
kind of CPU alone.
"""

import functools
import math

import numpy

from . import kernels
from .arena import empty
from .backend import xp_of
from .dtypes import FLOAT32
from .fresh import contiguous
from .registry import is_numba_enabled

BLOCK_BYTES = 1 << 20  # in the second cache with what is made of it
LONGEST = 1 << 12  # of the loops, whose memory grows with it
WIDE_BYTES = 64  # of a vector: AVX-512
SHORTEST_ROW = 16  # whose spectrum is a whole vector of columns


def transform(name: str, array, sizes, dims, norm: str):
    """Return rfftn, irfftn, fftn or ifftn of an array, in its precision: a new array."""
    xp = xp_of(array)
    library = _library() if xp is numpy else xp.fft
    return getattr(library, name)(array, sizes, dims, norm=norm)


@functools.cache
def _library():
    """Import SciPy's transforms, which nothing else here needs."""
    from scipy import fft

    return fft


def spectra(x, sizes, dims, norm: str, inner: float = 1):
    """Return rfftn of a real array, as pairs [..., 2].

    inner   by what frequencies along the last of dims are multiplied that stand for two
    """
    if _takes(x, x.shape, sizes, dims):
        return _spectra(contiguous(x), dims, _scale(norm == "forward", norm, sizes), inner)
    pairs = as_pairs(transform("rfftn", x, sizes, dims, norm))
    if inner != 1:
        form = x.shape, dims, sizes[-1]
        pairs *= weights(xp_of(x), *form, inner, pairs.dtype)
    return pairs


def signals(pairs, sizes, dims, norm: str, inner: float = 1):
    """Return irfftn of spectra [..., 2], which are multiplied by `inner` first, as in spectra."""
    shape = list(pairs.shape[:-1])
    if shape[dims[-1]] == sizes[-1] // 2 + 1:
        shape[dims[-1]] = sizes[-1]
    if _takes(pairs, shape, sizes, dims):
        return _signals(
            contiguous(pairs), shape, dims, _scale(norm == "backward", norm, sizes), inner
        )
    if inner != 1:
        form = shape, dims, sizes[-1]
        pairs = pairs * weights(xp_of(pairs), *form, inner, pairs.dtype)
    return transform("irfftn", as_complex(pairs), sizes, dims, norm)


def as_complex(pairs):
    """Return pairs [..., 2] as a complex array [...], without a copy where they are contiguous."""
    pairs = xp_of(pairs).ascontiguousarray(pairs)
    return pairs.view("complex64" if pairs.dtype.itemsize == 4 else "complex128")[..., 0]


def as_pairs(spectrum):
    """Return a complex array [...] as pairs [..., 2]."""
    spectrum = xp_of(spectrum).ascontiguousarray(spectrum)
    real = spectrum.view("float32" if spectrum.dtype.itemsize == 8 else "float64")
    return real.reshape(*spectrum.shape, 2)


def weights(xp, shape, dims, size, inner, dtype):
    """Return what pairs of frequencies are multiplied by, along the last of dims.

    `inner` where one stands for two; 1 for 0 and size/2. These are powers of 2, so nothing is
    rounded. Both numbers of a pair have theirs, so that a row is multiplied in one piece.
    """
    count = size // 2 + 1
    weights = xp.full((count, 2), inner, dtype)
    weights[0] = 1
    if size % 2 == 0:
        weights[-1] = 1
    places = [1] * len(shape)
    places[dims[-1]] = count
    if dims[-1] < len(shape) - 1:
        weights = weights[:, :1]
    return weights.reshape(*places, weights.shape[1])


# ---- by loops ------------------------------------------------------------------------------------


def _takes(array, shape, sizes, dims) -> bool:
    """Return whether loops transform signals of this shape, which must be that of the sizes."""
    return (
        type(array) is numpy.ndarray
        and array.dtype == FLOAT32
        and dims[-1] == len(shape) - 1
        and len(set(dims)) == len(dims)
        and [shape[dim] for dim in dims] == list(sizes)
        and _is_fit(sizes)
        and _has_wide_vectors()
    )


@functools.cache
def _has_wide_vectors() -> bool:
    """Return whether loops are quicker here: with vectors of 32 bytes rows take up to 1.5 times as
    long as SciPy, since they are turned by 4.
    """
    if not is_numba_enabled():
        return False
    from .cpu.targets import target

    return target().vector_bytes >= WIDE_BYTES


def _is_fit(sizes) -> bool:
    *others, last = sizes
    if last % 2 or len(sizes) > 1 and last < SHORTEST_ROW:
        return False
    lengths = [*others, last // 2]
    return min(lengths) > 1 and max(lengths) <= LONGEST and all(map(_is_smooth, lengths))


def _is_smooth(size) -> bool:
    """Return whether a size of at most LONGEST is a product of 2, 3 and 5."""
    return 30**12 % size == 0


def _scale(is_divided, norm, sizes):
    """Return by what this way is multiplied; is_divided: it is the one of the two for this norm."""
    if norm == "ortho":
        return 1 / math.sqrt(math.prod(sizes))
    return 1 / math.prod(sizes) if is_divided else 1.0


def _spectra(x, dims, scale, inner):
    size = x.shape[-1]
    shape = *x.shape[:-1], size // 2 + 1, 2
    out = empty(shape, x.dtype)
    others = sorted(dims)[:-1]
    for given, made, memory in _blocks(x, out, min(dims), len(others)):
        y = next(memory)
        rows = given.reshape(-1, size)
        pairs = y.reshape(len(rows), -1, 2)
        kernels.rows_to_spectra(rows, scale, scale * inner, out=pairs)
        for dim in reversed(others):
            y = _transformed(y, dim, out.shape, -1, next(memory))
    return out


def _signals(pairs, shape, dims, scale, inner):
    out = empty(shape, pairs.dtype)
    others = sorted(dims)[:-1]
    for y, made, memory in _blocks(pairs, out, min(dims), len(others)):
        for dim in others:
            y = _transformed(y, dim, pairs.shape, 1, next(memory))
        rows = made.reshape(-1, shape[-1])
        spectra = y.reshape(len(rows), -1, 2)
        kernels.spectra_to_rows(spectra, shape[-1], scale, scale * inner, out=rows)
    return out


def _transformed(y, dim, shape, sign, out):
    """Set out to the transform of y, flat as out, along a dim of pairs of this shape."""
    inner = math.prod(shape[dim + 1 : -1])
    form = (-1, shape[dim], inner, 2)
    kernels.transform_columns(y.reshape(form), sign, out=out.reshape(form))
    return out


def _blocks(given, made, first, num_between):
    """Yield blocks of both arrays along the dims before `first`, flat, and where results go.

    Those are memory for so many results in between, the largest there are, then the block made.
    """
    lead = math.prod(given.shape[:first]) if given.size else 0
    each = max(given.size, made.size) // max(1, lead)
    given = given.reshape(max(1, lead), -1)
    made = made.reshape(max(1, lead), -1)
    step = max(1, BLOCK_BYTES // max(1, given.itemsize * each))
    largest = min(step, lead) * each
    memory = [empty(largest, given.dtype) for _ in range(min(2, num_between))]
    for start in range(0, lead, step):
        span = slice(start, start + step)
        block = given[span].reshape(-1)
        result = made[span].reshape(-1)
        largest = max(block.size, result.size)
        between = [memory[number % 2][:largest] for number in range(num_between)]
        yield block, result, iter([*between, result])
