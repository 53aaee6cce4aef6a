"""Operations that are made of others, whose gradients of all orders they have. Names and arguments
are PyTorch's.
"""

import math
import operator
from typing import Any

from ...annotations import PerDim
from ...array import fresh
from ...array.backend import xp_of
from ...errors import ShapeError
from ..autograd import Tensor
from .activation import sigmoid, tanh
from .arrangement import flatten, stack
from .convolution import per_dim
from .elementwise import add, divide, maximum, multiply, negative, subtract, where
from .functions import abs, clamp, sign, softplus
from .indexing import index_add
from .operands import check_floating
from .padding import pad
from .rectifiers import elu
from .reduction import sum
from .shape import permute, reshape, split
from .statistics import norm

_SELU = 1.0507009873554805, 1.6732632423543772  # scale and alpha of arXiv 1706.02515


def selu(x: Tensor) -> Tensor:
    """Return elu(x) with the scale and alpha that keep mean 0, variance 1 (arXiv 1706.02515)."""
    scale, alpha = _SELU
    return multiply(elu(x, alpha), scale)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return max(x, 0) + min(alpha (exp(x / alpha) - 1), 0) (arXiv 1704.07483)."""
    check_floating("celu", x)
    return multiply(elu(divide(x, alpha)), alpha)


def relu6(x: Tensor) -> Tensor:
    """Return x between 0 and 6, and the nearer one elsewhere."""
    return _between(x, 0.0, 6.0)


def hardsigmoid(x: Tensor) -> Tensor:
    """Return x / 6 + 1 / 2 between 0 and 1."""
    check_floating("hardsigmoid", x)
    return divide(_between(add(x, 3.0), 0.0, 6.0), 6.0)


def hardswish(x: Tensor) -> Tensor:
    """Return x hardsigmoid(x) (arXiv 1905.02244)."""
    return multiply(x, hardsigmoid(x))


def _between(x, low, high):
    """Return x inside of two numbers, without a gradient from them on."""
    check_floating("an activation", x)
    is_inside = (x.array > low) & (x.array < high)
    return where(is_inside, x, clamp(x.detach(), low, high))


def logsigmoid(x: Tensor) -> Tensor:
    """Return the logarithm of sigmoid(x), without overflow for any x."""
    return negative(softplus(negative(x), threshold=math.inf))


def softsign(x: Tensor) -> Tensor:
    """Return x / (1 + |x|)."""
    check_floating("softsign", x)
    return divide(x, add(abs(x), 1.0))


def tanhshrink(x: Tensor) -> Tensor:
    """Return x - tanh(x)."""
    return subtract(x, tanh(x))


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Return x where its magnitude is above lambd, 0 elsewhere."""
    check_floating("hardshrink", x)
    return where((x.array > lambd) | (x.array < -lambd), x, 0.0)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Return x moved by lambd towards 0, and 0 where it would pass it."""
    check_floating("softshrink", x)
    moved = subtract(x, multiply(sign(x), lambd))
    return where((x.array > lambd) | (x.array < -lambd), moved, 0.0)


def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """Return x where it is above the threshold, the value elsewhere."""
    check_floating("threshold", x)
    return where(x.array > threshold, x, float(value))


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """Return the first half of x along dim, times sigmoid of the second (arXiv 1612.08083)."""
    half, rest = divmod(x.shape[dim], 2)
    if rest:
        raise ShapeError(f"glu of x {x.shape} along dim {dim}; wanted an even size there")
    first, second = split(x, [half, half], dim)
    return multiply(first, sigmoid(second))


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """Return x where it is positive, weight x elsewhere (arXiv 1502.01852).

    Parameters
    ----------
    weight
        [1], or one for each channel of x [samples, channels, ...].
    """
    check_floating("prelu", x, weight)
    by_channel = x.ndim >= 2 and weight.shape == x.shape[1:2]
    if weight.size > 1 and not by_channel:
        raise ShapeError(
            f"prelu of x {x.shape} and weight {weight.shape}; wanted [1] or [channels]"
        )
    behind = max(x.ndim - 2, 0)
    slopes = reshape(weight, (-1, *(1,) * behind))
    return where(x.array > 0, x, multiply(x, slopes))


# ---- grids ---------------------------------------------------------------------------------------


def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """Return [.., C, H r, W r] of x [.., C r r, H, W] (arXiv 1609.05158)."""
    *before, channels, height, width = _planes("pixel_shuffle", x, upscale_factor**2, 1)
    r, lead = upscale_factor, len(before)
    channels //= r**2
    parts = reshape(x, (*before, channels, r, r, height, width))
    order = [lead + place for place in (0, 3, 1, 4, 2)]
    moved = permute(parts, (*range(lead), *order))
    return reshape(moved, (*before, channels, height * r, width * r))


def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """Return [.., C r r, H, W] of x [.., C, H r, W r]: pixel_shuffle, undone."""
    *before, channels, height, width = _planes("pixel_unshuffle", x, 1, downscale_factor)
    r, lead = downscale_factor, len(before)
    height, width = height // r, width // r
    parts = reshape(x, (*before, channels, height, r, width, r))
    order = [lead + place for place in (0, 2, 4, 1, 3)]
    moved = permute(parts, (*range(lead), *order))
    return reshape(moved, (*before, channels * r**2, height, width))


def _planes(name, x, channels, size):
    """Return the shape of x [.., C, H, W]. Errors: ShapeError unless these numbers divide it."""
    is_grid = x.ndim >= 3 and channels > 0 and size > 0
    divisors = channels, size, size
    if not is_grid or any(map(operator.mod, x.shape[-3:], divisors)):
        wanted = f"[.., C, H, W] with C a multiple of {channels}, H and W of {size}"
        raise ShapeError(f"{name} of x {x.shape}; wanted {wanted}")
    return x.shape


def unfold(
    x: Tensor, kernel_size: PerDim, dilation: PerDim = 1, padding: PerDim = 0, stride: PerDim = 1
) -> Tensor:
    """Return the windows of x [N, C, H, W] as columns: [N, C kernel, windows].

    Parameters
    ----------
    kernel_size, dilation, padding, stride
        As of a convolution.
    """
    form = _WindowsOf("unfold", kernel_size, dilation, padding, stride)
    if x.ndim != 4:
        raise ShapeError(f"unfold of x {x.shape}; wanted [N, C, H, W]")
    padded = pad(x, form.pads)
    taps = [padded[rows] for rows in form.taps(x.shape[2:])]
    return flatten(flatten(stack(taps, 2), 3), 1, 2)


def fold(
    x: Tensor,
    output_size: PerDim,
    kernel_size: PerDim,
    dilation: PerDim = 1,
    padding: PerDim = 0,
    stride: PerDim = 1,
) -> Tensor:
    """Return [N, C, H, W], to which the columns x [N, C kernel, windows] are added: of unfold.

    Parameters
    ----------
    output_size
        (H, W).
    kernel_size, dilation, padding, stride
        As of unfold.
    """
    form = _WindowsOf("fold", kernel_size, dilation, padding, stride)
    size = per_dim("fold", "output_size", output_size, 2)
    counts, (height, width) = form.counts(size), form.padded(size)
    rows, places = math.prod(form.kernel), []
    for _, down, right in form.taps(size):
        lines = [line * width for line in range(height)[down]]
        places += [line + place for line in lines for place in range(width)[right]]
    num_windows = math.prod(counts)
    fits = x.ndim == 3 and x.shape[2] == num_windows
    if not fits or x.shape[1] % rows:
        wanted = f"[N, a multiple of {rows}, {num_windows}]"
        raise ShapeError(f"fold of x {x.shape} to {size}; wanted {wanted}")
    samples, channels, _ = x.shape
    columns = reshape(x, (samples, channels // rows, -1))
    shape = (*columns.shape[:2], height * width)
    zeros = Tensor(fresh.zeros(shape, x.dtype, xp_of(x.array)))
    whole = index_add(zeros, 2, places, columns)
    back = [-each for each in form.pads]
    return pad(reshape(whole, (*columns.shape[:2], height, width)), back)


class _WindowsOf:
    """The windows of images, as slices of padded ones: one for each place in a window."""

    def __init__(self, owner, kernel_size, dilation, padding, stride):
        self.kernel = per_dim(owner, "kernel_size", kernel_size, 2)
        self._padding = per_dim(owner, "padding", padding, 2, at_least=0)
        dilation = per_dim(owner, "dilation", dilation, 2)
        self._form = self.kernel, dilation, per_dim(owner, "stride", stride, 2)

    @property
    def pads(self) -> list[int]:
        """What pad() takes."""
        down, right = self._padding
        return [right, right, down, down]

    def padded(self, size) -> list[int]:
        """Return the size of padded images."""
        return [each + 2 * padding for each, padding in zip(size, self._padding)]

    def counts(self, size) -> list[int]:
        """Return the number of windows along both dimensions. Errors: ShapeError if there is none.

        size   of images without padding
        """
        counts = []
        for whole, taps, gap, step in zip(self.padded(size), *self._form):
            reach = (taps - 1) * gap + 1
            counts.append((whole - reach) // step + 1)
        if min(counts) < 1:
            raise ShapeError(f"windows {self.kernel} of images {tuple(size)}: there is none")
        return counts

    def taps(self, size) -> list[tuple[Any, slice, slice]]:
        """Return the slices of padded images that are the first, second, ... of all windows."""
        counts = self.counts(size)
        along = []
        for taps, gap, step, count in zip(*self._form, counts):
            length = (count - 1) * step + 1
            starts = range(0, taps * gap, gap)
            along.append([slice(start, start + length, step) for start in starts])
        return [(..., down, right) for down in along[0] for right in along[1]]


# ---- vectors -------------------------------------------------------------------------------------


def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Return x divided by its p-norm over dim, or by eps where that is larger."""
    check_floating("normalize", x)
    return divide(x, maximum(norm(x, p, dim, keepdim=True), eps))


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angles between vectors along dim; lengths are at least eps."""
    check_floating("cosine_similarity", x1, x2)
    sizes = [maximum(norm(x, 2, dim, keepdim=True), eps) for x in (x1, x2)]
    return sum(multiply(divide(x1, sizes[0]), divide(x2, sizes[1])), dim)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Return the p-norm of x1 - x2 + eps over the last dimension."""
    check_floating("pairwise_distance", x1, x2)
    return norm(add(subtract(x1, x2), eps), p, -1, keepdim)
