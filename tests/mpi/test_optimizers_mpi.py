"""Sharded optimizers under mpiexec: whole runs, copies that drifted, votes."""

import numpy
import pytest
from builders import token_batch

import shardkit as sk
from shardkit.testing.comm import collectively
from shardkit.testing.parallel import units_of

pytestmark = pytest.mark.mpi
OPTIMIZERS = {
    "DDP": sk.DDPOptimizer,
    "ZeRO-1": sk.ZeRO1Optimizer,
    "ZeRO-2": sk.ZeRO2Optimizer,
    "FSDP": sk.FSDPOptimizer,
    "pipeline": sk.PipelineParallelOptimizer,
    "tensor": sk.TensorParallelOptimizer,
    "hybrid": sk.HybridShardedOptimizer,
}


def gpt():
    """Cut by 1, 2, 3 and 4 ranks along any axis."""
    return sk.models.GPT(60, 12, width=24, layers=2, heads=12, seed=3, dtype="float64")


def make(kind, backend):
    config = sk.ShardingConfiguration(
        backend, max_gradient_norm=0.5, minimum_parameter_group_size=64
    )
    sizes = {"tensor_parallel_size": 2 - backend.world_size % 2} if kind == "hybrid" else {}
    return OPTIMIZERS[kind](sk.AdamW(lr=1e-2), config, model=gpt(), patience=5, **sizes)


def samples(count, seed):
    x, y = token_batch(seed, count)
    return x % 60, y % 60


def whole_run(kind, backend):
    """(fitness of each epoch, losses on three sets, best parameters) of two epochs."""
    optimizer = make(kind, backend)
    sets = [*samples(24, 0), *samples(5, 1), *samples(2, 2)]
    result = optimizer.optimize(sk.OptimizationInputData(*sets, epochs=2, batch_size=12))
    losses = [result.training_result.loss, result.validation_result.loss, result.test_result.loss]
    parameters = result.best_solution.gather_full_parameters()
    optimizer.close()
    return result.fitness_history, losses, parameters


@pytest.fixture(scope="module")
def serial(on_one_rank):
    return on_one_rank(lambda alone: whole_run("DDP", alone))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.thorough(but=1)
def test_a_whole_run_follows_the_serial_one(backend, kind, serial):
    """float64; validation and test sets that do not divide, the last with fewer samples than 3 or 4
    ranks.
    """
    got = whole_run(kind, backend)
    with collectively(backend):
        for mine, wanted in zip(got, serial):
            numpy.testing.assert_allclose(mine, wanted, rtol=1e-8, atol=1e-11)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "kind, tensor",
    [
        ("tensor", "optimizer/first_moment/blocks.0.attention_norm.weight"),
        ("DDP", "optimizer/second_moment/blocks.1.mlp.up.weight"),
        ("DDP", "model/blocks.1.mlp.up.weight"),
    ],
)
@pytest.mark.thorough(but=1)
def test_state_that_drifted_on_one_rank_is_reported_and_identical_again(backend, kind, tensor):
    optimizer = make(kind, backend)
    optimizer.model.train(*sk.split_batch(optimizer.model.mesh, *samples(12, 0)))
    held = {
        f"{h.group}/{p.name}": h.values[p.start : p.stop]
        for unit in units_of(optimizer.model)
        for h in unit.holdings()
        for p in h.pieces
    }
    before = held[tensor].copy()
    if backend.rank == backend.world_size - 1:
        held[tensor] += 1e-3
    drift, again = optimizer.synchronize_optimizer_state(), optimizer.synchronize_optimizer_state()
    optimizer.close()
    with collectively(backend):
        assert (
            drift.tensor == tensor and drift.largest == pytest.approx(1e-3) and again.largest == 0
        )
        numpy.testing.assert_array_equal(held[tensor], before)


@pytest.mark.mpi(min_size=2)
def test_one_rank_that_wants_to_stop_stops_all(backend):
    optimizer = make("FSDP", backend)
    votes = [
        optimizer.should_early_stop(backend.rank == voter)
        for voter in (0, backend.world_size - 1, -1)
    ]
    optimizer.close()
    with collectively(backend):
        assert votes == [True, True, False]


@pytest.mark.mpi(min_size=2)
def test_different_samples_on_one_rank_are_refused_on_all(backend):
    optimizer = make("DDP", backend)
    x, y = samples(24 - 12 * (backend.rank == 1), 0)
    with pytest.raises(
        sk.ShapeError, match=r"\(24, 12\) on rank 0, but int64 \(12, 12\) on rank 1"
    ):
        optimizer.optimize(sk.OptimizationInputData(x, y, batch_size=12))
    optimizer.close()
