"""MLP: the same numbers as PyTorch, both tasks learn, and wrong arguments are refused."""

import json

import numpy
import pytest
from torch_or_skip import torch

import shardkit as sk
from shardkit import ConfigurationError, ShapeError
from shardkit.nn import CrossEntropy, MeanSquaredError
from shardkit.testing.checkpoint import CodeNames, DataReader, DataWriter
from shardkit.testing.files import Trust
from shardkit.testing.nn import ACTIVATIONS

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
TORCH = {
    "gelu": lambda: torch.nn.GELU(approximate="tanh"),
    "relu": lambda: torch.nn.ReLU(),
    "tanh": lambda: torch.nn.Tanh(),
    "silu": lambda: torch.nn.SiLU(),
}


def random(*shape, seed=0):
    return numpy.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_loss_and_all_gradients_equal_those_of_torch(activation, dtype):
    ours = sk.models.MLP([4, 6, 5, 2], activation=activation, dtype=dtype)
    theirs = torch.nn.Sequential(
        torch.nn.Linear(4, 6),
        TORCH[activation](),
        torch.nn.Linear(6, 5),
        TORCH[activation](),
        torch.nn.Linear(5, 2),
    ).to(getattr(torch, dtype))
    with torch.no_grad():
        for index, (mine, other) in enumerate(
            zip(ours.parameters(), theirs.parameters(), strict=True)
        ):
            mine.array = random(*mine.shape, seed=index)
            other.copy_(torch.from_numpy(mine.array))
    x, y = random(7, 4, seed=8).astype(dtype), random(7, 2, seed=9).astype(dtype)
    loss, other_loss = (
        ours.loss(ours(x), y),
        torch.nn.functional.mse_loss(theirs(torch.tensor(x)), torch.tensor(y)),
    )
    loss.backward()
    other_loss.backward()
    assert loss.item() == pytest.approx(other_loss.item(), rel=TOLERANCE[dtype])
    for mine, other in zip(ours.parameters(), theirs.parameters()):
        numpy.testing.assert_allclose(
            mine.grad, other.grad.numpy(), rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype]
        )


def test_layers_are_blocks_and_their_chain_is_the_forward_pass():
    model, x = sk.models.MLP([3, 4, 2]), random(5, 3).astype("float32")
    y = x
    for name, block in model.blocks():
        assert model.named_modules()[name] is block
        y = block(y)
    assert numpy.array_equal(y.array, model.predict(x))
    assert list(model.named_parameters()) == [
        "layers.0.weight",
        "layers.0.bias",
        "layers.1.weight",
        "layers.1.bias",
    ]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "x",
    [numpy.ones((2, 3)), numpy.ones((2, 3), "float32"), numpy.ones((2, 3), int)],
    ids=["float64", "float32", "int"],
)
def test_input_of_any_number_type_gives_the_dtype_of_the_model(x, dtype):
    assert sk.models.MLP([3, 4, 2], dtype=dtype).predict(x).dtype == dtype


@pytest.mark.parametrize(
    "task, loss", [("regression", MeanSquaredError), ("classification", CrossEntropy)]
)
def test_the_task_decides_the_loss(task, loss):
    assert type(sk.models.MLP([3, 2], task=task).loss) is loss


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_plain_descent_learns_the_task(task):
    model, x = sk.models.MLP([2, 16, 2], activation="tanh", task=task), random(64, 2)
    labels = (x[:, 0] * x[:, 1] > 0).astype(int)
    y = labels if task == "classification" else numpy.eye(2)[labels]
    losses = []
    for _ in range(300):
        loss = model.loss(model(x), y)
        loss.backward()
        losses.append(loss.item())
        for parameter in model.parameters():
            parameter.array -= 0.5 * parameter.grad
            parameter.grad = None
    assert losses[-1] < 0.5 * losses[0] and (model.predict(x).argmax(1) == labels).mean() > 0.9


def test_a_configuration_survives_json_and_builds_an_equal_model():
    model = sk.models.MLP(
        (3, 4, 2), activation="silu", task="classification", seed=5, dtype=numpy.float64
    )
    data = json.loads(json.dumps(DataWriter().data(model.configuration())))
    args, named = DataReader(CodeNames("here", Trust())).arguments(data, sk.models.MLP)
    twin = sk.models.MLP(*args, **named)
    assert twin.configuration() == model.configuration()
    assert numpy.array_equal(twin.predict(random(2, 3)), model.predict(random(2, 3)))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"sizes": [3]}, "at least two"),
        ({"sizes": []}, "at least two"),
        ({"sizes": [3, 0, 1]}, "sizes\\[1\\] = 0"),
        ({"sizes": [3, 1], "activation": "sine"}, "'sine'; wanted one of gelu, relu, tanh, silu"),
        (
            {"sizes": [3, 1], "task": "ranking"},
            "'ranking'; wanted one of regression, classification",
        ),
        ({"sizes": [3, 1], "dtype": "complex64"}, "wanted one of float32, float64"),
    ],
    ids=str,
)
def test_arguments_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message) as error:
        sk.models.MLP(**arguments)
    assert isinstance(error.value, ValueError)


def test_input_and_targets_of_another_size_are_refused():
    with pytest.raises(ShapeError, match="wanted x \\[..., in\\]"):
        sk.models.MLP([3, 1]).predict(random(2, 4))
    model = sk.models.MLP([3, 1])
    with pytest.raises(ShapeError, match="wanted equal shapes"):
        model.loss(model(random(2, 3)), random(2))
