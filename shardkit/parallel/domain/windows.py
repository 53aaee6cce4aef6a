"""Layers whose outputs read a window of rows: convolutions, pooling, interpolation.

    own outputs [first, stop)  --arithmetic-->  rows that they read  --rows.py-->  the layer's op on
                                                                                    these rows alone

Each rank computes the outputs of its own part of the result, so strides need not divide parts, and
a window may be wider than the part of a neighbor.
"""

from collections.abc import Callable
from functools import lru_cache, singledispatch
from math import prod
from typing import NamedTuple

from ...annotations import Shape
from ...array.lines import Windows
from ...array.window import ConvolutionWindow
from ...errors import ShapeError, ShardingError
from ...nn.layers.convolution import ConvNd, ConvTransposeNd
from ...nn.layers.pooling import AdaptivePoolNd, AvgPoolNd, MaxPoolNd
from ...nn.layers.resampling import Upsample
from ...nn.module import Module
from ...nn.ops import pooling
from ...nn.ops.elementwise import multiply
from ...nn.ops.padding import pad
from ...nn.ops.resampling import interpolation_windows
from ...nn.ops.windows import window_maxima, window_sums
from ..conjugate import all_gather, all_reduce
from .axis import GRID_DIM, CutLayer, DomainAxis
from .interior import convolve_with_halo, takes_halo
from .rows import halo_of, let_go, rows_of


class _DimRead(NamedTuple):
    """What ranks read of one dim that is cut."""

    axis: DomainAxis
    length: int
    spans: tuple[tuple[int, int], ...]

    @property
    def own(self) -> tuple[int, int]:
        """What this rank reads."""
        return self.spans[self.axis.group.rank]

    def read(self, x, beyond: str = "zeros"):
        """Return the rows of x that this rank reads. Collective over the ranks of the dim."""
        return rows_of(x, self.axis.group, self.axis.dim, self.length, self.spans, beyond)


def _read(lines, x, beyond: str = "zeros") -> list:
    """Return x as it is read along one dim after the other, from the last one on: corners of a box
    come with those of the dim before. Collective.
    """
    read = [x]
    for line in lines[::-1]:
        read.append(line.read(read[-1], beyond))
    return read


class CutConvolution(CutLayer):
    """A convolution of any padding; x [N, C, part, *grid] -> [N, O, part, *grid] local.

    The halo of the first dim travels while own rows are computed; those of others come before.
    """

    _whole: ConvNd

    def forward(self, x):
        layer = self._whole
        lengths = self.axis.lengths(x, self.path_in_model)
        lines = [self._line(number, length) for number, length in enumerate(lengths)]
        x, zeros = _continued(layer, x, len(lines))
        read = _read(lines[1:], x, layer.padding_mode)
        y = self._by_halo(read[-1], lines[0], zeros)
        if y is None:
            read += _read(lines[:1], read[-1], layer.padding_mode)[1:]
            y = _of_rows(layer, read[-1], zeros)
        for each in read:
            let_go(each)
        return y

    def _line(self, number, length) -> _DimRead:
        """Return what ranks read along a dim of the grid."""
        layer, path = self._whole, self.path_in_model
        before, after = (side[number] for side in layer.sides)
        stride = layer.stride[number]
        _check_continued(layer, length, max(before, after), path)
        reach = layer.dilation[number] * (layer.kernel_size[number] - 1) + 1
        count = max((length + before + after - reach) // stride + 1, 0)
        axis = self.axis.axes[number]
        own = axis.spans_of_output(count, length, path)
        starts = [first * stride - before for first, _ in own]
        stops = [(stop - 1) * stride - before + reach for _, stop in own]
        return _DimRead(axis, length, tuple(zip(starts, stops)))

    def _by_halo(self, x, line, zeros):
        """Return the outputs of own rows and of a halo, which travels; None: it cannot be so.

        x       as it is read along all dims but the first
        zeros   before and after the other dims
        """
        layer, axis = self._whole, self.axis
        halo = halo_of(axis.group, GRID_DIM, line.length, line.spans, layer.padding_mode)
        if halo is None:
            return None
        start, stop = line.own
        before = axis.own_span(line.length)[0] - start
        after = stop - start - before - x.shape[GRID_DIM]
        befores, afters = zeros
        sides = (before, *befores), (after, *afters)
        window = ConvolutionWindow(layer.stride, layer.dilation, *sides, layer.groups)
        if not takes_halo(x, layer.weight, window):
            return None
        return convolve_with_halo(x, layer.weight, layer.bias, window, halo)


def _of_rows(layer: ConvNd, x, zeros):
    """Return the outputs of rows that lie together, with zeros before and after other dims."""
    befores, afters = zeros
    if befores != afters:
        x, befores = _padded(x, befores, afters, "constant"), (0,) * len(befores)
    padding = (0, *befores)
    form = (layer.stride, padding, layer.dilation, layer.groups)
    return type(layer).operation(x, layer.weight, layer.bias, *form)


def _continued(layer: ConvNd, x, num_cut: int):
    """Return x continued along the dims of its grid that are not cut, or how many zeros are to
    stand there, before and after; along all dims but the first.
    """
    of_cut = (0,) * (num_cut - 1)
    befores, afters = [(*of_cut, *side[num_cut:]) for side in layer.sides]
    if layer.padding_mode == "zeros":
        return x, (befores, afters)
    nothing = (0,) * len(befores)
    return _padded(x, befores, afters, layer.padding_mode), (nothing, nothing)


def _padded(x, befores, afters, mode):
    """Return x padded along the other dims of the grid."""
    both = [(0, 0), *zip(befores, afters)]
    return pad(x, [side for sides in both[::-1] for side in sides], mode)


def _check_continued(layer, length, most, path):
    """Raise ShapeError if x is too short to be continued, as it is without a cut."""
    room = {"circular": length, "reflect": length - 1}.get(layer.padding_mode, most)
    if most > room:
        raise ShapeError(
            f"{path}: {length} rows cannot be continued by {most} in mode {layer.padding_mode!r}; "
            f"wanted 0 to {room}"
        )


class _Under(NamedTuple):
    """What a transposed convolution reads along a dim, and what it keeps of what it computes.

    more   zeros behind what is computed
    """

    line: _DimRead
    more: int
    kept: slice


class CutTransposedConvolution(CutLayer):
    """A transposed convolution; x [N, C, part, *grid] -> [N, O, part, *grid] local.

    Output p is made of rows r and taps k with r stride - padding + k dilation = p. Outputs that are
    computed beyond the own ones are left out.
    """

    _whole: ConvTransposeNd

    def forward(self, x, output_size=None):
        if output_size is not None:
            raise ShardingError(
                f"{self.path_in_model} with output_size, whose samples are cut; wanted "
                "output_padding of the layer"
            )
        layer = self._whole
        lengths = self.axis.lengths(x, self.path_in_model)
        cuts = [self._under(number, length) for number, length in enumerate(lengths)]
        read = _read([each.line for each in cuts], x)
        num_cut = len(cuts)
        padding = (0,) * num_cut + layer.padding[num_cut:]
        more = (*[each.more for each in cuts], *layer.output_padding[num_cut:])
        parameters = layer.weight, layer.bias
        form = layer.stride, padding, more, layer.groups, layer.dilation
        y = type(layer).operation(read[-1], *parameters, *form)
        for each in read:
            let_go(each)
        return y[(slice(None), slice(None), *[each.kept for each in cuts])]

    def _under(self, number, length) -> _Under:
        layer, path = self._whole, self.path_in_model
        stride, padding = layer.stride[number], layer.padding[number]
        far = layer.dilation[number] * (layer.kernel_size[number] - 1)  # from first to last tap
        count = (length - 1) * stride - 2 * padding + far + 1
        count = max(count + layer.output_padding[number], 0)
        axis = self.axis.axes[number]
        own = axis.spans_of_output(count, length, path)
        spans = tuple([_rows_under(span, length, stride, padding, far) for span in own])
        line = _DimRead(axis, length, spans)
        first, stop = own[axis.group.rank]
        begin, end = line.own
        computed = (end - 1) * stride - padding + far + 1  # rows up to here
        start = first - (begin * stride - padding)
        kept = slice(start, start + stop - first)
        return _Under(line, max(stop - computed, 0), kept)


def _rows_under(span, length, stride, padding, far):
    """Return the rows that outputs [first, stop) read, at least one, and from whose first output on
    they lie.
    """
    first, stop = span
    lowest = -((far - padding - first) // stride)  # rounded up
    begin = max(min(lowest, (first + padding) // stride), 0)
    begin = min(begin, length - 1)
    end = min((stop - 1 + padding) // stride + 1, length)
    return begin, max(end, begin + 1)


class CutMaximum(CutLayer):
    """A pool of maxima; x [N, C, part, *grid] -> [N, C, part, *grid] local."""

    def forward(self, x):
        lines = _lines_of(self, x)
        for number, axis in [*enumerate(self.axis.axes)][::-1]:
            x, lines[number] = _rows_read(self, axis, x, lines[number])
        return window_maxima(x, tuple(lines))


class CutSum(CutLayer):
    """A pool of means, or an interpolation; x [N, C, part, *grid] -> [N, C, part, *grid] local."""

    def forward(self, x):
        x = _sums(self, x, _rows_read)
        divisor = getattr(self._whole, "divisor_override", None)
        return x if divisor is None else multiply(x, 1 / divisor)


class JoinedGridMean(CutLayer):
    """The mean over the grid of x [N, C, part, *grid] local -> [N, C], whole."""

    leaves_parts = False

    def forward(self, x):
        lengths = self.axis.lengths(x, self.path_in_model)
        others = x.shape[GRID_DIM + len(lengths) :]
        total = all_reduce(x.sum(tuple(range(2, x.ndim))), self.axis.everyone)
        return total / prod((*lengths, *others))


class JoinedMeans(CutLayer):
    """Means over shares of the grid, fewer than ranks; x [N, C, part, *grid] local -> whole."""

    leaves_parts = False

    def forward(self, x):
        return all_reduce(_sums(self, x, _own_terms), self.axis.everyone)


def _own_terms(layer: CutLayer, axis: DomainAxis, x, line: Windows):
    """Return x, and windows that read of it what own rows add to those of a line."""
    first, stop = axis.own_span(line.size)
    is_here = (line.index >= first) & (line.index < stop)
    size = stop - first
    index = (line.index - first).clip(0, size - 1)
    return x, Windows(size, index, line.weight * is_here)


class JoinedMaxima(CutLayer):
    """Maxima over the whole grid; x [N, C, part, *grid] local -> [N, C, 1, *others], whole.

    The first of equal elements takes the gradient: that of the first rank.
    """

    leaves_parts = False

    def forward(self, x):
        self.axis.lengths(x, self.path_in_model)
        x = window_maxima(x, windows_of(self._whole, x.shape[GRID_DIM:]))  # [N, C, 1, *others]
        for axis in self.axis.axes:
            x = all_gather(x, axis.group, axis.dim)
        return self._whole.forward(x)


def _lines_of(layer: CutLayer, x) -> list[Windows]:
    """Return the windows of each dim of the whole grid. Collective over everyone."""
    lengths = layer.axis.lengths(x, layer.path_in_model)
    others = x.shape[GRID_DIM + len(lengths) :]
    return [*windows_of(layer._whole, (*lengths, *others))]


def _sums(layer: CutLayer, x, read: Callable):
    """Return x summed in windows along all dims of the grid, from the last one on. Collective.

    read   (layer, axis, x, line) -> x and the windows of it, along a dim that is cut
    """
    axes = layer.axis.axes
    for number, line in [*enumerate(_lines_of(layer, x))][::-1]:
        if number < len(axes):
            x, line = read(layer, axes[number], x, line)
        x = window_sums(x, GRID_DIM + number, line)
    return x


@singledispatch
def windows_of(layer: Module, sizes: Shape) -> tuple[Windows, ...]:
    """Return what a layer reads of a grid of these sizes, by dimension; each class enters itself.

    Sums of windows are to be divided by divisor_override, if the layer has one.
    """
    raise NotImplementedError(type(layer).__name__)


@windows_of.register
def _(layer: MaxPoolNd, sizes: Shape) -> tuple[Windows, ...]:
    form = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    return pooling.max_windows(sizes, *form, layer.ceil_mode)


@windows_of.register
def _(layer: AvgPoolNd, sizes: Shape) -> tuple[Windows, ...]:
    form = layer.kernel_size, layer.stride, layer.padding, layer.ceil_mode
    return pooling.avg_windows(sizes, *form, layer.count_include_pad, layer.divisor_override)


@windows_of.register
def _(layer: AdaptivePoolNd, sizes: Shape) -> tuple[Windows, ...]:
    return pooling.adaptive_windows(type(layer).__name__, sizes, layer.output_size)


@windows_of.register
def _(layer: Upsample, sizes: Shape) -> tuple[Windows, ...]:
    form = layer.size, layer.scale_factor, layer.mode, layer.align_corners
    return interpolation_windows(sizes, *form, layer.recompute_scale_factor)


def _rows_read(layer: CutLayer, axis: DomainAxis, x, line: Windows):
    """Return the rows that the own windows of a line read, and these windows of them."""
    own = axis.spans_of_output(line.index.shape[1], line.size, layer.path_in_model)
    spans = _spans_read(line, own)
    x = rows_of(x, axis.group, axis.dim, line.size, spans)
    return x, _own_windows(line, own[axis.group.rank])


@lru_cache(maxsize=256)
def _spans_read(line, spans):
    """Return [start, stop) of the rows that the windows [first, stop) of each rank read."""
    read = [line.index[:, first:stop] for first, stop in spans]
    starts = [int(rows.min()) for rows in read]
    stops = [int(rows.max()) + 1 for rows in read]
    return tuple(zip(starts, stops))


@lru_cache(maxsize=256)
def _own_windows(line, span) -> Windows:
    """Return the windows [first, stop) of a line, of the rows that they read."""
    first, stop = span
    index = line.index[:, first:stop]
    start = int(index.min())
    size = int(index.max()) + 1 - start
    return Windows(size, index - start, line.weight[:, first:stop])
