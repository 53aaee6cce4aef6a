"""Recurrent layers over a whole sequence: one operation, with a loop over time in each direction.

    for each step:  x[t] W_ih^T, hidden W_hh^T --> gates, cell, hidden

The loops of an LSTM are kernels. A step of a GRU is a kernel, and its products go through panels of
the weights, small enough for the loops of OpenBLAS that copy nothing: NumPy makes them, whatever
library makes others (on Zen 4 in 0.8 of oneDNN's time for a width of 128, 0.5 for 16). The backward
is one loop from the end; gradients of a GRU's weights are one product each, over all steps.
"""

from contextlib import nullcontext
from typing import Any

import numpy

from ...array import fresh, halves, kernels, products
from ...array.arena import empty
from ...array.backend import xp_of
from ...errors import ShapeError
from ..autograd import Tensor, record
from .operands import check_floating
from .shape import getitem

SMALL = 1_000_000  # multiplications of a product that OpenBLAS computes without packing
NARROW = 32  # columns of a panel, at least


def lstm(
    x: Tensor,
    hidden: Tensor,
    cell: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the hidden states [T, B, H] of all steps, and the last cell [B, H].

    Parameters
    ----------
    x
        [T, B, in], at least one step.
    hidden, cell
        [B, H] before the first step.
    w_ih, w_hh
        [4H, in], [4H, H]: gates i, f, g, o; b_ih, b_hh [4H] or None.

    References
    ----------
    Hochreiter and Schmidhuber 1997, with forget gates; PyTorch's layout.
    """
    starts, weights, biases = (hidden, cell), (w_ih, w_hh), (b_ih, b_hh)
    steps = _check("lstm", 4, x, starts, weights, biases)[0]
    given_biases = [each.array for each in biases if each is not None]
    bias = sum(given_biases[1:], given_biases[0]) if given_biases else None
    given = [part.array for part in (x, hidden, cell, w_ih, w_hh)]
    gates, cells, states = kernels.lstm(*given, bias)

    def backward(gradient, wanted):
        given = gradient, x.array, w_ih.array, w_hh.array, gates, cells, states
        wants_weights = any(wanted[3:])
        *through, for_bias = kernels.lstm_backward(*given, wanted[0], wants_weights)
        for_weights = [
            halves.rounded(part, weight.gradient_dtype) if want else None
            for part, weight, want in zip(through[3:], (w_ih, w_hh), wanted[3:])
        ]
        biases = [
            halves.copy(for_bias, bias.gradient_dtype) if want else None
            for bias, want in zip((b_ih, b_hh), wanted[5:])
        ]
        return (*through[:3], *for_weights, *biases)

    parents = (x, hidden, cell, w_ih, w_hh, b_ih, b_hh)
    saved: dict[str, Any] = {"needs": (x, w_ih, w_hh), "needs_output": True}
    both = record(states[1:], parents, backward, is_one_pass=True, **saved)
    return getitem(both, slice(0, steps)), getitem(both, steps)


def gru(
    x: Tensor,
    hidden: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """Return the hidden states [T, B, H] of all steps.

    Parameters
    ----------
    x
        [T, B, in], at least one step.
    hidden
        [B, H] before the first step.
    w_ih, w_hh
        [3H, in], [3H, H]: gates r, z, n; b_ih, b_hh [3H] or None.

    References
    ----------
    arXiv 1406.1078, in the form of PyTorch, where r multiplies the product with hidden.
    """
    steps, batch, width = _check("gru", 3, x, (hidden,), (w_ih, w_hh), (b_ih, b_hh))
    xp, dtype = xp_of(x.array), x.dtype
    gates = empty((steps, batch, 4 * width), dtype, xp)
    states = empty((steps + 1, batch, width), dtype, xp)  # 0: before the first step
    states[0] = hidden.array
    from_input, from_hidden = [empty((batch, 3 * width), dtype, xp) for _ in range(2)]
    for_input, for_hidden = [_panels(w.array.T, batch) for w in (w_ih, w_hh)]
    by_input, by_hidden = _by_panel(from_input, for_input), _by_panel(from_hidden, for_hidden)
    with _small_products(x.array):
        for t in range(steps):
            products.matmul(x.array[t], for_input, out=by_input)
            products.matmul(states[t], for_hidden, out=by_hidden)
            for product, bias in ((from_input, b_ih), (from_hidden, b_hh)):
                if bias is not None:
                    product += bias.array
            out = (gates[t], states[t + 1])
            _store(out, kernels.gru_step(from_input, from_hidden, states[t], out=out))

    def backward(gradient, wanted):
        for_input = empty((steps, batch, 3 * width), dtype, xp)
        for_products = empty((steps, batch, 3 * width), dtype, xp)
        through = _StepGradients(x, w_ih, w_hh, wanted[0])
        with _small_products(x.array):
            for t in range(steps - 1, -1, -1):
                out = (for_input[t], for_products[t], empty((batch, width), dtype, xp))
                for_hidden = through.for_hidden  # of step t's products; now of what it returned
                for_hidden += gradient[t]
                _store(out, kernels.gru_step_backward(for_hidden, gates[t], states[t], out=out))
                through.step(t, for_input[t], for_products[t])
                through.for_hidden += out[2]
        given = (x, states[:steps], w_ih, w_hh, b_ih, b_hh, for_input, for_products)
        weights = _for_weights(*given, wanted[2:])
        return (through.for_x, through.for_hidden, *weights)

    parents = (x, hidden, w_ih, w_hh, b_ih, b_hh)
    saved: dict[str, Any] = {"needs": (x, w_ih, w_hh), "needs_output": True}
    return record(states[1:], parents, backward, is_one_pass=True, **saved)


def _check(name, num_gates, x, states, weights, biases):
    """Return T, B, H. Errors: ShapeError unless all fit together."""
    check_floating(name, x)
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


def _panels(weight, num_rows):
    """Return weight [K, N] as panels [P, K, N / P], so that products of num_rows rows are small.

    One panel on a GPU, for half floats, and where panels would be narrow.
    """
    inner, columns = weight.shape
    count = 1
    if _are_small(weight):
        while num_rows * inner * columns > SMALL * count and columns % (2 * count) == 0:
            count *= 2
        if columns < NARROW * count:
            count = 1
    size = columns // count
    return fresh.copy(weight.reshape(inner, count, size).swapaxes(0, 1))


def _are_small(array) -> bool:
    """Return whether products of steps with such arrays go through panels."""
    return xp_of(array) is numpy and array.dtype.char in "fd"


def _small_products(array):
    """Inside, NumPy multiplies such arrays, if products go through panels."""
    return products.multiplied_by(None) if _are_small(array) else nullcontext()


def _by_panel(out, panels):
    """Return out [..., B, N] as [..., P, B, N / P]: where products with panels go."""
    count, _, size = panels.shape
    return out.reshape(*out.shape[:-1], count, size).swapaxes(-2, -3)


class _StepGradients:
    """The gradients that go through the products of a step, to its input and to the step before.

    for_x       [T, B, in], or None if it is not wanted
    for_hidden  [B, H], of the step that came last; 0 at first
    """

    def __init__(self, x, w_ih, w_hh, has_for_x: bool):
        xp, batch = xp_of(x.array), x.shape[1]
        self._to_hidden = _panels(w_hh.array, batch)
        self.for_hidden = fresh.zeros((batch, w_hh.shape[1]), x.dtype, xp)
        self._by_hidden = _by_panel(self.for_hidden, self._to_hidden)
        self.for_x = None
        if has_for_x:
            self._to_x = _panels(w_ih.array, batch)
            self.for_x = empty(x.shape, x.dtype, xp)
            self._by_x = _by_panel(self.for_x, self._to_x)

    def step(self, t, for_input, for_product):
        """Take the gradients of both products of step t, each [B, gates]."""
        products.matmul(for_product, self._to_hidden, out=self._by_hidden)
        if self.for_x is not None:
            products.matmul(for_input, self._to_x, out=self._by_x[t])


def _for_weights(x, states, w_ih, w_hh, b_ih, b_hh, for_input, for_hidden, wanted):
    """Return the gradients of the weights and biases, each over all steps at once."""
    num_rows = for_input.shape[0] * for_input.shape[1]
    by_input = for_input.reshape(num_rows, for_input.shape[2])
    by_hidden = for_hidden.reshape(num_rows, for_hidden.shape[2])
    before = states.reshape(num_rows, states.shape[2])
    for_b_ih = halves.total(by_input, (0,), dtype=b_ih.gradient_dtype) if wanted[2] else None
    for_b_hh = None
    if wanted[3] and wanted[2] and for_hidden is for_input:
        for_b_hh = fresh.copy(for_b_ih)
    elif wanted[3]:
        for_b_hh = halves.total(by_hidden, (0,), dtype=b_hh.gradient_dtype)
    return (
        _outer(by_input, x.array.reshape(num_rows, x.shape[2]), w_ih) if wanted[0] else None,
        _outer(by_hidden, before, w_hh) if wanted[1] else None,
        for_b_ih,
        for_b_hh,
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
