"""Numbers as arrays hold them: loops read bfloat16 as float32, and round what they write.

float32    s eeeeeeee fffffff ffffffffffffffff
bfloat16   s eeeeeeee fffffff                     the upper half, rounded by the lower

Loops get arrays of bfloat16 as their bits, uint16 (arrays.py). One source serves all dtypes:

    out[i] = narrow(exp(wide(x[i])), out)
"""

from .notation import intrinsic, ir, overload, types


def wide(x):
    """Return a stored number as the loop computes with it: bfloat16 as float32."""
    raise NotImplementedError("wide of storage.py works in compiled loops only")


@overload(wide)
def _wide(x):
    if x == types.uint16:
        return lambda x: from_bfloat16_bits(x)
    return lambda x: x


def narrow(value, out):
    """Return a number as the array `out` holds it: rounded to nearest for bfloat16."""
    raise NotImplementedError("narrow of storage.py works in compiled loops only")


@overload(narrow)
def _narrow(value, out):
    if out.dtype == types.uint16:
        return lambda value, out: bfloat16_bits(value)
    return lambda value, out: value


@intrinsic
def bfloat16_bits(typing_context, x):
    """Return the bits of a float32 rounded to bfloat16."""

    def generate(context, builder, signature, arguments):
        def number(value):
            return ir.Constant(ir.IntType(32), value)

        bits = builder.bitcast(arguments[0], ir.IntType(32))
        is_odd = builder.and_(builder.lshr(bits, number(16)), number(1))
        # Of two as near, the even one.
        nearest = builder.add(builder.add(bits, number(0x7FFF)), is_odd)
        not_a_number = builder.or_(builder.and_(bits, number(0x80000000)), number(0x7FC00000))
        chosen = builder.select(
            builder.fcmp_unordered("uno", arguments[0], arguments[0]), not_a_number, nearest
        )
        return builder.trunc(builder.lshr(chosen, number(16)), ir.IntType(16))

    return types.uint16(x), generate


@intrinsic
def from_bfloat16_bits(typing_context, bits):
    """Return the float32 of a bfloat16's bits, exactly."""

    def generate(context, builder, signature, arguments):
        wide = builder.zext(arguments[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, ir.Constant(ir.IntType(32), 16)), ir.FloatType())

    return types.float32(bits), generate
