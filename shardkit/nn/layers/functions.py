"""Layers that apply one operation to x, with its arguments kept: each is its operation and its
signature. Names and arguments are PyTorch's; `inplace` is refused.
"""

from typing import Any, TypeVar

from ...annotations import DTypeLike, PerDim
from ...arguments import is_integer, is_number, require
from ...array.backend import xp_of
from ...errors import ShapeError, ShardingError
from ..autograd import Tensor
from ..context import current_context
from ..init import Fill
from ..module import Module, Parameter
from ..ops import composed
from ..ops.elementwise import multiply
from ..ops.normalization import dropout
from ..ops.padding import pad
from .activation import Applied, OutOfPlace


class SELU(OutOfPlace, operation=composed.selu):
    """elu(x) with the scale and alpha that keep mean 0 and variance 1 (arXiv 1706.02515)."""


class ReLU6(OutOfPlace, operation=composed.relu6):
    """x between 0 and 6, and the nearer one elsewhere."""


class Hardswish(OutOfPlace, operation=composed.hardswish):
    """x times hardsigmoid(x) (arXiv 1905.02244)."""


class Hardsigmoid(OutOfPlace, operation=composed.hardsigmoid):
    """x / 6 + 1 / 2 between 0 and 1."""


class LogSigmoid(OutOfPlace, operation=composed.logsigmoid):
    """The logarithm of sigmoid(x), without overflow for any x."""


class Softsign(OutOfPlace, operation=composed.softsign):
    """x / (1 + |x|)."""


class Tanhshrink(OutOfPlace, operation=composed.tanhshrink):
    """x - tanh(x)."""


class CELU(Applied, operation=composed.celu):
    """max(x, 0) + min(alpha (exp(x / alpha) - 1), 0) (arXiv 1704.07483).

    Parameters
    ----------
    alpha
        Minus the limit for very negative x.
    """

    alpha: float = 1.0


class Hardshrink(Applied, operation=composed.hardshrink):
    """x where its magnitude is above lambd, 0 elsewhere.

    Parameters
    ----------
    lambd
        The limit.
    """

    lambd: float = 0.5


class Softshrink(Applied, operation=composed.softshrink):
    """x moved by lambd towards 0, and 0 where it would pass it.

    Parameters
    ----------
    lambd
        The way.
    """

    lambd: float = 0.5


class Threshold(Applied, operation=composed.threshold):
    """x where it is above the threshold, the value elsewhere.

    Parameters
    ----------
    threshold
        Above which x stays.
    value
        In place of others.
    """

    threshold: float
    value: float


class GLU(Applied, operation=composed.glu):
    """The first half of x along dim, times sigmoid of the second (arXiv 1612.08083).

    Parameters
    ----------
    dim
        Of an even size.
    """

    dim: int = -1


class PixelShuffle(Applied, operation=composed.pixel_shuffle):
    """[.., C r r, H, W] -> [.., C, H r, W r] (arXiv 1609.05158).

    Parameters
    ----------
    upscale_factor
        r.
    """

    upscale_factor: int


class PixelUnshuffle(Applied, operation=composed.pixel_unshuffle):
    """[.., C, H r, W r] -> [.., C r r, H, W]: PixelShuffle, undone.

    Parameters
    ----------
    downscale_factor
        r.
    """

    downscale_factor: int


class Unfold(Applied, operation=composed.unfold):
    """The windows of x [N, C, H, W] as columns: [N, C kernel, windows].

    Parameters
    ----------
    kernel_size, dilation, padding, stride
        As of a convolution.
    """

    kernel_size: PerDim
    dilation: PerDim = 1
    padding: PerDim = 0
    stride: PerDim = 1


class Fold(Applied, operation=composed.fold):
    """Columns [N, C kernel, windows], added up to [N, C, H, W].

    Parameters
    ----------
    output_size
        (H, W).
    kernel_size, dilation, padding, stride
        As of Unfold.
    """

    output_size: PerDim
    kernel_size: PerDim
    dilation: PerDim = 1
    padding: PerDim = 0
    stride: PerDim = 1


class CosineSimilarity(Module):
    """(x1, x2) -> the cosine of the angles between vectors along dim.

    Parameters
    ----------
    dim
        Of the vectors.
    eps
        Smallest length.
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        self.dim = dim
        self.eps = eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return composed.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """(x1, x2) -> the p-norm of x1 - x2 + eps over the last dimension.

    Parameters
    ----------
    p
        Of the norm.
    eps
        Added to each difference.
    keepdim
        Keep the last dimension, of size 1.
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        self.p = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return composed.pairwise_distance(x1, x2, self.p, self.eps, self.keepdim)


class PReLU(Module):
    """x where it is positive, weight x elsewhere (arXiv 1502.01852).

    Parameters
    ----------
    num_parameters
        1, or the channels of x [samples, channels, ...].
    init
        Of the weight.
    dtype
        Of the weight, such as "float32".
    """

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, *, dtype: DTypeLike = "float32"
    ) -> None:
        is_count = is_integer(num_parameters, at_least=1)
        require(is_count, "PReLU with num_parameters", num_parameters, "an int, at least 1")
        self.weight = Parameter((num_parameters,), Fill(float(init)), dtype)

    def forward(self, x: Tensor) -> Tensor:
        return composed.prelu(x, self.weight)


_Kind = TypeVar("_Kind", bound=Module)


def _family(kind: type[_Kind], name: str, **of_all: Any) -> list[type[_Kind]]:
    """Return the classes NAME1d, NAME2d, NAME3d of a kind, with these attributes."""
    made = {"__doc__": kind.__doc__, "__module__": __name__, **of_all}
    kinds = []
    for dims in (1, 2, 3):
        kinds.append(type(f"{name}{dims}d", (kind,), {**made, "num_dims": dims}))
    return kinds


class ChannelDropout(Module):
    """Whole channels of x [samples, channels, *grid] zeroed with probability p in training, the
    others times 1 / (1 - p): the same ones however the batch is cut, as of Dropout.

    Parameters
    ----------
    p
        Probability, from 0 to below 1.
    inplace
        False; True is refused.
    """

    num_dims: int

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        name = type(self).__name__
        require(is_number(p, at_least=0, below=1), f"{name} with p", p, "0 <= p < 1")
        require(inplace is False, f"{name} with inplace", inplace, "False")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        context = current_context()
        if not context.training or self.p == 0:
            return x
        if x.ndim != self.num_dims + 2:
            wanted = f"[samples, channels, and {self.num_dims} more]"
            raise ShapeError(f"{type(self).__name__} of x {x.shape}; wanted {wanted}")
        if self.path_in_model is None:
            raise ShardingError(f"a {type(self).__name__} without a path; call finish(seed) first")
        points = (slice(0, 1),) * self.num_dims
        ones = xp_of(x.array).ones_like(x.array[(..., *points)])  # one for each channel
        return multiply(x, dropout(Tensor(ones), self.p, self.path_in_model, context, 0))


class Padding(Module):
    """x with more elements around its last dimensions, as ops.pad makes them.

    Parameters
    ----------
    padding
        One number for all sides, or (before, after) of each dimension, the last one first.
    """

    num_dims: int
    mode = "constant"
    value = 0.0

    def __init__(self, padding: PerDim) -> None:
        self.padding = _sides(type(self).__name__, padding, self.num_dims)

    def forward(self, x: Tensor) -> Tensor:
        return pad(x, self.padding, self.mode, self.value)


class ConstantPadding(Padding):
    """x with a number around its last dimensions.

    Parameters
    ----------
    padding
        One number for all sides, or (before, after) of each dimension, the last one first.
    value
        Of the elements around.
    """

    def __init__(self, padding: PerDim, value: float) -> None:
        super().__init__(padding)
        self.value = value


def _sides(owner, padding, dims) -> tuple[int, ...]:
    """Return the pairs (before, after) of all dimensions, one after the other."""
    sides = (padding,) * (2 * dims) if is_integer(padding) else tuple(padding)
    wanted = f"1 or {2 * dims} integers"
    require(len(sides) == 2 * dims, f"{owner} with padding", padding, wanted)
    return sides


Dropout1d, Dropout2d, Dropout3d = _family(ChannelDropout, "Dropout")
ConstantPad1d, ConstantPad2d, ConstantPad3d = _family(ConstantPadding, "ConstantPad")
ZeroPad1d, ZeroPad2d, ZeroPad3d = _family(Padding, "ZeroPad")
CircularPad1d, CircularPad2d, CircularPad3d = _family(Padding, "CircularPad", mode="circular")
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = _family(
    Padding, "ReflectionPad", mode="reflect"
)
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = _family(
    Padding, "ReplicationPad", mode="replicate"
)
