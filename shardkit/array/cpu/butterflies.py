"""Butterflies: transforms of 2, 3, 4, 5 or 8 complex vectors, for compiled loops.

    butterfly   out[k] = w[k] times the sum over j of source[j] exp(sign 2 pi i j k / radix)
    fold        numbers[low], numbers[high] = f S + u D, conj(f S - u D)

A vector holds complex numbers, real parts in even lanes and imaginary ones in odd lanes. A factor
i turns such a number: its parts change places, and one changes its sign. The sums of a radix that
is not prime are those of its parts, of even places and of odd ones (Cooley and Tukey 1965); the
instructions for all are written by one function that calls itself. Arrays are flat; starts and
steps count elements.
"""

import cmath
import functools
import math

from .notation import cgutils, inlined, intrinsic, ir, types
from .tiles import Lanes, call_once_written, index, pointers, smaller

RADICES = (2, 3, 4, 5, 8)


class Complex:
    """Instructions on vectors of complex numbers; sign: +1 or -1, which the constant i stands for.

    A factor is (c, d) and stands for c + sign i d.
    """

    def __init__(self, lanes, sign):
        self._lanes = lanes
        self._builder = lanes.builder
        self._fma = functools.partial(lanes.builder.call, lanes.fma)
        turns = ir.Constant(lanes.kind, [-1.0, 1.0] * (lanes.count // 2))
        self._signs = lanes.builder.fmul(lanes.repeated(sign), turns)

    def turned(self, x):
        """Return x with both parts in each other's place."""
        places = [place ^ 1 for place in range(self._lanes.count)]
        kind = ir.VectorType(ir.IntType(32), self._lanes.count)
        return self._builder.shuffle_vector(x, x, ir.Constant(kind, places))

    def conjugate(self, x):
        return self._builder.fmul(x, self._constants(1.0, -1.0))

    def add(self, x, y):
        return self._builder.fadd(x, y)

    def subtract(self, x, y):
        return self._builder.fsub(x, y)

    def imaginary(self, number):
        """Return a vector that multiplies the turned parts as i times this number does."""
        return self._builder.fmul(number, self._signs)

    def plus_imaginary(self, x, d, y):
        """Return x + sign i d y."""
        factor = self.imaginary(self._constants(d, d))
        return self._fma([self.turned(y), factor, x])

    def product(self, x, real, imaginary):
        """Return x times what `real` and `imaginary`, vectors, stand for."""
        return self._fma([self.turned(x), imaginary, self._builder.fmul(x, real)])

    def times(self, x, factor):
        """Return x times a constant."""
        if factor.imag == 0:
            return self.scaled(x, factor.real)
        d = factor.imag
        return self.product(
            x, self._constants(factor.real, factor.real), self.imaginary(self._constants(d, d))
        )

    def scaled(self, x, number):
        return x if number == 1 else self._builder.fmul(x, self._constants(number, number))

    def plus_scaled(self, x, number, y):
        return self._fma([y, self._constants(number, number), x])

    def _constants(self, even, odd):
        return ir.Constant(self._lanes.kind, [even, odd] * (self._lanes.count // 2))

    # ---- transforms ------------------------------------------------------------------------------

    def transform(self, values):
        """Return the transform of a list of vectors, of a size whose primes are small."""
        size = len(values)
        if size == 1:
            return values
        if size % 2:
            return self._odd(values)
        even = self.transform(values[::2])
        odd = self.transform(values[1::2])
        turns = [k / size for k in range(size // 2)]
        pairs = list(map(self._pair, even, odd, turns))
        return [total for total, _ in pairs] + [rest for _, rest in pairs]

    def _pair(self, x, y, turns):
        """Return x + w y and x - w y for w = exp(sign 2 pi i turns)."""
        if turns == 0.25:
            return self.plus_imaginary(x, 1.0, y), self.plus_imaginary(x, -1.0, y)
        if turns:
            y = self.times(y, cmath.exp(2j * math.pi * turns))
        return self.add(x, y), self.subtract(x, y)

    def _odd(self, values):
        """Return the transform of an odd number of vectors, with the sums of those that mirror."""
        size = len(values)
        turn = 2 * math.pi / size
        first, half = values[0], range(1, size // 2 + 1)
        sums = [self.add(values[j], values[-j]) for j in half]
        differences = [self.subtract(values[j], values[-j]) for j in half]
        found = [functools.reduce(self.add, sums, first)] + [None] * (size - 1)
        for k in half:
            angles = [turn * (j * k % size) for j in half]
            even = first
            for angle, total in zip(angles, sums):
                even = self.plus_scaled(even, math.cos(angle), total)
            found[k], found[-k] = even, even
            for angle, difference in zip(angles, differences):
                sine = math.sin(angle)
                found[k] = self.plus_imaginary(found[k], sine, difference)
                found[-k] = self.plus_imaginary(found[-k], -sine, difference)
        return found


def _butterfly_of(radix, has_factors):
    """Return the butterfly of this radix, with factors w[1], ..., w[radix - 1] or without."""

    @intrinsic
    def butterfly(
        typing_context,
        rows,
        count,
        source,
        at,
        row_step,
        step,
        last,
        factors,
        at_factor,
        sign,
        out,
        to,
        out_row_step,
        out_step,
        out_last,
    ):
        """Transform rows of `count` vectors: number j is at + j step.

        last   where the last vector begins at the latest: it may overlap the one before
        """
        n = types.intp
        read = n, n, source, n, n, n, n, factors, n, types.float32
        signature = types.void(*read, out, n, n, n, n)

        def generate(context, builder, signature, arguments):
            given = pointers(context, builder, signature, arguments)

            def write(inside, given):
                _write_butterfly(Lanes(context, inside, source.dtype), radix, has_factors, given)

            name = f"butterfly_{radix}_{'with' if has_factors else 'without'}"
            call_once_written(builder, name, given, write)
            return context.get_dummy_value()

        return signature, generate

    return butterfly


def _write_butterfly(lanes, radix, has_factors, given):
    """Write the instructions of a butterfly, whose arguments these are."""
    builder = lanes.builder
    rows, count, x, at, x_row, x_step, x_last, w, at_w, sign, *written = given
    y, to, y_row, y_step, y_last = written
    numbers = Complex(lanes, sign)
    factors = []
    for k in range(2 * radix - 2 if has_factors else 0):
        number = builder.load(builder.gep(w, [builder.add(at_w, index(k))]))
        factors.append(lanes.repeated(number))
    imaginary = map(numbers.imaginary, factors[1::2])
    factors = list(zip(factors[::2], imaginary))
    with cgutils.for_range(builder, rows) as row, cgutils.for_range(builder, count) as loop:
        lane = builder.mul(loop.index, index(lanes.count))
        begin = builder.add(at, builder.mul(row.index, x_row))
        begin = builder.add(begin, smaller(builder, lane, x_last))
        start = builder.add(to, builder.mul(row.index, y_row))
        start = builder.add(start, smaller(builder, lane, y_last))
        places = [builder.add(begin, builder.mul(x_step, index(j))) for j in range(radix)]
        found = numbers.transform([lanes.load(x, place) for place in places])
        for k, factor in enumerate(factors, 1):
            found[k] = numbers.product(found[k], *factor)
        for k, vector in enumerate(found):
            lanes.store(vector, y, builder.add(start, builder.mul(y_step, index(k))))


@intrinsic
def fold(typing_context, width, numbers, low, mirrored, high, factors, at_factor):
    """Set numbers[low] = f S + u D and numbers[high] = conj(f S - u D), rows of whole vectors.

    S and D are sum and difference of numbers[low] and conj(numbers[mirrored]).
    factors   f, and both parts of u
    """
    n = types.intp
    signature = types.void(n, numbers, n, n, n, factors, n)

    def generate(context, builder, signature, arguments):
        lanes = Lanes(context, builder, numbers.dtype)
        width, x, low, mirrored, high, table, at = pointers(context, builder, signature, arguments)
        both = Complex(lanes, lanes.element(1.0))
        places = [builder.add(at, index(k)) for k in range(3)]
        found = [builder.load(builder.gep(table, [place])) for place in places]
        scale, real, imaginary = map(lanes.repeated, found)
        imaginary = both.imaginary(imaginary)
        with cgutils.for_range(builder, builder.udiv(width, index(lanes.count))) as loop:
            lane = builder.mul(loop.index, index(lanes.count))
            one = lanes.load(x, builder.add(low, lane))
            other = both.conjugate(lanes.load(x, builder.add(mirrored, lane)))
            total = builder.fmul(both.add(one, other), scale)
            rest = both.product(both.subtract(one, other), real, imaginary)
            lanes.store(both.add(total, rest), x, builder.add(low, lane))
            mirror = both.conjugate(both.subtract(total, rest))
            lanes.store(mirror, x, builder.add(high, lane))
        return context.get_dummy_value()

    return signature, generate


_2, _3, _4, _5, _8 = [_butterfly_of(radix, False) for radix in RADICES]
_2w, _3w, _4w, _5w, _8w = [_butterfly_of(radix, True) for radix in RADICES]


@inlined
def butterfly(radix, has_factors, rows, count, read, factors, at_factor, sign, written):
    """Transform rows of `count` vectors.

    read, written   array, first element, elements from row to row, and from one number of a
                    butterfly to the next; where the last vector of a row begins at the latest
    """
    x, at, x_row, x_step, x_last = read
    y, to, y_row, y_step, y_last = written
    before = rows, count, x, at, x_row, x_step, x_last, factors, at_factor, sign
    given = *before, y, to, y_row, y_step, y_last
    if radix == 8 and has_factors:
        _8w(*given)
    elif radix == 4 and has_factors:
        _4w(*given)
    elif radix == 2 and has_factors:
        _2w(*given)
    elif radix == 3 and has_factors:
        _3w(*given)
    elif radix == 5 and has_factors:
        _5w(*given)
    elif radix == 8:
        _8(*given)
    elif radix == 4:
        _4(*given)
    elif radix == 2:
        _2(*given)
    elif radix == 3:
        _3(*given)
    elif radix == 5:
        _5(*given)
