"""All steps of an LSTM, and one of a GRU without its matrix products, with gradients.

B sequences, H units. Gates lie side by side in a row, in PyTorch's order.
"""

from .. import products
from ..backend import xp_of
from ..registry import kernel
from .activation import into


@kernel(rounded=(True, True, True), has_cuda_twin=False)
def lstm(x, hidden, cell, w_ih, w_hh, bias):
    """Return gates [T, B, 4H], cells [T + 1, B, H] and states [T + 2, B, H] of all steps.

    x              [T, B, in]
    hidden, cell   [B, H] before the first step: they come first in states and cells
    w_ih, w_hh     [4H, in], [4H, H]: of the gates i, f, g, o; bias [4H] or None
    The last cell comes last in states too.
    """
    xp, (steps, batch, _) = xp_of(x), x.shape
    gates = xp.empty((steps, batch, len(w_hh)), x.dtype)
    cells = xp.empty((steps + 1, *cell.shape), x.dtype)
    states = xp.empty((steps + 2, *cell.shape), x.dtype)
    cells[0], states[0] = cell, hidden
    for t in range(steps):
        row = gates[t]
        products.matmul(x[t], w_ih.T, out=row)
        row += products.matmul(states[t], w_hh.T)
        if bias is not None:
            row += bias
        i, f, g, o = _parts(row, 4)  # views
        for gate in (i, f, o):
            gate[...] = 0.5 * (1 + xp.tanh(0.5 * gate))
        g[...] = xp.tanh(g)
        cells[t + 1] = f * cells[t] + i * g
        states[t + 1] = o * xp.tanh(cells[t + 1])
    states[steps + 1] = cells[steps]
    return gates, cells, states


@kernel(rounded=(True, True, True, False, False, False), has_cuda_twin=False)
def lstm_backward(gradient, x, w_ih, w_hh, gates, cells, states, wants_x, wants_weights):
    """Return the gradients of x, hidden, cell, w_ih, w_hh and bias; those of half floats' weights
    are float32.

    gradient               [T + 1, B, H], of the states of all steps and of the last cell
    gates, cells, states   what lstm returned
    wants_x, wants_weights   False: None stands for the gradient of x, or of the last three
    """
    xp, steps = xp_of(gradient), len(x)
    for_gates = xp.empty_like(gates)
    for_hidden, for_cell = xp.zeros_like(gradient[0]), gradient[-1]
    for t in range(steps - 1, -1, -1):
        i, f, g, o = _parts(gates[t], 4)
        for_hidden = for_hidden + gradient[t]
        top = xp.tanh(cells[t + 1])
        for_after = for_cell + for_hidden * o * (1 - top * top)
        each = [
            for_after * g * i * (1 - i),
            for_after * cells[t] * f * (1 - f),
            for_after * i * (1 - g * g),
            for_hidden * top * o * (1 - o),
        ]
        for_gates[t] = xp.concatenate(each, axis=1)
        for_cell = for_after * f
        for_hidden = products.matmul(for_gates[t], w_hh)
    for_x = products.matmul(for_gates, w_ih) if wants_x else None
    states_before = for_x, for_hidden, xp.array(for_cell)
    if not wants_weights:
        return *states_before, None, None, None
    given = for_gates, x, states[:steps]
    rows, seen, before = [part.reshape(-1, part.shape[2]) for part in given]
    weights = [products.matmul(rows.T, columns) for columns in (seen, before)]
    return *states_before, *weights, rows.sum(axis=0)


@kernel(rounded=(True, True), has_cuda_twin=False)
def gru_step(from_input, from_hidden, hidden, out=(None, None)):
    """Return gates [B, 4H] and hidden [B, H] after a step.

    from_input, from_hidden   [B, 3H] of the gates r, z, n; n = tanh(input + r hidden)
    hidden                    [B, H] before the step
    out                       buffers of the results, none of the inputs
    The fourth part of the gates is that of n from hidden, for the backward.
    """
    xp = xp_of(hidden)
    x_r, x_z, x_n = _parts(from_input, 3)
    h_r, h_z, h_n = _parts(from_hidden, 3)
    r = 0.5 * (1 + xp.tanh(0.5 * (x_r + h_r)))
    z = 0.5 * (1 + xp.tanh(0.5 * (x_z + h_z)))
    n = xp.tanh(x_n + r * h_n)
    return _into(out, (xp.concatenate([r, z, n, h_n], axis=1), n + z * (hidden - n)))


@kernel(rounded=(True, True, True), has_cuda_twin=False)
def gru_step_backward(for_hidden, gates, before, out=(None, None, None)):
    """Return the gradients of from_input and from_hidden [B, 3H], and a part of that of `before`.

    The part of [B, H] goes straight from one hidden state to the one before.
    out   buffers of the results, none of the inputs
    """
    xp = xp_of(before)
    r, z, n, h_n = _parts(gates, 4)
    for_n = for_hidden * (1 - z) * (1 - n * n)
    for_z = for_hidden * (before - n) * z * (1 - z)
    for_r = for_n * h_n * r * (1 - r)
    for_input = xp.concatenate([for_r, for_z, for_n], axis=1)
    return _into(
        out, (for_input, xp.concatenate([for_r, for_z, for_n * r], axis=1), for_hidden * z)
    )


def _parts(x, count):
    """Return views of x [B, count H], each [B, H]."""
    width = x.shape[1] // count
    return [x[:, part * width : (part + 1) * width] for part in range(count)]


def _into(out, results):
    """Return the results, each in its buffer if there is one."""
    return tuple([into(buffer, result) for buffer, result in zip(out, results)])
