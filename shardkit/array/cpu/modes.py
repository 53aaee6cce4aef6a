"""Products of complex matrices, one for each mode: LANE modes of all channels at a time, in cache.

    x, weight --pack--> LANE real parts, LANE imaginary parts --sums of products--> y

Modes are neighbors in memory, so a vector holds as many of them and none is transposed. A weight is
read once, where it lies.
"""

from math import prod

from .. import fresh
from ..arena import empty
from ..registry import on_cpu
from .arrays import plain
from .compiled import compiled, inlined
from .scalar import fma, like

LANE = 128  # modes
WHOLE = 16  # modes fill vectors


@on_cpu
def multiply_modes(x, weight):
    return _multiplied(x, weight, weight.shape[1], False)


@on_cpu
def multiply_modes_input(gradient, weight):
    return _multiplied(gradient, weight, weight.shape[0], True)


@on_cpu
def multiply_modes_weight(gradient, x, out=None):
    samples, num_in, _, *modes = x.shape
    num_out = gradient.shape[1]
    target = out
    if out is None or not out.flags.carray:
        target = empty((num_in, num_out, *modes, 2), x.dtype)
    packed = [empty(samples * channels * 2 * LANE, x.dtype) for channels in (num_in, num_out)]
    _correlate(_by_part(gradient), _by_part(x), *packed, _sums(x), target.reshape(-1))
    if out is None or target is out:
        return target
    out[...] = target
    return out


def _multiplied(x, weight, channels, is_adjoint):
    samples, summed, _, *modes = x.shape
    y = empty((samples, channels, 2, *modes), x.dtype)
    packed = [empty(rows * summed * 2 * LANE, x.dtype) for rows in (samples, 1)]
    pairs = plain(weight).reshape(-1)
    _multiply(_by_part(x), pairs, is_adjoint, *packed, _sums(x), _by_part(y))
    return y


def _by_part(x):
    """Return a spectrum as [B, channels, 2, M]."""
    return plain(x).reshape(*x.shape[:3], prod(x.shape[3:]))


def _sums(x):
    return fresh.zeros(2 * LANE, x.dtype)


@inlined
def filled(size):
    return -(-size // WHOLE) * WHOLE


@compiled
def _multiply(x, pairs, is_adjoint, some_x, some_weights, sums, y):
    samples, summed, _, modes = x.shape
    channels = y.shape[1]
    # of the weight [I, O, modes, 2], from one summed channel to the next, and to the next of y
    step, next_step = (1, summed) if is_adjoint else (channels, 1)
    sign = like(-1.0 if is_adjoint else 1.0, sums[0])
    for start in range(0, modes, LANE):
        size = min(LANE, modes - start)
        for b in range(samples):
            for c in range(summed):
                _pack(x[b, c], start, size, like(1.0, sums[0]), some_x, b * summed + c)
        for d in range(channels):
            for c in range(summed):
                first = 2 * ((d * next_step + c * step) * modes + start)
                _unpair(pairs[first : first + 2 * size], sign, some_weights, c)
            for b in range(samples):
                _add_products(some_x[2 * LANE * b * summed :], some_weights, summed, size, sums)
                real = y[b, d, 0, start:]
                imaginary = y[b, d, 1, start:]
                for j in range(size):
                    real[j] = sums[j]
                    imaginary[j] = sums[LANE + j]


@compiled
def _correlate(gradient, x, some_x, some_gradients, sums, pairs):
    samples, num_in, _, modes = x.shape
    num_out = gradient.shape[1]
    one = like(1.0, sums[0])
    for start in range(0, modes, LANE):
        size = min(LANE, modes - start)
        for b in range(samples):
            for i in range(num_in):
                _pack(x[b, i], start, size, -one, some_x, i * samples + b)
            for o in range(num_out):
                _pack(gradient[b, o], start, size, one, some_gradients, o * samples + b)
        for i in range(num_in):
            for o in range(num_out):
                left, right = (
                    some_x[2 * LANE * i * samples :],
                    some_gradients[2 * LANE * o * samples :],
                )
                _add_products(left, right, samples, size, sums)
                first = 2 * ((i * num_out + o) * modes + start)
                row = pairs[first : first + 2 * size]
                for j in range(size):
                    row[2 * j] = sums[j]
                    row[2 * j + 1] = sums[LANE + j]


@inlined
def _pack(spectrum, start, size, sign, packed, place):
    """Copy modes of a channel [2, modes] to their place, imaginary parts times the sign, then 0."""
    out = packed[2 * LANE * place : 2 * LANE * (place + 1)]
    real, imaginary = spectrum[0, start:], spectrum[1, start:]
    for j in range(size):
        out[j] = real[j]
    for j in range(size):
        out[LANE + j] = sign * imaginary[j]
    for j in range(size, filled(size)):
        out[j] = out[LANE + j] = like(0.0, sign)


@inlined
def _unpair(pairs, sign, packed, place):
    """Copy pairs of some modes to their place, real parts before imaginary ones, then 0."""
    out = packed[2 * LANE * place : 2 * LANE * (place + 1)]
    size = pairs.size // 2
    for j in range(size):
        out[j] = pairs[2 * j]
        out[LANE + j] = sign * pairs[2 * j + 1]
    for j in range(size, filled(size)):
        out[j] = out[LANE + j] = like(0.0, sign)


@inlined
def _add_products(x, w, count, size, sums):
    """Set sums to those of the complex products of `count` packed x and w, in their order."""
    width = filled(size)
    for j in range(2 * LANE):
        sums[j] = like(0.0, sums[0])
    for at in range(0, count - 3, 4):  # sums stay in registers for four products
        first = 2 * LANE * at
        a, b = x[first:], w[first:]
        for j in range(width):
            total = _number(sums, 0, j)
            total = _plus_product(total, _number(a, 0, j), _number(b, 0, j))
            total = _plus_product(total, _number(a, 1, j), _number(b, 1, j))
            total = _plus_product(total, _number(a, 2, j), _number(b, 2, j))
            total = _plus_product(total, _number(a, 3, j), _number(b, 3, j))
            sums[j], sums[LANE + j] = total
    for at in range(count - count % 4, count):
        first = 2 * LANE * at
        a, b = x[first:], w[first:]
        for j in range(width):
            total = _number(sums, 0, j)
            total = _plus_product(total, _number(a, 0, j), _number(b, 0, j))
            sums[j], sums[LANE + j] = total


@inlined
def _number(packed, place, j):
    """Return mode j of what is packed at this place, as a pair."""
    at = 2 * LANE * place + j
    return packed[at], packed[at + LANE]


@inlined
def _plus_product(total, x, y):
    """Return total + x y of complex numbers, as pairs."""
    a, b = x
    c, d = y
    real = fma(-b, d, fma(a, c, total[0]))
    imaginary = fma(b, c, fma(a, d, total[1]))
    return real, imaginary
