"""Tiles of products of packed matrices, whose sums stay in vector registers.

    panel_tile      out[r, p] (+)= sum over k of  a[r, k] b[k, p],   a and b with steps

       k ->               p ->
    r  a a a a      k   b b b b|b b b b    each number of a meets whole vectors of b
       a a a a          b b b b|b b b b

Where a and b are uint32, each item is two bfloat16, of k and k + 1, and one instruction adds both
products to a sum of float32.

Each sum is one chain in the order of k: its bits do not depend on its place in a tile.
"""

from .notation import cgutils, intrinsic, ir, types
from .targets import target
from .tiles import VECTOR_BYTES, Lanes, call_once_written, index, pointers, smaller

# AMD's processors since Zen 4, Intel's since Cooper Lake.
HAS_PAIRS = target().has_pairs


class PairLanes(Lanes):
    """Vectors of pairs of bfloat16, each pair in one uint32."""

    def add_product(self, x, y, register):
        """Add both products of each pair of x and y to a register of float32."""
        total = ir.VectorType(ir.FloatType(), self.count)
        form = ir.FunctionType(total, [total, self.kind, self.kind])
        name = f"llvm.x86.avx512bf16.dpbf16ps.{8 * VECTOR_BYTES}"
        add = cgutils.get_or_insert_function(self.builder.module, form, name)
        self.builder.store(self.builder.call(add, [self.builder.load(register), x, y]), register)


def tile_of_panel(num_rows, num_vectors):
    """Return panel_tile for tiles of so many rows, and vectors in each."""

    @intrinsic
    def panel_tile(
        typing_context,
        a,
        at_a,
        row_step,
        depth_step,
        last_row,
        depth,
        b,
        at_b,
        b_step,
        out,
        at_out,
        out_step,
        is_first,
    ):
        """Add to out[r, p] the sum over k < depth of a[r, k] b[k, p]; first set it to 0 if asked.

        last_row   of the tile; those beyond it repeat it
        a[r, k]    is element at_a + r row_step + k depth_step, b[k, p] at_b + k b_step + p
        """
        n = types.intp
        signature = types.void(a, n, n, n, n, n, b, n, n, out, n, n, types.boolean)

        def generate(context, builder, signature, arguments):
            def write(inside, given):
                lanes = (PairLanes if a.dtype == types.uint32 else Lanes)(context, inside, a.dtype)
                of_sums = Lanes(context, inside, out.dtype)
                _add_panel(lanes, of_sums, given, num_rows, num_vectors)

            given = pointers(context, builder, signature, arguments)
            call_once_written(
                builder, f"panel_tile_{num_rows}_{num_vectors}_{a.dtype}", given, write
            )
            return context.get_dummy_value()

        return signature, generate

    return panel_tile


def _add_panel(lanes, of_sums, arguments, num_rows, num_vectors):
    """Write the instructions of panel_tile, whose arguments these are.

    lanes, of_sums   vectors of a and b, and of out
    """
    a, at_a, row_step, depth_step, last, depth, b, at_b, b_step, y, at_y, y_step, is_first = (
        arguments
    )
    builder = lanes.builder
    rows = [smaller(builder, index(r), last) for r in range(num_rows)]
    starts = [builder.gep(a, [_place(builder, at_a, row, row_step)]) for row in rows]
    places = [_place(builder, at_y, row, y_step) for row in rows]
    vectors = [index(v * lanes.count) for v in range(num_vectors)]
    sums = [of_sums.registers(of_sums.zero, num_vectors) for _ in rows]
    each = [
        (register, builder.add(place, vector))
        for row, place in zip(sums, places)
        for register, vector in zip(row, vectors)
    ]
    with builder.if_then(builder.not_(is_first)):
        for register, place in each:
            builder.store(of_sums.load(y, place), register)
    with cgutils.for_range(builder, depth) as loop:
        at = _place(builder, at_b, loop.index, b_step)
        at_left = builder.mul(loop.index, depth_step)
        read = [lanes.load(b, builder.add(at, vector)) for vector in vectors]
        for row, start in zip(sums, starts):
            number = lanes.repeated(builder.load(builder.gep(start, [at_left])))
            for vector, register in zip(read, row):
                lanes.add_product(number, vector, register)
    for register, place in each:
        of_sums.store(builder.load(register), y, place)


def _place(builder, start, count, step):
    return builder.add(start, builder.mul(count, step))
