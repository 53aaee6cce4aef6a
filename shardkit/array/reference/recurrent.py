"""One step of an LSTM and of a GRU, all but its matrix products, with gradients.

B sequences, H units. Gates lie side by side in a row, in PyTorch's order.
"""

from ..backend import xp_of
from ..registry import kernel
from .activation import into


@kernel(rounded=(True, True, True), has_cuda_twin=False)
def lstm_step(from_input, from_hidden, cell, out=(None, None, None)):
    """Return gates [B, 4H], cell and hidden [B, H] after a step.

    from_input, from_hidden   [B, 4H], whose sum is what the gates i, f, g, o are made from
    cell                      [B, H] before the step
    out                       buffers of the three results, none of the inputs
    """
    xp = xp_of(cell)
    gates = from_input + from_hidden
    i, f, g, o = _parts(gates, 4)  # views
    for gate in (i, f, o):
        gate[...] = 0.5 * (1 + xp.tanh(0.5 * gate))
    g[...] = xp.tanh(g)
    after = f * cell + i * g
    return _into(out, (gates, after, o * xp.tanh(after)))


@kernel(rounded=(True, True), has_cuda_twin=False)
def lstm_step_backward(for_hidden, for_cell, gates, before, after, out=(None, None)):
    """Return the gradients of what the gates are made from [B, 4H], and of the cell before.

    for_hidden, for_cell   gradients of what the step returned
    before, after          the cell [B, H]
    out                    buffers of the results, none of the inputs
    """
    xp = xp_of(before)
    i, f, g, o = _parts(gates, 4)
    top = xp.tanh(after)
    for_after = for_cell + for_hidden * o * (1 - top * top)
    for_gates = [
        for_after * g * i * (1 - i),
        for_after * before * f * (1 - f),
        for_after * i * (1 - g * g),
        for_hidden * top * o * (1 - o),
    ]
    return _into(out, (xp.concatenate(for_gates, axis=1), for_after * f))


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
