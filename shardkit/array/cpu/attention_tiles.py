"""The loops of attention: tiles of scores, forward and backward, head after head.

The keys and values of a head are packed once, transposed where they are multiplied by rows; so are
queries and gradients, and panels.py multiplies them. With up to KEYS keys a row of tiles is one
tile, and its softmax the plain one. Longer sequences go from tile to tile with the maximum and the
sum of each row so far (arXiv 1805.02867, 2205.14135). In the backward, keys stay in cache while
the queries that see them pass. Exponentials are powers of two, of scores by scale / ln 2.

Where the CPU multiplies bfloat16, rows of bfloat16 are packed as words (packing.py): products then
take rounded operands, among them the weights of a tile, and add up in float32, as softmax does.
"""

import math
from typing import NamedTuple

import numpy

from .compiled import inlined
from .packing import per_item, round_below, round_beside
from .panels import PANEL_ROWS, lanes_for, multiply
from .scalar import either, exp2, fma, larger, like, plus
from .storage import wide

# of a tile; chosen on a Xeon at 1024 and 3072 tokens among 48 .. 192 and 192 .. 768
QUERIES = 96
KEYS = 768
BLOCK_KEYS = 64  # whose rows stay in the first cache, while those of queries pass
HIDDEN = 8  # scores of a row behind those it sees that are 0: PANEL_ROWS, and as many as a word has
LN_2 = math.log(2)


class HeadSizes(NamedTuple):
    """The sizes of a call."""

    num_heads: int
    num_key_heads: int
    num_queries: int
    num_keys: int  # that any query sees
    head_dim: int
    first_query: int


class HeadRows(NamedTuple):
    """An array [B, H, S, D] whose rows [D] lie in one piece.

    flat               from its first element on
    sample, head, row  elements from one to the next
    """

    flat: numpy.ndarray
    sample: int
    head: int
    row: int


class HeadMask(NamedTuple):
    """What is added to scores / ln 2: [samples, heads, queries, T and a gap], or nothing.

    flat               from its first element on; -inf where a query does not see a key
    sample, head, row  elements from one to the next: 0 where all have the same
    spans              [blocks of QUERIES rows, 2] the first key that any row of a block sees, and
                       the one behind the last; without a mask there are no spans
    of_sample, of_head, of_block  spans from one to the next
    """

    flat: numpy.ndarray
    sample: int
    head: int
    row: int
    spans: numpy.ndarray
    of_sample: int
    of_head: int
    of_block: int


class ForwardBuffers(NamedTuple):
    """Arrays that the forward of a head works in; width is D, padded. Marked * may be words."""

    across: numpy.ndarray  # * [panels, D, panel width], the keys
    values: numpy.ndarray  # * [keys, width]
    queries: numpy.ndarray  # * [rows of a tile, width]
    scores: numpy.ndarray  # [rows of a tile, columns and a gap]
    weights: numpy.ndarray  # * scores themselves, or rounded to words
    sums: numpy.ndarray  # [rows of a tile, width]: y so far
    top: numpy.ndarray  # [rows of a tile], of scores / ln 2
    total: numpy.ndarray  # [rows of a tile], of their powers of two


class BackwardBuffers(NamedTuple):
    """Arrays that the backward of a head works in; width is D, padded. Marked * may be words, and
    is the array that is named, where it is not.
    """

    keys_across: numpy.ndarray  # * [panels, D, panel width]
    values_across: numpy.ndarray  # *
    keys: numpy.ndarray  # * [keys, width]
    for_keys: numpy.ndarray  # [keys, width]
    for_values: numpy.ndarray
    queries: numpy.ndarray  # * [queries, width]
    gradients: numpy.ndarray  # *
    queries_below: numpy.ndarray  # * queries
    gradients_below: numpy.ndarray  # * gradients
    for_queries: numpy.ndarray  # [queries, width]
    scores: numpy.ndarray  # [rows of a tile, columns and a gap]
    for_scores: numpy.ndarray
    weights_below: numpy.ndarray  # * scores
    for_scores_beside: numpy.ndarray  # * for_scores
    for_scores_below: numpy.ndarray  # * for_scores
    levels: numpy.ndarray  # [queries]: log_sums / ln 2
    along: numpy.ndarray  # [queries]: sums of gradient y


@inlined
def start_of(x, sample, head):
    """Return where the rows of a head begin."""
    return sample * x.sample + head * x.head


@inlined
def seen_rows(mask, sample, head, row, height, num_keys):
    """Return where the mask of a block of rows begins, and the span of keys that they see."""
    if len(mask.spans) == 0:
        return 0, 0, num_keys
    block = sample * mask.of_sample + head * mask.of_head
    block += row // height * mask.of_block
    first, end = mask.spans[block]
    return start_of(mask, sample, head) + row * mask.row, first, min(num_keys, end)


@inlined
def dot(x, y):
    """Return the sum of x y, for y of at least the length of x."""
    total = like(0.0, wide(x[0]))
    for d in range(x.size):
        total = plus(total, wide(x[d]) * wide(y[d]))
    return total


# ---- products of a tile --------------------------------------------------------------------------


@inlined
def _first_to_see(key, num_visible):
    """Return the first row of a tile that sees this key, down to a multiple of PANEL_ROWS."""
    return max(0, key - num_visible + 1) // PANEL_ROWS * PANEL_ROWS


@inlined
def _hidden_before(first, key, width):
    """Return how many keys of a tile that begins at `key` none of its queries sees, of which the
    first one sees keys from `first` on; down to a multiple of a panel.
    """
    return max(0, first - key) // width * width


@inlined
def _multiply_scores(rows, at_row, across, key, shape, num_visible, scores):
    """Set scores to the products of packed rows and transposed ones, where they are visible.

    Hidden ones nearby are computed too, up to whole vectors; others are left as they are.
    """
    num_rows, num_keys = shape
    _, depth, width = across.shape
    step = scores.shape[1]
    row_step = rows.shape[1]
    lanes = lanes_for(scores)
    rows, panels, out = rows.reshape(-1), across.reshape(-1), scores.reshape(-1)
    for column in range(0, num_keys, width):
        b = (key + column) * depth, width
        for row in range(_first_to_see(column, num_visible), num_rows, PANEL_ROWS):
            seen = _seen_by_tile(row, column, num_visible, min(width, num_keys - column))
            whole = (seen + lanes - 1) // lanes * lanes
            sizes = min(PANEL_ROWS, num_rows - row), depth, whole
            a = (at_row + row) * row_step, row_step, 1
            c = row * step + column, step
            multiply(sizes, rows, a, panels, b, out, c, True)


@inlined
def _seen_by_tile(row, column, num_visible, num_columns):
    """Return how many of the keys from a column on the last of PANEL_ROWS rows sees."""
    seen_by_last = num_visible + row + PANEL_ROWS - 1
    return min(num_columns, seen_by_last - column)


@inlined
def _add_by_query(weights, shape, num_visible, source, key, first, out, at_row):
    """Add the weights of a tile times rows of keys to rows of queries, set by key `first`."""
    num_rows, num_keys = shape
    step, width, per = weights.shape[1], out.shape[1], per_item(weights)
    weights, source, out = weights.reshape(-1), source.reshape(-1), out.reshape(-1)
    for column in range(0, num_keys, BLOCK_KEYS):
        b = (key + column) // per * width, width
        for row in range(_first_to_see(column, num_visible), num_rows, PANEL_ROWS):
            seen = _seen_by_tile(row, column, num_visible, min(BLOCK_KEYS, num_keys - column))
            sizes = min(PANEL_ROWS, num_rows - row), (seen + per - 1) // per, width
            at = row * step + column // per
            a = at, step, 1
            c = (at_row + row) * width, width
            multiply(sizes, weights, a, source, b, out, c, key + column == first)


@inlined
def _add_by_key(weights, shape, num_visible, source, at_row, out, key):
    """Add the transposed weights of a tile times rows of queries to rows of keys."""
    num_rows, num_keys = shape
    step, width, per = weights.shape[1], out.shape[1], per_item(weights)
    weights, source, out = weights.reshape(-1), source.reshape(-1), out.reshape(-1)
    for column in range(0, num_keys, PANEL_ROWS):
        row = max(0, column - num_visible + 1) // per
        sizes = min(PANEL_ROWS, num_keys - column), (num_rows + per - 1) // per - row, width
        a = row * step + column, 1, step
        b = (at_row // per + row) * width, width
        c = (key + column) * width, width
        multiply(sizes, weights, a, source, b, out, c, False)


# ---- forward -------------------------------------------------------------------------------------


@inlined
def log_sum(top, total):
    """Return the logarithm of a sum of powers of e, from that of powers of 2."""
    return top * like(LN_2, top) + math.log(total)


@inlined
def attend_rows(sizes, row, num_rows, times, firsts, mask, seen, buffers):
    """Compute rows of y in buffers.sums, with the maxima and sums of their scores by `times`.

    firsts      [queries] the first key that each sees, ascending
    mask, seen  a HeadMask, and the seen_rows of these
    """
    across, scores = buffers.across, buffers.scores
    weights, sums = buffers.weights, buffers.sums
    buffers.top[:] = -numpy.inf
    buffers.total[:] = 0
    at_mask, first_seen, end = seen
    first = _hidden_before(max(firsts[row], first_seen), 0, across.shape[2])
    end = min(end, sizes.first_query + row + num_rows)
    if first >= end or first > sizes.first_query + row:
        sums[:] = 0  # of rows that see nothing, which no product sets
    for key in range(first, end, KEYS):
        num_visible = sizes.first_query + row - key + 1
        shape = num_rows, min(KEYS, end - key)
        _multiply_scores(buffers.queries, 0, across, key, shape, num_visible, scores)
        by = _add_mask(mask, at_mask + key, shape, num_visible, times, scores)
        so_far = buffers.top, buffers.total, sums
        _softmax_tile(scores, shape, num_visible, firsts[row:], key, by, so_far, key > first)
        round_beside(scores, shape[0], shape[1], weights)
        _add_by_query(weights, shape, num_visible, buffers.values, key, first, sums, 0)
    for i in range(num_rows):
        total = buffers.total[i]
        divisor = either(total == 0, like(1.0, total), total)  # a row that sees nothing
        for d in range(sums.shape[1]):
            sums[i, d] /= divisor


@inlined
def _add_mask(mask, start, shape, num_visible, times, scores):
    """Turn scores that are seen into times scores + mask, if there is one, and return by what they
    are to be multiplied then.
    """
    if len(mask.spans) == 0:
        return times
    lanes = lanes_for(scores)
    for i in range(shape[0]):
        seen = max(0, min(num_visible + i, shape[1]))
        row = scores[i]
        added = mask.flat[start + i * mask.row :]
        for j in range((seen + lanes - 1) // lanes * lanes):
            both = fma(row[j], times, added[j])
            is_hidden = added[j] == -numpy.inf
            row[j] = either(is_hidden, added[j], both)  # even NaN is hidden
    return like(1.0, times)


@inlined
def _finite(level):
    """Return a level to take from scores: 0 of a row that sees nothing, whose scores are -inf."""
    return either(level == -numpy.inf, like(0.0, level), level)


@inlined
def _hide_rest(row, seen, stop, instead):
    """Set the scores of a row from `seen` to the end of a vector to a number.

    As a vector: what is read as one soon must not have been written number by number.
    """
    if seen < stop:
        start = stop - lanes_for(row)
        last = row[start:stop]
        for j in range(lanes_for(row)):
            last[j] = either(j < seen - start, last[j], instead)


@inlined
def _hide_next(row, stop):
    """Set the next HIDDEN scores of a row to 0."""
    next_ones = row[stop : stop + HIDDEN]
    for j in range(HIDDEN):
        next_ones[j] = 0


@inlined
def _softmax_tile(scores, shape, num_visible, firsts, key, times, so_far, is_later):
    """Turn scores into 2^(times scores - top), and into 0 before the first key that a row sees, and
    HIDDEN ones behind the last.

    num_visible  keys up to the last that the first row sees
    firsts, key  the first key that each row sees, and that of the tile
    so_far       top, total, sums of each row, brought up to date: what was added up is multiplied
                 by what a larger top makes of it
    """
    num_rows, num_keys = shape
    top, total, sums = so_far
    lanes = lanes_for(scores)
    for i in range(num_rows):
        seen = max(0, min(num_visible + i, num_keys))
        begin = max(0, firsts[i] - key)
        stop = (seen + lanes - 1) // lanes * lanes
        if begin >= seen > 0:  # the row sees keys of later tiles alone
            for j in range(stop):
                scores[i, j] = 0
            _hide_next(scores[i], stop)
            continue
        old = highest = top[i]
        added = like(0.0, old)
        one_seen = scores[i, begin]  # instead of hidden ones: the highest stays right
        for j in range(begin):
            scores[i, j] = one_seen
        _hide_rest(scores[i], seen, stop, one_seen)
        for j in range(stop):
            highest = larger(highest, scores[i, j] * times)
        base = _finite(highest)
        for j in range(stop):
            beyond = fma(scores[i, j], times, -base)
            scores[i, j] = exp2(beyond)
        for j in range(begin):
            scores[i, j] = 0
        _hide_rest(scores[i], seen, stop, added)
        if seen < num_keys:
            _hide_next(scores[i], stop)
        for j in range(stop):
            added = plus(added, scores[i, j])
        factor = exp2(old - base)
        top[i] = highest
        total[i] = total[i] * factor + added
        if is_later and factor != like(1.0, factor):
            for d in range(sums.shape[1]):
                sums[i, d] *= factor


# ---- backward ------------------------------------------------------------------------------------


@inlined
def attend_backward_head(sizes, times, firsts, mask, sample, head, buffers):
    """Add up the gradients of a head: those of queries and keys without the scale.

    firsts  as of attend_rows; mask  a HeadMask
    """
    scores, for_scores = buffers.scores, buffers.for_scores
    keys, values = buffers.keys_across, buffers.values_across
    queries, gradients = buffers.queries, buffers.gradients
    weights, beside = buffers.weights_below, buffers.for_scores_beside
    below, by_query = buffers.for_scores_below, buffers.for_queries
    height, width = scores.shape[0], keys.shape[2]
    if firsts[sizes.num_queries - 1] > 0 or len(mask.spans) > 0:
        by_query[:] = 0  # not every query sees one of the first keys, which set it
    for first_key in range(0, sizes.num_keys, KEYS):
        first_row = max(0, first_key - sizes.first_query) // height * height
        for row in range(first_row, sizes.num_queries, height):
            num_rows = min(height, sizes.num_queries - row)
            at_mask, first, end = seen_rows(mask, sample, head, row, height, sizes.num_keys)
            num_hidden = _hidden_before(max(firsts[row], first), first_key, width)
            key = first_key + num_hidden
            num_visible = sizes.first_query + row - key + 1
            num_keys = min(first_key + KEYS, end) - key
            shape = num_rows, min(num_keys, num_visible + num_rows - 1)
            if shape[1] <= 0:
                continue
            _multiply_scores(queries, row, keys, key, shape, num_visible, scores)
            _multiply_scores(gradients, row, values, key, shape, num_visible, for_scores)
            by = _add_mask(mask, at_mask + key, shape, num_visible, times, scores)
            levels, along = buffers.levels[row:], buffers.along[row:]
            both = scores, for_scores
            _gradient_tile(both, shape, num_visible, firsts[row:], key, by, levels, along)
            round_below(scores, num_rows, shape[1], weights)
            round_beside(for_scores, num_rows, shape[1], beside)
            round_below(for_scores, num_rows, shape[1], below)
            _add_by_query(beside, shape, num_visible, buffers.keys, key, 0, by_query, row)
            source, out = buffers.gradients_below, buffers.for_values
            _add_by_key(weights, shape, num_visible, source, row, out, key)
            source, out = buffers.queries_below, buffers.for_keys
            _add_by_key(below, shape, num_visible, source, row, out, key)


@inlined
def _gradient_tile(both, shape, num_visible, firsts, key, times, levels, along):
    """Turn scores p into probabilities, and gradients of these into those of scores / scale.

    num_visible, firsts, key  as of _softmax_tile
    """
    num_rows, num_keys = shape
    p, for_scores = both
    lanes = lanes_for(p)
    for i in range(num_rows):
        seen = max(0, min(num_visible + i, num_keys))
        begin = max(0, min(firsts[i] - key, num_keys))
        stop = (seen + lanes - 1) // lanes * lanes
        level, top = along[i], _finite(levels[i])
        for j in range(stop):
            beyond = fma(p[i, j], times, -top)
            p[i, j] = exp2(beyond)
        for j in range(stop):
            above = for_scores[i, j] - level
            for_scores[i, j] = p[i, j] * above
        for j in range(begin):
            p[i, j] = for_scores[i, j] = 0
        if seen < num_keys:
            for tile in (p, for_scores):
                _hide_rest(tile[i], seen, stop, like(0.0, level))
                _hide_next(tile[i], stop)
