"""Steps of an LSTM and of a GRU, each in one pass over the gates."""

from ..arena import empty
from ..registry import on_cpu
from .arrays import plain
from .compiled import compiled, inlined
from .scalar import like, logistic


@on_cpu
def lstm_step(from_input, from_hidden, cell, out=(None, None, None)):
    shapes = (from_input.shape, cell.shape, cell.shape)
    out = _buffers(out, shapes, cell.dtype)
    _lstm_step(plain(from_input), plain(from_hidden), plain(cell), *out)
    return out


@on_cpu
def lstm_step_backward(for_hidden, for_cell, gates, before, after, out=(None, None)):
    out = _buffers(out, (gates.shape, before.shape), before.dtype)
    inputs = [plain(x) for x in (for_hidden, for_cell, gates, before, after)]
    _lstm_step_backward(*inputs, *out)
    return out


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
def _lstm_step(from_input, from_hidden, cell, gates, after, hidden):
    width = cell.shape[1]
    for b in range(cell.shape[0]):
        row, x, y = gates[b], from_input[b], from_hidden[b]
        for j in range(2 * width):
            row[j] = logistic(x[j] + y[j])
        g = row[2 * width :]
        x, y = x[2 * width :], y[2 * width :]
        for j in range(width):
            g[j] = _tanh(x[j] + y[j])
        o = g[width:]
        x, y = x[width:], y[width:]
        for j in range(width):
            o[j] = logistic(x[j] + y[j])
        f, c = row[width:], after[b]
        before, h = cell[b], hidden[b]
        for j in range(width):
            kept = f[j] * before[j]
            c[j] = kept + row[j] * g[j]
        for j in range(width):
            h[j] = o[j] * _tanh(c[j])


@compiled
def _lstm_step_backward(for_hidden, for_cell, gates, before, after, for_gates, for_before):
    width = before.shape[1]
    for b in range(before.shape[0]):
        x, y = before[b], after[b]
        i, for_i = gates[b], for_gates[b]
        f, for_f = i[width:], for_i[width:]
        g, for_g = f[width:], for_f[width:]
        o, for_o = g[width:], for_g[width:]
        h, c = for_hidden[b], for_cell[b]
        for_after = for_before[b]
        for j in range(width):
            for_o[j] = _tanh(y[j])
        for j in range(width):
            shown = for_o[j]
            for_after[j] = c[j] + h[j] * o[j] * _complement(shown * shown)
        for j in range(width):
            gate, for_gate = o[j], h[j] * for_o[j]
            for_o[j] = for_gate * gate * _complement(gate)
        for j in range(width):
            gate, for_gate = i[j], for_after[j] * g[j]
            for_i[j] = for_gate * gate * _complement(gate)
        for j in range(width):
            new = g[j]
            for_g[j] = for_after[j] * i[j] * _complement(new * new)
        for j in range(width):
            gate, for_gate = f[j], for_after[j] * x[j]
            for_f[j] = for_gate * gate * _complement(gate)
        for j in range(width):
            for_after[j] = for_after[j] * f[j]


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
