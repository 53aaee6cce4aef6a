"""Training under mpiexec: the same bits as a serial run, exact resume, memory."""

import numpy
import pytest
from builders import STRATEGIES, full_gradient, sha256, small_gpt, token_batch, train
from hybrids import hybrid

import shardkit as sk
from shardkit import ShardingError
from shardkit.testing.parallel import device_of, is_in_a_window, parts_of, units_of

pytestmark = pytest.mark.mpi
EVERY_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.fixture(scope="module")
def serial_bits(on_one_rank):
    """SHA-256 after 6 steps of 4 micro-batches on one rank."""

    def run(alone):
        return sha256(train("DDP", alone, 6, samples=8, micro_batch=2)[0].gather_full_parameters())

    return on_one_rank(run)


@EVERY_STRATEGY
@pytest.mark.thorough(but=3)
def test_six_steps_end_in_the_bits_of_the_serial_run(backend, strategy, serial_bits):
    """On 1, 2 and 4 ranks: float32, AdamW with clipping, 4 micro-batches in all."""
    if 4 % backend.world_size:
        pytest.skip(f"4 micro-batches do not divide among {backend.world_size} ranks")
    model, _ = train(strategy, backend, 6, samples=8, micro_batch=2)
    bits = backend.all_gather_object(sha256(model.gather_full_parameters()))
    model.close()
    assert bits == [serial_bits] * backend.world_size


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_pipeline_ends_in_the_bits_of_the_serial_run(backend, schedule, stages, serial_bits):
    """All stages x data meshes of the ranks at hand."""
    if backend.world_size % stages or 4 % (backend.world_size // stages):
        pytest.skip(f"{backend.world_size} ranks are no {stages} stages")
    replicas = backend.world_size // stages
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.AdamW(lr=1e-2),
        max_gradient_norm=1.0,
        schedule=schedule,
        minimum_parameter_group_size=64,
        micro_batches=4 // replicas,
    )
    model = sk.HybridShardedModel(small_gpt(), config, stages)
    for step in range(6):
        model.train(*sk.split_batch(model.mesh, *token_batch(step, 8)))
    bits = backend.all_gather_object(sha256(model.gather_full_parameters()))
    model.close()
    assert bits == [serial_bits] * backend.world_size


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_compile_is_refused_on_all_ranks(backend, axis):
    """All ranks along one axis: pipeline, data or tensor."""
    mesh = numpy.where(numpy.arange(3) == axis, backend.world_size, 1).tolist()
    model = hybrid(backend, mesh)
    with pytest.raises(ShardingError, match='wants device = "cuda"') as refused:
        model.compile()
    texts = backend.all_gather_object(str(refused.value))
    model.close()
    assert texts == [texts[0]] * backend.world_size


@pytest.mark.thorough(but=1)
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("pipeline, tensor", [(1, 2), (2, 2), (1, 4), (1, 3)])
def test_a_hybrid_mesh_follows_the_serial_run(backend, on_one_rank, pipeline, tensor):
    """float64, three AdamW steps with clipping."""
    if backend.world_size % (pipeline * tensor):
        pytest.skip(f"{backend.world_size} ranks are no pipeline {pipeline} x tensor {tensor}")

    def run(ranks, pipeline, tensor):
        data = ranks.world_size // pipeline // tensor
        config = sk.ShardingConfiguration(
            ranks,
            optimizer=sk.AdamW(lr=1e-2),
            max_gradient_norm=0.5,
            micro_batches=4 // data,
            minimum_parameter_group_size=64,
        )
        gpt = sk.models.GPT(60, 12, width=24, layers=2, heads=12, dtype="float64")
        model = sk.HybridShardedModel(gpt, config, pipeline, tensor)
        for step in range(3):
            x, y = token_batch(step, 8)
            model.train(*sk.split_batch(model.mesh, x % 60, y % 60))
        return model.gather_full_parameters(), model

    expected = on_one_rank(lambda alone: run(alone, 1, 1)[0])
    parameters, model = run(backend, pipeline, tensor)
    model.close()
    assert max(backend.all_gather_object(float(numpy.abs(parameters - expected).max()))) < 1e-10


@EVERY_STRATEGY
@pytest.mark.thorough(but=2)
def test_gradients_equal_a_float64_serial_run_to_rounding(backend, on_one_rank, strategy):
    def serial(alone):
        model, _ = train("DDP", alone, 0, model=small_gpt(dtype="float64"))
        return full_gradient(model, *token_batch(0))

    expected = on_one_rank(serial)
    model, _ = train(strategy, backend, 0, micro_batch=1)
    gradient = full_gradient(model, *sk.split_batch(model.mesh, *token_batch(0)))
    model.close()
    errors = backend.all_gather_object(
        float(numpy.abs(gradient - expected).max() / numpy.abs(expected).max())
    )
    assert max(errors) < 1e-5


@EVERY_STRATEGY
@pytest.mark.thorough(but=1)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(backend, strategy, tmp_path):
    folder = backend.broadcast_object(str(tmp_path), 0)
    whole, _ = train(strategy, backend, 4)
    first, _ = train(strategy, backend, 2)
    first.save_model(folder)
    second, _ = train(strategy, backend, 0)
    second.load_model(folder)
    for step in range(2, 4):
        second.train(*sk.split_batch(second.mesh, *token_batch(step)))
    same = (whole.gather_full_parameters() == second.gather_full_parameters()).all()
    for model in (whole, first, second):
        model.close()
    assert all(backend.all_gather_object(bool(same)))


@pytest.mark.mpi(min_size=2)
def test_fsdp_holds_the_formula_between_steps_and_one_gathered_unit_more_at_its_peak(backend):
    """Bytes of parameters + gradients + optimizer state against ZeRO-3: 16 bytes x parameters /
    ranks.

    In backward one unit is whole: its parameters, unless the node has them once for all ranks, and
    its gradient on the way to its owners.
    """
    model, _ = train("FSDP", backend, 1, model=small_gpt(width=64, layers=6))
    accounts = device_of(model).accounts
    accounts.reset_peak()
    model.train(*sk.split_batch(model.mesh, *token_batch(1)))
    between = accounts.live_bytes("parameters", "gradients", "optimizer state")
    formula = parts_of(model).policy.bytes_per_rank(model.parameter_count, backend.world_size)
    wholes = 1 if is_in_a_window(units_of(model)[0]) else 2
    unit = wholes * 4 * max(unit.layout.length for unit in units_of(model))
    peak = accounts.peak_bytes() - accounts.peak_bytes(
        "activations"
    )  # the arena does not grow any more
    figures = backend.all_gather_object((between / formula, peak / (formula + unit)))
    model.close()
    for resident, peak in figures:
        assert abs(resident - 1) < 0.05 and abs(peak - 1) < 0.05


@pytest.mark.thorough
@pytest.mark.mpi(min_size=2)
def test_two_models_in_one_job_do_not_disturb_each_other(backend):
    alone, _ = train("FSDP", backend, 4)
    first, _ = train("FSDP", backend, 0)
    other, _ = train("DDP", backend, 0, model=small_gpt(layers=1))
    for step in range(4):
        first.train(*sk.split_batch(first.mesh, *token_batch(step)))
        other.train(*sk.split_batch(other.mesh, *token_batch(step)))
    same = bool((alone.gather_full_parameters() == first.gather_full_parameters()).all())
    for model in (alone, first, other):
        model.close()
    assert all(backend.all_gather_object(same))


@pytest.mark.mpi(min_size=2)
def test_a_batch_that_does_not_divide_on_one_rank_is_refused_on_all(backend):
    model, _ = train("FSDP", backend, 1, micro_batches=2, samples=2 * backend.world_size)
    x, y = token_batch(0, samples=3 if backend.rank == 1 else 4)
    with pytest.raises(sk.ShardkitError, match="do not divide into 2 micro-batches"):
        model.train(x, y)
    assert model.train(*token_batch(0, samples=4)) > 0
    model.close()
