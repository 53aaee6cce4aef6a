"""Blocks that compute in half floats, from float32 masters: against float64, on every mesh, through
overflows and checkpoints.

python -m pytest tests/threads/test_mixed_precision.py -m sweep        all meshes, policies and
                                                                       schedules of up to 4 ranks
"""

import functools

import numpy
import pytest
from builders import STRATEGIES, sha256, small_gpt, token_batch, train
from half_floats import BFLOAT16, EVERY_HALF, HALF_A_LAST_BIT, relative_distance
from hybrids import POLICIES, SCHEDULES, gpt, hybrid, meshes, step_once, trained
from sabotage import sabotage

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.parallel import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    LossScale,
    Numerics,
    gradient_norm_of,
    loss_scale_of,
    own_units_of,
    parts_of,
    skips_of,
    training_state_of,
    units_of,
)
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of, make_model, train_run

RunConfiguration = configuration_of(Language)

EVERY_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES)


def half_gpt(layers=2, **changes):
    return gpt(layers, dtype="float32", **changes)


# ---- right ---------------------------------------------------------------------------------------


@pytest.mark.thorough(but=1)
@EVERY_HALF
@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.parametrize("mesh, policy", [((1, 2, 1), "fsdp"), ((2, 1, 2), "ddp")], ids=str)
def test_gradients_are_those_of_float64_to_a_few_roundings(half, style, mesh, policy):
    """Each of two layers rounds about ten times in a row, with errors that are independent."""

    def build(dtype):
        return lambda: gpt(2, dtype=dtype, style=style, heads=6)

    right = trained((1, 1, 1), steps=1, model=build("float64"))
    found = trained(mesh, policy, steps=1, model=build("float32"), compute_dtype=half)
    single = trained(mesh, policy, steps=1, model=build("float32"))
    tolerance = 5 * HALF_A_LAST_BIT[half]
    distance = relative_distance(found.gradients[0], right.gradients[0])
    assert 0.1 * tolerance < distance < tolerance
    assert relative_distance(single.gradients[0], right.gradients[0]) < 1e-5
    assert found.losses[0] == pytest.approx(right.losses[0], rel=HALF_A_LAST_BIT[half] / 4)
    assert found.norms[0] == pytest.approx(right.norms[0], rel=tolerance)


@EVERY_HALF
@pytest.mark.parametrize("norms", ["before", "after"])
def test_a_residual_stream_in_float32_brings_gradients_nearer_and_has_the_same_bits(half, norms):
    choices = {"style": "llama", "heads": 6, "norms": norms}

    def build(dtype):
        return gpt(4, dtype=dtype, **choices)

    def distance(mesh=(1, 1, 1), policy="fsdp", **settings):
        settings |= {"compute_dtype": half, **scale}
        run = trained(mesh, policy, steps=1, model=lambda: build("float32"), **settings)
        return relative_distance(run.gradients[0], right), run.gradients[0].tobytes()

    scale = {"initial_loss_scale": 1.0} if half == "float16" else {}

    right = trained((1, 1, 1), steps=1, model=lambda: build("float64")).gradients[0]
    usual, _ = distance()
    how = {"residual_dtype": "float32", "micro_batches": 4}
    near, bits = distance(**how)
    most = {"before": 0.9, "after": 1.0}[norms] * usual  # branches read it rounded there
    assert near < most
    assert distance((2, 1, 1), "zero1", **how) == (near, bits)
    assert distance((1, 2, 1), "fsdp", **{**how, "micro_batches": 2}) == (near, bits)
    among_two, _ = distance((1, 1, 2), "ddp", sequence_parallel=True, **how)
    assert among_two < 1.1 * most


@EVERY_HALF
def test_a_residual_stream_in_float32_is_kept_in_predictions_and_texts(half):
    def run(backend):
        def build(**settings):
            config = sk.ShardingConfiguration(backend, **settings)
            return sk.FSDPModel(half_gpt(4, heads=6), config)

        x = numpy.arange(32).reshape(4, 8)
        plain, usual = build().predict(x), build(compute_dtype=half)
        near = build(compute_dtype=half, residual_dtype="float32")
        assert near.get_model_metadata()["residual_dtype"] == "float32"
        distances = [relative_distance(each.predict(x), plain) for each in (near, usual)]
        assert distances[0] < 0.95 * distances[1]
        (text,) = near.generate([x[0, :5]], 3, temperature=0.0)
        whole = near.predict(numpy.concatenate([x[0, :5], text])[None])
        assert (whole[0, 4:7].argmax(1) == text).all()

    sk.run_ranks(2, run)


def test_a_residual_stream_is_that_of_transformers():
    def run(backend):
        config = sk.ShardingConfiguration(
            backend, compute_dtype="float16", residual_dtype="float32"
        )
        with pytest.raises(ConfigurationError, match="blocks of transformers, and MLP has none"):
            sk.DDPModel(sk.models.MLP((3, 2, 1)), config)

    sk.run_ranks(2, run)


@EVERY_HALF
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_losses_of_an_mlp_are_those_of_float32(half, task):
    rng = numpy.random.default_rng(0)
    x, y = (
        rng.standard_normal((32, 6)),
        rng.standard_normal((32, 3)) if task == "regression" else rng.integers(0, 3, 32),
    )

    def run(backend, compute_dtype, loss=None):
        config = sk.ShardingConfiguration(
            backend, optimizer=sk.AdamW(lr=1e-2), compute_dtype=compute_dtype, loss=loss
        )
        model = sk.ZeRO2Model(sk.models.MLP([6, 16, 3], task=task), config)
        losses = [model.train(*sk.split_batch(model.mesh, x, y)) for _ in range(10)]
        return losses, model.predict(x).dtype

    (losses, dtype), (right, _) = [
        sk.run_ranks(2, lambda backend: run(backend, compute))[0] for compute in (half, None)
    ]
    assert dtype == "float32"
    numpy.testing.assert_allclose(losses, right, rtol=5 * HALF_A_LAST_BIT[half])


def test_a_function_as_loss_sees_float32():
    """A sum of squares of 300 is more than float16 holds."""
    seen = set()

    def loss(prediction, y):
        seen.add(str(prediction.dtype))
        return ((prediction - y) * (prediction - y)).mean()

    x, y = numpy.ones((4, 6)), numpy.full((4, 2), 300.0)

    def run(backend):
        config = sk.ShardingConfiguration(
            backend, compute_dtype="float16", loss=loss, initial_loss_scale=1.0
        )
        return sk.DDPModel(sk.models.MLP([6, 2]), config).train(x, y)

    assert sk.run_ranks(1, run)[0] == pytest.approx(9e4, rel=0.02) and seen == {"float32"}


@functools.cache
def learned(compute_dtype):
    """(mean of the last losses, skipped steps) of counting modulo 61 by one or by two, 40 steps on
    two ranks.
    """

    def batch(step):
        rng = numpy.random.default_rng(step)
        tokens = (
            rng.integers(0, 61, (16, 1)) + rng.integers(1, 3, (16, 1)) * numpy.arange(13)
        ) % 61
        return tokens[:, :-1], tokens[:, 1:]

    def run(backend):
        config = sk.ShardingConfiguration(
            backend, optimizer=sk.AdamW(lr=2e-2), compute_dtype=compute_dtype
        )
        model = sk.FSDPModel(small_gpt(width=24), config)
        losses = [model.train(*sk.split_batch(model.mesh, *batch(step))) for step in range(40)]
        return numpy.mean(losses[-5:]), skips_of(model).total

    return sk.run_ranks(2, run)[0]


@EVERY_HALF
@pytest.mark.thorough
def test_a_gpt_learns_as_well_as_in_float32(half):
    """From a loss of 4.1 to one below 1."""
    (found, skipped), (right, _) = learned(half), learned(None)
    assert skipped == 0 and right < 1 and found == pytest.approx(right, rel=0.1)


# ---- the same bits -------------------------------------------------------------------------------

RUNS = {
    1: [
        ((1, 1, 1), "fsdp", "gpipe", {}),
        ((2, 2, 1), "ddp", "zb-h1", {}),
        ((1, 4, 1), "zero1", "1f1b", {}),
        ((2, 1, 1), "zero2", "zb-v", {}),
        ((3, 1, 1), "fsdp", "1f1b", {"activation_checkpointing": True}),
        ((1, 2, 1), "fsdp", "1f1b", {}),
    ],
    2: [
        ((1, 1, 2), "ddp", "1f1b", {}),
        ((2, 1, 2), "fsdp", "interleaved", {}),
        ((1, 2, 2), "zero1", "gpipe", {}),
    ],
}


def bits(run, half, tied=False, layers=2, num_micro_batches=4):
    """What all ranks agree on after two steps."""
    mesh, policy, schedule, settings = run
    found = trained(
        mesh,
        policy,
        schedule,
        steps=2,
        model=lambda: half_gpt(layers, tied=tied),
        compute_dtype=half,
        micro_batches=num_micro_batches // mesh[1],
        **settings,
    )
    return sha256(found.parameters), tuple(found.losses), tuple(found.norms)


@EVERY_HALF
@pytest.mark.parametrize("tensor", RUNS)
@pytest.mark.thorough
def test_bits_depend_on_the_tensor_size_alone(half, tensor):
    """Half of the runs in each format; the first of a row is in both."""
    first, *others = RUNS[tensor]
    runs = [first, *others[half == "bfloat16" :: 2]]
    assert len({bits(run, half) for run in runs}) == 1


@pytest.mark.parametrize("half", [BFLOAT16])
@pytest.mark.thorough
def test_bits_of_tied_weights_are_those_of_one_rank(half):
    assert len({bits(run, half, tied=True) for run in (RUNS[1][0], RUNS[1][1], RUNS[1][3])}) == 1


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@EVERY_HALF
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_bits_depend_on_the_tensor_size_alone_in_the_whole_product(half, tensor):
    of_tensor = [mesh for num in (1, 2, 4) for mesh in meshes(num) if mesh[2] == tensor]
    runs = [
        (mesh, policy, schedule, {})
        for mesh in of_tensor
        for policy in POLICIES
        for schedule in SCHEDULES
        if mesh[0] * (2 if schedule in ("interleaved", "zb-v") else 1) <= 6
    ]
    assert len({bits(run, half, layers=4, num_micro_batches=8) for run in runs}) == 1


@pytest.mark.thorough
def test_float32_asked_for_is_float32_as_ever():
    assert bits(RUNS[1][1], "float32") == bits(RUNS[1][1], None)


# ---- masters -------------------------------------------------------------------------------------


@EVERY_HALF
@EVERY_STRATEGY
def test_masters_gradients_and_moments_are_float32_and_only_lent_parameters_are_not(half, strategy):
    def run(backend):
        model, _ = train(strategy, backend, 2, compute_dtype=half)
        full, mine = model.gather_full_parameters(), model.local_parameter_shard
        for unit in units_of(model):
            unit.gather()
            assert unit.whole.dtype == half and unit.parameters.shard.dtype == "float32"
            assert {str(state.array.dtype) for state in unit.optimizer.state.values()} == {
                "float32"
            }
            assert all(parameter.dtype == half for parameter in unit.plan.parameters.values())
            lent = unit.whole[: unit.layout.length].astype("float32")
            assert relative_distance(lent, unit.trained_parameters()) < HALF_A_LAST_BIT[half]
            unit.release()
        gradients = model.compute_gradients(*sk.split_batch(model.mesh, *token_batch(9)))
        assert {str(array.dtype) for array in (full, mine, gradients)} == {"float32"}
        assert (full.astype(half) != full).any(), "nothing is left to round"
        model.set_parameters(full)
        assert (model.gather_full_parameters() == full).all()
        about = model.get_model_metadata()
        assert about["compute_dtype"] == half and about["matmul_precision"] == "highest"
        return model.predict(token_batch(9)[0][:2]).dtype

    assert sk.run_ranks(2, run) == ["float32"] * 2


@EVERY_STRATEGY
@pytest.mark.parametrize("half", [BFLOAT16])
def test_copies_that_were_made_equal_are_what_blocks_are_lent(strategy, half):
    def run(backend):
        model, _ = train(strategy, backend, 1, compute_dtype=half)
        policy = {"policy": "hsdp"} if strategy == "HSDP" else {}
        optimizer = getattr(sk, type(model).__name__.replace("Model", "Optimizer"))(
            sk.AdamW(), model.sharding_configuration, model=model, **policy
        )
        unit = units_of(model)[0]
        if unit.optimizer.updates_all and backend.rank == 1:
            unit.parameters.array[:10] += 1
            unit.follow_masters()  # without messages, where a rank has all masters
        drift = optimizer.synchronize_optimizer_state()
        assert (drift.largest > 0.9) == unit.optimizer.updates_all
        unit.gather()
        lent = unit.whole[: unit.layout.length].astype("float32")
        return relative_distance(lent, unit.trained_parameters()), sha256(lent)

    first, second = sk.run_ranks(2, run)
    assert first == second and first[0] < HALF_A_LAST_BIT[half]


# ---- the scale of the loss -----------------------------------------------------------------------


def test_the_scale_halves_on_a_skipped_step_and_doubles_after_enough_good_ones():
    scale, values = LossScale(1024.0, interval=3), []
    for is_taken in (True, True, False, True, True, True, True, True, False, False):
        scale.count(is_taken)
        values.append(scale.value)
    assert values == [1024, 1024, 512, 512, 512, 1024, 1024, 1024, 512, 256]


def test_the_scale_stays_within_bounds_and_one_that_is_fixed_stays_one():
    up, down, fixed = LossScale(2.0**23, interval=1), LossScale(1.0), LossScale()
    for _ in range(60):
        up.count(True), down.count(False), fixed.count(False)
    assert (up.value, down.value, fixed.value) == (LARGEST_SCALE, SMALLEST_SCALE, 1.0)
    assert fixed.state() is None and down.state() == {"value": SMALLEST_SCALE, "good_steps": 0}


@pytest.mark.strength(1)
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("clip", [1.0, None], ids=["clipped", "not clipped"])
@EVERY_STRATEGY
@pytest.mark.thorough(but=2)
def test_an_overflow_skips_the_step_on_all_ranks_until_the_scale_fits(strategy, clip):
    def run(backend):
        model, _ = train(
            strategy,
            backend,
            0,
            compute_dtype="float16",
            initial_loss_scale=2.0**20,
            loss_scale_interval=2,
            max_gradient_norm=clip,
        )
        rows, losses = [], []
        for step in range(9):
            before = [array.tobytes() for _, _, array in training_state_of(model).owned_boxes()]
            losses.append(model.train(*sk.split_batch(model.mesh, *token_batch(step))))
            is_taken = before != [
                array.tobytes() for _, _, array in training_state_of(model).owned_boxes()
            ]
            assert is_taken == (skips_of(model).last is None)
            rows.append((is_taken, model.get_model_metadata()["loss_scale"]))
        return rows, losses, skips_of(model).total

    (rows, losses, skipped), *others = sk.run_ranks(3, run)
    assert all(other == (rows, losses, skipped) for other in others)
    assert numpy.isfinite(losses).all() and 3.5 < min(losses) < max(losses) < 4.5, (
        "a loss that is reported is not scaled"
    )
    assert not rows[0][0] and rows[0][1] == 2.0**19 and 0 < skipped < 8 and rows[-1][0]
    for (_, before), (is_taken, after) in zip(rows, rows[1:]):
        assert after in ((before, 2 * before) if is_taken else (before / 2,))
    assert 2.0**20 > rows[-1][1] >= 2.0**12


def test_an_overflow_on_one_rank_of_a_hybrid_mesh_halves_the_scale_on_all():
    def run(backend):
        gpt = sk.models.GPT(64, 12, width=16, layers=2, heads=2)
        config = sk.ShardingConfiguration(
            backend, compute_dtype="float16", micro_batches=2, minimum_parameter_group_size=64
        )
        model = sk.HybridShardedModel(gpt, config, 2, 2)
        if model.mesh.coordinates.pipeline == 0:
            sabotage(
                gpt, 1, "infinite gradient", lambda: backend.rank == 1 and model.step_number == 1
            )
        rows = []
        for step in range(3):
            model.train(*sk.split_batch(model.mesh, *token_batch(step, 8)))
            rows.append((skips_of(model).total, loss_scale_of(model).value))
        return rows

    assert sk.run_ranks(8, run) == [[(0, 1024), (1, 512), (1, 512)]] * 8


def test_gradients_are_those_before_the_scale_whatever_it_is():
    """Clipping, compute_gradients, accumulation: all see the mean gradient. And without a scale
    small gradients vanish.
    """

    def run(backend, scale, factor=1.0):
        def loss(prediction, y):
            return ((prediction - y) * (prediction - y)).mean() * factor

        config = sk.ShardingConfiguration(
            backend,
            compute_dtype="float16",
            initial_loss_scale=scale,
            max_gradient_norm=1e9,
            loss=loss,
        )
        x, y = (
            numpy.random.default_rng(0).standard_normal((8, 6)),
            numpy.random.default_rng(1).standard_normal((8, 3)),
        )
        model = sk.ZeRO1Model(sk.models.MLP([6, 16, 3]), config)
        gradients = model.compute_gradients(x, y)
        model.train(x, y)
        accumulating = sk.ZeRO1Model(
            sk.models.MLP([6, 16, 3]),
            sk.ShardingConfiguration(
                backend,
                compute_dtype="float16",
                initial_loss_scale=scale,
                loss=loss,
                auto_synchronize_gradients=False,
            ),
        )
        for part in (slice(0, 4), slice(4, 8)):
            accumulating.train(x[part], y[part])
        accumulating.synchronize_gradients()
        summed = numpy.concatenate([unit.gradients.updated for unit in own_units_of(accumulating)])
        return gradients, summed, gradient_norm_of(model)

    (plain, _, norm), (scaled, summed, scaled_norm) = [
        sk.run_ranks(1, lambda b: run(b, scale))[0] for scale in (1.0, 256.0)
    ]
    tolerance = 4 * HALF_A_LAST_BIT["float16"]
    assert (
        relative_distance(scaled, plain) < tolerance
        and relative_distance(summed, scaled) < tolerance
    )
    assert scaled_norm == pytest.approx(norm, rel=tolerance) and norm == pytest.approx(
        numpy.linalg.norm(plain), rel=tolerance
    )
    (lost, _, _), (kept, _, _) = [
        sk.run_ranks(1, lambda b: run(b, scale, 1e-7))[0] for scale in (1.0, 2.0**20)
    ]
    assert (
        relative_distance(lost * 1e7, plain) > 0.1
        and relative_distance(kept * 1e7, plain) < tolerance
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_given_gradients_that_are_infinite_halve_the_scale_too():
    def run(backend):
        model, _ = train("FSDP", backend, 1, compute_dtype="float16")
        gradients = model.compute_gradients(*sk.split_batch(model.mesh, *token_batch(0)))
        model.apply_gradients(gradients * (numpy.inf if backend.rank else 1), 1e-2)
        return skips_of(model).total, loss_scale_of(model).value

    assert sk.run_ranks(2, run) == [(1, 512)] * 2


# ---- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_float16_run_goes_on_to_the_same_bits_and_the_same_scale(tmp_path):
    """Two steps overflow before the save, and the scale doubles after it, three good steps from
    when it last changed.
    """
    settings = {"compute_dtype": "float16", "initial_loss_scale": 2.0**20, "loss_scale_interval": 3}

    def run(backend):
        whole, _ = train("FSDP", backend, 12, **settings)
        first, _ = train("FSDP", backend, 8, **settings)
        first.save_model(tmp_path)
        image, twin = first.serialize(), first.deep_copy()
        again = train("ZeRO-2", backend, 0, **settings)[0]
        again.load_model(tmp_path)
        third = train("DDP", backend, 0, **settings)[0]
        third.deserialize(image)
        ends = [first, again, third, twin]
        scales = {str(loss_scale_of(model).state()) for model in ends}
        for step in range(8, 12):
            for model in ends:
                model.train(*sk.split_batch(model.mesh, *token_batch(step)))
        states = {
            (
                sha256(model.gather_full_parameters()),
                str(loss_scale_of(model).state()),
                skips_of(model).total,
            )
            for model in [whole, *ends]
        }
        return (
            len(scales),
            len(states),
            loss_scale_of(whole).value,
            0 < skips_of(whole).total < 8,
        )

    assert [found[:2] + found[3:] for found in sk.run_ranks(2, run)] == [(1, 1, True)] * 2


@pytest.mark.parametrize(
    "first, second",
    [("bfloat16", None), (None, "bfloat16"), ("bfloat16", "float16"), ("float16", "bfloat16")],
)
def test_a_checkpoint_opens_whatever_blocks_compute_in(tmp_path, first, second):
    pytest.importorskip("ml_dtypes")

    def run(backend):
        model, _ = train("FSDP", backend, 2, compute_dtype=first)
        model.save_model(tmp_path)
        other, _ = train("ZeRO-1", backend, 0, compute_dtype=second)
        manifest = other.load_model(tmp_path)
        assert {entry["dtype"] for entry in manifest["tensors"].values()} == {"float32"}
        assert manifest["compute_dtype"] == (first or "float32")
        same = (model.gather_full_parameters() == other.gather_full_parameters()).all()
        before = loss_scale_of(other).value
        return (
            same,
            before,
            numpy.isfinite(other.train(*sk.split_batch(other.mesh, *token_batch(2)))),
        )

    assert sk.run_ranks(2, run) == [(True, 1024 if second == "float16" else 1, True)] * 2


@pytest.mark.parametrize(
    "damage", [{"value": 0, "good_steps": 0}, {"value": "1", "good_steps": 0}, {"value": 2.0}, 3]
)
def test_a_scale_that_makes_no_sense_is_refused_before_anything_is_read(damage):
    def run(backend):
        model, _ = train("DDP", backend, 1, compute_dtype="float16")
        state = parts_of(model).checkpoints.describe()
        parts_of(model).checkpoints.describe = lambda: {**state, "loss_scale": damage}
        with pytest.raises(sk.CheckpointError, match="loss_scale"):
            model.deserialize(model.serialize())

    sk.run_ranks(1, run)


# ---- settings of a run ---------------------------------------------------------------------------


def test_the_keys_of_a_run_reach_the_model():
    keys = {
        "parallel.compute_dtype": "float16",
        "parallel.initial_loss_scale": 64.0,
        "parallel.loss_scale_interval": 7,
        "model.layers": 1,
        "model.width": 16,
        "model.heads": 2,
    }

    def run(backend, settings):
        tokens = {"model.vocabulary_size": 256}  # no data is opened that tells them
        task = RunConfiguration().replace({**tokens, **settings}).make_task()
        model = make_model(task, backend)
        return (
            model.get_model_metadata()["compute_dtype"],
            loss_scale_of(model).value,
            model.sharding_configuration.loss_scale_interval,
        )

    assert sk.run_ranks(1, lambda backend: run(backend, keys)) == [("float16", 64.0, 7)]
    assert sk.run_ranks(1, lambda backend: run(backend, {"model.layers": 1})) == [
        ("float32", 1.0, None)
    ]
    with pytest.raises(ConfigurationError, match="matmul_precision"):
        sk.run_ranks(1, lambda backend: run(backend, {"parallel.matmul_precision": "tf32"}))


def test_a_run_tells_of_the_scale_and_of_what_it_computes_in(tmp_path, capsys):
    (tmp_path / "text").write_text("to be or not to be, that is the question " * 40)
    settings = RunConfiguration().replace(
        {
            "run.folder": str(tmp_path / "run"),
            "run.steps": 2,
            "run.report_every": 1,
            "run.validation_batches": 1,
            "model.layers": 1,
            "model.width": 16,
            "model.heads": 2,
            "model.sequence_length": 16,
            "batch.sequences": 2,
            "batch.micro_batch": 2,
            "data.path": [str(tmp_path / "text")],
            "sample.tokens": 0,
            "parallel.compute_dtype": "float16",
            "parallel.initial_loss_scale": 2.0**24,
        }
    )
    sk.run_ranks(1, lambda backend: train_run(settings, backend))
    said, records = capsys.readouterr().out, (tmp_path / "run" / "metrics.jsonl").read_text()
    assert (
        "computed in float16 with products in float32;" in said
        and "the loss is scaled by 8.38861e+06 from now on" in said.replace("\n", " ")
    )
    assert '"loss_scale": 8388608.0' in records


# ---- wrong use -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, settings, message",
    [
        ({"dtype": "float64"}, {"compute_dtype": "float16"}, "needs|wanted a model of float32"),
        ({"dtype": "float64"}, {"compute_dtype": "float32"}, "wanted a model of float32"),
        ({}, {"compute_dtype": "float8"}, "does not train in it; wanted one of float32, bfloat16"),
        ({}, {"initial_loss_scale": 8.0}, 'only compute_dtype = "float16" scales'),
        ({}, {"residual_dtype": "float32"}, "computes in float32; wanted None, or compute_dtype"),
        (
            {},
            {"loss_scale_interval": 8, "compute_dtype": "float32"},
            'only compute_dtype = "float16" scales',
        ),
    ],
)
def test_what_nothing_would_read_is_refused_on_all_ranks(model, settings, message):
    def run(backend):
        with pytest.raises(ConfigurationError, match=message):
            sk.DDPModel(small_gpt(**model), sk.ShardingConfiguration(backend, **settings))

    sk.run_ranks(2, run)


def test_tf32_is_for_products_of_float32():
    config = sk.ShardingConfiguration(
        object(), device="cuda", matmul_precision="tf32", compute_dtype="float16"
    )
    with pytest.raises(
        ConfigurationError, match="for products of float32, but this model computes in float16"
    ):
        Numerics.of(config, small_gpt(), numpy)


def test_sequence_slices_dropout_and_predictions_are_the_same_on_all_ranks():
    def run(backend):
        model = hybrid(
            backend,
            (2, 1, 2),
            "fsdp",
            model=half_gpt(2, dropout=0.1),
            compute_dtype="float16",
            sequence_parallel=True,
        )
        losses = [step_once(model, step) for step in range(2)]
        x = numpy.zeros((3, 8), int)
        return losses, model.evaluate(x, x), model.predict(x).tobytes(), str(model.predict(x).dtype)

    first, *others = sk.run_ranks(4, run)
    assert (
        all(other == first for other in others)
        and numpy.isfinite(first[0]).all()
        and first[3] == "float32"
    )
