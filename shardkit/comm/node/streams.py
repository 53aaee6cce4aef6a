"""Copies of large arrays between the memory of ranks.

An ordinary copy reads what it is about to overwrite, and throws everything else out of the caches.
Past a size that no cache keeps, lines are written straight to memory instead: in four pages in
turn, so that as many rows of the memory are open.
Source: memcpy of glibc does the same above three quarters of the last cache, which a virtual
machine often reports wrongly.
"""

from ...array.cpu.notation import inlined_once, intrinsic, ir, types
from .atomic import fence, move_bytes

LINE_BYTES = 64
PAGE_BYTES, PAGES = 4096, 4  # so far apart, and so many in turn
STREAM_BYTES = 64 << 20  # of the whole array: more than most last caches keep


@intrinsic
def stream_line(typing, target, source):
    """Copy the cache line at `source` to `target`, which begins a line, past the caches.

    Others see it after a fence().
    """

    def build(context, builder, signature, arguments):
        kind = ir.VectorType(ir.IntType(64), LINE_BYTES // 8).as_pointer()
        line = builder.load(builder.inttoptr(arguments[1], kind), align=1)
        stored = builder.store(line, builder.inttoptr(arguments[0], kind), align=LINE_BYTES)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), build


@inlined_once
def stream_bytes(target, source, count):
    """Copy so many bytes past the caches."""
    first = min(-target % LINE_BYTES, count)
    move_bytes(target, source, first)
    block = PAGES * PAGE_BYTES
    while count - first >= block:
        for line in range(first, first + PAGE_BYTES, 2 * LINE_BYTES):
            for page in range(line, line + block, PAGE_BYTES):
                stream_line(target + page, source + page)
                stream_line(target + page + LINE_BYTES, source + page + LINE_BYTES)
        first += block
    move_bytes(target + first, source + first, count - first)
    fence()
