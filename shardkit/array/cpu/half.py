"""Casts to half floats and back: float16 by the CPU's instructions, bfloat16 by its bits."""

import numpy

from ..arena import empty
from ..reference import half as reference
from ..registry import on_cpu
from .arrays import plain
from .compiled import compiled
from .notation import intrinsic, ir, types
from .scalar import larger, like
from .storage import bfloat16_bits, from_bfloat16_bits
from .targets import target


@on_cpu
def to_half(x, scale=1.0, out=None):
    out = empty(x.shape, numpy.float16) if out is None else out
    if x.dtype != numpy.float32 or out.dtype == numpy.float16 and not target().has_half_floats:
        return reference.to_half(x, scale, out)
    loop = _to_half if out.dtype == numpy.float16 else _to_bfloat16
    loop(plain(x), float(scale), out.view(numpy.uint16))
    return out


@on_cpu
def from_half(x, dtype, out=None):
    if (
        numpy.dtype(dtype) != numpy.float32
        or x.dtype == numpy.float16
        and not target().has_half_floats
    ):
        return reference.from_half(x, dtype, out)
    out = empty(x.shape, dtype) if out is None else out
    loop = _from_half if x.dtype == numpy.float16 else _from_bfloat16
    loop(plain(x).view(numpy.uint16), out)
    return out


@on_cpu
def largest_magnitude(x):
    return float(_largest_magnitude(plain(x)))


@intrinsic
def _half_bits(typing_context, x):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(x), generate


@intrinsic
def _from_half_bits(typing_context, bits):
    def generate(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(bits), generate


@compiled
def _to_bfloat16(x, scale, out):
    for i in range(x.size):
        out[i] = bfloat16_bits(x[i] * like(scale, x[i]))


@compiled
def _from_bfloat16(x, out):
    for i in range(x.size):
        out[i] = from_bfloat16_bits(x[i])


@compiled
def _to_half(x, scale, out):
    for i in range(x.size):
        out[i] = _half_bits(x[i] * like(scale, x[i]))


@compiled
def _from_half(x, out):
    for i in range(x.size):
        out[i] = _from_half_bits(x[i])


@compiled
def _largest_magnitude(x):
    largest = x.dtype.type(0)
    for i in range(x.size):
        largest = larger(largest, abs(x[i]))
    return largest
