"""Group norm, batch norm and instance norm of x [N, C, *grid]."""

from math import prod

from ...array import fresh, kernels
from ...array.backend import xp_of
from ...errors import ShapeError
from ..autograd import Tensor, record
from .elementwise import add, multiply, power, subtract
from .operands import check_floating
from .shape import cast, reshape


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return x, with mean 0 and variance 1 in each group of channels of each sample.

    Parameters
    ----------
    weight, bias
        [C], that each channel is multiplied with, and that is added to it; None: 1, 0.

    Raises
    ------
    ShapeError
        If shapes or dtypes do not fit, or a group has no elements.

    References
    ----------
    arXiv 1803.08494.
    """
    _check("group_norm", x, weight, bias, num_groups)
    return _group_norm(x, num_groups, weight, bias, eps)[0]


def instance_norm(
    x: Tensor, *, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple:
    """Return x, with mean 0 and variance 1 in each channel of each sample; and these two.

    Parameters
    ----------
    weight, bias
        As of group_norm.

    Returns
    -------
    tuple
        y, and the mean and the variance [N, C] as arrays that no gradient goes through.

    Raises
    ------
    ShapeError
        If shapes or dtypes do not fit.

    References
    ----------
    arXiv 1607.08022.
    """
    _check("instance_norm", x, weight, bias, 1)
    return _group_norm(x, x.shape[1], weight, bias, eps)


def _group_norm(x, num_groups, weight, bias, eps):
    """Return y, and mean and variance [N, groups]."""
    scale, level = or_constant(weight, 1, x), or_constant(bias, 0, x)
    y, mean, variance = kernels.group_norm(lines_of(x), scale.array, level.array, num_groups, eps)
    kernel = kernels.group_norm_backward
    return _recorded(kernel, x, scale, level, y, mean, variance, eps), mean, variance


def batch_norm(
    x: Tensor, *, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple:
    """Return x, with mean 0 and variance 1 in each channel over all samples; and these two.

    Parameters
    ----------
    weight, bias
        [C], that each channel is multiplied with, and that is added to it; None: 1, 0.

    Returns
    -------
    tuple
        y, and the mean and the variance [C] as arrays that no gradient goes through.

    Raises
    ------
    ShapeError
        If shapes or dtypes do not fit, or a channel has less than two elements.

    References
    ----------
    arXiv 1502.03167.
    """
    _check("batch_norm", x, weight, bias, 1)
    if x.size <= x.shape[1]:
        raise ShapeError(
            f"batch_norm of x {x.shape}: a channel has {x.size // x.shape[1]} elements; wanted at "
            "least two in a micro-batch of training"
        )
    lines = lines_of(x)
    scale, level = or_constant(weight, 1, x), or_constant(bias, 0, x)
    y, mean, variance = kernels.batch_norm(lines, scale.array, level.array, eps)
    kernel = kernels.batch_norm_backward
    return _recorded(kernel, x, scale, level, y, mean, variance, eps), mean, variance


def normalize(x: Tensor, mean, variance, weight=None, bias=None, eps: float = 1e-5) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) weight + bias, all but x [C] and given."""
    _check("normalize", x, weight, bias, 1)
    along = (-1, *[1] * (x.ndim - 2))
    factor = power(add(variance, eps), -0.5)
    factor = cast(factor, x.dtype) if factor.dtype != x.dtype else factor
    mean = cast(mean, x.dtype) if mean.dtype != x.dtype else mean
    if weight is not None:
        factor = multiply(factor, weight)
    y = multiply(subtract(x, reshape(mean, along)), reshape(factor, along))
    return y if bias is None else add(y, reshape(bias, along))


def _recorded(kernel, x, weight, bias, y, mean, variance, eps):
    """Return the output y [N, C, L] of a norm, whose gradients this kernel computes."""
    shape, by_line = x.shape, y.shape

    def backward(gradient, wanted):
        given = gradient.reshape(by_line), x.array.reshape(by_line), weight.array, mean, variance
        for_x, for_weight, for_bias = kernel(*given, eps, wanted)
        return None if for_x is None else for_x.reshape(shape), for_weight, for_bias

    parents = (x, weight, bias)
    about = {"needs": (x, weight), "is_one_pass": True, "gives_new": True}
    return record(y.reshape(shape), parents, backward, **about)


def lines_of(x):
    """Return the array [N, C, L] of x [N, C, *grid], a view."""
    return x.array.reshape(*x.shape[:2], prod(x.shape[2:]))


def or_constant(parameter, number, x):
    """Return the parameter, or a constant [C] in its place: a Tensor."""
    if parameter is not None:
        return parameter
    constant = fresh.zeros(x.shape[1], x.dtype, xp_of(x.array))
    constant += constant.dtype.type(number)
    return Tensor(constant)


def _check(name, x, weight, bias, num_groups):
    """Raise ShapeError unless x [N, C, *grid], weight and bias [C] fit, and groups divide C."""
    check_floating(name, x)
    parameters = [one for one in (weight, bias) if one is not None]
    if (
        x.ndim < 2
        or min(x.shape[1:]) == 0
        or x.shape[1] % num_groups
        or any(one.shape != x.shape[1:2] or one.dtype != x.dtype for one in parameters)
    ):
        got = ", ".join(f"{tensor.shape} {tensor.dtype}" for tensor in (x, *parameters))
        raise ShapeError(
            f"{name} of {got} in {num_groups} groups; wanted x [N, C, *grid] with elements, weight "
            "and bias [C] of its dtype, and groups that divide C"
        )
