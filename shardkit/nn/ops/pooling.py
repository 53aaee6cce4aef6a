"""Pooling over windows of a grid.

x [N, C, *grid]. Maxima are taken in one pass, means in one dimension after the other: a mean of
means is that of the whole window. The first of equal elements takes the gradient of a maximum, in C
order, as in PyTorch.
"""

from collections.abc import Sequence
from typing import Any

from ...arguments import is_integer, require
from ...array import lines
from ...errors import ConfigurationError, ShapeError
from ..autograd import Tensor
from .convolution import per_dim
from .elementwise import multiply
from .operands import check_floating
from .reduction import mean
from .windows import window_maxima, window_sums


def max_pool1d(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Return the largest element of each window of x [N, C, L].

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
    form = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _max_pool("max_pool1d", 1, x, *form)


def max_pool2d(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Return the largest element of each window of x [N, C, H, W]; see max_pool1d."""
    form = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _max_pool("max_pool2d", 2, x, *form)


def max_pool3d(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Return the largest element of each window of x [N, C, D, H, W]; see max_pool1d."""
    form = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _max_pool("max_pool3d", 3, x, *form)


MAX_POOLS = (max_pool1d, max_pool2d, max_pool3d)


def avg_pool1d(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the mean of each window of x [N, C, L], or its sum divided by divisor_override.

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
    form = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool("avg_pool1d", 1, x, *form)


def avg_pool2d(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the mean of each window of x [N, C, H, W], or its sum over divisor_override; see
    avg_pool1d.
    """
    form = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool("avg_pool2d", 2, x, *form)


def avg_pool3d(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the mean of each window of x [N, C, D, H, W], or its sum over divisor_override; see
    avg_pool1d.
    """
    form = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool("avg_pool3d", 3, x, *form)


def adaptive_avg_pool1d(x: Tensor, output_size: Any) -> Tensor:
    """Return the means of output_size windows that share x [N, C, L], from floor to ceil.

    Parameters
    ----------
    output_size
        An int, or one for each dimension; None: as many as x has.
    """
    return _adaptive("adaptive_avg_pool1d", 1, x, output_size, False)


def adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Tensor:
    """Return the means of windows that share x [N, C, H, W]; see adaptive_avg_pool1d."""
    return _adaptive("adaptive_avg_pool2d", 2, x, output_size, False)


def adaptive_avg_pool3d(x: Tensor, output_size: Any) -> Tensor:
    """Return the means of windows that share x [N, C, D, H, W]; see adaptive_avg_pool1d."""
    return _adaptive("adaptive_avg_pool3d", 3, x, output_size, False)


def adaptive_max_pool1d(x: Tensor, output_size: Any, return_indices: bool = False) -> Tensor:
    """Return the largest elements of windows that share x [N, C, L]; see adaptive_avg_pool1d."""
    _refuse_indices("adaptive_max_pool1d", return_indices)
    return _adaptive("adaptive_max_pool1d", 1, x, output_size, True)


def adaptive_max_pool2d(x: Tensor, output_size: Any, return_indices: bool = False) -> Tensor:
    """Return the largest elements of windows that share x [N, C, H, W]."""
    _refuse_indices("adaptive_max_pool2d", return_indices)
    return _adaptive("adaptive_max_pool2d", 2, x, output_size, True)


def adaptive_max_pool3d(x: Tensor, output_size: Any, return_indices: bool = False) -> Tensor:
    """Return the largest elements of windows that share x [N, C, D, H, W]."""
    _refuse_indices("adaptive_max_pool3d", return_indices)
    return _adaptive("adaptive_max_pool3d", 3, x, output_size, True)


def _max_pool(name, num_dims, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices):
    _refuse_indices(name, return_indices)
    form = _form(name, num_dims, x, kernel_size, stride, padding, dilation, ceil_mode)
    windows = tuple([lines.pooling(*along, True, False) for along in form])
    if not all((line.weight.sum(axis=0) > 0).all() for line in windows):
        raise ShapeError(f"{name} of x {x.shape}: a window lies in the padding alone")
    return window_maxima(x, windows)


def _avg_pool(name, num_dims, x, kernel_size, stride, padding, ceil_mode, counts, divisor):
    is_right = divisor is None or is_integer(divisor, at_least=1)
    require(is_right, f"{name} with divisor_override", divisor, "an int, at least 1, or None")
    form = _form(name, num_dims, x, kernel_size, stride, padding, 1, ceil_mode)
    for dim, (size, *window) in reversed(list(enumerate(form, 2))):
        x = window_sums(x, dim, lines.pooling(size, *window, counts, divisor is None))
    return x if divisor is None else multiply(x, 1 / divisor)


def _form(name, num_dims, x, kernel_size, stride, padding, dilation, ceil_mode):
    """Return (size, kernel, stride, padding, dilation, windows) for each dimension of the grid."""
    check_pooled(name, num_dims, x)
    kernel = per_dim(name, "kernel_size", kernel_size, num_dims)
    stride = kernel if stride is None else per_dim(name, "stride", stride, num_dims)
    padding = per_dim(name, "padding", padding, num_dims, at_least=0)
    dilation = per_dim(name, "dilation", dilation, num_dims)
    form = []
    for size, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation):
        reach = (k - 1) * d + 1
        if 2 * p > reach:
            raise ConfigurationError(
                f"{name} with padding = {padding}, kernel_size = {kernel}; wanted at most half of "
                "the window"
            )
        count = (
            -(-(size + 2 * p - reach) // s) + 1 if ceil_mode else (size + 2 * p - reach) // s + 1
        )
        if ceil_mode and (count - 1) * s >= size + p:
            count -= 1  # windows begin on the grid or before it
        if count < 1:
            raise ShapeError(
                f"{name} of x {x.shape} with kernel_size {kernel}, padding {padding}, dilation "
                f"{dilation}: the window is larger than the padded grid"
            )
        form.append((size, k, s, p, d, count))
    return form


def _adaptive(name, num_dims, x, output_size, takes_maxima):
    """Return maxima or means of windows that share each dimension."""
    check_pooled(name, num_dims, x)
    sizes = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * num_dims
    if len(sizes) == num_dims:
        sizes = [size if want is None else want for size, want in zip(x.shape[2:], sizes)]
    sizes = per_dim(name, "output_size", sizes, num_dims)
    windows = tuple([lines.adaptive(*pair) for pair in zip(x.shape[2:], sizes)])
    if takes_maxima:
        return window_maxima(x, windows)
    if max(sizes) == 1:
        return mean(x, tuple(range(2, x.ndim)), keepdim=True)
    for dim, line in reversed(list(enumerate(windows, 2))):
        x = window_sums(x, dim, line)
    return x


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
