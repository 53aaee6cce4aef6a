"""Layer norms, and dropout."""

from typing import Any

from ...annotations import Shape
from ...arguments import is_integer
from ...array import kernels
from ...array.random import key_of
from ...errors import ShapeError
from ..autograd import Tensor, record, record_unary
from ..context import ForwardContext, next_call, num_rows_of_input
from .operands import check_floating


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias over the last dimension."""
    rows = _rows("layer_norm", x, weight, bias)
    y, *moments = kernels.layer_norm(rows, weight.array, bias.array, eps)
    return _recorded(kernels.layer_norm_backward, x, (weight, bias), y, moments)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Return x / sqrt(mean of x^2 + eps) * weight over the last dimension (arXiv 1910.07467)."""
    rows = _rows("rms_norm", x, weight)
    y, *moments = kernels.rms_norm(rows, weight.array, eps)
    return _recorded(kernels.rms_norm_backward, x, (weight,), y, moments)


def _recorded(kernel_backward, x, parameters, y, moments):
    """Return the output y [N, D] of a kernel, recorded; the first of the parameters is the weight.

    moments  what else the kernel returned, and its backward takes
    """
    by_row = y.shape
    weight = parameters[0]

    def backward(gradient, wanted):
        for_x, *others = kernel_backward(
            gradient.reshape(by_row), x.array.reshape(by_row), weight.array, *moments, wanted
        )
        return None if for_x is None else for_x.reshape(gradient.shape), *others

    return record(
        y.reshape(x.shape), (x, *parameters), backward, needs=(x, weight), is_one_pass=True
    )


def add_layer_norm(
    x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Return x + branch, and its layer_norm, in one pass: between two residual branches."""
    rows, branch_rows = _summands("add_layer_norm", x, branch, weight, bias)
    total, y, *moments = kernels.add_layer_norm(rows, branch_rows, weight.array, bias.array, eps)
    total = _sum(total, x, branch)
    return total, _recorded(kernels.layer_norm_backward, total, (weight, bias), y, moments)


def add_rms_norm(
    x: Tensor, branch: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Return x + branch, and its rms_norm, in one pass.

    x and branch are [..., D], of one dtype, the weight is [D]; both results are [..., D].
    """
    rows, branch_rows = _summands("add_rms_norm", x, branch, weight)
    total, y, *moments = kernels.add_rms_norm(rows, branch_rows, weight.array, eps)
    total = _sum(total, x, branch)
    return total, _recorded(kernels.rms_norm_backward, total, (weight,), y, moments)


def _rows(name, x, *parameters):
    """Return x as [rows, D]. Errors: ShapeError unless each parameter is [D] in the dtype of x."""
    if (
        x.ndim < 1
        or x.shape[-1] == 0
        or any(p.shape != x.shape[-1:] or p.dtype != x.dtype for p in parameters)
    ):
        got = ", ".join(f"{p.shape} {p.dtype}" for p in (x, *parameters))
        raise ShapeError(
            f"{name} of {got}; wanted x [..., D] with D > 0 and then [D], all of one dtype"
        )
    check_floating(name, x)
    return x.array.reshape(x.size // x.shape[-1], x.shape[-1])


def _summands(name, x, branch, *parameters):
    """Return x and branch as [rows, D].

    Errors: ShapeError unless they have one shape and dtype, and the parameters fit.
    """
    if branch.shape != x.shape or branch.dtype != x.dtype:
        raise ShapeError(
            f"{name} of x {x.shape} {x.dtype} and branch {branch.shape} {branch.dtype}; wanted one "
            "shape and dtype"
        )
    return _rows(name, x, *parameters), _rows(name, branch, *parameters)


def _sum(total, x, branch):
    """Return total [N, D], recorded as x + branch."""
    return record(
        total.reshape(x.shape), (x, branch), lambda gradient, wanted: (gradient, gradient)
    )


def dropout(
    x: Tensor, p: float, path: str, context: ForwardContext, sample_dim: int | str | None = "rows"
) -> Tensor:
    """Return x with each element zeroed with probability p, the others times 1 / (1 - p).

    x itself, if not training.

    Parameters
    ----------
    x
        [samples, ...], or [samples * k, ...] with the rows of a sample one after the other; see
        sample_dim. The first sample is number context.first_sample of the global batch.
    path
        Of the layer in the model; two dropouts of one model must not share it.
    sample_dim
        The dim of x along which the samples lie, or several rows of each; "rows": dim 0, where that
        can be told; None: x has none, and the pass draws one mask.

    Raises
    ------
    ShapeError
        Unless 0 <= p < 1 and samples can be told apart.

    Notes
    -----
    The mask depends on (seed, path, step, number of this call in the pass, global sample, place in
    the sample) alone, so it is the same however the batch is cut, and it is made again in the
    backward instead of kept.
    """
    if not 0 <= p < 1:
        raise ShapeError(f"dropout with p = {p}; wanted 0 <= p < 1")
    if not context.training or p == 0:
        return x
    if x.ndim == 0:
        raise ShapeError("dropout of a single number; wanted [samples, ...]")
    check_floating("dropout", x)
    parts: tuple[int | str, ...] = (
        context.seed,
        "dropout",
        path,
        context.step,
        *next_call(path, context),
    )
    if sample_dim is None:
        return _dropped(x, 0, key_of(*parts, "pass", context.first_sample), 0, p)
    dim = dim_of_samples(x.shape, context.num_samples, sample_dim)
    size = x.size // max(_num_samples(x.shape[dim], context, sample_dim), 1)
    return _dropped(x, dim, key_of(*parts, size), context.first_sample * size, p)


def _num_samples(rows, context, sample_dim):
    """Return how many samples share these rows: as told, or, by hand, as the first module saw."""
    if context.num_samples is not None:
        return context.num_samples
    first = num_rows_of_input(context) if sample_dim == "rows" else 0
    return first if first and rows % first == 0 else rows


def _dropped(x, dim, key, start, p):
    """Return x dropped, recorded; elements are counted with `dim` as the first."""
    if dim == 0:
        return record_unary(
            kernels.dropout(x.array, key, start, p),
            x,
            lambda gradient: kernels.dropout(gradient, key, start, p),
        )
    there = [dim, *(other for other in range(x.ndim) if other != dim)]
    back = [there.index(other) for other in range(x.ndim)]

    def drop(array):
        return kernels.dropout(array.transpose(there), key, start, p).transpose(back)

    return record_unary(drop(x.array), x, drop)


def dim_of_samples(shape: Shape, num_samples: int | None, sample_dim: int | str) -> int:
    """Return the dim of x of this shape along which samples lie, as dropout() was told.

    Errors: ShapeError if there is no such dim, it is no multiple of the samples, or several may be
    the one.
    """
    dim: Any = 0 if sample_dim == "rows" else sample_dim
    if not is_integer(dim) or not -len(shape) <= dim < len(shape):
        raise ShapeError(
            f"dropout of x {shape} with sample_dim = {sample_dim!r}; wanted a dim of x, 'rows' or "
            "None"
        )
    rows = shape[dim]
    if num_samples is None or rows == num_samples:
        return dim % len(shape)
    may_be_next = sample_dim == "rows" and len(shape) > 2 and shape[1] == num_samples > 1
    if rows % num_samples or may_be_next:
        raise ShapeError(
            f"dropout of x {shape} in a pass of {num_samples} samples: which of them its {rows} "
            f"rows along dim {dim} belong to cannot be told; wanted {num_samples} rows, or a "
            "multiple, the rows of a sample one after the other. Say where samples lie, by "
            "Dropout(p, sample_dim=...) or the attribute of one inside of a layer: 1 for [time, "
            "samples, ...], 0 for [samples * k, ...], None if x has none, or a single one, and "
            "each call draws one mask"
        )
    return dim % len(shape)
