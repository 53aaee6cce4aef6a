"""Samples that processes share: training on a mesh with a domain axis, against one rank."""

import numpy
import pytest

import shardkit as sk
from shardkit import models

pytestmark = pytest.mark.mpi
STEPS, TOLERANCE = 3, 1e-10


def trained(backend, policy, **sizes):
    """Return losses, weights and a prediction of a small UNet and a small ResNet."""
    found = []
    for wrapped, y in (
        (models.UNet(2, 1, width=8, depth=1, groups=2, seed=3, dtype="float64"), None),
        (models.ResNet(2, 5, (1, 1), width=8, seed=3, dtype="float64"), 5),
    ):
        config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.05, momentum=0.9))
        sizes = {"data_parallel_size": 1, **sizes}
        model = sk.HybridShardedModel(wrapped, config, policy=policy, **sizes)
        rng = numpy.random.default_rng(4)
        x = rng.normal(size=(4, 2, 34, 6))
        targets = rng.normal(size=(4, 1, 34, 6)) if y is None else rng.integers(0, y, 4)
        losses = [
            model.train(*sk.split_batch(model.mesh, x + step, targets)) for step in range(STEPS)
        ]
        found += [numpy.array(losses), model.get_parameters(), model.predict(x)]
        model.close()
    return found


@pytest.mark.parametrize("policy", ["ddp", "fsdp"])
def test_ranks_that_share_samples_train_as_one(backend, policy):
    domain = backend.world_size
    wanted = sk.run_ranks(1, lambda alone: trained(alone, "ddp"))[0]
    found = trained(backend, policy, domain_parallel_size=domain)
    far = [numpy.abs(a - b).max() / numpy.abs(b).max() for a, b in zip(found, wanted)]
    assert max(numpy.ravel(backend.all_gather_object(far))) < TOLERANCE
