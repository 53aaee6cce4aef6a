"""Group, instance and batch norms against PyTorch: values, gradients and running moments."""

import numpy
import pytest
from torch_or_skip import torch

from shardkit import ConfigurationError, ShapeError, nn
from shardkit.nn import ForwardContext, Tensor, forward_context

FORMS = [
    ("GroupNorm", (2, 4), (3, 4, 5), {}),
    ("GroupNorm", (4, 4), (2, 4, 3, 3), {"affine": False, "eps": 1e-3}),
    ("GroupNorm", (1, 6), (0, 6, 2), {}),
    ("GroupNorm", (3, 6), (2, 6, 2, 3, 4), {}),
    ("GroupNorm", (2, 4), (3, 4), {}),
    ("InstanceNorm1d", (3,), (2, 3, 7), {}),
    ("InstanceNorm2d", (3,), (2, 3, 4, 5), {"affine": True, "track_running_stats": True}),
    ("InstanceNorm3d", (2,), (1, 2, 3, 2, 2), {"track_running_stats": True, "momentum": 0.3}),
    ("BatchNorm1d", (3,), (4, 3), {}),
    ("BatchNorm1d", (3,), (2, 3, 1), {"momentum": None}),
    ("BatchNorm2d", (3,), (2, 3, 4, 5), {"momentum": 0.3, "affine": False}),
    ("BatchNorm2d", (5,), (1, 5, 3, 1), {"track_running_stats": False}),
    ("BatchNorm3d", (2,), (3, 2, 2, 3, 4), {}),
]
every_form = pytest.mark.parametrize("name, sizes, shape, more", FORMS)


def in_training():
    return forward_context(ForwardContext(training=True))


def pair(name, sizes, more):
    """Our layer and PyTorch's with the same random parameters."""
    ours = getattr(nn, name)(*sizes, **more, dtype="float64").finish(0)
    twin = getattr(torch.nn, name)(*sizes, **more, dtype=torch.float64)
    rng = numpy.random.default_rng(3)
    for key, parameter in ours.named_parameters().items():
        parameter.array = rng.standard_normal(parameter.shape)
        getattr(twin, key).data = torch.tensor(parameter.array)
    return ours, twin


@every_form
@pytest.mark.thorough
def test_values_gradients_and_buffers_are_those_of_pytorch(name, sizes, shape, more):
    ours, twin = pair(name, sizes, more)
    rng = numpy.random.default_rng(0)
    for _ in range(2):
        x = 3 + rng.standard_normal(shape)
        leaf = Tensor(x, requires_grad=True)
        other = torch.tensor(x, requires_grad=True)
        with in_training():
            y = ours(leaf)
        wanted = twin(other)
        numpy.testing.assert_allclose(y.array, wanted.detach().numpy(), atol=1e-10)
        slopes = rng.standard_normal(shape)
        y.backward(slopes)
        wanted.backward(torch.tensor(slopes))
        numpy.testing.assert_allclose(leaf.grad, other.grad.numpy(), atol=1e-9)
    for key, parameter in ours.named_parameters().items():
        numpy.testing.assert_allclose(parameter.grad, getattr(twin, key).grad.numpy(), atol=1e-10)
    for key, buffer in ours.named_buffers().items():
        if name.startswith("Instance") and key == "num_batches_tracked":
            assert buffer.array == 2  # PyTorch's stays at 0
            continue
        numpy.testing.assert_allclose(buffer.array, getattr(twin, key).numpy(), atol=1e-10)
    twin.eval()
    x = rng.standard_normal(shape)
    leaf, other = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    (ours(leaf) ** 2).sum().backward()
    (twin(other) ** 2).sum().backward()
    numpy.testing.assert_allclose(leaf.grad, other.grad.numpy(), atol=1e-9)


@pytest.mark.thorough(but=4)
@every_form
def test_float32_elsewhere_in_memory_has_the_same_bits(name, sizes, shape, more):
    layer = getattr(nn, name)(*sizes, **more).finish(0)
    x = numpy.random.default_rng(0).standard_normal(shape).astype("float32")
    turned = numpy.moveaxis(numpy.moveaxis(x, 0, -1).copy(), -1, 0)
    found = []
    for array in (x, turned):
        leaf = Tensor(array, requires_grad=True)
        with in_training():
            (layer(leaf) ** 3).sum().backward()
        found.append(leaf.grad)
    assert (found[0] == found[1]).all()
    assert numpy.isfinite(found[0]).all()


def test_a_far_mean_costs_no_digits():
    x = (1e4 + numpy.random.default_rng(0).standard_normal((2, 4, 100))).astype("float32")
    y = nn.ops.group_norm(Tensor(x), 2).array
    wide = x.astype("float64").reshape(2, 2, 200)
    wanted = (wide - wide.mean(2, keepdims=True)) / wide.std(2, keepdims=True)
    numpy.testing.assert_allclose(y.reshape(wide.shape), wanted, atol=2e-3)


@pytest.mark.thorough
def test_gradients_are_finite_differences():
    rng = numpy.random.default_rng(0)
    x, along = rng.standard_normal((2, 2, 4, 3))
    x, along = x.reshape(2, 2, 3, 2), along.reshape(2, 2, 3, 2)
    layer = nn.BatchNorm2d(2, dtype="float64").finish(0)

    def loss(x):
        with in_training():
            return (layer(x) ** 3).sum()

    leaf = Tensor(x, requires_grad=True)
    loss(leaf).backward()
    h = 1e-5
    slope = (loss(Tensor(x + h * along)).item() - loss(Tensor(x - h * along)).item()) / (2 * h)
    assert (leaf.grad * along).sum() == pytest.approx(slope, rel=1e-7)


def test_wrong_arguments_and_inputs_are_refused():
    with pytest.raises(ConfigurationError, match="a divisor of num_channels"):
        nn.GroupNorm(3, 4)
    with pytest.raises(ConfigurationError, match="momentum"):
        nn.BatchNorm2d(3, momentum=2.0)
    layer = nn.BatchNorm2d(3).finish(0)
    for shape in ((2, 4, 3, 3), (2, 3, 3)):
        with pytest.raises(ShapeError, match="BatchNorm2d of x"):
            layer(Tensor(numpy.ones(shape, "float32")))
    with in_training(), pytest.raises(ShapeError, match="at least two"):
        layer(Tensor(numpy.ones((1, 3, 1, 1), "float32")))
    tracked = nn.InstanceNorm1d(3, track_running_stats=True).finish(0)
    with in_training(), pytest.raises(ShapeError, match="at least one sample"):
        tracked(Tensor(numpy.ones((0, 3, 4), "float32")))
