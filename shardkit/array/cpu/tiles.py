"""Products of small tiles whose sums stay in vector registers, for compiled loops.

    multiply_tile   out[r, p] = start[r] + sum over k of  weights[r, k] source[p + offsets[k]]
    dot_tile        out[r, k] += sum over p of  left[r, p] source[p + offsets[k]]
    copy_row        out[i] = source[i];   clear_row   out[i] = 0

       k ->                p ->                     A tile of `rows` x `vectors` sums: each number
    r  w w w w      x   s s s s|s s s s             of weights meets whole vectors of the source,
       w w w w          s s s s|s s s s             each vector of the source all rows.

What is read at each k is found by a table, so that one loop serves every stride, dilation and
number of dimensions (the indirect convolution of arXiv 1907.02129). LLVM does not find such tiles
in loops over arrays, so the instructions are written here. Each sum of multiply_tile is one chain
of fused multiply-adds in the order of k: its bits do not depend on its place in a tile. Arrays are
C-contiguous and taken as flat; starts and strides count elements. panel_tiles.py has a third tile.
"""

from .notation import cgutils, intrinsic, ir, types
from .targets import target

VECTOR_BYTES = target().vector_bytes
ROWS = 4
VECTORS = 3 if VECTOR_BYTES == 32 else 4  # AVX2 has 16 registers, the others have 32


class Lanes:
    """A vector type for the elements of an array, and the instructions on it."""

    def __init__(self, context, builder, kind):
        self.builder = builder
        self.element = context.get_data_type(kind)
        self.item_bytes = context.get_abi_sizeof(self.element)
        self.count = VECTOR_BYTES // self.item_bytes
        self.kind = ir.VectorType(self.element, self.count)
        self.suffix = f"v{self.count}f{8 * self.item_bytes}"

    def registers(self, vector, count):
        """Return new registers that hold this vector."""
        registers = [cgutils.alloca_once(self.builder, self.kind) for _ in range(count)]
        for register in registers:
            self.builder.store(vector, register)
        return registers

    @property
    def zero(self):
        return ir.Constant(self.kind, [0.0] * self.count)

    def load(self, pointer, index):
        return self.builder.load(self._at(pointer, index), align=self.item_bytes)

    def store(self, vector, pointer, index):
        self.builder.store(vector, self._at(pointer, index), align=self.item_bytes)

    def fetch(self, pointer, index):
        """Fetch a vector into the cache; an address of nothing is no error."""
        flags = ir.IntType(32)
        byte = ir.IntType(8).as_pointer()
        form = ir.FunctionType(ir.VoidType(), [byte, flags, flags, flags])
        prefetch = cgutils.get_or_insert_function(self.builder.module, form, "llvm.prefetch.p0i8")
        at = self.builder.bitcast(self.builder.gep(pointer, [index]), byte)
        self.builder.call(prefetch, [at, flags(0), flags(3), flags(1)])

    def _at(self, pointer, index):
        return self.builder.bitcast(self.builder.gep(pointer, [index]), self.kind.as_pointer())

    def repeated(self, number):
        """Return a vector of one number."""
        undefined = ir.Constant(self.kind, ir.Undefined)
        first = self.builder.insert_element(undefined, number, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.count), [0] * self.count)
        return self.builder.shuffle_vector(first, undefined, zeros)

    @property
    def fma(self):
        """The function that returns x y + z, rounded once."""
        return self._function("llvm.fma", ir.FunctionType(self.kind, [self.kind] * 3))

    def add_product(self, x, y, register):
        """Add x y to a register, rounded once."""
        total = self.builder.call(self.fma, [x, y, self.builder.load(register)])
        self.builder.store(total, register)

    def first(self, count):
        """Return a mask of the first `count` lanes."""
        number = self.builder.trunc(count, ir.IntType(32))
        undefined = ir.Constant(ir.VectorType(ir.IntType(32), self.count), ir.Undefined)
        numbers = self.builder.insert_element(undefined, number, ir.IntType(32)(0))
        zeros = ir.Constant(numbers.type, [0] * self.count)
        numbers = self.builder.shuffle_vector(numbers, undefined, zeros)
        lanes = ir.Constant(numbers.type, list(range(self.count)))
        return self.builder.icmp_signed("<", lanes, numbers)

    def weighted(self, terms):
        """Return the sum of constants times vectors, from the first of the terms on."""
        weights = [ir.Constant(self.kind, [float(weight)] * self.count) for weight, _ in terms]
        total = self.builder.fmul(weights[0], terms[0][1])
        for weight, (_, vector) in zip(weights[1:], terms[1:]):
            total = self.builder.call(self.fma, [weight, vector, total])
        return total

    def total(self, register):
        """Return the sum of the lanes of a register: halves are added, down to one number."""
        total, count = self.builder.load(register), self.count
        while count > 1:
            count //= 2
            kind = ir.VectorType(ir.IntType(32), count)
            low, high = [
                self.builder.shuffle_vector(total, total, ir.Constant(kind, list(lanes)))
                for lanes in (range(count), range(count, 2 * count))
            ]
            total = self.builder.fadd(low, high)
        return self.builder.extract_element(total, ir.IntType(32)(0))

    def _function(self, name, form):
        return cgutils.get_or_insert_function(self.builder.module, form, f"{name}.{self.suffix}")


def index(number):
    """Return a constant that counts elements."""
    return ir.IntType(64)(number)


def smaller(builder, x, y):
    """Return the smaller of two integers, signed."""
    return builder.select(builder.icmp_signed("<", x, y), x, y)


def pointers(context, builder, signature, arguments):
    """Return the pointers to the elements of array arguments, and the others as they are."""
    return [
        context.make_array(kind)(context, builder, value).data
        if isinstance(kind, types.Array)
        else value
        for kind, value in zip(signature.args, arguments)
    ]


def call_once_written(builder, name, given, write):
    """Call the function of this name, one for all calls of a loop: it is long.

    write   (builder, arguments): writes its instructions, at the first call
    """
    form = ir.FunctionType(ir.VoidType(), [value.type for value in given])
    function = cgutils.get_or_insert_function(builder.module, form, f"shardkit_{name}")
    if function.is_declaration:
        function.linkage = "internal"
        function.attributes.add("noinline")
        inside = ir.IRBuilder(function.append_basic_block())
        write(inside, function.args)
        inside.ret_void()
    builder.call(function, given)


def tile_product(num_rows, num_vectors):
    """Return multiply_tile for tiles of so many rows, and vectors in each."""

    @intrinsic
    def multiply_tile(
        typing_context,
        weights,
        first_row,
        last_row,
        row_stride,
        places,
        start,
        source,
        at_source,
        offsets,
        depth,
        out,
        at_out,
        out_stride,
    ):
        """Set out[r, p] = start[r] + sum over k < depth of weights[r, k] source[p + offsets[k]].

        first_row    the tile's first row of weights and start; those beyond last_row repeat it
        row_stride, places   weights[r, k] is element r row_stride + places[k]
        """
        n = types.intp
        signature = types.void(weights, n, n, n, places, start, source, n, offsets, n, out, n, n)

        def generate(context, builder, signature, arguments):
            lanes = Lanes(context, builder, source.dtype)
            w, first, last, w_stride, w_table, b, s, at_s, table, depth, y, at_y, stride = pointers(
                context, builder, signature, arguments
            )
            rows = [smaller(builder, builder.add(first, index(r)), last) for r in range(num_rows)]
            starts = [builder.gep(w, [builder.mul(row, w_stride)]) for row in rows]
            levels = [lanes.repeated(builder.load(builder.gep(b, [row]))) for row in rows]
            sums = [lanes.registers(level, num_vectors) for level in levels]
            with cgutils.for_range(builder, depth) as loop:
                at = builder.add(at_s, builder.load(builder.gep(table, [loop.index])))
                at_w = builder.load(builder.gep(w_table, [loop.index]))
                read = [
                    lanes.load(s, builder.add(at, index(v * lanes.count)))
                    for v in range(num_vectors)
                ]
                for row, pointer in zip(sums, starts):
                    number = lanes.repeated(builder.load(builder.gep(pointer, [at_w])))
                    for vector, register in zip(read, row):
                        lanes.add_product(number, vector, register)
            for r, row in enumerate(sums):
                at = builder.add(at_y, builder.mul(stride, index(r)))
                for v, register in enumerate(row):
                    place = builder.add(at, index(v * lanes.count))
                    lanes.store(builder.load(register), y, place)
            return context.get_dummy_value()

        return signature, generate

    return multiply_tile


def tile_of_dots(num_rows, num_columns, ahead=0):
    """Return dot_tile for tiles of so many rows and columns.

    ahead   vectors from those that are read to those that are fetched into the cache; 0: none are
    """

    @intrinsic
    def dot_tile(
        typing_context,
        length,
        left,
        at_left,
        left_stride,
        source,
        at_source,
        offsets,
        at_offsets,
        out,
        at_out,
        out_stride,
    ):
        """Add to out[r, k] the sum over p < length * lanes of left[r, p] source[p + offsets[k]]."""
        n = types.intp
        signature = types.void(n, left, n, n, source, n, offsets, n, out, n, n)

        def generate(context, builder, signature, arguments):
            lanes = Lanes(context, builder, left.dtype)
            length, x, at_x, x_stride, s, at_s, table, at_table, y, at_y, stride = pointers(
                context, builder, signature, arguments
            )
            row_starts = [
                builder.add(at_x, builder.mul(x_stride, index(r))) for r in range(num_rows)
            ]
            in_table = [builder.add(at_table, index(k)) for k in range(num_columns)]
            column_starts = [
                builder.add(at_s, builder.load(builder.gep(table, [place]))) for place in in_table
            ]
            sums = [lanes.registers(lanes.zero, num_columns) for _ in range(num_rows)]
            with cgutils.for_range(builder, length) as loop:
                p = builder.mul(loop.index, index(lanes.count))
                read = [lanes.load(x, builder.add(start, p)) for start in row_starts]
                for k, start in enumerate(column_starts):
                    place = builder.add(start, p)
                    if ahead:
                        lanes.fetch(s, builder.add(place, index(ahead * lanes.count)))
                    vector = lanes.load(s, place)
                    for r in range(num_rows):
                        lanes.add_product(read[r], vector, sums[r][k])
            for r, row in enumerate(sums):
                start = builder.add(at_y, builder.mul(stride, index(r)))
                for k, register in enumerate(row):
                    place = builder.gep(y, [builder.add(start, index(k))])
                    total = builder.fadd(builder.load(place), lanes.total(register))
                    builder.store(total, place)
            return context.get_dummy_value()

        return signature, generate

    return dot_tile


@intrinsic
def copy_row(typing_context, count, source, at_source, source_step, out, at_out, out_step):
    """Copy `count` elements, every source_step-th to every out_step-th place. Nothing overlaps."""
    n = types.intp
    signature = types.void(n, source, n, n, out, n, n)

    def generate(context, builder, signature, arguments):
        count, x, at_x, x_step, y, at_y, y_step = pointers(context, builder, signature, arguments)
        x, y = builder.gep(x, [at_x]), builder.gep(y, [at_y])
        one = index(1)
        is_plain = builder.and_(
            builder.icmp_signed("==", x_step, one), builder.icmp_signed("==", y_step, one)
        )
        item_bytes = context.get_abi_sizeof(context.get_data_type(source.dtype))
        with builder.if_else(is_plain) as (plain, stepped):
            with plain:
                cgutils.raw_memcpy(builder, y, x, count, item_bytes)
            with stepped, cgutils.for_range(builder, count) as loop:
                value = builder.load(builder.gep(x, [builder.mul(loop.index, x_step)]))
                builder.store(value, builder.gep(y, [builder.mul(loop.index, y_step)]))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def clear_row(typing_context, count, out, at_out):
    """Set `count` elements to zero."""
    signature = types.void(types.intp, out, types.intp)

    def generate(context, builder, signature, arguments):
        count, y, at_y = pointers(context, builder, signature, arguments)
        item_bytes = context.get_abi_sizeof(context.get_data_type(out.dtype))
        num_bytes = builder.mul(count, index(item_bytes))
        cgutils.memset(builder, builder.gep(y, [at_y]), num_bytes, 0)
        return context.get_dummy_value()

    return signature, generate
