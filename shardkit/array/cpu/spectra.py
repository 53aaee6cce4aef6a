"""Fourier transforms of real rows, and of complex columns beside each other, for float32.

    x [rows, n] --rows_to_spectra--> [rows, n/2 + 1, 2] --columns along other dims--> spectrum

Transforms of neighbors run side by side, one in each pair of lanes of a vector: real and imaginary
part. So no step of a transform needs care for vectors, and the bits of a row or column do not
depend on its place. Columns are read where they lie. Rows are turned first, some at a time, so that
they stand beside each other.

A transform of size n = r m is m transforms of size r (the butterflies of butterflies.py), whose
results times roots of unity are r transforms of size m (Cooley and Tukey 1965). Each stage writes
what the next one reads in the order that this needs, and nothing has to be sorted (Stockham 1966):

    row p + j m of s neighbors, j < r  --butterfly, times w^(p k)-->  row r p + k, k < r;  then s r

A real row is taken as n/2 complex numbers z: even places real, odd ones imaginary. With Z of size
m = n/2, its spectrum is X[k] = S + u D and X[m-k] = conj(S - u D), where S and D are sum and
difference of Z[k] and conj(Z[m-k]). The way back is the same with other u. Factors of the norm are
in u, and in what S is multiplied by, so they cost nothing.
"""

import functools

import numpy

from .. import fresh
from ..arena import empty
from ..dtypes import FLOAT32
from ..reference import spectra as reference
from ..reference.spectra import roots
from ..registry import on_cpu
from .arrays import plain
from .butterflies import butterfly, fold
from .channels import turn
from .compiled import compiled, inlined
from .panels import lanes_for
from .scalar import like

LONG = 128  # complex numbers
WIDTH, WIDTH_OF_LONG = 128, 64  # numbers beside each other, of which caches hold such transforms
NARROWEST = 16  # a vector of any machine


@on_cpu
def rows_to_spectra(x, edge, inner, out=None):
    num_rows, size = x.shape
    if size % 2 or not _is_fit(x, size // 2):
        return reference.rows_to_spectra(x, edge, inner, out)
    shape = num_rows, size // 2 + 1, 2
    out = empty(shape, x.dtype) if out is None else out
    _run(_rows_to_spectra, x, size, -1, (edge, inner), out)
    return out


@on_cpu
def spectra_to_rows(y, size, edge, inner, out=None):
    if size % 2 or not _is_fit(y, size // 2):
        return reference.spectra_to_rows(y, size, edge, inner, out)
    out = empty((len(y), size), y.dtype) if out is None else out
    _run(_spectra_to_rows, y, size, 1, (edge, inner), out)
    return out


@on_cpu
def transform_columns(y, sign, out=None):
    outer, size, inner, _ = y.shape
    if 2 * inner < NARROWEST or not _is_fit(y, size):
        return reference.transform_columns(y, sign, out)
    out = empty(y.shape, y.dtype) if out is None else out
    sizes = outer, size, 2 * inner
    spare = empty(2 * size * _width(size), y.dtype)
    flat = plain(y).reshape(-1)
    _transform_columns(sizes, flat, _plan(size, sign), spare, out.reshape(-1))
    return out


def _run(loop, x, size, sign, scales, out):
    """Run a loop over rows of this size, or spectra of them."""
    half = size // 2
    lines = _lines(half, len(x))
    tables = _plan(half, sign), _folds(size, sign, *scales)
    memory = lines, lines.view(x.dtype)
    loop(half, _pairs(plain(x)), *tables, *memory, _pairs(out))


def _is_fit(array, size):
    return array.dtype == FLOAT32 and size > 1 and bool(radices_of(size))


def _pairs(array):
    """Return pairs of float32 as float64, which hold both; flat."""
    flat = array.reshape(-1).view("float64")
    return flat if flat.flags.aligned else fresh.copy(flat)


def _width(size):
    return WIDTH if size <= LONG else WIDTH_OF_LONG


def _lines(size, num_rows):
    """Return memory for rows beside each other, and twice as much for what stages leave."""
    whole = -(-2 * num_rows // NARROWEST) * NARROWEST
    width = min(_width(size), max(whole, NARROWEST))
    return numpy.zeros(3 * (size + 1) * width // 2)


@functools.lru_cache(maxsize=256)
def _plan(size, sign):
    """Return the sizes of the butterflies of each stage, their roots of unity, and the sign."""
    radices = radices_of(size)
    rest = size
    parts = []
    for radix in radices:
        rest_of = rest // radix
        turns = numpy.arange(rest_of)[:, None] * numpy.arange(1, radix)
        parts.append(roots(turns, rest, 1).reshape(-1))
        rest = rest_of
    factors = numpy.concatenate(parts).astype("complex64").view("float32")
    return numpy.array(radices), factors, numpy.float32(sign)


def radices_of(size: int) -> list[int]:
    """Return sizes of butterflies whose product is this size; an empty list if there are none."""
    found = []
    for prime in (5, 3):
        while size % prime == 0:
            found.append(prime)
            size //= prime
    power = size.bit_length() - 1
    if size != 1 << power:
        return []
    if power == 1:
        return [*found, 2]
    fours = -power % 3  # 4 is 2^2, 8 is 2^3
    eights = (power - 2 * fours) // 3
    return [*found, *[8] * eights, *[4] * fours]


@functools.lru_cache(maxsize=256)
def _folds(size, sign, edge, inner):
    """Return [size/4 + 1, 3]: for each k what S is multiplied by, and both parts of u."""
    k = numpy.arange(size // 4 + 1)
    scales = numpy.where(k == 0, edge, inner) * (0.5 if sign < 0 else 1.0)
    u = 1j * sign * scales * roots(k, size, sign)
    return numpy.stack([scales, u.real, u.imag], 1).astype("float32").reshape(-1)


@inlined
def _transform(plan, width, x, at, step, spare, at_spare, out, to, out_step):
    """Transform columns of `width` numbers: number k of all is at x[at + k step], in out likewise.

    spare   memory for two times the columns, from at_spare on
    """
    radices, factors, sign = plan
    rest = 1
    for radix in radices:
        rest *= radix
    lanes = lanes_for(x)
    count = (width + lanes - 1) // lanes
    row = count * lanes
    of_one = rest * row
    source = x, at, step, width - lanes
    beside = 1
    at_factor = 0
    for t in range(radices.size):
        radix = radices[t]
        rest //= radix
        target = spare, at_spare + of_one * (t % 2), row, row
        if rest == 1:
            target = out, to, out_step, width - lanes
        for p in range(rest):
            read = _rows_of(source, p * beside, rest * beside)
            written = _rows_of(target, p * radix * beside, beside)
            butterfly(radix, p > 0, beside, count, read, factors, at_factor, sign, written)
            at_factor += 2 * (radix - 1)
        beside *= radix
        source = target


@inlined
def _rows_of(columns, first, apart):
    """Return where butterflies find rows: from this one on, and so far apart."""
    array, at, step, last = columns
    return array, at + first * step, step, apart * step, last


@compiled
def _transform_columns(sizes, x, plan, spare, out):
    """Transform [outer, size, inner] along its middle."""
    outer, size, inner = sizes
    widest = spare.size // (2 * size)
    for n in range(outer):
        for begin in range(0, inner, widest):
            width = max(min(widest, inner - begin), NARROWEST)
            at = n * size * inner + min(begin, inner - width)
            _transform(plan, width, x, at, inner, spare, 0, out, at, inner)


@compiled
def _rows_to_spectra(size, x, plan, folds, lines, numbers, out):
    """Transform rows of `size` pairs; lines and numbers are one memory."""
    width = numbers.size // (3 * (size + 1))
    beside = width // 2
    num_rows = x.size // size
    for row in range(0, num_rows, beside):
        count = min(beside, num_rows - row)
        turn(count, size, x, row * size, size, lines, 0, beside)
        _transform_lines(plan, size, width, numbers)
        _fold_lines(size, width, numbers, 0, folds)
        to = row * (size + 1)
        turn(size + 1, count, lines, 0, beside, out, to, size + 1)


@compiled
def _spectra_to_rows(size, x, plan, folds, lines, numbers, out):
    """Transform spectra of `size` + 1 pairs back; lines and numbers are one memory."""
    width = numbers.size // (3 * (size + 1))
    beside = width // 2
    for row in range(0, out.size // size, beside):
        count = min(beside, out.size // size - row)
        at = row * (size + 1)
        turn(count, size + 1, x, at, size + 1, lines, 0, beside)
        for i in range(1, width, 2):  # imaginary parts that a real signal does not have
            numbers[i] = like(0.0, numbers[i])
            numbers[size * width + i] = like(0.0, numbers[i])
        _fold_lines(size, width, numbers, size * width, folds)
        _transform_lines(plan, size, width, numbers)
        turn(size, count, lines, 0, beside, out, row * size, size)


@inlined
def _transform_lines(plan, size, width, numbers):
    """Transform lines of `width` numbers in their place; what lies behind them is spare memory."""
    spare = (size + 1) * width
    _transform(plan, width, numbers, 0, width, numbers, spare, numbers, 0, width)


@inlined
def _fold_lines(size, width, numbers, mirror_of_first, folds):
    """Fold lines k and size - k; what line 0 is folded with begins at mirror_of_first."""
    fold(width, numbers, 0, mirror_of_first, size * width, folds, 0)
    for k in range(1, size // 2 + 1):
        high = (size - k) * width
        fold(width, numbers, k * width, high, high, folds, 3 * k)
