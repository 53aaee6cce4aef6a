"""Padding against PyTorch: values and gradients, float64 to 1e-10."""

import numpy
import pytest
from torch_or_skip import torch

from shardkit import ConfigurationError, ShapeError, nn
from shardkit.nn import Tensor, ops

CASES = [
    ((2, 3, 5), (1, 2), "constant"),
    ((2, 3, 5), (-1, 2, 0, -2), "constant"),
    ((0, 3, 4), (3, 0), "constant"),
    ((2, 1, 4, 5), (0, 2, 1, 3), "circular"),
    ((2, 2, 4, 5), (4, 1, 0, 3), "reflect"),
    ((1, 1, 1, 1), (2, 1, 0, 1), "replicate"),
    ((2, 2, 3, 4, 5), (1, 2, 3, 1, 0, 2), "replicate"),
    ((2, 2, 3, 4, 5), (1, 2, 3, 1, 0, 2), "reflect"),
]


@pytest.mark.parametrize("shape, padding, mode", CASES)
def test_values_and_gradients_are_those_of_pytorch(shape, padding, mode):
    x = numpy.random.default_rng(0).standard_normal(shape)
    ours, twin = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    value = 0.5 if mode == "constant" else 0.0
    y = ops.pad(ours, padding, mode, value)
    wanted = torch.nn.functional.pad(twin, padding, mode, value)
    numpy.testing.assert_array_equal(y.array, wanted.detach().numpy())
    (y**3).sum().backward()
    (wanted**3).sum().backward()
    numpy.testing.assert_allclose(ours.grad, twin.grad.numpy(), atol=1e-10)


def test_a_padding_can_be_differentiated_again():
    x = Tensor(numpy.arange(1.0, 5.0), requires_grad=True)
    for mode in ("constant", "reflect"):
        (slope,) = nn.grad(
            (ops.pad(x, (2, -1 if mode == "constant" else 1), mode) ** 3).sum(),
            x,
            create_graph=True,
        )
        (again,) = nn.grad(slope.sum(), x)
        times = [1, 1, 1, 0] if mode == "constant" else [1, 2, 3, 1]
        numpy.testing.assert_allclose(again.array, 6 * x.array * times)


def test_wrong_paddings_are_refused_by_name():
    x = Tensor(numpy.ones((2, 3)))
    with pytest.raises(ConfigurationError, match="mode = 'mirror'"):
        ops.pad(x, (1, 1), "mirror")
    with pytest.raises(ConfigurationError, match="it has no value"):
        ops.pad(x, (1, 1), "reflect", 1.0)
    for padding, mode in [
        ((1,), "constant"),
        ((1, 1) * 3, "constant"),
        ((-2, -2), "constant"),
        ((3, 0), "reflect"),
        ((-1, 0), "circular"),
    ]:
        with pytest.raises(ShapeError, match="pad of"):
            ops.pad(x, padding, mode)
