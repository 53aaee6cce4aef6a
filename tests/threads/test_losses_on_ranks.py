"""Losses whose items have weights of their own: the mean over the global batch on any mesh."""

import numpy
import pytest

import shardkit as sk
from shardkit import nn

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
        losses = [model.train(X[part], Y[part]) for _ in range(3)]
        return losses, model.gather_full_parameters()

    (losses, weights), *_ = sk.run_ranks(num_ranks, run)
    serial, expected = sk.run_ranks(1, run)[0]
    model = sk.models.MLP([4, 8, 3], task="classification", dtype="float64")
    first = loss(model(X), Y).item()
    numpy.testing.assert_allclose(losses, serial, rtol=1e-12)
    numpy.testing.assert_allclose(weights, expected, rtol=0, atol=1e-12)
    assert abs(serial[0] - first) < 1e-12
