"""Functions of single numbers, float32 or float64, for loops; LLVM makes vectors of them.

A Python number in a compiled loop is a float64, and one float64 in a formula halves the speed of
float32. So constants are written like(0.5, x): 0.5 in the type of x.
"""

import math

from ..fresh import BLOCK
from .notation import inlined, intrinsic, ir, overload, types

# of the dtypes that formulas compute in
LN2 = {
    "float32": (
        0.693359375,
        -2.12194440054690583e-4,
    ),  # high part with zeros at the end, and the rest
    "float64": (0.693145751953125, 1.42860682030941723212e-6),
}
# Adding this leaves no bits behind the point.
ROUNDING = {"float32": 1.5 * 2**23, "float64": 1.5 * 2**52}
NUM_TERMS = {"float32": 8, "float64": 14}  # |r| < 0.35: the next is below half a last bit
POWERS = {"float32": (-126.0, 128.0), "float64": (-1022.0, 1024.0)}
LOWEST_OF_EXPM1 = {"float32": -30.0, "float64": -50.0}  # -1 from there on
LIMITS = {"float32": (-87.3, 89.0), "float64": (-708.3, 710.0)}


@intrinsic
def like(typing_context, constant, x):
    """Return the constant in the type of x."""

    def generate(context, builder, signature, arguments):
        return context.cast(builder, arguments[0], *signature.args)

    return x(constant, x), generate


@intrinsic
def fma(typing_context, x, y, z):
    """Return x y + z, rounded once."""

    def generate(context, builder, signature, arguments):
        return builder.fma(*arguments)

    return x(x, x, x), generate


@intrinsic
def larger(typing_context, x, y):
    """Return the larger one, NaN if one is NaN, any of two zeros.

    In a loop LLVM may choose the order: it changes nothing else.
    """

    def generate(context, builder, signature, arguments):
        kind = arguments[0].type
        maximum = builder.module.declare_intrinsic(
            "llvm.maximum", [kind], ir.FunctionType(kind, [kind, kind])
        )
        return builder.call(maximum, arguments, fastmath=("nsz",))

    return x(x, x), generate


@intrinsic
def either(typing_context, condition, x, y):
    """Return x if the condition holds, else y. Both are computed: there is no branch.

    Of `x if condition else y` LLVM makes the same where it sees that it pays, and else no vectors.
    """

    def generate(context, builder, signature, arguments):
        return builder.select(*arguments)

    return x(condition, x, x), generate


@intrinsic
def with_sign(typing_context, size, x):
    """Return the number of this size that has the sign of x, of zeros too."""

    def generate(context, builder, signature, arguments):
        kind = arguments[0].type
        form = ir.FunctionType(kind, [kind, kind])
        copysign = builder.module.declare_intrinsic("llvm.copysign", [kind], form)
        return builder.call(copysign, arguments)

    return size(size, x), generate


@intrinsic
def plus(typing_context, x, y):
    """Return x + y as a part of a sum along a row, whose order LLVM may choose.

    The choice is made when the loop is compiled, so the bits of a sum depend on its length and
    terms, not on where these lie in memory. It needs a loop that stores nothing: with stores, LLVM
    also makes code for arrays that overlap.
    """

    def generate(context, builder, signature, arguments):
        return builder.fadd(*arguments, flags=("reassoc",))

    return x(x, x), generate


@intrinsic
def _power_of_two(typing_context, shifted):
    """Return 2^n from n + ROUNDING, whose low bits are the integer n: they become the exponent.

    n = 128 (in float64 1024) gives infinity.
    """
    integer, mantissa, bias = {
        types.float32: (ir.IntType(32), 23, 127),
        types.float64: (ir.IntType(64), 52, 1023),
    }[shifted]

    def generate(context, builder, signature, arguments):
        bits = builder.add(builder.bitcast(arguments[0], integer), integer(bias))
        return builder.bitcast(builder.shl(bits, integer(mantissa)), arguments[0].type)

    return shifted(shifted), generate


def nearest(x):
    """Return the integer next to x, of two the even one, for |x| up to 2^22 (in float64 2^51)."""
    raise NotImplementedError("nearest of scalar.py works in compiled loops only")


@overload(nearest)
def _nearest(x):
    rounding = ROUNDING[x.name]
    return lambda x: (x + like(rounding, x)) - like(rounding, x)


def exp(x):
    """Return e^x, to 1 or 2 units in the last place.

    0 below -87.3 and infinity from 88.4 on (in float64 -708.3 and 709.4). x = n ln 2 + r with n an
    integer and |r| <= ln(2) / 2; then 2^n times the Taylor polynomial of e^r.
    """
    raise NotImplementedError("exp of scalar.py works in compiled loops only")


@overload(exp)
def _exp(x):
    ln2_high, ln2_low = LN2[x.name]
    rounding = ROUNDING[x.name]
    lowest, highest = LIMITS[x.name]
    polynomial = _taylor_polynomial(NUM_TERMS[x.name])

    def formula(x):
        bounded = like(highest, x) if x > like(highest, x) else x  # NaN stays NaN
        shifted = fma(bounded, like(1 / math.log(2), x), like(rounding, x))
        n = shifted - like(rounding, x)
        r = fma(n, like(-ln2_low, x), fma(n, like(-ln2_high, x), bounded))
        y = polynomial(r) * _power_of_two(shifted)
        return like(0.0, x) if x < like(lowest, x) else y

    return formula


def expm1(x):
    """Return e^x - 1, to 1 or 2 units in the last place, for x up to 88 (in float64 709).

    With x = n ln 2 + r as in exp: 2^n times e^r - 1, plus 2^n - 1.
    """
    raise NotImplementedError("expm1 of scalar.py works in compiled loops only")


@overload(expm1)
def _expm1(x):
    ln2_high, ln2_low = LN2[x.name]
    rounding = ROUNDING[x.name]
    lowest = LOWEST_OF_EXPM1[x.name]
    quotient = polynomial(*[1 / math.factorial(k) for k in range(NUM_TERMS[x.name], 0, -1)])

    def formula(x):
        bounded = like(lowest, x) if x < like(lowest, x) else x  # NaN stays NaN
        shifted = fma(bounded, like(1 / math.log(2), x), like(rounding, x))
        n = shifted - like(rounding, x)
        r = fma(n, like(-ln2_low, x), fma(n, like(-ln2_high, x), bounded))
        power = _power_of_two(shifted)
        return fma(r * quotient(r), power, power - like(1.0, x))

    return formula


def exp2(x):
    """Return 2^x, to 1 or 2 units in the last place; 0 below -126, infinity from 128 on.

    In float64 that is -1022 and 1024. x = n + r with n an integer and |r| <= 1/2; then 2^n times
    the Taylor polynomial of 2^r.
    """
    raise NotImplementedError("exp2 of scalar.py works in compiled loops only")


@overload(exp2)
def _exp2(x):
    rounding = ROUNDING[x.name]
    lowest, highest = POWERS[x.name]
    polynomial = _taylor_polynomial(NUM_TERMS[x.name], math.log(2))

    def formula(x):
        bounded = like(highest, x) if x > like(highest, x) else x  # NaN stays NaN
        shifted = bounded + like(rounding, x)
        y = polynomial(bounded - (shifted - like(rounding, x))) * _power_of_two(shifted)
        return like(0.0, x) if x < like(lowest, x) else y

    return formula


def _taylor_polynomial(num_terms, rate=1.0):
    """Return the formula sum of (rate r)^k / k! for k < num_terms."""
    return polynomial(*[rate**k / math.factorial(k) for k in range(num_terms - 1, -1, -1)])


def polynomial(*coefficients):
    """Return the formula of the polynomial with these coefficients, highest power first.

    By Horner's rule, each step rounded once.
    """

    @intrinsic
    def polynomial_of(typing_context, x):
        def generate(context, builder, signature, arguments):
            kind = arguments[0].type
            y = kind(coefficients[0])
            for coefficient in coefficients[1:]:
                y = builder.fma(y, arguments[0], kind(coefficient))
            return y

        return x(x), generate

    return polynomial_of


def of_dtypes(single, double):
    """Return the formula that is one of these two by the dtype of x, float32 or float64."""

    def formula(x):
        raise NotImplementedError("a formula for two dtypes works in compiled loops only")

    @overload(formula, jit_options={"no_cpython_wrapper": True, "forceinline": True})
    def _choose(x):
        chosen = {"float32": single, "float64": double}[x.name]
        return lambda x: chosen(x)

    return formula


@inlined
def at_most(x, limit):
    """Return the smaller one; NaN stays NaN."""
    return like(limit, x) if x > like(limit, x) else x


@inlined
def logistic(x):
    """Return 1 / (1 + exp(-x)), which goes to 0 and 1 without overflow."""
    return like(1.0, x) / (like(1.0, x) + exp(-x))


@inlined
def block_end(start, num_rows, seen):
    """Return where the block of rows that `start` is in ends, and count its rows. seen [1]."""
    stop = min(num_rows, start + BLOCK - seen[0] % BLOCK)
    seen[0] += stop - start
    return stop


@inlined
def close(part, whole, seen):
    """Move the sums of a block, part [D], to those of all blocks, whole [D] float64, if it ends."""
    if seen[0] % BLOCK == 0:
        for j in range(part.size):
            whole[j] += part[j]
            part[j] = like(0.0, part[j])
