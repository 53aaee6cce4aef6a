"""Layers whose outputs read a window of rows: convolutions, pooling, interpolation.

    own outputs [first, stop)  --arithmetic-->  rows that they read  --rows.py-->  the layer's op on
                                                                                    these rows alone

Each rank computes the outputs of its own part of the result, so strides need not divide parts, and
a window may be wider than the part of a neighbor.
"""

from functools import lru_cache

from ...array.lines import Windows
from ...errors import ShapeError, ShardingError
from ...nn.layers.convolution import ConvNd, ConvTransposeNd
from ...nn.ops.elementwise import multiply
from ...nn.ops.padding import pad
from ...nn.ops.windows import window_maxima, window_sums
from .axis import CutLayer, DomainAxis
from .rows import rows_of

GRID_DIM = 2  # the first dim of a grid in [samples, channels, *grid], which is cut


class CutConvolution(CutLayer):
    """A convolution of any padding; x [N, C, part, *grid] -> [N, O, part, *grid] local."""

    _whole: ConvNd

    def forward(self, x):
        layer, axis = self._whole, self._axis
        before, after = (side[0] for side in layer.sides)
        length = axis.length(x, self.path_in_model)
        _check_continued(layer, length, max(before, after), self.path_in_model)
        reach = layer.dilation[0] * (layer.kernel_size[0] - 1) + 1
        count = (length + before + after - reach) // layer.stride[0] + 1
        spans = tuple(
            [
                (first * layer.stride[0] - before, (stop - 1) * layer.stride[0] - before + reach)
                for first, stop in axis.spans_of_output(max(count, 0), length, self.path_in_model)
            ]
        )
        x = rows_of(x, axis.group, GRID_DIM, length, spans, layer.padding_mode)
        x, padding = self._padded(x)
        form = (layer.stride, padding, layer.dilation, layer.groups)
        return type(layer).operation(x, layer.weight, layer.bias, *form)

    def _padded(self, x):
        """Return x padded along the other dims of the grid, or not yet, and what is to be added."""
        layer = self._whole
        befores, afters = [(0, *side[1:]) for side in layer.sides]
        if layer.padding_mode == "zeros" and befores == afters:
            return x, befores
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        pairs = [side for both in reversed(list(zip(befores, afters))) for side in both]
        return pad(x, pairs, mode), 0


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
        layer, axis = self._whole, self._axis
        stride, padding = layer.stride[0], layer.padding[0]
        far = layer.dilation[0] * (layer.kernel_size[0] - 1)
        length = axis.length(x, self.path_in_model)
        count = (length - 1) * stride - 2 * padding + far + layer.output_padding[0] + 1
        own = axis.spans_of_output(max(count, 0), length, self.path_in_model)
        spans = tuple([_rows_under(span, length, stride, padding, far) for span in own])
        x = rows_of(x, axis.group, GRID_DIM, length, spans)
        (first, stop), (begin, end) = own[axis.group.rank], spans[axis.group.rank]
        more = max(stop - ((end - 1) * stride - padding + far + 1), 0)
        form = (layer.stride, (0, *layer.padding[1:]), (more, *layer.output_padding[1:]))
        y = type(layer).operation(x, layer.weight, layer.bias, *form, layer.groups, layer.dilation)
        start = first - (begin * stride - padding)
        return y[:, :, start : start + stop - first]


def _rows_under(span, length, stride, padding, far):
    """Return the rows that outputs [first, stop) read, at least one."""
    first, stop = span
    begin = min(max((first + padding - far) // stride, 0), length - 1)
    return begin, max(min((stop - 1 + padding) // stride + 1, length), begin + 1)


class CutMaximum(CutLayer):
    """A pool of maxima; x [N, C, part, *grid] -> [N, C, part, *grid] local."""

    def forward(self, x):
        length = self._axis.length(x, self.path_in_model)
        line, *others = self._whole.windows((length, *x.shape[GRID_DIM + 1 :]))
        x, line = _rows_read(self, x, line)
        return window_maxima(x, (line, *others))


class CutSum(CutLayer):
    """A pool of means, or an interpolation; x [N, C, part, *grid] -> [N, C, part, *grid] local."""

    def forward(self, x):
        length = self._axis.length(x, self.path_in_model)
        line, *others = self._whole.windows((length, *x.shape[GRID_DIM + 1 :]))
        for dim, other in reversed(list(enumerate(others, GRID_DIM + 1))):
            x = window_sums(x, dim, other)
        x, line = _rows_read(self, x, line)
        x = window_sums(x, GRID_DIM, line)
        divisor = getattr(self._whole, "divisor_override", None)
        return x if divisor is None else multiply(x, 1 / divisor)


def _rows_read(layer: CutLayer, x, line: Windows):
    """Return the rows that the own windows of a line read, and these windows of them."""
    axis: DomainAxis = layer.axis
    own = axis.spans_of_output(line.index.shape[1], line.size, layer.path_in_model)
    x = rows_of(x, axis.group, GRID_DIM, line.size, _spans_read(line, own))
    return x, _own_windows(line, own[axis.group.rank])


@lru_cache(maxsize=256)
def _spans_read(line, spans):
    """Return [start, stop) of the rows that the windows [first, stop) of each rank read."""
    read = [line.index[:, first:stop] for first, stop in spans]
    return tuple([(int(rows.min()), int(rows.max()) + 1) for rows in read])


@lru_cache(maxsize=256)
def _own_windows(line, span) -> Windows:
    """Return the windows [first, stop) of a line, of the rows that they read."""
    first, stop = span
    index = line.index[:, first:stop]
    start = int(index.min())
    return Windows(int(index.max()) + 1 - start, index - start, line.weight[:, first:stop])
