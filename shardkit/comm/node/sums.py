"""Reductions straight from the memory of several ranks, in the fixed order of ordered.py.

a  b  c  d  e        a block of each rank stays in the nearest cache until the whole tree over the
a+b   c+d   e        ranks is added: neighbors first, level by level, an odd one carried up
"""

import numpy

from ...array.cpu.notation import cgutils, inlined_once, intrinsic, ir, types
from .atomic import load, store
from .mailbox import BLOCK_BYTES, DTYPES, MAX, MIN, PRODUCT, SUM, WORD_BYTES


@intrinsic
def combine(typing, left, right, into, num_bytes, op, kind):
    """Combine element by element, at three addresses; `into` may be one of the others.

    op, kind   an operation, and the place of the dtype in DTYPES
    NaN wins over numbers, integers wrap around. One loop for each operation and dtype, all in one
    function, so that a verb is compiled once and not for each dtype.
    """

    def build(context, builder, signature, arguments):
        *addresses, num_bytes, op, kind = arguments
        for number, char in enumerate(DTYPES):
            dtype = numpy.dtype(char)
            with builder.if_then(builder.icmp_signed("==", kind, kind.type(number))):
                for operation in (SUM, PRODUCT, MIN, MAX):
                    with builder.if_then(builder.icmp_signed("==", op, op.type(operation))):
                        count = builder.sdiv(num_bytes, num_bytes.type(dtype.itemsize))
                        _write_loop(builder, addresses, count, operation, dtype)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), build


def _write_loop(builder, addresses, count, operation, dtype):
    """Write the instructions of one loop: into[i] = left[i] op right[i]."""
    item_bits = ir.IntType(dtype.itemsize * 8)
    element = {"f": ir.FloatType(), "d": ir.DoubleType()}.get(dtype.char, item_bits)
    pointers = [builder.inttoptr(address, element.as_pointer()) for address in addresses]
    with cgutils.for_range(builder, count) as loop:
        left, right, into = (
            builder.gep(pointer, [loop.index], inbounds=True) for pointer in pointers
        )
        a, b = (builder.load(place, align=1) for place in (left, right))
        builder.store(_combined(builder, a, b, operation, dtype.kind), into, align=1)


def _combined(builder, a, b, operation, kind):
    """Return one element; kind: "f", "i" or "u" as NumPy has it."""
    if operation == SUM:
        return builder.fadd(a, b) if kind == "f" else builder.add(a, b)
    if operation == PRODUCT:
        return builder.fmul(a, b) if kind == "f" else builder.mul(a, b)
    sign = "<" if operation == MIN else ">"
    if kind == "f":
        is_nan = builder.fcmp_unordered("uno", b, b)
        is_chosen = builder.or_(builder.fcmp_ordered(sign, b, a), is_nan)
    else:
        is_chosen = (builder.icmp_signed if kind == "i" else builder.icmp_unsigned)(sign, b, a)
    return builder.select(is_chosen, b, a)


@inlined_once
def reduce_block(sources, num_ranks, start, num_bytes, into, op, kind, scratch):
    """Leave the tree over so many bytes of several arrays at `into`, in one of them or not.

    sources, start   where the addresses of the arrays are; bytes from the start of each
    Partial results wait on a stack for their right neighbor, as the digits of a counter that grows;
    each has a block of the scratch.
    """
    depth, merged = 0, 0
    for rank in range(num_ranks):
        store(scratch + depth * WORD_BYTES, load(sources + rank * WORD_BYTES) + start)
        depth, digits = depth + 1, rank + 1
        while depth > 1 and (digits % 2 == 0 or rank == num_ranks - 1):
            depth = depth - 1
            digits = digits // 2
            merged = merged + 1
            left = scratch + (depth - 1) * WORD_BYTES
            right = scratch + depth * WORD_BYTES
            result = into if merged == num_ranks - 1 else scratch + depth * BLOCK_BYTES
            combine(load(left), load(right), result, num_bytes, op, kind)
            store(left, result)
