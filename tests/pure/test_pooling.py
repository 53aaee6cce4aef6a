"""Pooling and interpolation against PyTorch: values, gradients, second derivatives, refusals."""

import numpy
import pytest
from stand_in import pretended_gpu
from torch_or_skip import torch

from shardkit import ConfigurationError, ShapeError, nn
from shardkit.nn import Tensor, ops

CASES = [  # layer, its arguments, x
    ("MaxPool1d", {"kernel_size": 2}, (2, 3, 8)),
    ("MaxPool1d", {"kernel_size": 1}, (1, 1, 1)),
    ("MaxPool1d", {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}, (2, 1, 6)),
    ("MaxPool2d", {"kernel_size": 3, "stride": 2, "padding": 1}, (2, 3, 7, 8)),
    ("MaxPool2d", {"kernel_size": (2, 3), "dilation": (2, 1), "stride": 1}, (1, 2, 5, 6)),
    ("MaxPool2d", {"kernel_size": 2}, (0, 3, 4, 4)),
    ("MaxPool2d", {"kernel_size": 2, "ceil_mode": True}, (1, 2, 5, 7)),
    ("MaxPool3d", {"kernel_size": 2, "stride": (1, 2, 2)}, (2, 2, 3, 4, 5)),
    ("AvgPool1d", {"kernel_size": 3, "stride": 2, "padding": 1}, (2, 3, 8)),
    ("AvgPool1d", {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}, (2, 1, 6)),
    ("AvgPool2d", {"kernel_size": 2}, (2, 3, 6, 4)),
    (
        "AvgPool2d",
        {
            "kernel_size": 3,
            "stride": 2,
            "padding": 1,
            "ceil_mode": True,
            "count_include_pad": False,
        },
        (2, 2, 6, 7),
    ),
    ("AvgPool2d", {"kernel_size": 2, "stride": 3, "divisor_override": 3}, (1, 2, 8, 7)),
    ("AvgPool3d", {"kernel_size": (1, 2, 3), "padding": (0, 1, 1)}, (2, 2, 2, 4, 6)),
    ("AdaptiveAvgPool1d", {"output_size": 3}, (2, 2, 7)),
    ("AdaptiveAvgPool2d", {"output_size": 1}, (2, 3, 5, 4)),
    ("AdaptiveAvgPool2d", {"output_size": (None, 7)}, (2, 3, 5, 4)),
    ("AdaptiveAvgPool3d", {"output_size": (2, 1, 3)}, (1, 2, 3, 4, 5)),
    ("AdaptiveMaxPool1d", {"output_size": 3}, (2, 2, 8)),
    ("AdaptiveMaxPool2d", {"output_size": (2, 1)}, (2, 3, 5, 4)),
    ("AdaptiveMaxPool3d", {"output_size": 2}, (1, 2, 3, 4, 5)),
    ("Upsample", {"scale_factor": 2}, (2, 3, 5)),
    ("Upsample", {"size": (7, 3)}, (2, 3, 4, 5)),
    ("Upsample", {"size": (7, 3), "mode": "nearest-exact"}, (2, 3, 4, 5)),
    ("Upsample", {"scale_factor": (1, 2, 2.5)}, (1, 2, 2, 3, 3)),
    ("Upsample", {"scale_factor": 2, "mode": "linear"}, (2, 3, 5)),
    ("Upsample", {"size": 1, "mode": "linear", "align_corners": True}, (2, 3, 5)),
    ("Upsample", {"scale_factor": 2, "mode": "bilinear", "align_corners": True}, (2, 2, 4, 1)),
    ("Upsample", {"scale_factor": (1.7, 0.6), "mode": "bilinear"}, (2, 2, 4, 5)),
    (
        "Upsample",
        {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True},
        (2, 2, 4, 5),
    ),
    ("Upsample", {"scale_factor": 2, "mode": "bilinear"}, (0, 2, 4, 5)),
    ("Upsample", {"size": (5, 4, 3), "mode": "trilinear"}, (1, 2, 3, 4, 5)),
    ("Upsample", {"scale_factor": 2, "mode": "trilinear", "align_corners": True}, (1, 2, 2, 3, 3)),
]
every_case = pytest.mark.parametrize(
    "name, more, shape", CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)


def normal(shape, seed=0):
    return numpy.random.default_rng(seed).standard_normal(shape)


@every_case
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-10), ("float32", 1e-5)])
def test_values_and_gradients_are_those_of_pytorch(name, more, shape, dtype, tolerance):
    ours, twin = getattr(nn, name)(**more), getattr(torch.nn, name)(**more)
    x = normal(shape).astype(dtype)
    turned = numpy.moveaxis(numpy.moveaxis(x, 0, -1).copy(), -1, 0)
    other = torch.tensor(x, requires_grad=True)
    wanted = twin(other)
    slopes = normal(wanted.shape, 1).astype(dtype)
    wanted.backward(torch.tensor(slopes))
    for array in (x, turned):
        leaf = Tensor(array, requires_grad=True)
        y = ours(leaf)
        y.backward(slopes)
        assert y.dtype == dtype
        numpy.testing.assert_allclose(y.array, wanted.detach().numpy(), rtol=0, atol=tolerance)
        numpy.testing.assert_allclose(leaf.grad, other.grad.numpy(), rtol=0, atol=tolerance)


@every_case
def test_gradients_are_differentiated_again_and_are_finite_differences(name, more, shape):
    layer = getattr(nn, name)(**more)
    x, along = normal(shape), normal(shape, 2)

    def slopes(x):
        leaf = Tensor(x, requires_grad=True)
        (slope,) = nn.grad((layer(leaf) ** 3).sum(), leaf, create_graph=True)
        return leaf, slope

    leaf, first = slopes(x)
    h = 1e-6
    values = [(layer(Tensor(x + sign * h * along)) ** 3).sum().item() for sign in (1, -1)]
    numpy.testing.assert_allclose(
        (first.array * along).sum(), (values[0] - values[1]) / (2 * h), rtol=1e-6, atol=1e-7
    )
    (first * Tensor(along)).sum().backward()
    ahead, back = [slopes(x + sign * h * along)[1].array for sign in (1, -1)]
    numpy.testing.assert_allclose(leaf.grad, (ahead - back) / (2 * h), rtol=1e-5, atol=1e-6)


def test_the_first_of_equal_elements_takes_the_gradient_of_a_maximum():
    x = Tensor(numpy.ones((1, 1, 2, 4)), requires_grad=True)
    ops.max_pool2d(x, 2).sum().backward()
    numpy.testing.assert_array_equal(x.grad, [[[[1, 0, 1, 0], [0, 0, 0, 0]]]])


def test_half_floats_are_pooled_in_their_dtype():
    x = normal((2, 2, 5, 6)).astype("float16")
    for found, wanted in (
        (ops.avg_pool2d(Tensor(x), 2), ops.avg_pool2d(Tensor(x.astype("float32")), 2)),
        (ops.max_pool2d(Tensor(x), 2), ops.max_pool2d(Tensor(x.astype("float32")), 2)),
    ):
        assert found.dtype == "float16"
        numpy.testing.assert_allclose(found.array, wanted.array, rtol=0, atol=2 * 2.0**-11)


ON_DEVICE = {
    "max_pool2d": lambda x: ops.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda x: ops.avg_pool2d(x, 2, padding=1),
    "adaptive_avg_pool2d": lambda x: ops.adaptive_avg_pool2d(x, 5),
    "interpolate": lambda x: ops.interpolate(x, scale_factor=2, mode="bilinear"),
}


def pooled(name, x):
    """The result and the gradient of x."""
    leaf = Tensor(x, requires_grad=True)
    y = ON_DEVICE[name](leaf)
    (y * y).sum().backward()
    return y.array, leaf.grad


@pytest.mark.parametrize("name", ON_DEVICE)
@pytest.mark.thorough(but=2)
def test_arrays_of_a_gpu_are_pooled_there(name):
    x = normal((2, 3, 6, 7))
    wanted = pooled(name, x)
    with pretended_gpu():
        import cupy

        found = pooled(name, cupy.asarray(x))
        assert all(isinstance(array, cupy.ndarray) for array in found)
        for array, right in zip(found, wanted, strict=True):
            numpy.testing.assert_array_equal(cupy.asnumpy(array), right)


REFUSED = {
    "padding": (lambda x: ops.max_pool2d(x, 2, padding=2), ConfigurationError, "at most half"),
    "indices": (
        lambda x: ops.max_pool2d(x, 2, return_indices=True),
        ConfigurationError,
        "return_indices",
    ),
    "window": (lambda x: ops.avg_pool2d(x, 9), ShapeError, "larger than the padded grid"),
    "grid": (lambda x: ops.avg_pool3d(x, 2), ShapeError, "3 dimensions of a grid"),
    "both": (
        lambda x: ops.interpolate(x, 3, 2.0),
        ConfigurationError,
        "wanted one of them",
    ),
    "mode": (lambda x: ops.interpolate(x, 3, mode="bicubic"), ConfigurationError, "one of nearest"),
    "dimensions": (lambda x: ops.interpolate(x, 3, mode="linear"), ShapeError, "bilinear of 2"),
    "corners": (
        lambda x: nn.Upsample(3, align_corners=True),
        ConfigurationError,
        "only the linear modes",
    ),
    "scale": (
        lambda x: ops.interpolate(x, scale_factor=-1.0),
        ConfigurationError,
        "a number above 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call(Tensor(normal((1, 2, 4, 5))))
