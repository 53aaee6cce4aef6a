"""Recurrent layers over a whole sequence: one operation, with a loop over time in each direction.

    x [T, B, in] --one product--> [T, B, gates]
                                     |  for each step: hidden @ W_hh^T, then one kernel
    hidden [T, B, H], last cell   <--+

The backward is one loop from the end; gradients of weights are one product each, over all steps.
"""

from ...array import fresh, halves, kernels, products
from ...array.arena import empty
from ...array.backend import xp_of
from ...errors import ShapeError
from ..autograd import Tensor, record
from .shape import getitem


def lstm(x: Tensor, hidden, cell, w_ih, w_hh, b_ih=None, b_hh=None) -> tuple[Tensor, Tensor]:
    """Return the hidden states [T, B, H] of all steps, and the last cell [B, H].

    x             [T, B, in], at least one step
    hidden, cell  [B, H] before the first step
    w_ih, w_hh    [4H, in], [4H, H]: gates i, f, g, o; b_ih, b_hh [4H] or None
    Source: Hochreiter and Schmidhuber 1997, with forget gates; PyTorch's layout.
    """
    steps, batch, width = _check("lstm", 4, x, (hidden, cell), (w_ih, w_hh), (b_ih, b_hh))
    xp, dtype = xp_of(x.array), x.dtype
    from_input = _from_input(x, w_ih, b_ih, b_hh)
    gates = empty((steps, batch, 4 * width), dtype, xp)
    states = empty((steps + 1, batch, width), dtype, xp)  # of hidden; 0: before the first step
    cells = empty((steps + 1, batch, width), dtype, xp)
    states[0], cells[0] = hidden.array, cell.array
    from_hidden = empty((batch, 4 * width), dtype, xp)
    turned = fresh.copy(w_hh.array.T)  # read in every step
    for t in range(steps):
        products.matmul(states[t], turned, out=from_hidden)
        out = (gates[t], cells[t + 1], states[t + 1])
        _store(out, kernels.lstm_step(from_input[t], from_hidden, cells[t], out=out))

    def backward(gradient, wanted):
        for_gates = empty(gates.shape, dtype, xp)
        for_hidden = fresh.zeros((batch, width), dtype, xp)
        for_cell = gradient[steps]
        for t in range(steps - 1, -1, -1):
            for_before = empty((batch, width), dtype, xp)
            out = (for_gates[t], for_before)
            for_hidden = for_hidden + gradient[t]
            inputs = (for_hidden, for_cell, gates[t], cells[t], cells[t + 1])
            _store(out, kernels.lstm_step_backward(*inputs, out=out))
            for_cell = for_before
            for_hidden = products.matmul(for_gates[t], w_hh.array)
        weights = _for_weights(x, states, w_ih, w_hh, b_ih, b_hh, for_gates, for_gates, wanted[3:])
        for_x = _for_x(for_gates, w_ih) if wanted[0] else None
        return (for_x, for_hidden, for_cell, *weights)

    packed = empty((steps + 1, batch, width), dtype, xp)  # one result: the states, the last cell
    packed[:steps], packed[steps] = states[1:], cells[steps]
    parents = (x, hidden, cell, w_ih, w_hh, b_ih, b_hh)
    both = record(packed, parents, backward, needs=(x, w_ih, w_hh), is_one_pass=True)
    return getitem(both, slice(0, steps)), getitem(both, steps)


def gru(x: Tensor, hidden, w_ih, w_hh, b_ih=None, b_hh=None) -> Tensor:
    """Return the hidden states [T, B, H] of all steps.

    x             [T, B, in], at least one step
    hidden        [B, H] before the first step
    w_ih, w_hh    [3H, in], [3H, H]: gates r, z, n; b_ih, b_hh [3H] or None
    Source: arXiv 1406.1078, in the form of PyTorch, where r multiplies the product with hidden.
    """
    steps, batch, width = _check("gru", 3, x, (hidden,), (w_ih, w_hh), (b_ih, b_hh))
    xp, dtype = xp_of(x.array), x.dtype
    from_input = _from_input(x, w_ih, b_ih)
    gates = empty((steps, batch, 4 * width), dtype, xp)
    states = empty((steps + 1, batch, width), dtype, xp)  # 0: before the first step
    states[0] = hidden.array
    from_hidden = empty((batch, 3 * width), dtype, xp)
    turned = fresh.copy(w_hh.array.T)  # read in every step
    for t in range(steps):
        products.matmul(states[t], turned, out=from_hidden)
        if b_hh is not None:
            from_hidden += b_hh.array
        out = (gates[t], states[t + 1])
        _store(out, kernels.gru_step(from_input[t], from_hidden, states[t], out=out))

    def backward(gradient, wanted):
        for_input = empty((steps, batch, 3 * width), dtype, xp)
        for_products = empty((steps, batch, 3 * width), dtype, xp)
        for_hidden = fresh.zeros((batch, width), dtype, xp)
        for t in range(steps - 1, -1, -1):
            out = (for_input[t], for_products[t], empty((batch, width), dtype, xp))
            for_hidden = for_hidden + gradient[t]
            _store(out, kernels.gru_step_backward(for_hidden, gates[t], states[t], out=out))
            for_hidden = out[2] + products.matmul(for_products[t], w_hh.array)
        given = (x, states, w_ih, w_hh, b_ih, b_hh, for_input, for_products)
        for_x = _for_x(for_input, w_ih) if wanted[0] else None
        return (for_x, for_hidden, *_for_weights(*given, wanted[2:]))

    parents = (x, hidden, w_ih, w_hh, b_ih, b_hh)
    return record(
        fresh.copy(states[1:]), parents, backward, needs=(x, w_ih, w_hh), is_one_pass=True
    )


def _check(name, num_gates, x, states, weights, biases):
    """Return T, B, H. Errors: ShapeError unless all fit together."""
    w_ih, w_hh = weights
    width = w_hh.shape[-1]
    rows = num_gates * width
    wanted = [(rows, x.shape[-1] if x.ndim else 0), (rows, width)]
    fits = (
        x.ndim == 3
        and x.shape[0] > 0
        and all(state.shape == (x.shape[1], width) for state in states)
        and [w_ih.shape, w_hh.shape] == wanted
        and all(bias is None or bias.shape == (rows,) for bias in biases)
        and all(part.dtype == x.dtype for part in (*states, *weights))
    )
    if not fits:
        raise ShapeError(
            f"{name} of x {x.shape} {x.dtype}, states {[state.shape for state in states]}, weights "
            f"{w_ih.shape} and {w_hh.shape}; wanted [T, B, in] with T > 0, [B, H], "
            f"[{num_gates} H, in], [{num_gates} H, H] of one dtype"
        )
    return (*x.shape[:2], width)


def _from_input(x, w_ih, *biases):
    """Return x W_ih^T and the biases for all steps at once: [T, B, gates]."""
    steps, batch, num_in = x.shape
    y = products.matmul(x.array.reshape(steps * batch, num_in), w_ih.array.T)
    for bias in biases:
        if bias is not None:
            y += bias.array
    return y.reshape(steps, batch, w_ih.shape[0])


def _for_x(for_input, w_ih):
    """Return the gradient of x [T, B, in], for all steps at once."""
    steps, batch, num_gates = for_input.shape
    rows = products.matmul(for_input.reshape(steps * batch, num_gates), w_ih.array)
    return rows.reshape(steps, batch, w_ih.shape[1])


def _for_weights(x, states, w_ih, w_hh, b_ih, b_hh, for_input, for_hidden, wanted):
    """Return the gradients of the weights and biases, each over all steps at once."""
    num_rows = for_input.shape[0] * for_input.shape[1]
    by_input = for_input.reshape(num_rows, for_input.shape[2])
    by_hidden = for_hidden.reshape(num_rows, for_hidden.shape[2])
    before = states[:-1].reshape(num_rows, states.shape[2])
    return (
        _outer(by_input, x.array.reshape(num_rows, x.shape[2]), w_ih) if wanted[0] else None,
        _outer(by_hidden, before, w_hh) if wanted[1] else None,
        halves.total(by_input, (0,), dtype=b_ih.gradient_dtype) if wanted[2] else None,
        halves.total(by_hidden, (0,), dtype=b_hh.gradient_dtype) if wanted[3] else None,
    )


def _outer(rows, columns, weight):
    """Return the gradient of a weight, rows^T columns, in its dtype."""
    out = empty(weight.shape, weight.gradient_dtype, xp_of(rows))
    return products.matmul(rows.T, columns, out=out)


def _store(out, results):
    """Copy results into their buffers, if a kernel gave back others (of half floats)."""
    for buffer, result in zip(out, results):
        if result is not buffer:
            buffer[...] = result
