"""Dropout beside layers that are cut over the tensor axis drops what one process drops, wherever in
the model it stands, or is refused.
"""

import numpy
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops


class Outer(nn.Module):
    """Calls its members in an order that is not that of their assignment."""

    def __init__(self, width=8, p=0.5):
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.inner, self.outer = nn.Dropout(p), nn.Dropout(p)

    def forward(self, x):
        return x + self.outer(self.down(self.inner(ops.relu(self.up(x)))))


class Heads(nn.Module):
    """Attention of one's own, with dropout of the weights."""

    def __init__(self, width=8, heads=4):
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        q, k, v = (self._by_head(layer(x)) for layer in (self.query, self.key, self.value))
        weights = self.drop(ops.softmax(q @ ops.transpose(k, 2, 3), -1))
        y = ops.permute(weights @ v, (0, 2, 1, 3))
        return self.out(ops.reshape(y, (*x.shape[:2], -1)))

    def _by_head(self, x):
        return ops.permute(ops.reshape(x, (*x.shape[:2], -1, 2)), (0, 2, 1, 3))


class Residual(nn.Module):
    """Layers of shardkit, of which the plan cuts one, in a forward of its own."""

    def __init__(self):
        self.attention = nn.SelfAttention(8, 2, dropout=0.5)
        self.mlp = nn.FeedForward(8, 32, dropout=0.5)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.mlp(x)


def chain():
    return nn.Sequential(
        nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 8), nn.Dropout(0.5)
    )


def layers():
    return nn.Sequential(
        nn.Dropout(0.5),
        nn.TransformerEncoderLayer(8, 2, 32, 0.5, batch_first=True),
        nn.Sequential(nn.Dropout(0.3), chain()),
    )


def flat_rows():
    class Flat(nn.Sequential):
        def forward(self, x):
            return ops.reshape(super().forward(ops.reshape(x, (-1, 8))), x.shape)

    flat = Flat(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 8))
    return nn.Sequential(flat)


OWN = {"0.up": "column", "0.down": "row"}
HEADS = {"0": "region", **{f"0.{name}": "column" for name in ("query", "key", "value")}}
CASES = {  # model, plan
    "a chain": (chain, {"0": "column", "3": "row"}),
    "layers and chains": (
        layers,
        {"*.linear1": "column", "*.linear2": "row", "2.1.0": "column", "2.1.3": "row"},
    ),
    "a forward of its own": (
        lambda: nn.Sequential(Outer()),
        {**OWN, "0.inner": "column_dropout", "0.outer": "whole_dropout"},
    ),
    "without probability": (lambda: nn.Sequential(Outer(p=0.0)), OWN),
    "heads": (
        lambda: nn.Sequential(Heads(), nn.Dropout(0.5)),
        {**HEADS, "0.out": "row", "0.drop": "head_dropout"},
    ),
    "flat rows": (
        flat_rows,
        {"0.0": "column", "0.2": "row", "0.1": "column_dropout"},
    ),
    "a layer that is whole": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 32, 0.5, batch_first=True), chain()),
        {"1.0": "column", "1.3": "row"},
    ),
    "own, with layers": (
        lambda: nn.Sequential(Residual()),
        {"0.mlp.up": "column", "0.mlp.down": "row"},
    ),
    "gpt": (lambda: gpt(), None),
}


def gpt():
    return sk.models.GPT(32, 4, width=8, layers=2, heads=4, dropout=0.5, dtype="float64")


def trained(name, tensor, data=1, **settings):
    make, plan = CASES[name]

    def on_rank(backend):
        model = make()
        is_gpt = plan is None
        if not is_gpt:
            model.loss = nn.MSELoss()
        config = sk.ShardingConfiguration(
            backend, optimizer=sk.SGD(lr=0.05), tensor_plan=plan, seed=3, **settings
        )
        sharded = sk.HybridShardedModel(model, config, tensor_parallel_size=tensor)
        draw = numpy.random.default_rng(0)
        x, y = draw.normal(size=(2, 4, 6, 8)).astype("float32")
        if is_gpt:
            x, y = draw.integers(0, 32, (2, 4, 4))
        part = sk.split_batch(sharded.mesh, x, y)
        return [sharded.train(*part) for _ in range(2)]

    return sk.run_ranks(tensor * data, on_rank)[0]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.thorough(but=3)
def test_losses_are_those_of_one_rank(name):
    expected = trained(name, 1)
    for tensor, data in ((2, 1), (4, 1), (2, 2)):
        numpy.testing.assert_allclose(trained(name, tensor, data), expected, rtol=2e-5)
    if name == "gpt":
        sliced = trained(name, 2, sequence_parallel=True)
        numpy.testing.assert_allclose(sliced, expected, rtol=2e-5)


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_dropout_that_a_forward_of_its_own_calls_is_refused_until_it_is_named(tensor):
    for plan in (OWN, {**OWN, "0.inner": "column_dropout"}):

        def run(backend):
            model = nn.Sequential(Outer())
            model.loss = nn.MSELoss()
            config = sk.ShardingConfiguration(backend, tensor_plan=plan)
            with pytest.raises(sk.ShardingError, match="dropout 0.*whole_dropout"):
                sk.TensorParallelModel(model, config)

        sk.run_ranks(tensor, run)


def test_a_dropout_of_another_class_on_cut_features_is_refused():
    class Own(nn.Dropout):
        pass

    def run(backend, plan):
        model = nn.Sequential(nn.Linear(8, 8), Own(0.5), nn.Linear(8, 8), Own(0.5))
        model.loss = nn.MSELoss()
        config = sk.ShardingConfiguration(backend, tensor_plan={"0": "column", "2": "row", **plan})
        with pytest.raises(sk.ShardingError, match="1.*(cannot be told|cannot be column_dropout)"):
            sk.TensorParallelModel(model, config)

    for plan in ({}, {"1": "column_dropout"}):
        sk.run_ranks(2, lambda backend, plan=plan: run(backend, plan))


def test_a_dropout_on_whole_and_on_cut_features_is_refused():
    def run(backend):
        drop = nn.Dropout(0.5)
        model = nn.Sequential(nn.Linear(8, 8), drop, nn.Linear(8, 8), drop)
        model.loss = nn.MSELoss()
        config = sk.ShardingConfiguration(backend, tensor_plan={"0": "column", "2": "row"})
        with pytest.raises(sk.ShardingError, match="dropout 1 "):
            sk.TensorParallelModel(model, config)

    sk.run_ranks(2, run)
