"""Losses whose items have weights of their own: the mean over the global batch on any mesh."""

import numpy
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.testing.nn import array_of

RNG = numpy.random.default_rng(0)
X = RNG.standard_normal((12, 4))
Y = RNG.integers(0, 3, 12)


@pytest.mark.parametrize("policy, num_ranks", [("fsdp", 3), ("ddp", 2), ("zero2", 4)])
def test_a_weighted_mean_divides_by_the_weights_of_all_ranks(policy, num_ranks):
    loss = nn.CrossEntropyLoss([0.25, 1.0, 3.5], label_smoothing=0.1)

    def run(backend):
        model = sk.models.MLP([4, 8, 3], task="classification", dtype="float64")
        config = sk.ShardingConfiguration(
            backend, loss=loss, micro_batches=3 if num_ranks == 2 else 1
        )
        model = sk.HybridShardedModel(model, config, policy=policy)
        part = slice(backend.rank, None, backend.world_size)
        losses = [model.train(X[part], Y[part]) for _ in range(2)]
        return losses, model.gather_full_parameters()

    (losses, weights), *_ = sk.run_ranks(num_ranks, run)
    serial, expected = sk.run_ranks(1, run)[0]
    model = sk.models.MLP([4, 8, 3], task="classification", dtype="float64")
    first = loss(model(X), Y).item()
    numpy.testing.assert_allclose(losses, serial, rtol=1e-12)
    numpy.testing.assert_allclose(weights, expected, rtol=0, atol=1e-12)
    assert abs(serial[0] - first) < 1e-12


class OwnWeights(nn.MSELoss):
    """A loss of one's own, whose samples count 0.1, 0.2 or 0.7."""

    SHARES = numpy.array([0.1, 0.2, 0.7])

    def total(self, prediction, y):
        return super().weighted_total(prediction, y, self._weights(y))

    def count(self, y):
        return float(self._weights(y).sum())

    def _weights(self, y):
        return self.SHARES[(numpy.abs(array_of(y)[:, 0]) * 10).astype(int) % 3]


WEIGHTS = {
    "a list": [0.1, 0.7, 0.3],
    "float32": numpy.array([0.1, 0.7, 0.3], "float32"),
    "float64": numpy.array([1 / 3, 1 / 7, 1 / 11]),
    "a wide range": [1e-9, 0.1, 1e9 / 3],
    "integers": [1, 2, 3],
}
FRACTIONAL = {
    **{name: lambda w=w: nn.CrossEntropyLoss(w) for name, w in WEIGHTS.items()},
    "smoothed": lambda: nn.CrossEntropyLoss([0.1, 0.7, 0.3], label_smoothing=0.1),
    "class weights of a task": lambda: nn.Weighted(
        nn.CrossEntropy(), class_weights=(0.1, 0.7, 0.3)
    ),
    "weights of two": lambda: nn.BCEWithLogitsLoss(pos_weight=[0.1, 0.7, 0.3]),
    "its own": OwnWeights,
}


@pytest.mark.strength(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FRACTIONAL)
@pytest.mark.thorough(but=2)
def test_weights_that_are_no_whole_numbers_keep_the_bits_on_any_mesh(name, dtype):
    def bits(num_ranks, pipeline=1):
        def run(backend):
            loss = FRACTIONAL[name]()
            data = num_ranks // pipeline
            config = sk.ShardingConfiguration(
                backend, loss=loss, optimizer=sk.AdamW(lr=0.01), micro_batches=8 // data
            )
            net = sk.models.MLP([4, 8, 3], task="classification", seed=1, dtype=dtype)
            model = sk.HybridShardedModel(net, config, pipeline, policy="ddp")
            rng, losses = numpy.random.default_rng(0), []
            for _ in range(6):
                x, y = rng.standard_normal((56, 4)).astype(dtype), rng.integers(0, 3, 56)
                if name in ("weights of two", "its own"):
                    y = (numpy.eye(3)[y] * rng.random((56, 3))).astype(dtype)
                losses.append(model.train(*sk.split_batch(model.mesh, x, y)))
            return losses, model.gather_full_parameters().tobytes()

        return sk.run_ranks(num_ranks, run)[0]

    serial = bits(1)
    assert bits(2) == serial and bits(4) == serial and bits(4, pipeline=2) == serial
