"""Whole models whose samples several ranks share, on meshes of threads, against one rank: losses,
weights, predictions and figures to 1e-10 in float64.
"""

import numpy
import pytest

import shardkit as sk
from shardkit import models, nn
from shardkit.testing.nn import RMSE
from shardkit.testing.parallel import parts_of

TOLERANCE = 1e-10
F64 = {"dtype": "float64"}
STEPS = 3


@nn.partwise
class Skip(nn.Module):
    def __init__(self, inside):
        self.inside = inside

    def forward(self, x):
        return nn.ops.relu(x + self.inside(x))


def net():
    """A net of convolutions whose number of rows, 23, no rank count divides."""
    return nn.Sequential(
        nn.Conv1d(2, 8, 5, padding=2, padding_mode="circular", **F64),
        Skip(nn.Sequential(nn.BatchNorm1d(8, **F64), nn.Conv1d(8, 8, 3, padding=1, **F64))),
        nn.Dropout(0.2),
        nn.MaxPool1d(3, stride=2, padding=1),
        nn.ConvTranspose1d(8, 4, 3, stride=2, padding=1, **F64),
        nn.Conv1d(4, 3, 1, **F64),
    )


def tokens():
    return nn.Sequential(
        nn.Embedding(17, 12, **F64),
        nn.LayerNorm(12, **F64),
        nn.FeedForward(12, 24, **F64),
        nn.Dropout(0.2),
        nn.Linear(12, 17, **F64),
    )


def normal(*shape):
    return lambda rng, n: rng.normal(size=(n, *shape))


def numbers(below, *shape):
    return lambda rng, n: rng.integers(0, below, (n, *shape))


# {model: (how it is made, x, y, loss or None)}
MODELS = {
    "UNet 2-D": (
        lambda: models.UNet(2, 1, dims=2, width=8, depth=2, groups=2, seed=3, **F64),
        *(normal(2, 20, 8), normal(1, 20, 8), None),
    ),
    "UNet 3-D": (
        lambda: models.UNet(1, 2, dims=3, width=4, depth=1, groups=2, seed=3, **F64),
        *(normal(1, 10, 4, 6), normal(2, 10, 4, 6), None),
    ),
    "ResNet": (
        lambda: models.ResNet(2, 5, (1, 1), width=8, seed=3, **F64),
        *(normal(2, 34, 9), numbers(5), None),
    ),
    "a net": (net, normal(2, 23), normal(3, 23), nn.MSELoss()),
    "classes of rows": (net, normal(2, 23), numbers(3, 23), nn.CrossEntropyLoss()),
    "tokens": (tokens, numbers(17, 11), numbers(17, 11), nn.CrossEntropy()),
    "MLP of tokens": (
        lambda: models.MLP([5, 16, 8, 3], seed=3, **F64),
        *(normal(11, 5), normal(11, 3), None),
    ),
}
SAMPLES = 8


def batch(name, step):
    _, x, y, _ = MODELS[name]
    rng = numpy.random.default_rng(step)
    return x(rng, SAMPLES), y(rng, SAMPLES)


def train(backend, name, policy="ddp", config=None, **sizes):
    """Return what three steps leave: losses, weights, a prediction, figures, buffers."""
    make, _, _, loss = MODELS[name]
    wrapped = make()
    wrapped.finish(3)
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.SGD(lr=0.05, momentum=0.9),
        loss=loss,
        seed=7,
        max_gradient_norm=1.0,
        micro_batches=2,
        minimum_parameter_group_size=64,
        **(config or {}),
    )
    model = sk.HybridShardedModel(wrapped, config, policy=policy, **sizes)
    losses = [model.train(*sk.split_batch(model.mesh, *batch(name, step))) for step in range(STEPS)]
    x, y = batch(name, STEPS)
    mine, own_y = sk.split_batch(model.mesh, x, y)
    prediction = model.predict(mine)
    with model.evaluation({"rmse": RMSE()} if y.dtype.kind == "f" else {}) as measured:
        measured.add(mine, own_y)
    found = {
        "losses": numpy.array(losses),
        "weights": model.get_parameters(),
        "figures": numpy.array([measured.loss, measured.samples, *measured.metrics.values()]),
        "norm": numpy.array([parts_of(model).engine.gradient_norm]),
    }
    part = model.mesh.sample_part[0]
    model.close()
    return found, part, prediction


ALONE: dict = {}


def alone(name, data):
    """Return what one rank computes, with as many micro-batches as `data` ranks have in all."""
    key = name, data
    if key not in ALONE:
        ALONE[key] = sk.run_ranks(data, lambda backend: train(backend, name))
    return ALONE[key]


def check(name, data, policy, **sizes):
    """Compare training with domain ranks to the same data ranks without them."""
    num_ranks = data * numpy.prod([*sizes.values()]).item()
    sizes = {f"{axis}_parallel_size": size for axis, size in sizes.items()}
    config = {}
    wanted = alone(name, data)
    for found, part, prediction in sk.run_ranks(
        num_ranks, lambda backend: train(backend, name, policy, config, **sizes)
    ):
        for what, value in wanted[part][0].items():
            scale = max(numpy.abs(value).max(), 1e-3)
            assert numpy.abs(found[what] - value).max() <= TOLERANCE * scale, what
        assert prediction.shape == wanted[part][2].shape
        assert numpy.abs(prediction - wanted[part][2]).max() <= TOLERANCE * 10


@pytest.mark.parametrize("domain", [2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_on_one_rank(name, domain):
    check(name, 1, "ddp", domain=domain)


@pytest.mark.parametrize("policy", ["ddp", "zero1", "zero2", "fsdp"])
@pytest.mark.parametrize("name", ["UNet 2-D", "ResNet", "a net", "tokens"])
def test_policies_shard_over_data_and_domain_together(name, policy):
    check(name, 2, policy, domain=2)


@pytest.mark.parametrize("name", ["ResNet", "a net", "tokens", "MLP of tokens"])
def test_stages_work_on_parts(name):
    check(name, 1, "fsdp", domain=2, pipeline=2)


@pytest.mark.parametrize("name", ["MLP of tokens"])
def test_tensor_ranks_share_layers_of_parts(name):
    check(name, 1, "fsdp", domain=3, tensor=2)
