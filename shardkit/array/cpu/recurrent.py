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


# Each loop below has few streams, so that LLVM makes vectors of it.


@compiled
def _lstm_step(from_input, from_hidden, cell, gates, after, hidden):
    width = cell.shape[1]
    for b in range(cell.shape[0]):
        for j in range(4 * width):
            gates[b, j] = from_input[b, j] + from_hidden[b, j]
        for j in range(2 * width):
            gates[b, j] = logistic(gates[b, j])
        for j in range(2 * width, 3 * width):
            gates[b, j] = _tanh(gates[b, j])
        for j in range(3 * width, 4 * width):
            gates[b, j] = logistic(gates[b, j])
        for j in range(width):
            kept = gates[b, width + j] * cell[b, j]
            after[b, j] = kept + gates[b, j] * gates[b, 2 * width + j]
        for j in range(width):
            hidden[b, j] = gates[b, 3 * width + j] * _tanh(after[b, j])


@compiled
def _lstm_step_backward(for_hidden, for_cell, gates, before, after, for_gates, for_before):
    width = before.shape[1]
    for b in range(before.shape[0]):
        for j in range(width):  # first the gradient of o, beside that of the cell after
            o = gates[b, 3 * width + j]
            top = _tanh(after[b, j])
            one = like(1.0, o)
            for_before[b, j] = for_cell[b, j] + for_hidden[b, j] * o * (one - top * top)
            for_gates[b, 3 * width + j] = for_hidden[b, j] * top * o * (one - o)
        for j in range(width):
            i = gates[b, j]
            g = gates[b, 2 * width + j]
            one = like(1.0, i)
            for_gates[b, j] = for_before[b, j] * g * i * (one - i)
            for_gates[b, 2 * width + j] = for_before[b, j] * i * (one - g * g)
        for j in range(width):
            f = gates[b, width + j]
            for_after = for_before[b, j]
            for_gates[b, width + j] = for_after * before[b, j] * f * (like(1.0, f) - f)
            for_before[b, j] = for_after * f


@compiled
def _gru_step(from_input, from_hidden, hidden, gates, after):
    width = hidden.shape[1]
    for b in range(hidden.shape[0]):
        for j in range(2 * width):
            gates[b, j] = logistic(from_input[b, j] + from_hidden[b, j])
        for j in range(2 * width, 3 * width):
            gates[b, width + j] = from_hidden[b, j]
        for j in range(width):
            gates[b, 2 * width + j] = gates[b, j] * gates[b, 3 * width + j]
        for j in range(2 * width, 3 * width):
            gates[b, j] = _tanh(from_input[b, j] + gates[b, j])
        for j in range(width):
            n = gates[b, 2 * width + j]
            after[b, j] = n + gates[b, width + j] * (hidden[b, j] - n)


@compiled
def _gru_step_backward(for_hidden, gates, before, for_input, from_hidden, for_before):
    width = before.shape[1]
    for b in range(before.shape[0]):
        for j in range(width):
            z = gates[b, width + j]
            n = gates[b, 2 * width + j]
            one = like(1.0, z)
            for_input[b, 2 * width + j] = for_hidden[b, j] * (one - z) * (one - n * n)
            for_input[b, width + j] = for_hidden[b, j] * (before[b, j] - n) * z * (one - z)
        for j in range(width):
            r = gates[b, j]
            for_n = for_input[b, 2 * width + j]
            for_input[b, j] = for_n * gates[b, 3 * width + j] * r * (like(1.0, r) - r)
            from_hidden[b, 2 * width + j] = for_n * r
        for j in range(2 * width):
            from_hidden[b, j] = for_input[b, j]
        for j in range(width):
            for_before[b, j] = for_hidden[b, j] * gates[b, width + j]
