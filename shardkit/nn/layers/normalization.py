"""Norms of images and volumes: by group, by instance, by batch. x is [samples, channels, *grid].

Arguments, names and shapes of parameters and buffers are PyTorch's. (LayerNorm, RMSNorm: basic.py.)

    training     y = (x - mean) / sqrt(variance + eps) * weight + bias,  moments of this micro-batch
                 running_mean, running_var observe them
    otherwise    y by the running moments, where they are kept
"""

from typing import Any, ClassVar

from ...annotations import DTypeLike
from ...arguments import is_number, require
from ...array.backend import xp_of
from ...errors import ShapeError
from ..autograd import Tensor
from ..buffer import Buffer
from ..context import current_context
from ..init import Fill
from ..module import Module, Parameter
from ..ops.channel_norm import batch_norm, group_norm, instance_norm, normalize
from .basic import check_sizes
from .convolution import check_grid


class GroupNorm(Module):
    """Each group of channels of a sample at mean 0, variance 1, times weight, plus bias.

    Parameters
    ----------
    num_groups
        Divides num_channels.
    num_channels
        Of x.
    eps
        Added to the variance.
    affine
        False: no weight and bias [num_channels], which begin at 1 and 0.
    dtype
        Of the parameters, such as "float32".

    References
    ----------
    arXiv 1803.08494.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: DTypeLike = "float32",
    ) -> None:
        check_sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        fits = num_channels % num_groups == 0
        wanted = f"a divisor of num_channels = {num_channels}"
        require(fits, "GroupNorm with num_groups", num_groups, wanted)
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = _checked_eps("GroupNorm", eps)
        self.weight, self.bias = _scale_and_level(num_channels, affine, dtype)

    def check_input(self, x: Any) -> None:
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(
                f"GroupNorm of x {x.shape}; wanted [samples, {self.num_channels}, *grid]"
            )

    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class TrackedNorm(Module):
    """What batch and instance norms share: parameters, and running moments in buffers.

    Parameters
    ----------
    num_features
        channels.
    eps
        Added to the variance.
    momentum
        Weight of a step's moments in the running ones; None: all steps weigh alike.
    affine
        Have weight and bias [num_features], which begin at 1 and 0; None: as the class.
    track_running_stats
        Keep running_mean, running_var [num_features] and num_batches_tracked, and normalize by them
        outside of training; False: always by the moments of x; None: as the class.
    dtype
        Of the parameters, such as "float32".

    Notes
    -----
    A micro-batch is normalized by its own moments, as in PyTorch's DDP, so the result depends on
    how a batch is cut. The running moments follow all micro-batches of a step (nn.Buffer).
    """

    num_grid_dims: ClassVar[tuple[int, ...]]  # that x may have
    operation: ClassVar[Any]  # of ops

    def __init_subclass__(cls, operation: Any = None, num_grid_dims: Any = ()) -> None:
        super().__init_subclass__()
        if operation is not None:
            cls.operation, cls.num_grid_dims = staticmethod(operation), num_grid_dims

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool | None = None,
        track_running_stats: bool | None = None,
        *,
        dtype: DTypeLike = "float32",
    ) -> None:
        name = type(self).__name__
        check_sizes(name, num_features=num_features)
        is_weight = momentum is None or is_number(momentum, at_least=0) and momentum <= 1
        require(is_weight, f"{name} with momentum", momentum, "a number from 0 to 1, or None")
        self.num_features = num_features
        self.eps = _checked_eps(name, eps)
        self.momentum = momentum
        is_batch_norm = type(self).operation is batch_norm
        affine = is_batch_norm if affine is None else affine
        self.weight, self.bias = _scale_and_level(num_features, affine, dtype)
        is_tracked = is_batch_norm if track_running_stats is None else track_running_stats
        self.track_running_stats = is_tracked
        if is_tracked:
            self.running_mean = Buffer((num_features,), Fill(0.0), dtype)
            self.running_var = Buffer((num_features,), Fill(1.0), dtype)
            self.num_batches_tracked = Buffer((), Fill(0), "int64")

    def check_input(self, x: Any) -> None:
        num_dims = x.ndim - 2 if x.ndim - 2 in self.num_grid_dims else self.num_grid_dims[-1]
        check_grid(type(self).__name__, x, self.num_features, num_dims)

    def forward(self, x: Tensor) -> Tensor:
        self.check_input(x)
        if self.track_running_stats and not current_context().training:
            moments = (self.running_mean, self.running_var)
            return normalize(x, *moments, self.weight, self.bias, self.eps)
        y, mean, variance = type(self).operation(
            x, weight=self.weight, bias=self.bias, eps=self.eps
        )
        if self.track_running_stats:
            observe_moments(self, mean, variance, x.size // max(mean.size, 1))
        return y


def observe_moments(norm: TrackedNorm, mean, variance, count: int) -> None:
    """Tell the running moments those of a micro-batch, each of so many elements; the variance
    without bias.

    mean, variance   arrays of channels, or of samples and channels
    Errors: ShapeError on means of nothing, or of one element.
    """
    if mean.size == 0 or count < 2:
        raise ShapeError(
            f"{type(norm).__name__} of {mean.size} x {count} elements in training; wanted at least "
            "one sample, and two elements for each mean"
        )
    shape = (-1, norm.num_features)
    norm.num_batches_tracked.advance()
    steps = norm.num_batches_tracked if norm.momentum is None else None
    for buffer, found in (
        (norm.running_mean, mean),
        (norm.running_var, variance * (count / (count - 1))),
    ):
        value = xp_of(found).mean(found.reshape(shape), axis=0)
        buffer.observe(value, norm.momentum, count=steps)


class BatchNorm1d(TrackedNorm, operation=batch_norm, num_grid_dims=(0, 1)):
    """Each channel of a micro-batch at mean 0, variance 1 over samples and grid (arXiv 1502.03167).

    x is [samples, channels, length] or [samples, channels]; affine and tracked by default.
    See TrackedNorm.
    """


class BatchNorm2d(TrackedNorm, operation=batch_norm, num_grid_dims=(2,)):
    """Each channel of a micro-batch at mean 0, variance 1 over samples and grid (arXiv 1502.03167).

    x is [samples, channels, height, width]; affine and tracked by default. See TrackedNorm.
    """


class BatchNorm3d(TrackedNorm, operation=batch_norm, num_grid_dims=(3,)):
    """Each channel of a micro-batch at mean 0, variance 1 over samples and grid (arXiv 1502.03167).

    x is [samples, channels, depth, height, width]; affine and tracked by default. See TrackedNorm.
    """


class InstanceNorm1d(TrackedNorm, operation=instance_norm, num_grid_dims=(1,)):
    """Each channel of each sample at mean 0, variance 1 over the grid (arXiv 1607.08022).

    x is [samples, channels, length]; neither affine nor tracked by default. See TrackedNorm.
    """


class InstanceNorm2d(TrackedNorm, operation=instance_norm, num_grid_dims=(2,)):
    """Each channel of each sample at mean 0, variance 1 over the grid (arXiv 1607.08022).

    x is [samples, channels, height, width]; neither affine nor tracked by default. See TrackedNorm.
    """


class InstanceNorm3d(TrackedNorm, operation=instance_norm, num_grid_dims=(3,)):
    """Each channel of each sample at mean 0, variance 1 over the grid (arXiv 1607.08022).

    x is [samples, channels, depth, height, width]; neither affine nor tracked by default.
    See TrackedNorm.
    """


def _scale_and_level(num_channels, affine, dtype):
    """Return weight and bias [num_channels], which begin at 1 and 0; None without."""
    if not affine:
        return None, None
    shape = (num_channels,)
    return Parameter(shape, Fill(1.0), dtype), Parameter(shape, Fill(0.0), dtype)


def _checked_eps(owner, eps):
    require(is_number(eps, at_least=0), f"{owner} with eps", eps, "a number, at least 0")
    return eps
