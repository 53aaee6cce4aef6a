"""Bytes of parameters, gradients and optimizer state that each rank holds between two steps,
against the formulas, to 5%.

    pipeline   n = the parameters of the rank's own stage
    tensor     of these, cut parameters / t + whole ones (norms, positions, biases of row layers)
    data       what the policy shards of n: 16 n for DDP (4 + 4 + 8 with AdamW), 16 n / d for FSDP,
               ...

From the allocator's own accounts. The difference is padding: shards are multiples of 256 elements.
Buffers that are lent for a moment (a gathered unit; gradients on their way to their owners, where
the policy shards them) are kept for the next step but are no part of the state; the tests of the
strategies bound them.
"""

import tracemalloc

import numpy
import pytest
from hybrids import POLICIES, gpt, hybrid, step_once

import shardkit as sk
from shardkit.testing.layout import WHOLE
from shardkit.testing.parallel import device_of, parts_of, units_of

MESHES = [
    (1, 4, 1),
    (1, 1, 4),
    (4, 1, 1),
    (1, 2, 2),
    (2, 1, 2),
    (2, 2, 1),
    (2, 2, 2),
    (2, 1, 4),
    (4, 2, 1),
]
UNCUT = ("norm.weight", "norm.bias", "positions.weight", "attention.output.bias", "mlp.down.bias")


def large_gpt():
    """465,000 parameters in blocks that are much larger than the padding."""
    return gpt(4, width=96, dtype="float32")


def _sharing(model):
    """The data ranks that share one copy."""
    config = model.sharding_configuration
    return parts_of(model).policy.sharing(model.mesh.size("data"), config.shard_ranks)


def resident_bytes(model):
    """Of what lasts from step to step. Who keeps the whole gradient keeps it in the buffer that it
    was summed in.
    """
    kinds = ["parameters", "gradients", "optimizer state"] + ["gradients in flight"] * (
        parts_of(model).policy.on(_sharing(model)).gradients is WHOLE
    )
    return device_of(model).bytes_in_use(*kinds)


# Each policy on every mesh of one axis with data, and two of them in turn on each of the others.
CASES = [
    (mesh, policy)
    for turn, mesh in enumerate(MESHES)
    for number, policy in enumerate(POLICIES)
    if mesh[1] == 4 or (turn + number) % 2
]


@pytest.mark.parametrize("mesh, policy", CASES, ids=str)
@pytest.mark.thorough(but=2)
def test_resident_bytes_follow_the_formulas_of_all_three_axes(mesh, policy):
    pipeline, data, tensor = mesh
    sizes = {
        name: p.size / (1 if name.endswith(UNCUT) else tensor)
        for name, p in large_gpt().named_parameters().items()
    }

    def run(backend):
        model = hybrid(
            backend,
            mesh,
            policy,
            model=large_gpt(),
            micro_batches=1,
            minimum_parameter_group_size=5000,
        )
        for step in range(2):
            step_once(model, step, samples=8)
        stage = [name for unit in units_of(model) for name in unit.plan.parameters]
        own = sum(sizes[name] for name in stage)
        formula = parts_of(model).policy.bytes_per_rank(own, _sharing(model))
        return stage, own, resident_bytes(model) / formula

    results = sk.run_ranks(numpy.prod(mesh), run)
    of_stages = results[:: data * tensor]
    assert [name for stage, _, _ in of_stages for name in stage] == list(sizes), (
        "stages are not the model"
    )
    assert max(own for _, own, _ in of_stages) < 1.3 * sum(sizes.values()) / pipeline
    for rank, (_, _, over_formula) in enumerate(results):
        assert abs(over_formula - 1) < 0.05, f"rank {rank} holds {over_formula:.3f} x the formula"


def test_metadata_copies_no_parameters():
    """A copy of what a rank keeps would be the peak of its memory between two steps."""
    backend = sk.InMemoryCommunicationBackend(0, 1, "metadata")
    config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.1))
    model = sk.DDPModel(sk.models.MLP([512, 1024, 512]), config)
    model.get_model_metadata()  # what is imported or made once
    tracemalloc.start()
    about = model.get_model_metadata()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert about["shard_size"] == model.local_parameter_shard.size == model.parameter_count
    assert most < about["parameter_bytes"] / 10
