"""Pooling over windows of a grid.

x [N, C, *grid]. Maxima are taken in one pass, means in one dimension after the other: a mean of
means is that of the whole window. The first of equal elements takes the gradient of a maximum, in C
order, as in PyTorch.
"""

from typing import Any

from ...annotations import PerDim, Shape
from ...arguments import is_integer, require
from ...array import lines
from ...errors import ConfigurationError, ShapeError
from ..autograd import Tensor
from .convolution import per_dim
from .elementwise import multiply
from .families import of_dims
from .operands import check_floating
from .reduction import mean
from .windows import window_maxima, window_sums


def _max_pool(
    num_dims: int,
    x: Tensor,
    kernel_size: PerDim,
    stride: PerDim | None = None,
    padding: PerDim = 0,
    dilation: PerDim = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Return the largest element of each window of x [N, C, *grid].

    Parameters
    ----------
    stride
        None: the kernel_size, so that windows lie side by side.
    padding
        At most half of the window; it is never the largest.
    ceil_mode
        A last window may reach over the end.

    Raises
    ------
    ShapeError
        If x does not fit or no window does.
    ConfigurationError
        On other arguments; return_indices=True is refused.
    """
    name = f"max_pool{num_dims}d"
    _refuse_indices(name, return_indices)
    check_pooled(name, num_dims, x)
    form = (kernel_size, stride, padding, dilation, ceil_mode)
    return window_maxima(x, max_windows(x.shape[2:], *form))


def max_windows(
    sizes: Shape, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple:
    """Return the windows that max_pool1d and so on read of a grid of these sizes, by dimension.

    Errors: theirs.
    """
    name = f"max_pool{len(sizes)}d"
    form = _form(name, sizes, kernel_size, stride, padding, dilation, ceil_mode)
    windows = tuple([lines.pooling(*along, True, False) for along in form])
    if not all((line.weight.sum(axis=0) > 0).all() for line in windows):
        raise ShapeError(f"{name} of a grid {tuple(sizes)}: a window lies in the padding alone")
    return windows


def _avg_pool(
    num_dims: int,
    x: Tensor,
    kernel_size: PerDim,
    stride: PerDim | None = None,
    padding: PerDim = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the mean of each window of x [N, C, *grid], or its sum divided by divisor_override.

    Parameters
    ----------
    stride, padding, ceil_mode
        As in max_pool1d.
    count_include_pad
        The padding counts, as zeros.

    Raises
    ------
    ShapeError, ConfigurationError
        As max_pool1d.
    """
    name, divisor = f"avg_pool{num_dims}d", divisor_override
    is_right = divisor is None or is_integer(divisor, at_least=1)
    require(is_right, f"{name} with divisor_override", divisor, "an int, at least 1, or None")
    check_pooled(name, num_dims, x)
    form = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor)
    for dim, line in reversed(list(enumerate(avg_windows(x.shape[2:], *form), 2))):
        x = window_sums(x, dim, line)
    return x if divisor is None else multiply(x, 1 / divisor)


def avg_windows(
    sizes: Shape,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> tuple:
    """Return the windows that avg_pool1d and so on read of a grid of these sizes, by dimension;
    their weights are of sums where there is a divisor.

    Errors: theirs.
    """
    name = f"avg_pool{len(sizes)}d"
    form = _form(name, sizes, kernel_size, stride, padding, 1, ceil_mode)
    weights = count_include_pad, divisor_override is None
    return tuple([lines.pooling(*along, *weights) for along in form])


def _adaptive_avg_pool(num_dims: int, x: Tensor, output_size: Any) -> Tensor:
    """Return the means of output_size windows that share x [N, C, *grid], from floor to ceil.

    Parameters
    ----------
    output_size
        An int, or one for each dimension; None: as many as x has.
    """
    name = f"adaptive_avg_pool{num_dims}d"
    check_pooled(name, num_dims, x)
    windows = adaptive_windows(name, x.shape[2:], output_size)
    if max([line.index.shape[1] for line in windows]) == 1:
        return mean(x, tuple(range(2, x.ndim)), keepdim=True)
    for dim, line in reversed(list(enumerate(windows, 2))):
        x = window_sums(x, dim, line)
    return x


def _adaptive_max_pool(
    num_dims: int, x: Tensor, output_size: Any, return_indices: bool = False
) -> Tensor:
    """Return the largest elements of windows that share x; see adaptive_avg_pool1d."""
    name = f"adaptive_max_pool{num_dims}d"
    _refuse_indices(name, return_indices)
    check_pooled(name, num_dims, x)
    return window_maxima(x, adaptive_windows(name, x.shape[2:], output_size))


max_pool1d, max_pool2d, max_pool3d = MAX_POOLS = of_dims(_max_pool)
avg_pool1d, avg_pool2d, avg_pool3d = of_dims(_avg_pool)
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = of_dims(_adaptive_avg_pool)
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = of_dims(_adaptive_max_pool)


def _form(name, sizes, kernel_size, stride, padding, dilation, ceil_mode):
    """Return (size, kernel, stride, padding, dilation, windows) for each dimension of the grid."""
    num_dims = len(sizes)
    kernel = per_dim(name, "kernel_size", kernel_size, num_dims)
    stride = kernel if stride is None else per_dim(name, "stride", stride, num_dims)
    padding = per_dim(name, "padding", padding, num_dims, at_least=0)
    dilation = per_dim(name, "dilation", dilation, num_dims)
    form = []
    for size, k, s, p, d in zip(sizes, kernel, stride, padding, dilation):
        reach = (k - 1) * d + 1
        if 2 * p > reach:
            raise ConfigurationError(
                f"{name} with padding = {padding}, kernel_size = {kernel}; wanted at most half of "
                "the window"
            )
        room = size + 2 * p - reach
        count = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (count - 1) * s >= size + p:
            count -= 1  # windows begin on the grid or before it
        if count < 1:
            raise ShapeError(
                f"{name} of a grid {tuple(sizes)} with kernel_size {kernel}, padding {padding}, "
                f"dilation {dilation}: the window is larger than the padded grid"
            )
        form.append((size, k, s, p, d, count))
    return form


def adaptive_windows(name: str, sizes: Shape, output_size: Any) -> tuple:
    """Return windows that share each dimension of a grid of these sizes."""
    num_dims = len(sizes)
    counts = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * num_dims
    if len(counts) == num_dims:
        counts = [size if want is None else want for size, want in zip(sizes, counts)]
    counts = per_dim(name, "output_size", counts, num_dims)
    return tuple([lines.adaptive(*pair) for pair in zip(sizes, counts)])


def check_pooled(name, num_dims, x):
    """Raise ShapeError unless x is [N, C, *grid] of so many dimensions, with positions."""
    check_floating(name, x)
    if x.ndim != num_dims + 2 or min(x.shape[2:]) == 0:
        raise ShapeError(
            f"{name} of x {x.shape}; wanted [N, C, *grid] with {num_dims} dimensions of a grid, "
            "none of them empty"
        )


def _refuse_indices(name, return_indices):
    require(not return_indices, f"{name} with return_indices", return_indices, "False")
