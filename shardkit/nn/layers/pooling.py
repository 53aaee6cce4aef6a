"""Pooling layers: the ops of pooling.py with their arguments kept. Names are PyTorch's."""

from typing import Any

from ...annotations import PerDim
from ...arguments import is_integer, require
from ..autograd import Tensor
from ..module import Module
from ..ops import pooling as ops
from ..ops.convolution import per_dim
from .families import of_dims


class MaxPoolNd(Module):
    """The largest element of each window of x [samples, channels, *grid]; see ops.max_pool1d.

    Parameters
    ----------
    kernel_size
        Of a window: an int, or one for each dimension.
    stride
        None: the kernel_size.
    padding
        At most half of the window.
    dilation
        Distance between the elements of a window.
    return_indices
        False; True is refused.
    ceil_mode
        A last window may reach over the end.
    """

    num_dims: int
    operation: Any  # of ops

    def __init__(
        self,
        kernel_size: PerDim,
        stride: PerDim | None = None,
        padding: PerDim = 0,
        dilation: PerDim = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        name = type(self).__name__
        require(not return_indices, f"{name} with return_indices", return_indices, "False")
        self.kernel_size = per_dim(name, "kernel_size", kernel_size, self.num_dims)
        stride = self.kernel_size if stride is None else stride
        self.stride = per_dim(name, "stride", stride, self.num_dims)
        self.padding = per_dim(name, "padding", padding, self.num_dims, at_least=0)
        self.dilation = per_dim(name, "dilation", dilation, self.num_dims)
        self.ceil_mode = ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        form = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        return type(self).operation(x, *form)


class AvgPoolNd(Module):
    """The mean of each window of x [samples, channels, *grid]; see ops.avg_pool1d.

    Parameters
    ----------
    kernel_size, stride, padding, ceil_mode
        As of MaxPool2d.
    count_include_pad
        The padding counts, as zeros.
    divisor_override
        What sums are divided by, in place of the number of elements.
    """

    num_dims: int
    operation: Any  # of ops

    def __init__(
        self,
        kernel_size: PerDim,
        stride: PerDim | None = None,
        padding: PerDim = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        name = type(self).__name__
        self.kernel_size = per_dim(name, "kernel_size", kernel_size, self.num_dims)
        stride = self.kernel_size if stride is None else stride
        self.stride = per_dim(name, "stride", stride, self.num_dims)
        self.padding = per_dim(name, "padding", padding, self.num_dims, at_least=0)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        is_right = divisor_override is None or is_integer(divisor_override, at_least=1)
        wanted = "an int, at least 1, or None"
        require(is_right, f"{name} with divisor_override", divisor_override, wanted)
        self.divisor_override = divisor_override

    def forward(self, x: Tensor) -> Tensor:
        form = (self.kernel_size, self.stride, self.padding, self.ceil_mode)
        more = (self.count_include_pad, self.divisor_override)
        return type(self).operation(x, *form, *more)


class AdaptivePoolNd(Module):
    """output_size windows that share each dimension of x [samples, channels, *grid].

    Parameters
    ----------
    output_size
        An int, or one for each dimension; None: as many as x has.
    return_indices
        Of maxima: False; True is refused.
    """

    operation: Any  # of ops

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        name = type(self).__name__
        require(not return_indices, f"{name} with return_indices", return_indices, "False")
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return type(self).operation(x, self.output_size)


@of_dims(1, ops.max_pool1d)
class MaxPool1d(MaxPoolNd): ...


@of_dims(2, ops.max_pool2d)
class MaxPool2d(MaxPoolNd): ...


@of_dims(3, ops.max_pool3d)
class MaxPool3d(MaxPoolNd): ...


@of_dims(1, ops.avg_pool1d)
class AvgPool1d(AvgPoolNd): ...


@of_dims(2, ops.avg_pool2d)
class AvgPool2d(AvgPoolNd): ...


@of_dims(3, ops.avg_pool3d)
class AvgPool3d(AvgPoolNd): ...


@of_dims(1, ops.adaptive_avg_pool1d)
class AdaptiveAvgPool1d(AdaptivePoolNd): ...


@of_dims(2, ops.adaptive_avg_pool2d)
class AdaptiveAvgPool2d(AdaptivePoolNd): ...


@of_dims(3, ops.adaptive_avg_pool3d)
class AdaptiveAvgPool3d(AdaptivePoolNd): ...


@of_dims(1, ops.adaptive_max_pool1d)
class AdaptiveMaxPool1d(AdaptivePoolNd): ...


@of_dims(2, ops.adaptive_max_pool2d)
class AdaptiveMaxPool2d(AdaptivePoolNd): ...


@of_dims(3, ops.adaptive_max_pool3d)
class AdaptiveMaxPool3d(AdaptivePoolNd): ...
