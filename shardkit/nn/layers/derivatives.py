"""A network together with its derivatives by its inputs, carried from block to block.

    x [samples, d]
      |  seed: the value, its derivatives 1, their derivatives 0
    [samples, rows, d]         row 0: the value u
      |  block by block        rows 1 .. d: its derivative along each input
    [samples, rows, outputs]   rows d + 1 .. 2d, with order 2: its second derivative along each

Each block is given what it needs to go on, so the derivatives of a whole network need no tape over
all of it: they pass from unit to unit and from pipeline stage to pipeline stage like any
activation. Within a block they are derivatives by s at s = 0 of

    f(u + s u' + s^2/2 u'')

Source: Taylor mode differentiation (Griewank and Walther, Evaluating Derivatives, 2008); each
derivative by s is a gradient of a gradient.
"""

from typing import Any

from ...annotations import Shape
from ...array.backend import xp_of
from ...errors import ConfigurationError, ShapeError
from ..autograd import Tensor, enable_grad, is_grad_enabled
from ..derivative import grad
from ..module import Module, blocks_of, check_input_of, output_shape_of
from ..ops.elementwise import add, multiply
from ..ops.shape import concatenate, expand, reshape, unsqueeze


class Derivatives(Module):
    """x [samples, d] -> [samples, 1 + order d, outputs]: net(x), and its derivatives by x.

    Parameters
    ----------
    net
        A chain of blocks, the first on [samples, d]; a sample's output depends on this sample
        alone, so no batch norm, and no dropout. All operations in it need second derivatives (see
        derivative.py).
    order
        1: first derivatives along each input; 2: second ones too, not mixed.

    Notes
    -----
    Its blocks are those of the net, so it is cut wherever the net can be cut.
    """

    def __init__(self, net: Module, order: int = 1) -> None:
        if order not in (1, 2) or isinstance(order, bool):
            raise ConfigurationError(f"Derivatives with order = {order!r}; wanted 1 or 2")
        self.net = net
        self.order = order

    def blocks(self) -> list[tuple[str, Module]]:
        seed = _Seed(self.order)
        through = [
            (f"net.{name}" if name else "net", _Through(block, self.order))
            for name, block in blocks_of(self.net)
        ]
        return [("seed", seed), *through]

    def check_input(self, x: Any) -> None:
        check_input_of(self.net, x)
        if x.ndim != 2:
            raise ShapeError(f"Derivatives of x {x.shape}; wanted [samples, inputs]")

    def output_shape(self, input_shape: Shape) -> Shape | None:
        shape = output_shape_of(self.net, input_shape)
        return shape and (shape[0], 1 + self.order * input_shape[1], *shape[1:])


class _Seed(Module):
    """x [samples, d] -> [samples, 1 + order d, d]: x, the identity, and zeros."""

    def __init__(self, order):
        self.order = order

    def forward(self, x):
        x = x if isinstance(x, Tensor) else Tensor(x)
        xp = xp_of(x.array)
        samples, width = x.shape
        rows = xp.zeros((samples, self.order * width, width), x.dtype)
        rows[:, :width] = xp.eye(width, dtype=x.dtype)
        return concatenate([unsqueeze(x, 1), Tensor(rows)], 1)


class _Through(Module):
    """One block, applied to a value and its derivatives.

    [samples, rows, *shape that it takes] -> [samples, rows, *shape that it makes]
    """

    def __init__(self, block, order):
        self.block = block
        self.order = order

    def forward(self, rows):
        is_recording = is_grad_enabled()
        with enable_grad():
            result = self._along_each(rows)
        return result if is_recording else result.detach()

    def _along_each(self, rows):
        num_along = (rows.shape[1] - 1) // self.order
        samples, _, *shape = rows.shape
        s = Tensor(xp_of(rows.array).zeros((), rows.dtype), requires_grad=True)
        value = expand(rows[:, :1], (samples, num_along, *shape))
        moved = add(value, multiply(rows[:, 1 : num_along + 1], s))
        if self.order == 2:
            moved = add(moved, multiply(rows[:, num_along + 1 :], multiply(multiply(s, s), 0.5)))
        y = self.block(reshape(moved, (samples * num_along, *shape)))
        found = [y]
        for _ in range(self.order):
            found.append(_by(found[-1], s))
        found = [reshape(part, (samples, num_along, *y.shape[1:])) for part in found]
        return concatenate([found[0][:, :1], *found[1:]], 1)


def _by(y, s):
    """Return the derivative of each element of y by the number s, in the shape of y.

    The gradient of y v by s is linear in v, with this derivative as its slope.
    """
    v = Tensor(xp_of(y.array).zeros_like(y.array), requires_grad=True)
    (linear,) = grad(y, s, v, create_graph=True)
    (slope,) = grad(linear, v, create_graph=True)
    return slope
