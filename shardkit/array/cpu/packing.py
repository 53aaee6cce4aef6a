"""Packing: rows of any step, laid out for panels.py to multiply.

    pack         rows, side by side, padded with 0: on the left
    pack_across  rows, transposed: panels [PANEL_VECTORS vectors of rows] of each element
    pack_below   rows that are summed over, padded with 0: on the right; _too: besides pack
    round_beside, round_below    a tile of weights, as it is or transposed: on the left of rows
    unpack       rows, back to where they belong

What is packed is numbers to compute with: rows of bfloat16 (storage.py) become float32. Or it is
words of uint32, two bfloat16 each, for instructions that multiply these (panel_tiles.py). The dtype
of what is packed into decides.

    rows          words of pack, pack_across, round_beside      of pack_below, round_below
    a b c d       (a, b) (c, d)                                 (a, e) (b, f) (c, g) (d, h)
    e f g h       (e, f) (g, h)
"""

from .notation import inlined, overload, types
from .panels import lanes_for
from .scalar import like
from .storage import bfloat16_bits, narrow, wide


def per_item(x):
    """Return how many numbers an item of x holds, in a compiled loop: two for words."""
    raise NotImplementedError("per_item works in compiled loops only")


@overload(per_item)
def _per_item(x):
    count = 2 if x.dtype == types.uint32 else 1
    return lambda x: count


def _by_kind(of_numbers, of_words):
    """Return what overload() wants: one of two loops, by the dtype of their last argument."""
    return lambda *arguments: of_words if arguments[-1].dtype == types.uint32 else of_numbers


def pack(x, start, step, num_rows, num_elements, out):
    """Set out [num_rows, padded] to rows [num_elements] of x, and 0 beyond."""
    raise NotImplementedError("pack works in compiled loops only")


def pack_across(x, start, step, num_rows, num_elements, out):
    """Set out [panels, num_elements, width] to the rows of x, transposed, and 0 beyond them up to
    a whole vector.
    """
    raise NotImplementedError("pack_across works in compiled loops only")


def pack_below(x, start, step, num_rows, num_elements, out):
    """Set out [num_rows, padded] to rows [num_elements] of x, and 0 beyond; words take two rows."""
    raise NotImplementedError("pack_below works in compiled loops only")


def pack_below_too(x, start, step, num_rows, num_elements, out):
    """Do as pack_below after pack; numbers are packed as they have to be, and `out` is the same."""
    raise NotImplementedError("pack_below_too works in compiled loops only")


def round_beside(tile, num_rows, num_columns, out):
    """Round rows of a tile of float32 to words; numbers stay as they are, where they are."""
    raise NotImplementedError("round_beside works in compiled loops only")


def round_below(tile, num_rows, num_columns, out):
    """Round pairs of rows of a tile to words; numbers stay as they are, where they are."""
    raise NotImplementedError("round_below works in compiled loops only")


@inlined
def unpack(x, num_rows, num_elements, factor, out, start, step):
    """Set rows of out to `factor` times rows [num_elements] of x [num_rows, padded]."""
    for i in range(num_rows):
        source = x[i]
        begin = start + i * step
        target = out[begin : begin + num_elements]
        for d in range(num_elements):
            target[d] = narrow(source[d] * factor, target)


@inlined
def _whole_vectors(count, x):
    """Return the next multiple of the numbers of a vector."""
    lanes = lanes_for(x)
    return (count + lanes - 1) // lanes * lanes


# ---- numbers -------------------------------------------------------------------------------------


def _pack_numbers(x, start, step, num_rows, num_elements, out):
    for i in range(num_rows):
        begin = start + i * step
        source = x[begin : begin + num_elements]
        target = out[i]
        for d in range(num_elements):
            target[d] = wide(source[d])
        for d in range(num_elements, target.size):
            target[d] = 0


def _pack_numbers_across(x, start, step, num_rows, num_elements, out):
    width = out.shape[2]
    for panel in range(out.shape[0]):
        target = out[panel]
        for c in range(min(width, _whole_vectors(num_rows - panel * width, out))):
            row = panel * width + c
            if row < num_rows:
                begin = start + row * step
                source = x[begin : begin + num_elements]
                for d in range(num_elements):
                    target[d, c] = wide(source[d])
            else:
                for d in range(num_elements):
                    target[d, c] = like(0.0, target[d, c])


def _leave(*arguments):
    """Do nothing: numbers are multiplied as they are."""


# ---- words ---------------------------------------------------------------------------------------


@inlined
def word(first, second):
    """Return two bfloat16, as their bits, in one word."""
    return types.uint32(first) | types.uint32(second) << types.uint32(16)


def _pack_words(x, start, step, num_rows, num_elements, out):
    for i in range(num_rows):
        begin = start + i * step
        source = x[begin : begin + num_elements]
        target = out[i]
        for d in range(num_elements // 2):
            target[d] = word(source[2 * d], source[2 * d + 1])
        for d in range(num_elements // 2, target.size):
            target[d] = 0
        if num_elements % 2:
            target[num_elements // 2] = source[num_elements - 1]


def _pack_words_across(x, start, step, num_rows, num_elements, out):
    width = out.shape[2]
    for panel in range(out.shape[0]):
        target = out[panel]
        for c in range(min(width, _whole_vectors(num_rows - panel * width, out))):
            row = panel * width + c
            if row < num_rows:
                begin = start + row * step
                source = x[begin : begin + num_elements]
                for d in range(num_elements // 2):
                    target[d, c] = word(source[2 * d], source[2 * d + 1])
                if num_elements % 2:
                    target[num_elements // 2, c] = source[num_elements - 1]
            else:
                target[:, c] = 0


def _pack_words_below(x, start, step, num_rows, num_elements, out):
    for i in range((num_rows + 1) // 2):
        at = start + 2 * i * step
        first, target = x[at : at + num_elements], out[i]
        if 2 * i + 1 < num_rows:
            second = x[at + step : at + step + num_elements]
            for d in range(num_elements):
                target[d] = word(first[d], second[d])
        else:
            for d in range(num_elements):
                target[d] = first[d]
        for d in range(num_elements, target.size):
            target[d] = 0


def _round_words_beside(tile, num_rows, num_columns, out):
    for i in range(num_rows):
        source, target = tile[i], out[i]
        for j in range(num_columns // 2):
            first = bfloat16_bits(source[2 * j])
            second = bfloat16_bits(source[2 * j + 1])
            target[j] = word(first, second)
        if num_columns % 2:
            target[num_columns // 2] = bfloat16_bits(source[num_columns - 1])


def _round_words_below(tile, num_rows, num_columns, out):
    for i in range(num_rows // 2):
        first, second = tile[2 * i], tile[2 * i + 1]
        target = out[i]
        for j in range(num_columns):
            target[j] = word(bfloat16_bits(first[j]), bfloat16_bits(second[j]))
    if num_rows % 2:
        last, target = tile[num_rows - 1], out[num_rows // 2]
        for j in range(num_columns):
            target[j] = bfloat16_bits(last[j])


overload(pack, strict=False)(_by_kind(_pack_numbers, _pack_words))
overload(pack_across, strict=False)(_by_kind(_pack_numbers_across, _pack_words_across))
overload(pack_below, strict=False)(_by_kind(_pack_numbers, _pack_words_below))
overload(pack_below_too, strict=False)(_by_kind(_leave, _pack_words_below))
overload(round_beside, strict=False)(_by_kind(_leave, _round_words_beside))
overload(round_below, strict=False)(_by_kind(_leave, _round_words_below))
