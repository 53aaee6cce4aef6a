"""float32: one SHA-256 per tensor size, whatever the data and pipeline sizes, the policy, the schedule and the rank order.

    python -m pytest tests/threads/test_same_bits.py                covering runs
    python -m pytest tests/threads/test_same_bits.py -m sweep       all meshes, policies and schedules of up to 8 ranks

The claim needs micro-batches of one size, and a power of two of them on each data rank (or all on one): 8 micro-batches for
1, 2, 4 and 8 data ranks, 12 for 1, 3 and 6.
"""
import pytest
from builders import sha256
from hybrids import POLICIES, SCHEDULES, batch, gpt, hybrid, meshes, step_once

import shardkit as sk

MICRO_BATCH, LAYERS, STEPS, MAXIMUM_RANKS = 2, 4, 2, 8
FAMILIES = {8: (1, 2, 4, 8), 12: (1, 3, 6)}              # micro-batches of the global batch: data sizes
ORDERS = (("pipeline", "data", "tensor"), ("pipeline", "tensor", "data"))
SIZES = [(tensor, 8) for tensor in (1, 2, 3, 4, 6, 8)] + [(tensor, 12) for tensor in (1, 2)]


def bits(mesh, policy, schedule, num_micro_batches, order=ORDERS[0]):
    """What every rank must agree on after two steps."""
    samples = MICRO_BATCH * num_micro_batches

    def on_rank(backend):
        model = hybrid(backend, mesh, policy, schedule, model=gpt(LAYERS, dtype="float32"), order=order,
                       micro_batches=num_micro_batches // mesh[1])
        losses = [step_once(model, step, samples) for step in range(STEPS)]
        return sha256(model.gather_full_parameters()), tuple(losses), model.engine.gradient_norm
    results = set(sk.run_ranks(mesh[0] * mesh[1] * mesh[2], on_rank))
    assert len(results) == 1, "ranks disagree"
    return results.pop()


def fits(pipeline, schedule):
    """True if the model has a block for every stage."""
    return pipeline * (2 if schedule in ("interleaved", "zb-v") else 1) <= LAYERS + 2


def meshes_with(tensor, family):
    """All meshes of up to 8 ranks with this tensor size, on which the claim holds."""
    return [mesh for num_ranks in range(1, MAXIMUM_RANKS + 1) for mesh in meshes(num_ranks)
            if mesh[2] == tensor and mesh[1] in FAMILIES[family] and fits(mesh[0], "1f1b")]


def all_runs(tensor, family):
    return [(mesh, policy, schedule) for mesh in meshes_with(tensor, family) for policy in POLICIES for schedule in SCHEDULES
            if fits(mesh[0], schedule)]


def covering_runs(tensor, family):
    """Every mesh; policies and schedules go round."""
    chosen = meshes_with(tensor, family)
    runs = []
    for turn, mesh in enumerate(chosen * (2 if len(chosen) > 2 else 3)):
        schedule = next(s for s in SCHEDULES[turn % 5:] + SCHEDULES[:1] if fits(mesh[0], s))
        runs.append((mesh, POLICIES[turn % 4], schedule))
    return runs


@pytest.mark.parametrize("tensor, family", SIZES)
def test_the_bits_depend_on_the_tensor_size_alone(tensor, family):
    found = {bits(*run, family, ORDERS[turn % 2]) for turn, run in enumerate(covering_runs(tensor, family))}
    assert len(found) == 1


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tensor, family", SIZES)
def test_the_bits_depend_on_the_tensor_size_alone_in_the_whole_product(tensor, family):
    assert len({bits(*run, family) for run in all_runs(tensor, family)}) == 1


@pytest.mark.parametrize("samples", (8, 12))            # of 8 tokens: one over their number changes no digit, or does
@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_in_one_go_has_the_bits_of_one_whose_gradients_somebody_looked_at(policy, samples):
    """In one go the mean over items may wait for the optimizer; whoever looks at the gradients before sees means."""
    def on_rank(backend):
        at_once, looked_at = [hybrid(backend, (1, 2, 1), policy, model=gpt(dtype="float32"), micro_batches=2) for _ in range(2)]
        for step in range(STEPS):
            part = sk.split_batch(at_once.mesh, *batch(step, samples))
            at_once.train(*part)
            looked_at.compute_gradients(*part)
            looked_at.engine.update()
            assert at_once.engine.gradient_norm == looked_at.engine.gradient_norm
        return sha256(at_once.gather_full_parameters()) == sha256(looked_at.gather_full_parameters())
    assert all(sk.run_ranks(2, on_rank))
