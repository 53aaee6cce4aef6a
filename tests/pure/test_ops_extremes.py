"""Values and gradients of every function where numbers end, against PyTorch: 0 and -0, infinity,
NaN, denormals, the smallest normal number, the largest.

Equal to the last bits that a sum of a few terms loses, NaN where PyTorch has NaN, infinite where it
is infinite. Each function of nn.ops stands in a table here, or in ELSEWHERE.
"""

import math
from itertools import product

import numpy
import pytest
from torch_or_skip import torch

from shardkit import nn
from shardkit.nn import Tensor, ops

F = torch.nn.functional
TOLERANCE = {"float32": 3e-6, "float64": 1e-12}


def points(dtype):
    """Return the ends of a dtype, and numbers between them."""
    limits = numpy.finfo(dtype)
    ends = [limits.smallest_subnormal, limits.tiny / 2, limits.tiny, limits.max, 1e30, numpy.inf]
    numbers = [0.0, 0.5, 1, 2, 3, 6, 20, 25, 90, 110, 800, 1e4, *ends]
    return numpy.array([numpy.nan, *numbers, *[-number for number in numbers]], dtype)


def alike(names, of=torch):
    return {name: (getattr(ops, name), getattr(of, name)) for name in names.split()}


ONE = {  # functions of one number
    **alike(
        "abs arctan ceil cos erf exp expm1 floor log log1p negative reciprocal relu round rsqrt "
        "sigmoid sign sin sqrt square tan tanh"
    ),
    **alike("elu hardtanh leaky_relu mish silu softplus", F),
    "gelu": (ops.gelu, lambda x: F.gelu(x, approximate="tanh")),
    # PyTorch's own is NaN at infinity in long arrays, and infinite in short ones
    "erf_gelu": (ops.erf_gelu, lambda x: torch.cat([F.gelu(one) for one in x.split(1)])),
    "elu alpha": (lambda x: ops.elu(x, 0.3), lambda x: F.elu(x, 0.3)),
    "softplus beta": (lambda x: ops.softplus(x, 2.0, 5.0), lambda x: F.softplus(x, 2.0, 5.0)),
    **{
        f"power {n!r}": (lambda x, n=n: ops.power(x, n), lambda x, n=n: x**n)
        for n in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 1 / 3, 2.0, 1.5, 0.0)
    },
    **{
        f"power of {n!r}": (lambda x, n=n: ops.power(n, x), lambda x, n=n: n**x)
        for n in (0, 1, 2.0, 0.5, -1.0)
    },
    "clamp": (lambda x: ops.clamp(x, -1, 2), lambda x: x.clamp(-1, 2)),
    "clamp from": (lambda x: ops.clamp(x, min=0.0), lambda x: x.clamp(min=0.0)),
    "clip": (lambda x: ops.clip(x, max=0.0), lambda x: x.clamp(max=0.0)),
    "divide 1": (lambda x: 1 / x, lambda x: 1 / x),
    "divide by 0": (lambda x: x / 0.0, lambda x: x / 0.0),
    "binary_cross_entropy_with_logits": (
        lambda x: ops.binary_cross_entropy_with_logits(x[::3], numpy.ones(x[::3].shape), "sum"),
        lambda x: F.binary_cross_entropy_with_logits(
            x[::3], torch.ones_like(x[::3]), reduction="sum"
        ),
    ),
    **{
        f"{name} {y}": (
            lambda x, name=name, y=y: getattr(nn, name)().items(x, numpy.full_like(x.array, y)),
            lambda x, name=name, y=y: getattr(torch.nn, name)(reduction="none")(
                x, torch.full_like(x, y)
            ),
        )
        for name in "L1Loss MSELoss HuberLoss SmoothL1Loss BCEWithLogitsLoss KLDivLoss".split()
        for y in (0.0, 1.0)
    },
}
TWO = {  # functions of each pair of two numbers
    **alike("add subtract multiply divide maximum minimum"),
    "power": (ops.power, torch.pow),
    "arctan2": (ops.arctan2, torch.atan2),
    "where": (lambda x, y: ops.where(x > y, x, y), lambda x, y: torch.where(x > y, x, y)),
    "swiglu": (ops.swiglu, lambda x, y: F.silu(x) * y),
    "mse": (
        lambda x, y: ops.mse(x[:40], y[:40], "sum"),
        lambda x, y: F.mse_loss(x[:40], y[:40], reduction="sum"),
    ),
}


def segment(name, theirs):
    """Return a reduction of rows in one segment, and PyTorch's, of one row for each."""

    def ours(x):
        return ops.getitem(getattr(ops, name)(x.T, numpy.zeros(3, int), 2), 0)

    def twin(x):
        start = torch.full((1, len(x)), 777.0, dtype=x.dtype)
        index = torch.zeros(3, len(x), dtype=torch.long)
        return start.scatter_reduce(0, index, x.T, theirs, include_self=False)[0]

    return ours, twin


ROWS = {  # reductions of each row of three
    **{
        name: (
            lambda x, name=name: getattr(ops, name)(x, 1),
            lambda x, name=name: getattr(x, name)(1),
        )
        for name in "sum mean prod cumsum cumprod logsumexp softmax log_softmax var std".split()
    },
    **{
        name: (
            lambda x, name=name: getattr(ops, name)(x, 1),
            lambda x, name=name: getattr(x, name)(1),
        )
        for name in "any all argmax argmin".split()
    },
    "variance": (lambda x: ops.variance(x, 1), lambda x: x.var(1, correction=0)),
    "max": (lambda x: ops.max(x, 1), lambda x: x.amax(1)),
    "min": (lambda x: ops.min(x, 1), lambda x: x.amin(1)),
    "max and its place": (lambda x: x.max(1)[0], lambda x: x.max(1)[0]),
    "min and its place": (lambda x: x.min(1)[0], lambda x: x.min(1)[0]),
    "sort": (lambda x: ops.sort(x, 1)[0], lambda x: torch.sort(x, dim=1, stable=True)[0]),
    "argsort": (lambda x: ops.argsort(x, 1), lambda x: torch.argsort(x, dim=1, stable=True)),
    "topk": (lambda x: ops.topk(x, 2, 1)[0], lambda x: x.topk(2, 1)[0]),
    **{
        f"norm {p}": (
            lambda x, p=p: ops.norm(x, p, 1),
            lambda x, p=p: torch.linalg.vector_norm(x, p, 1),
        )
        for p in (1, 2, math.inf)
    },
    "segment_max": segment("segment_max", "amax"),
    "segment_sum": segment("segment_sum", "sum"),
    "segment_mean": segment("segment_mean", "mean"),
    "max_pool1d": (
        lambda x: ops.max_pool1d(ops.unsqueeze(x, 1), 2, 1),
        lambda x: F.max_pool1d(x[:, None], 2, 1),
    ),
    "avg_pool1d": (
        lambda x: ops.avg_pool1d(ops.unsqueeze(x, 1), 2, 1),
        lambda x: F.avg_pool1d(x[:, None], 2, 1),
    ),
    "adaptive_max_pool1d": (
        lambda x: ops.adaptive_max_pool1d(ops.unsqueeze(x, 1), 2),
        lambda x: F.adaptive_max_pool1d(x[:, None], 2),
    ),
    "cross_entropy": (
        lambda x: ops.cross_entropy(x, numpy.ones(len(x.array), int), reduction="sum"),
        lambda x: F.cross_entropy(x, torch.ones(len(x), dtype=torch.long), reduction="sum"),
    ),
    "CrossEntropyLoss": (
        lambda x: nn.CrossEntropyLoss().total(x, numpy.ones(len(x.array), int)),
        lambda x: F.cross_entropy(x, torch.ones(len(x), dtype=torch.long), reduction="sum"),
    ),
    "masked_fill": (
        lambda x: ops.masked_fill(x, numpy.array([True, False, True]), 0.0),
        lambda x: x.masked_fill(torch.tensor([True, False, True]), 0.0),
    ),
    "einsum": (
        lambda x: ops.einsum("ij,ij->i", x, x),
        lambda x: torch.einsum("ij,ij->i", x, x),
    ),
    "pad": (
        lambda x: ops.pad(x, (1, 1), value=-math.inf),
        lambda x: F.pad(x, (1, 1), value=-math.inf),
    ),
}
# Functions made of those above, or that only move numbers, or whose sums another test compares.
ELSEWHERE = set(
    """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d
    adaptive_max_pool3d add_bias add_layer_norm add_rms_norm attention_weights avg_pool2d avg_pool3d
    batch_norm bias_gelu bmm cast causal_attention chunk compare concatenate conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d diagonal dropout embedding expand flatten
    flip gather getitem group_norm gru index_add index_select instance_norm interpolate layer_norm
    linear lstm matmul max_pool2d max_pool3d one_hot outer permute repeat repeat_interleave reshape
    rms_norm roll rotary scaled_dot_product_attention scatter_add split squeeze stack take_along_dim
    tile transpose tril triu unsqueeze
    cat celu cosine_similarity ctc_loss fold glu grid_sample hardshrink hardsigmoid hardswish
    logsigmoid normalize pairwise_distance pixel_shuffle pixel_unshuffle prelu relu6 selu
    softshrink softsign tanhshrink threshold unfold
    """.split()
)


def test_every_function_is_tried_at_its_ends():
    tried = {name.split()[0] for name in (*ONE, *TWO, *ROWS)}
    there = {name for name in ops.__all__ if callable(getattr(ops, name))}
    assert there - tried == ELSEWHERE


def check(pair, arrays, dtype):
    """Compare values and gradients at arrays."""
    ours = [Tensor(array.copy(), requires_grad=True) for array in arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in arrays]
    with numpy.errstate(all="ignore"):
        result, twin = pair[0](*ours), pair[1](*theirs)
        same(result.array, twin.detach().numpy(), dtype)
        if twin.requires_grad:
            twin.backward(torch.ones_like(twin))
        if result.requires_grad:
            result.backward(numpy.ones(result.shape, dtype))
    for x, y in zip(ours, theirs):
        zeros = numpy.zeros(x.shape, dtype)  # no gradient, where PyTorch says 0
        grads = [zeros if one.grad is None else numpy.asarray(one.grad) for one in (x, y)]
        same(*grads, dtype)


def same(values, expected, dtype):
    error = TOLERANCE[dtype]
    numpy.testing.assert_allclose(values, expected, rtol=error, atol=error / 10)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ONE)
def test_a_function_of_one_number_ends_as_pytorch_says(name, dtype):
    check(ONE[name], [points(dtype)], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", TWO)
def test_a_function_of_two_numbers_ends_as_pytorch_says(name, dtype):
    few = points(dtype)
    few = few[numpy.isnan(few) | (numpy.abs(few) <= 3) | numpy.isinf(few)]
    pairs = [grid.reshape(-1) for grid in numpy.meshgrid(few, few)]
    check(TWO[name], pairs, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ROWS)
def test_a_reduction_of_a_row_ends_as_pytorch_says(name, dtype):
    ends = [0.0, -0.0, numpy.finfo(dtype).tiny / 2, numpy.inf, -numpy.inf, numpy.nan, 1, -2]
    if name == "cumprod":  # PyTorch divides by x where no element is 0: inf / inf
        ends = [0.0, -0.0, 3.0, 0.5, 1, -2]
    if name == "std":  # PyTorch squares float32 in float64, where denormals have squares
        ends = [0.0, -0.0, numpy.inf, -numpy.inf, numpy.nan, 1, -2]
    check(ROWS[name], [numpy.array(list(product(ends, repeat=3)), dtype)], dtype)


def test_signs_of_zero_are_kept():
    x = Tensor(numpy.array([0.0, -0.0]), requires_grad=True)
    for operation in (ops.sin, ops.tanh, ops.arctan, ops.sqrt, ops.expm1, ops.log1p, ops.erf):
        assert numpy.signbit(operation(x).array).tolist() == [False, True]
    with numpy.errstate(divide="ignore"):
        assert ops.reciprocal(x).array.tolist() == [numpy.inf, -numpy.inf]


def test_a_segment_of_nothing_but_minus_infinity_is_not_one_without_rows():
    x = Tensor(numpy.array([[-numpy.inf], [-numpy.inf], [3.0]]), requires_grad=True)
    y = ops.segment_max(x, [0, 0, 2], 3)
    assert y.array[:, 0].tolist() == [-numpy.inf, 0, 3]
    y.backward(numpy.ones((3, 1)))
    assert x.grad[:, 0].tolist() == [0.5, 0.5, 1]


def test_what_follows_a_zero_in_a_running_product_has_no_gradient():
    x = Tensor(numpy.array([0.0, 0.0, numpy.inf, numpy.nan]), requires_grad=True)
    with numpy.errstate(invalid="ignore"):
        ops.cumprod(x, 0).backward(numpy.ones(4))
    assert x.grad.tolist() == [1, 0, 0, 0]
