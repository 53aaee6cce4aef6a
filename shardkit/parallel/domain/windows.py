"""Layers whose outputs read a window of rows: convolutions, pooling, interpolation.

    own outputs [first, stop)  --arithmetic-->  rows that they read  --rows.py-->  the layer's op on
                                                                                    these rows alone

Each rank computes the outputs of its own part of the result, so strides need not divide parts, and
a window may be wider than the part of a neighbor.
"""

from functools import lru_cache, singledispatch
from math import prod

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


class CutConvolution(CutLayer):
    """A convolution of any padding; x [N, C, part, *grid] -> [N, O, part, *grid] local."""

    _whole: ConvNd

    def forward(self, x):
        layer, path = self._whole, self.path_in_model
        axis = self.axis
        before, after = (side[0] for side in layer.sides)
        stride = layer.stride[0]
        length = axis.length(x, path)
        _check_continued(layer, length, max(before, after), path)
        reach = layer.dilation[0] * (layer.kernel_size[0] - 1) + 1
        count = max((length + before + after - reach) // stride + 1, 0)
        own = axis.spans_of_output(count, length, path)
        starts = [first * stride - before for first, _ in own]
        stops = [(stop - 1) * stride - before + reach for _, stop in own]
        spans = tuple(zip(starts, stops))
        x, zeros = _continued(layer, x)
        if (y := self._by_halo(x, length, spans, zeros)) is not None:
            return y
        x = rows_of(x, axis.group, GRID_DIM, length, spans, layer.padding_mode)
        y = _of_rows(layer, x, zeros)
        let_go(x)
        return y

    def _by_halo(self, x, length, spans, zeros):
        """Return the outputs of own rows and of a halo, which travels; None: it cannot be so.

        spans   of the rows that ranks read; zeros: before and after the other dims
        """
        layer, axis = self._whole, self.axis
        halo = halo_of(axis.group, GRID_DIM, length, spans, layer.padding_mode)
        if halo is None:
            return None
        start, stop = spans[axis.group.rank]
        before = axis.own_span(length)[0] - start
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


def _continued(layer: ConvNd, x):
    """Return x continued along the other dims of its grid, or how many zeros are to stand there,
    before and after.
    """
    befores, afters = [side[1:] for side in layer.sides]
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


class CutTransposedConvolution(CutLayer):
    """A transposed convolution; x [N, C, part, *grid] -> [N, O, part, *grid] local.

    An output row o reads the rows i with o = i stride - padding + dilation tap. Rows that are
    computed beyond the own ones are left out.
    """

    _whole: ConvTransposeNd

    def forward(self, x, output_size=None):
        if output_size is not None:
            raise ShardingError(
                f"{self.path_in_model} with output_size, whose samples are cut; wanted "
                "output_padding of the layer"
            )
        layer, path = self._whole, self.path_in_model
        axis = self.axis
        length = axis.length(x, path)
        stride, padding, far = _steps(layer)
        count = (length - 1) * stride - 2 * padding + far + 1
        count = max(count + layer.output_padding[0], 0)
        own = axis.spans_of_output(count, length, path)
        spans = tuple([_rows_under(span, length, stride, padding, far) for span in own])
        x = rows_of(x, axis.group, GRID_DIM, length, spans)
        first, stop = own[axis.group.rank]
        begin, end = spans[axis.group.rank]
        computed = (end - 1) * stride - padding + far + 1  # rows up to here
        more = (max(stop - computed, 0), *layer.output_padding[1:])
        form = (layer.stride, (0, *layer.padding[1:]), more)
        parameters = layer.weight, layer.bias
        y = type(layer).operation(x, *parameters, *form, layer.groups, layer.dilation)
        let_go(x)
        start = first - (begin * stride - padding)
        return y[:, :, start : start + stop - first]


def _steps(layer: ConvTransposeNd) -> tuple[int, int, int]:
    """Return stride, padding, and how far the last tap is from the first, along the first dim."""
    far = layer.dilation[0] * (layer.kernel_size[0] - 1)
    return layer.stride[0], layer.padding[0], far


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
        length = self.axis.length(x, self.path_in_model)
        sizes = (length, *x.shape[GRID_DIM + 1 :])
        line, *others = windows_of(self._whole, sizes)
        x, line = _rows_read(self, x, line)
        return window_maxima(x, (line, *others))


class CutSum(CutLayer):
    """A pool of means, or an interpolation; x [N, C, part, *grid] -> [N, C, part, *grid] local."""

    def forward(self, x):
        length = self.axis.length(x, self.path_in_model)
        x, line = _sums_of_others(self._whole, x, length)
        x, line = _rows_read(self, x, line)
        x = window_sums(x, GRID_DIM, line)
        divisor = getattr(self._whole, "divisor_override", None)
        return x if divisor is None else multiply(x, 1 / divisor)


class JoinedGridMean(CutLayer):
    """The mean over the grid of x [N, C, part, *grid] local -> [N, C], whole."""

    leaves_parts = False

    def forward(self, x):
        length = self.axis.length(x, self.path_in_model)
        others = x.shape[GRID_DIM + 1 :]
        total = all_reduce(x.sum(tuple(range(2, x.ndim))), self.axis.group)
        return total / (length * prod(others))


class JoinedMeans(CutLayer):
    """Means over shares of the grid, fewer than ranks; x [N, C, part, *grid] local -> whole."""

    leaves_parts = False

    def forward(self, x):
        length = self.axis.length(x, self.path_in_model)
        x, line = _sums_of_others(self._whole, x, length)
        first, stop = self.axis.own_span(length)
        return all_reduce(_part_of_sums(x, line, first, stop), self.axis.group)


def _part_of_sums(x, line, first, stop):
    """Return what rows [first, stop), which x is, add to the sums of each window of a line."""
    is_here = (line.index >= first) & (line.index < stop)
    size = stop - first
    index = (line.index - first).clip(0, size - 1)
    return window_sums(x, GRID_DIM, Windows(size, index, line.weight * is_here))


class JoinedMaxima(CutLayer):
    """Maxima over the whole grid; x [N, C, part, *grid] local -> [N, C, 1, *others], whole.

    The first of equal elements takes the gradient: that of the first rank.
    """

    leaves_parts = False

    def forward(self, x):
        axis = self.axis
        axis.length(x, self.path_in_model)
        own = window_maxima(x, windows_of(self._whole, x.shape[GRID_DIM:]))  # [N, C, 1, *others]
        return self._whole.forward(all_gather(own, axis.group, GRID_DIM))


def _sums_of_others(layer: Module, x, length: int):
    """Return x summed in windows along all dims of the grid but the first, of this length, and the
    windows of that one.
    """
    sizes = (length, *x.shape[GRID_DIM + 1 :])
    line, *others = windows_of(layer, sizes)
    last = GRID_DIM + len(others)
    for number, other in enumerate(others[::-1]):
        x = window_sums(x, last - number, other)
    return x, line


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


def _rows_read(layer: CutLayer, x, line: Windows):
    """Return the rows that the own windows of a line read, and these windows of them."""
    axis: DomainAxis = layer.axis
    own = axis.spans_of_output(line.index.shape[1], line.size, layer.path_in_model)
    spans = _spans_read(line, own)
    x = rows_of(x, axis.group, GRID_DIM, line.size, spans)
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
