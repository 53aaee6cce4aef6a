"""An LSTM, all its steps in one loop, and steps of a GRU; each in one pass over the gates.

    for each step:   rows [x[t] | hidden]  --panels of both weights-->  gates --> cell, hidden
    back again:      gradients of gates    --panels-->  [those of hidden | those of x[t]]
    of some steps:   (gradients of gates)^T  x  panels of [hidden | x[t]]  --> those of weights

Weights are laid into panels once for all steps. What a step reads and writes stays in cache, and
the gradients of gates are never in memory as a whole.
"""

from .. import fresh, products
from ..arena import empty
from ..registry import on_cpu
from .arrays import padded, plain
from .compiled import compiled, inlined
from .panels import SLIM_VECTORS, TALL_ROWS, multiply_rows, tall_tile
from .scalar import like, logistic
from .tiles import copy_row

DEPTH = 256  # rows of a sum of outer products: they stay in cache
CALL_MULTIPLICATIONS = 1 << 26  # of a call of a loop, between two looks at messages


@on_cpu
def lstm(x, hidden, cell, w_ih, w_hh, bias):
    steps, batch, num_inputs = x.shape
    (rows, width), dtype = w_hh.shape, x.dtype
    depth = num_inputs + width
    gates = empty((steps, batch, rows), dtype)
    cells = empty((steps + 1, batch, width), dtype)
    states = empty((steps + 2, batch, width), dtype)
    cells[0], states[0] = cell, hidden
    panels = _panels(rows, depth, dtype)
    buffers = panels, empty((batch, depth), dtype), empty(_beside(panels, batch), dtype)
    level = fresh.zeros((rows,), dtype) if bias is None else plain(bias)
    inputs = map(plain, (x, w_ih, w_hh))
    given = *inputs, level, *buffers, gates, cells, states
    for first, last in _runs(steps, batch * rows * depth):
        products.do_meanwhile()
        _lstm(first, last, *given)
    states[steps + 1] = cells[steps]
    return gates, cells, states


@on_cpu
def lstm_backward(gradient, x, w_ih, w_hh, gates, cells, states, wants_x, wants_weights):
    steps, batch, rows = gates.shape
    width, dtype = cells.shape[2], gates.dtype
    num_inputs = x.shape[2]
    for_x = empty((steps, batch, num_inputs if wants_x else 0), dtype)
    at_x = padded(width, SLIM_VECTORS, dtype)  # the column where those of x begin
    back = _panels(at_x + for_x.shape[2], rows, dtype)
    through = fresh.zeros(_beside(back, batch), dtype)
    for_cell = fresh.copy(gradient[steps])
    length = max(1, DEPTH // max(1, batch))  # steps of a sum of outer products
    for_rows = empty((length * batch, rows), dtype)
    tile = empty((length * batch, TALL_ROWS), dtype)
    columns = _panels(at_x + num_inputs if wants_weights else 0, length * batch, dtype)
    sums = fresh.zeros(_beside(columns, rows), dtype)
    level = fresh.zeros((rows,), dtype)
    weights = plain(w_ih), plain(w_hh), at_x, back, through
    kept = map(plain, (x, gates, cells, states))
    results = for_rows, tile, columns, sums, level, for_x, for_cell
    given = plain(gradient), *weights, empty((2, width), dtype), *kept, *results
    multiplications = 2 * batch * rows * (num_inputs + width)
    for first, last in reversed(_runs(steps, multiplications, length)):
        products.do_meanwhile()
        _lstm_backward(first, last, *given)
    before = for_x if wants_x else None, fresh.copy(through[:, :width]), for_cell
    if not wants_weights:
        return *before, None, None, None
    for_w_ih = fresh.copy(sums[:, at_x : at_x + num_inputs])
    return *before, for_w_ih, fresh.copy(sums[:, :width]), level


def _panels(num_columns, depth, dtype):
    """Return a buffer for a matrix [depth, columns] in panels."""
    width = padded(1, SLIM_VECTORS, dtype)
    return empty((-(-num_columns // width), depth, width), dtype)


def _beside(panels, num_rows):
    """Return the shape of so many rows of products with panels."""
    return num_rows, panels.shape[0] * panels.shape[2]


def _runs(steps, multiplications, multiple=1):
    """Return (first, last) of the steps of each call of a loop, a multiple of steps but the last.

    multiplications   of a step
    """
    length = max(1, CALL_MULTIPLICATIONS // max(1, multiplications * multiple)) * multiple
    return [(first, min(first + length, steps)) for first in range(0, steps, length)]


@on_cpu
def gru_step(from_input, from_hidden, hidden, out=(None, None)):
    batch, width = hidden.shape
    out = _buffers(out, ((batch, 4 * width), hidden.shape), hidden.dtype)
    _gru_step(plain(from_input), plain(from_hidden), plain(hidden), *out)
    return out


@on_cpu
def gru_step_backward(for_hidden, gates, before, out=(None, None, None)):
    batch, width = before.shape
    three = (batch, 3 * width)
    out = _buffers(out, (three, three, before.shape), before.dtype)
    _gru_step_backward(plain(for_hidden), plain(gates), plain(before), *out)
    return out


def _buffers(out, shapes, dtype):
    return tuple(
        [empty(shape, dtype) if buffer is None else buffer for buffer, shape in zip(out, shapes)]
    )


@inlined
def _tanh(x):
    return like(2.0, x) * logistic(x + x) - like(1.0, x)


@inlined
def _complement(x):
    return like(1.0, x) - x


# LLVM makes vectors of loops with few streams whose index it knows to be positive: parts of a row
# are views, indexed from 0, since an index such as 2 * width + j might count from the end.


@compiled
def _lstm(first, last, x, w_ih, w_hh, bias, panels, rows, product, gates, cells, states):
    """Compute steps first .. last - 1. rows [B, in + H]; panels are set by the first call."""
    num_inputs, width = x.shape[2], cells.shape[2]
    if first == 0:
        _lay_across(w_ih, 0, panels)
        _lay_across(w_hh, num_inputs, panels)
    for t in range(first, last):
        for b in range(len(rows)):
            row = rows[b]
            _copy(x[t, b], row)
            _copy(states[t, b], row[num_inputs:])
        multiply_rows(rows.reshape(-1), 0, rows.shape[1], len(rows), panels, product)
        for b in range(len(rows)):
            row = gates[t, b]
            y, level = product[b], bias
            for j in range(2 * width):
                row[j] = logistic(y[j] + level[j])
            g = row[2 * width :]
            y, level = y[2 * width :], level[2 * width :]
            for j in range(width):
                g[j] = _tanh(y[j] + level[j])
            o = g[width:]
            y, level = y[width:], level[width:]
            for j in range(width):
                o[j] = logistic(y[j] + level[j])
            f, c = row[width:], cells[t + 1, b]
            before = cells[t, b]
            h = states[t + 1, b]
            for j in range(width):
                kept = f[j] * before[j]
                c[j] = kept + row[j] * g[j]
            for j in range(width):
                h[j] = o[j] * _tanh(c[j])


@compiled
def _lstm_backward(
    first,
    last,
    gradient,
    w_ih,
    w_hh,
    at_x,
    back,
    through,
    scratch,
    x,
    gates,
    cells,
    states,
    for_rows,
    tile,
    columns,
    sums,
    level,
    for_x,
    for_cell,
):
    """Compute steps last - 1 .. first.

    back       w_hh and, from column at_x on, w_ih; set by the call of the last steps
    through    [B, columns of back] gradients of hidden states and of x
    scratch    [2, H]
    for_rows   [rows of some steps, 4H] gradients of what their gates are made from
    tile       [rows of some steps, TALL_ROWS] of these
    columns    panels of [rows of some steps, hidden and, from at_x on, x], or none
    sums       [4H, columns] of products of both; level [4H]
    """
    num_before, num_inputs = at_x // back.shape[2], for_x.shape[2]
    batch, width = for_cell.shape
    step, beyond = for_rows.shape[1], at_x + num_inputs
    rows = for_rows.reshape(-1)
    if last == len(gates):
        _lay_side_by_side(w_hh, 0, back[:num_before])
        _lay_side_by_side(w_ih, 0, back[num_before:])
    at = 0
    for t in range(last - 1, first - 1, -1):
        for b in range(batch):
            for_hidden = gradient[t, b], through[b]
            both_cells = cells[t, b], cells[t + 1, b]
            _for_gates(for_hidden, gates[t, b], both_cells, scratch, for_cell[b], for_rows[at + b])
        multiply_rows(rows, at * step, step, batch, back, through)
        for b in range(batch):
            _copy(through[b, at_x:beyond], for_x[t, b])
        if len(columns):
            _lay_side_by_side(states[t], at, columns[:num_before])
            _lay_side_by_side(x[t], at, columns[num_before:])
        at += batch
        if at == len(for_rows) or t == first:
            if len(columns):
                _add_outer(for_rows[:at], tile, columns, sums, level)
            at = 0


@inlined
def _for_gates(for_both, i, cells, scratch, for_cell, for_gates):
    """Compute the gradients of what the gates of a sequence are made from, and for_cell in place.

    for_both   gradients of the hidden state, from outside and from the next step
    i          gates, from the first on
    cells      the cell before the step and after it
    """
    from_outside, from_later = for_both
    before, after = cells
    width = for_cell.size
    f, for_f = i[width:], for_gates[width:]
    g, for_g = f[width:], for_f[width:]
    o, for_o = g[width:], for_g[width:]
    for_hidden, for_after = scratch[0], scratch[1]
    for j in range(width):
        for_hidden[j] = from_outside[j] + from_later[j]
    for j in range(width):
        for_o[j] = _tanh(after[j])
    for j in range(width):
        shown = for_o[j]
        through = for_hidden[j] * o[j]
        for_after[j] = for_cell[j] + through * _complement(shown * shown)
    for j in range(width):
        gate, for_gate = o[j], for_hidden[j] * for_o[j]
        for_o[j] = for_gate * gate * _complement(gate)
    for j in range(width):
        gate, for_gate = i[j], for_after[j] * g[j]
        for_gates[j] = for_gate * gate * _complement(gate)
    for j in range(width):
        new, for_new = g[j], for_after[j] * i[j]
        for_g[j] = for_new * _complement(new * new)
    for j in range(width):
        gate, for_gate = f[j], for_after[j] * before[j]
        for_f[j] = for_gate * gate * _complement(gate)
    for j in range(width):
        for_cell[j] = for_after[j] * f[j]


@inlined
def _add_outer(rows, tile, panels, sums, level):
    """Add to sums [M, columns] the products of rows^T and panels, and to level [M] the rows."""
    depth, width = len(rows), level.size
    for k in range(depth):
        row = rows[k]
        for j in range(width):
            level[j] += row[j]
    num_panels, height, size = panels.shape
    step = sums.shape[1]
    given, a = rows.reshape(-1), tile.reshape(-1)
    b, out = panels.reshape(-1), sums.reshape(-1)
    for first in range(0, width, TALL_ROWS):
        last = min(TALL_ROWS, width - first) - 1
        if last == TALL_ROWS - 1:
            for k in range(depth):
                copy_row(TALL_ROWS, given, k * width + first, 1, a, k * TALL_ROWS, 1)
        else:
            for k in range(depth):
                for j in range(last + 1):
                    tile[k, j] = given[k * width + first + j]
        for panel in range(num_panels):
            left = a, 0, 1, TALL_ROWS, last, depth
            at_out = first * step + panel * size
            tall_tile(*left, b, panel * height * size, size, out, at_out, step, False)


@inlined
def _lay_side_by_side(x, start, panels):
    """Set rows of panels [number, rows, width] from `start` on to those of x, and 0 beside them."""
    num_rows, num_columns = x.shape
    width = panels.shape[2]
    for panel in range(len(panels)):
        target, column = panels[panel], panel * width
        stop = min(width, num_columns - column)
        for k in range(num_rows):
            source, row = x[k, column:], target[start + k]
            if stop == width:
                for j in range(width):
                    row[j] = source[j]
            else:
                for j in range(stop):
                    row[j] = source[j]
                for j in range(stop, width):
                    row[j] = 0


@inlined
def _copy(source, out):
    """Set the first elements of out to source."""
    for j in range(source.size):
        out[j] = source[j]


@inlined
def _lay_across(weight, depth, panels):
    """Set rows of panels from `depth` on to the columns of a weight, and 0 beside them."""
    num_rows, num_columns = weight.shape
    num_panels, _, width = panels.shape
    for row in range(num_panels * width):
        panel, place = divmod(row, width)
        target = panels[panel]
        if row < num_rows:
            for k in range(num_columns):
                target[depth + k, place] = weight[row, k]
        else:
            for k in range(num_columns):
                target[depth + k, place] = 0


@compiled
def _gru_step(from_input, from_hidden, hidden, gates, after):
    width = hidden.shape[1]
    for b in range(hidden.shape[0]):
        row, x, y = gates[b], from_input[b], from_hidden[b]
        for j in range(2 * width):
            row[j] = logistic(x[j] + y[j])
        z, n, last = row[width:], row[2 * width :], row[3 * width :]
        x, y = x[2 * width :], y[2 * width :]
        for j in range(width):
            last[j] = y[j]
        for j in range(width):
            n[j] = _tanh(x[j] + row[j] * y[j])
        before, h = hidden[b], after[b]
        for j in range(width):
            new = n[j]
            h[j] = new + z[j] * (before[j] - new)


@compiled
def _gru_step_backward(for_hidden, gates, before, for_input, from_hidden, for_before):
    width = before.shape[1]
    for b in range(before.shape[0]):
        r, for_r = gates[b], for_input[b]
        other = from_hidden[b]
        z = r[width:]
        n = z[width:]
        last = n[width:]
        for_z = for_r[width:]
        for_n = for_z[width:]
        through_n = other[2 * width :]
        h, x = for_hidden[b], before[b]
        y = for_before[b]
        for j in range(width):
            new, for_new = n[j], h[j] * _complement(z[j])
            for_n[j] = for_new * _complement(new * new)
        for j in range(width):
            gate, for_gate = z[j], h[j] * (x[j] - n[j])
            for_z[j] = for_gate * gate * _complement(gate)
        for j in range(width):
            gate, for_gate = r[j], for_n[j] * last[j]
            for_r[j] = for_gate * gate * _complement(gate)
        for j in range(width):
            through_n[j] = for_n[j] * r[j]
        for j in range(2 * width):
            other[j] = for_r[j]
        for j in range(width):
            y[j] = h[j] * z[j]
