"""Convolutions of own rows, whose halo travels meanwhile.

    own rows   4 5 6 7    --convolve, with zeros beside them-->   y      while rows 3 and 8 travel
    3 | 8                 --their taps, where they meet------->   + the first and the last of y

A convolution is a sum over the rows that it reads, so it is made of the own ones, where they lie,
and of the few before and after these. No array has both: nothing is copied together, and the
gradients of own rows are made where they stay. Those of a halo are made first, and travel while the
rest is computed.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from ...annotations import Shape
from ...array import halves, kernels
from ...array.arena import empty
from ...array.backend import xp_of
from ...array.dtypes import wide
from ...array.window import ConvolutionWindow
from ...nn.autograd import Tensor, record
from .axis import GRID_DIM
from .rows import Halo


def takes_halo(x: Tensor, weight: Tensor, window: ConvolutionWindow) -> bool:
    """Return whether x can be convolved so: not half floats, whose sums would be rounded twice, nor
    what conv1d, conv2d or conv3d refuse.
    """
    counts = window.counts(x.shape[GRID_DIM:], weight.shape[GRID_DIM:])
    return x.dtype == weight.dtype == wide(x.dtype) and min(counts) > 0


def convolve_with_halo(
    x: Tensor, weight: Tensor, bias: Tensor | None, window: ConvolutionWindow, halo: Halo
) -> Tensor:
    """Return the outputs of this rank, y [N, O, outputs, *grid] of x [N, C, own, *grid] local.

    Collective over the ranks of the halo, in forward and backward.
    weight   [O, C/groups, *taps]; bias [O], or None
    window   on own rows; its first `before` counts the rows of the halo too, and the zeros
    """
    form = _OnHalo.of(window, x.shape[GRID_DIM:], weight.shape[GRID_DIM:], halo)
    read_x = x if weight.requires_grad else None
    read_weight = weight if x.requires_grad else None
    biases = None if bias is None else bias.array
    y, beside = form.convolve(x.array, weight.array, biases)
    rows = beside if weight.requires_grad else None
    dtypes = [None if each is None else each.gradient_dtype for each in (weight, bias)]

    def backward(gradient, wanted):
        home = for_x = for_weight = for_bias = None
        if wanted[0]:
            home = form.send_home(gradient, read_weight.array)
        if wanted[1]:
            out = weight.empty_gradient()
            for_weight = form.for_weight(gradient, read_x.array, rows, out)
            for_weight = halves.rounded(for_weight, dtypes[0])
        if wanted[2]:
            over = (0, *range(GRID_DIM, gradient.ndim))
            for_bias = halves.total(gradient, over, dtype=dtypes[1])
        if wanted[0]:
            for_x = kernels.convolve_input(gradient, read_weight.array, None, window, form.sizes)
            home(for_x)
        return for_x, for_weight, for_bias

    return record(y, (x, weight, bias), backward, needs=(read_x, read_weight))


@dataclass(frozen=True)
class _OnHalo:
    """What a convolution reads of own rows, and of those of a halo.

    sizes, taps   of the grid of own rows, and of the weight
    sides         of the halo
    """

    window: ConvolutionWindow
    sizes: Shape
    taps: Shape
    halo: Halo
    sides: "tuple[_Side, ...]"

    @classmethod
    def of(cls, window: ConvolutionWindow, sizes: Shape, taps: Shape, halo: Halo) -> "_OnHalo":
        outputs = window.counts(sizes, taps)
        sides = _sides(window, sizes[0], taps[0], outputs[0], halo)
        return cls(window, sizes, taps, halo, sides)

    def convolve(self, x, weight, bias):
        """Return y, and the rows [N, C, rows, *grid] of the halo. Collective."""
        arrived = self.halo.fetch(x)
        y = kernels.convolve(x, weight, bias, self.window)
        beside = arrived()
        for side in self.sides:
            given = beside[side.rows], weight[side.taps], None, side.window
            y[side.outputs] += kernels.convolve(*given)
        return y, beside

    def send_home(self, gradient, weight):
        """Begin to send the gradients of the halo, by that of y; return what adds own ones to an
        array. Collective.
        """
        channels = weight.shape[1] * self.window.groups
        shape = len(gradient), channels, self.halo.count, *self.sizes[1:]
        result = empty(shape, gradient.dtype, xp_of(gradient))
        for side in self.sides:
            given = gradient[side.outputs], weight[side.taps], None, side.window
            rows = result[side.rows]
            rows[...] = kernels.convolve_input(*given, rows.shape[GRID_DIM:])
        return self.halo.send_home(result, self.sizes[0])

    def for_weight(self, gradient, x, beside, out):
        """Return the gradient of the weight, by that of y."""
        total = kernels.convolve_weight(gradient, x, self.window, self.taps, out=out)
        for side in self.sides:
            met = total[side.taps]
            given = gradient[side.outputs], beside[side.rows], side.window
            met += kernels.convolve_weight(*given, met.shape[GRID_DIM:])
        return total


class _Side(NamedTuple):
    """Rows before or after the own ones, and what reads them; the first three index dim 2.

    rows      of the halo
    outputs   of own ones: some of their taps meet these rows
    taps      that do
    window    of these taps, on these rows alone
    """

    rows: tuple
    outputs: tuple
    taps: tuple
    window: ConvolutionWindow


def _sides(window: ConvolutionWindow, own: int, taps: int, outputs: int, halo: Halo):
    """Return the sides of a halo that have rows; own, taps, outputs: how many along the cut."""
    first = window.before[0]
    sides = (
        (first - halo.before, slice(0, halo.before)),
        (first + own, slice(halo.before, halo.count)),
    )
    given = [(place, rows) for place, rows in sides if rows.start < rows.stop]
    return tuple([_side(window, place, rows, taps, outputs) for place, rows in given])


def _side(window: ConvolutionWindow, place: int, rows: slice, num_taps: int, num_outputs: int):
    """Return the side of these rows of a halo.

    place   of the first of them, where output p reads places p stride + tap dilation
    """
    step, gap = window.stride[0], window.dilation[0]
    last = place + rows.stop - rows.start - 1
    earliest = place - (num_taps - 1) * gap  # the place where an output reads with its last tap
    first = max(0, min(-(-earliest // step), place // step))
    stop = min(num_outputs, last // step + 1)
    begin = place - first * step  # from the place where the first output reads with its first tap
    reach = (stop - 1 - first) * step
    low = max(0, min(-((reach - begin) // gap), begin // gap))
    high = min(num_taps, (last - first * step) // gap + 1)
    before = begin - low * gap
    after = reach + (high - low - 1) * gap - before
    window = _with_first(window, before, after - (last - place))
    outputs, taps = slice(first, stop), slice(low, high)
    return _Side(_along(rows), _along(outputs), _along(taps), window)


def _with_first(window: ConvolutionWindow, before: int, after: int) -> ConvolutionWindow:
    """Return a window with other zeros before and after the first dim of its grid."""
    befores, afters = window.before[1:], window.after[1:]
    return replace(window, before=(before, *befores), after=(after, *afters))


def _along(part: slice) -> tuple:
    return (*(slice(None),) * GRID_DIM, part)
