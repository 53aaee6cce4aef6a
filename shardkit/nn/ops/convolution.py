"""Convolution in one, two and three dimensions, its transposed form, and all their derivatives.

    convolve    (x, weight)        -> y            sum s = <convolve(x, weight), g> is linear in
    spread      (g, weight)        -> x-like       each of x, weight and g. Each operation is the
    correlate   (g, x)             -> weight-like  gradient of s by what it lacks, so the gradients
                                                   of each are the other two, however often.

A transposed convolution is `spread`. x is [N, C, *grid], y [N, O, *grid]; the weight of a
convolution is [O, C/groups, *taps], that of a transposed one [C, O/groups, *taps], as in PyTorch.
"""

from ...annotations import PerDim
from ...arguments import is_integer, require
from ...array import halves, kernels
from ...array.dtypes import is_floating
from ...array.window import ConvolutionWindow
from ...errors import ConfigurationError, ShapeError
from ..autograd import Tensor, record
from .families import of_dims
from .reduction import sum as summed_over
from .shape import cast


def _conv(
    num_dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerDim = 1,
    padding: PerDim = 0,
    dilation: PerDim = 1,
    groups: int = 1,
) -> Tensor:
    """Return the convolution of x [N, C, *grid] with weight [O, C/groups, *taps], plus bias [O].

    Parameters
    ----------
    stride, dilation
        An int, or a tuple of one per dimension.
    padding
        Zeros before and after: an int, a tuple, "valid" (none), or "same": y is as large as x, with
        stride 1.
    groups
        Parts of the channels that do not see each other.

    Raises
    ------
    ShapeError
        If shapes or dtypes do not fit.
    ConfigurationError
        On other arguments.

    Notes
    -----
    On the CPU square taps of 2 to 5, of many channels in float32, take fewer products (Winograd),
    with an error of the largest number within 6 x 6 positions: see docs/numerics.md, and
    `convolutions` in the configuration.
    """
    name = f"conv{num_dims}d"
    channels = weight.shape[1] * groups if weight.ndim > 1 else 0
    _check(name, num_dims, x, weight, bias, channels, weight.shape[:1], groups)
    stride = per_dim(name, "stride", stride, num_dims)
    dilation = per_dim(name, "dilation", dilation, num_dims)
    taps = weight.shape[2:]
    before, after = padding_pairs(name, padding, taps, stride, dilation)
    window = ConvolutionWindow(stride, dilation, before, after, groups)
    counts = window.counts(x.shape[2:], taps)
    if min(counts) < 1:
        raise ShapeError(
            f"{name} of x {x.shape} with weight {weight.shape}, dilation {dilation}, padding "
            f"{padding}: the window is larger than the padded grid"
        )
    return _convolution(x, weight, bias, window, x.shape[2:])


def _conv_transpose(
    num_dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerDim = 1,
    padding: PerDim = 0,
    output_padding: PerDim = 0,
    groups: int = 1,
    dilation: PerDim = 1,
) -> Tensor:
    """Return the transposed convolution of x [N, C, *grid], weight [C, O/groups, *taps], bias [O].

    A dimension of y is (size - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1 long.

    Parameters
    ----------
    output_padding
        Less than stride or dilation.

    Raises
    ------
    ShapeError, ConfigurationError
        As conv1d.
    """
    name = f"conv_transpose{num_dims}d"
    num_out = weight.shape[1] * groups if weight.ndim > 1 else 0
    channels = weight.shape[0] if weight.ndim else 0
    _check(name, num_dims, x, weight, bias, channels, (num_out,), groups)
    stride = per_dim(name, "stride", stride, num_dims)
    dilation = per_dim(name, "dilation", dilation, num_dims)
    before = per_dim(name, "padding", padding, num_dims, at_least=0)
    more = per_dim(name, "output_padding", output_padding, num_dims, at_least=0)
    if any(m >= max(s, d) for m, s, d in zip(more, stride, dilation)):
        raise ConfigurationError(
            f"{name} with output_padding = {more}, stride = {stride}, dilation = {dilation}; "
            "wanted an output_padding below the stride or the dilation"
        )
    after = tuple([p - m for p, m in zip(before, more)])
    sizes = tuple(
        [
            (size - 1) * s - p - a + d * (tap - 1) + 1
            for size, s, p, a, d, tap in zip(
                x.shape[2:], stride, before, after, dilation, weight.shape[2:]
            )
        ]
    )
    if min(sizes) < 1 or min(x.shape[2:]) < 1:
        raise ShapeError(
            f"{name} of x {x.shape} with weight {weight.shape}, padding {padding}: the result "
            f"would have sizes {sizes}"
        )
    window = ConvolutionWindow(stride, dilation, before, after, groups)
    return _convolution(x, weight, bias, window, sizes, spreads=True)


conv1d, conv2d, conv3d = of_dims(_conv)
conv_transpose1d, conv_transpose2d, conv_transpose3d = of_dims(_conv_transpose)

# ---- the three operations ------------------------------------------------------------------------


def _convolution(x, weight, bias, window, sizes, spreads=False):
    """Return y [N, O, *counts] for x [N, C, *sizes]; or, which is its gradient by x, the reverse.

    spreads   y is [N, C, *sizes], x [N, O, *counts]
    """
    read_x, read_weight = _needed(x, weight)
    (taps, dtype), bias_form = _form(weight), _form(bias)

    def kernel(spreads, x, weight, bias=None):
        if spreads:
            return kernels.convolve_input(x, weight, bias, window, sizes)
        return kernels.convolve(x, weight, bias, window)

    def ends(gradient, x):
        """Return the arrays, or Tensors, of counts and of sizes."""
        return (x, gradient) if spreads else (gradient, x)

    def backward(gradient, wanted):
        for_x = kernel(not spreads, gradient, read_weight.array) if wanted[0] else None
        for_weight = None
        if wanted[1]:
            out, both = weight.empty_gradient(), ends(gradient, read_x.array)
            for_weight = kernels.convolve_weight(*both, window, taps[2:], out=out)
            for_weight = halves.rounded(for_weight, dtype)
        return for_x, for_weight, _over_positions(gradient, bias_form) if wanted[2] else None

    def differentiable(gradient, wanted, output):
        form = (taps, dtype)
        return (
            _convolution(gradient, read_weight, None, window, sizes, not spreads)
            if wanted[0]
            else None,
            _correlate(*ends(gradient, read_x), window, form) if wanted[1] else None,
            _over_positions_again(gradient, bias_form) if wanted[2] else None,
        )

    y = kernel(spreads, x.array, weight.array, None if bias is None else bias.array)
    parents, needs = (x, weight, bias), (read_x, read_weight)
    about = {"needs": needs, "gives_new": True, "differentiable": differentiable}
    return record(y, parents, backward, **about)


def _correlate(y, x, window, form):
    """Return what is the gradient of a convolution by its weight, of this (shape, dtype).

    y, x   [N, O, *counts], [N, C, *sizes]
    """
    shape, dtype = form
    sizes, before = x.shape[2:], x.dtype
    read_y, read_x = _needed(y, x)

    def backward(gradient, wanted):
        gradient = halves.rounded(gradient, before)
        for_y = for_x = None
        if wanted[0]:
            for_y = kernels.convolve(read_x.array, gradient, None, window)
        if wanted[1]:
            for_x = kernels.convolve_input(read_y.array, gradient, None, window, sizes)
        return for_y, for_x

    def differentiable(gradient, wanted, output):
        gradient = gradient if gradient.dtype == before else cast(gradient, before)
        return (
            _convolution(read_x, gradient, None, window, sizes) if wanted[0] else None,
            _convolution(read_y, gradient, None, window, sizes, True) if wanted[1] else None,
        )

    weight = halves.rounded(kernels.convolve_weight(y.array, x.array, window, shape[2:]), dtype)
    needs = (read_y, read_x)
    return record(weight, (y, x), backward, needs=needs, differentiable=differentiable)


def _needed(a, b):
    """Return of two factors what the backward reads: each for the gradient of the other."""
    return (a if b.requires_grad else None), (b if a.requires_grad else None)


def _form(operand):
    return None if operand is None else (operand.shape, operand.gradient_dtype)


def _over_positions(gradient, form):
    """Return the gradient of a bias: the sum over samples and positions."""
    return halves.total(gradient, (0, *range(2, gradient.ndim)), dtype=form[1])


def _over_positions_again(gradient, form):
    total = summed_over(gradient, (0, *range(2, gradient.ndim)))
    return total if total.dtype == form[1] else cast(total, form[1])


# ---- arguments -----------------------------------------------------------------------------------


def per_dim(owner, name, value, num_dims, at_least=1) -> tuple[int, ...]:
    """Return an argument as one int per dimension. Errors: ConfigurationError on anything else."""
    values = (value,) * num_dims if is_integer(value) else value
    is_right = (
        isinstance(values, (tuple, list))
        and len(values) == num_dims
        and all(is_integer(one, at_least=at_least) for one in values)
    )
    require(is_right, f"{owner} with {name}", value, f"{num_dims} ints or one, from {at_least} on")
    return tuple([int(one) for one in values])


def padding_pairs(owner, padding, taps, stride, dilation) -> tuple[tuple, tuple]:
    """Return the zeros before and after each dimension that an argument `padding` means."""
    num_dims = len(taps)
    if not isinstance(padding, str):
        both = per_dim(owner, "padding", padding, num_dims, at_least=0)
        return both, both
    require(padding in ("same", "valid"), f"{owner} with padding", padding, '"same" or "valid"')
    if padding == "valid":
        return (0,) * num_dims, (0,) * num_dims
    require(max(stride) == 1, f'{owner} with padding = "same" and stride', stride, "1")
    total = [d * (tap - 1) for d, tap in zip(dilation, taps)]
    return tuple([t // 2 for t in total]), tuple([t - t // 2 for t in total])


def _check(name, num_dims, x, weight, bias, channels, bias_shape, groups):
    """Raise unless x [N, channels, *grid], weight [., ., *taps] and bias fit together."""
    require(is_integer(groups, at_least=1), f"{name} with groups", groups, "an int, at least 1")
    tensors = [x, weight] if bias is None else [x, weight, bias]
    fits = (
        x.ndim == weight.ndim == num_dims + 2
        and x.shape[1] == channels
        and weight.shape[0] % groups == 0
        and min(weight.shape) > 0
        and (bias is None or bias.shape == tuple(bias_shape))
        and is_floating(x.dtype)
        and len({tensor.dtype for tensor in tensors}) == 1
    )
    if not fits:
        got = ", ".join(f"{tensor.shape} {tensor.dtype}" for tensor in tensors)
        raise ShapeError(
            f"{name} of {got}, groups = {groups}; wanted x [N, C, *grid] with {num_dims} "
            "dimensions of a grid, a weight whose channels times groups are C, a bias [O], all of "
            "one floating dtype"
        )
