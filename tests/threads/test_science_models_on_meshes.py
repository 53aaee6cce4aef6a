"""FNO and message passing in float64: on a mesh of any policy what one rank computes, to 1e-12."""

import numpy
import pytest

import shardkit as sk

RNG = numpy.random.default_rng(0)
MODELS = {
    "fno": (
        lambda: sk.models.FNO(1, 1, (2, 3), width=4, layers=2, dtype="float64"),
        RNG.standard_normal((12, 1, 5, 6)),
        RNG.standard_normal((12, 1, 5, 6)),
    ),
    "message passing": (
        lambda: sk.models.MessagePassing(
            2, 1, [0, 1, 2, 2], [1, 2, 0, 3], width=5, steps=2, dtype="float64"
        ),
        RNG.standard_normal((12, 4, 2)),
        RNG.standard_normal((12, 4, 1)),
    ),
}
MESHES = [
    ("ddp", 2, 1, 1),
    ("zero1", 3, 1, 1),
    ("zero2", 4, 1, 3),
    ("fsdp", 3, 1, 4),
    ("fsdp", 4, 2, 3),
    ("ddp", 3, 3, 2),
]


def trained(name, policy, num_ranks, pipeline, micro_batches):
    """The losses of three steps, and the parameters after them."""
    make, x, y = MODELS[name]

    def run(backend):
        config = sk.ShardingConfiguration(
            backend,
            optimizer=sk.Momentum(lr=0.05, beta=0.9),
            micro_batches=micro_batches,
            minimum_parameter_group_size=1,
        )
        model = sk.HybridShardedModel(
            make(), config, policy=policy, pipeline_parallel_size=pipeline
        )
        data = model.mesh.group("data")
        part = slice(data.rank * 12 // data.world_size, (data.rank + 1) * 12 // data.world_size)
        losses = [model.train(x[part], y[part]) for _ in range(3)]
        return losses, model.gather_full_parameters()

    results = sk.run_ranks(num_ranks, run)
    for losses, parameters in results[1:]:
        assert losses == results[0][0] and (parameters == results[0][1]).all()
    return results[0]


@pytest.mark.parametrize("name", MODELS)
def test_the_losses_and_parameters_are_those_of_one_rank(name):
    losses, parameters = trained(name, "ddp", 1, 1, 1)
    assert losses[-1] < losses[0]
    for mesh in MESHES:
        found, weights = trained(name, *mesh)
        numpy.testing.assert_allclose(found, losses, rtol=1e-12)
        numpy.testing.assert_allclose(weights, parameters, rtol=0, atol=1e-12, err_msg=str(mesh))
