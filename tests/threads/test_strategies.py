"""DDP, ZeRO-1, ZeRO-2, FSDP and HSDP on ranks that are threads, against the serial run."""

import numpy
import pytest
from builders import STRATEGIES, full_gradient, sha256, small_gpt, token_batch, train

import shardkit as sk
from shardkit import nn
from shardkit.testing.parallel import device_of, gradient_norm_of, parts_of, units_of

EVERY_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES)


def trained_bits(num_ranks, strategy, steps=2, changes={}, **settings):
    """SHA-256 of the parameters after training on this many ranks, and the losses; ranks must agree
    on both.

    changes   to the sizes of the model
    """

    def run(backend):
        model, losses = train(strategy, backend, steps, model=small_gpt(**changes), **settings)
        return sha256(model.gather_full_parameters()), tuple(losses), gradient_norm_of(model)

    results = set(sk.run_ranks(num_ranks, run))
    assert len(results) == 1, "ranks disagree about parameters or losses"
    return results.pop()


@pytest.fixture(scope="module")
def serial():
    return trained_bits(1, "DDP", micro_batch=3)


@pytest.mark.thorough(but=5)
@pytest.mark.strength(1)
@EVERY_STRATEGY
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_the_trained_bits_and_losses_do_not_depend_on_strategy_or_ranks(
    serial, strategy, num_ranks
):
    assert trained_bits(num_ranks, strategy, micro_batch=3) == serial


@pytest.mark.parametrize(
    "changes", [{"dtype": "float64"}, {"width": 80}, {"width": 80, "tied": True}], ids=str
)
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.thorough(but=1)
def test_losses_norms_and_bits_are_the_same_for_other_dtypes_and_sizes(changes, num_ranks):
    """float64 losses show the order of their sum; wide units have so many norm blocks that padding
    would show.
    """
    batch = {"samples": 8, "micro_batch": 1, "changes": changes}
    assert trained_bits(num_ranks, "FSDP", **batch) == trained_bits(1, "DDP", **batch)


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "gpipe"},
        {"activation_checkpointing": True},
        {"minimum_parameter_group_size": 3000},
        {"schedule": "gpipe", "activation_checkpointing": True},
    ],
    ids=str,
)
def test_schedule_and_checkpointing_do_not_change_the_bits(serial, settings):
    if "minimum_parameter_group_size" in settings:
        serial = trained_bits(1, "DDP", micro_batch=3, **settings)
    assert trained_bits(2, "FSDP", micro_batch=3, **settings) == serial


@pytest.mark.parametrize(
    "changes", [{"tied": True}, {"dropout": 0.2}, {"style": "llama", "kv_heads": 1}], ids=str
)
@pytest.mark.parametrize(
    "settings",
    [{"schedule": "1f1b"}, {"schedule": "gpipe", "activation_checkpointing": True}],
    ids=str,
)
def test_every_model_form_trains_to_the_same_bits_on_two_ranks(changes, settings):
    def run(backend):
        model, _ = train("FSDP", backend, 3, micro_batch=3, model=small_gpt(**changes), **settings)
        return sha256(model.gather_full_parameters())

    assert len({*sk.run_ranks(1, run), *sk.run_ranks(2, run)}) == 1


@EVERY_STRATEGY
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_gradients_equal_those_of_one_backward_over_the_whole_batch(strategy, num_ranks):
    """With and without tied weights in turn: every strategy has both."""
    tied = (num_ranks + list(STRATEGIES).index(strategy)) % 2 == 1
    x, y = token_batch(0)
    plain = small_gpt(dtype="float64", tied=tied)
    plain.loss(plain(nn.Tensor(x)), y).backward()
    expected = numpy.concatenate([p.grad.ravel() for p in plain.parameters()])

    def run(backend):
        model, _ = train(
            strategy,
            backend,
            0,
            model=small_gpt(dtype="float64", tied=tied),
            samples=12,
            micro_batch=2,
        )
        return full_gradient(model, *sk.split_batch(model.mesh, x, y))

    for gradient in sk.run_ranks(num_ranks, run):
        numpy.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-14)


@EVERY_STRATEGY
@pytest.mark.thorough(but=2)
def test_a_float32_run_on_three_ranks_stays_close_to_a_float64_serial_run(strategy):
    def run(dtype):
        def on_rank(backend):
            model, losses = train(strategy, backend, 5, model=small_gpt(dtype=dtype), micro_batch=2)
            return model.gather_full_parameters(), losses

        return on_rank

    serial, serial_losses = sk.run_ranks(1, run("float64"))[0]
    sharded, losses = sk.run_ranks(3, run("float32"))[0]
    numpy.testing.assert_allclose(losses, serial_losses, rtol=1e-5)
    numpy.testing.assert_allclose(
        sharded, serial, atol=2e-3
    )  # AdamW divides by the root of small second moments


def test_unequal_parts_of_a_batch_weigh_by_their_samples():
    x, y = token_batch(0, samples=5)

    def run(backend):
        model, _ = train("FSDP", backend, 0, model=small_gpt(dtype="float64"))
        return full_gradient(model, *sk.split_batch(model.mesh, x, y)), model.train(
            *sk.split_batch(model.mesh, x, y)
        )

    expected, expected_loss = sk.run_ranks(1, run)[0]
    for gradient, loss in sk.run_ranks(3, run):
        numpy.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-14)
        assert loss == pytest.approx(expected_loss, rel=1e-12)


@EVERY_STRATEGY
@pytest.mark.thorough(but=2)
def test_accumulated_gradients_are_the_mean_over_all_calls(strategy):
    batches = [token_batch(step) for step in range(3)]
    together = [numpy.concatenate(arrays) for arrays in zip(*batches)]

    def accumulating(backend):
        model, _ = train(
            strategy, backend, 0, model=small_gpt(dtype="float64"), auto_synchronize_gradients=False
        )
        before = model.gather_full_parameters()
        for x, y in batches:
            model.train(*sk.split_batch(model.mesh, x, y))
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)
        model.synchronize_gradients()
        model.step()
        with pytest.raises(sk.ShardingError, match="no gradients are pending"):
            model.synchronize_gradients()
        return model.gather_full_parameters()

    def at_once(backend):
        model, _ = train(strategy, backend, 0, model=small_gpt(dtype="float64"))
        model.train(*together)
        return model.gather_full_parameters()

    expected = sk.run_ranks(1, at_once)[0]
    for parameters in sk.run_ranks(2, accumulating):
        numpy.testing.assert_allclose(parameters, expected, rtol=1e-9, atol=1e-12)


def test_without_determinism_the_result_is_the_same_to_rounding():
    def run(deterministic):
        def on_rank(backend):
            model, _ = train(
                "ZeRO-2",
                backend,
                3,
                model=small_gpt(dtype="float64"),
                deterministic=deterministic,
                micro_batch=2,
            )
            return model.gather_full_parameters()

        return on_rank

    numpy.testing.assert_allclose(
        sk.run_ranks(2, run(False))[0], sk.run_ranks(2, run(True))[0], rtol=1e-7, atol=1e-10
    )


@EVERY_STRATEGY
@pytest.mark.thorough(but=2)
def test_half_float_gradients_travel_in_half_the_bytes_and_stay_close(strategy):
    def run(compression):
        def on_rank(backend):
            model, _ = train(strategy, backend, 0, gradient_compression=compression)
            x, y = sk.split_batch(model.mesh, *token_batch(0))
            backend_of_data = model.mesh.group("data")
            model.compute_gradients(x, y)
            backend_of_data.traffic.reset()
            for unit in units_of(model):
                unit.gradients.drop()
            gradient = full_gradient(model, x, y)
            return gradient, backend_of_data.traffic.by_verb["all_to_all"]

        return on_rank

    exact, whole_bytes = sk.run_ranks(2, run(None))[0]
    rounded, half_bytes = sk.run_ranks(2, run("float16"))[0]
    assert half_bytes == whole_bytes / 2
    assert numpy.abs(rounded - exact).max() < 1e-3 * numpy.abs(exact).max()


class TwoBranches(nn.Module):
    """A user's module: no blocks(), a parameter used twice, a parameter of its own."""

    def __init__(self):
        self.shared = nn.Linear(5, 5, dtype="float64")
        self.scale = nn.Parameter((5,), nn.init.Fill(1.5), dtype="float64")
        self.out = nn.Linear(5, 3, dtype="float64")

    def forward(self, x):
        return self.out(nn.ops.tanh(self.shared(nn.ops.gelu(self.shared(x)))) * self.scale)


def mean_absolute_cube(prediction, y):
    return nn.ops.mean((prediction - y) ** 2 * (prediction - y) ** 2)


@EVERY_STRATEGY
@pytest.mark.parametrize(
    "make, loss",
    [
        (TwoBranches, mean_absolute_cube),
        (TwoBranches, nn.MeanSquaredError()),
        (lambda: sk.models.MLP([5, 8, 3], task="regression", dtype="float64"), None),
    ],
    ids=["function", "loss object", "own loss"],
)
def test_a_users_module_and_loss_train_like_one_backward_over_the_whole_batch(strategy, make, loss):
    rng = numpy.random.default_rng(0)
    x, y = rng.standard_normal((12, 5)), rng.standard_normal((12, 3))
    plain = make().finish(0)
    criterion = nn.as_loss(loss or plain.loss)
    criterion(plain(nn.Tensor(x)), y).backward()
    expected = numpy.concatenate([(p.array - 0.1 * p.grad).ravel() for p in plain.parameters()])

    def run(backend):
        config = sk.ShardingConfiguration(backend, learning_rate=0.1, loss=loss, micro_batches=2)
        model = STRATEGIES[strategy](make(), config)
        model.train(*sk.split_batch(model.mesh, x, y))
        return model.gather_full_parameters()

    for parameters in sk.run_ranks(3, run):
        numpy.testing.assert_allclose(parameters, expected, rtol=1e-11, atol=1e-13)


def test_a_model_that_cannot_be_trained_is_refused_with_the_reason():
    class Empty(nn.Module):
        pass

    class Outside(TwoBranches):
        def blocks(self):
            return [("shared", self.shared)]

    def run(backend):
        with pytest.raises(sk.ShardingError, match="no parameters"):
            sk.FSDPModel(Empty(), sk.ShardingConfiguration(backend))
        with pytest.raises(sk.ShardingError, match="does not reach parameter scale"):
            sk.FSDPModel(Outside(), sk.ShardingConfiguration(backend))
        with pytest.raises(sk.ConfigurationError, match="loss"):
            sk.FSDPModel(TwoBranches(), sk.ShardingConfiguration(backend)).train(
                numpy.ones((2, 5)), numpy.ones((2, 3))
            )

    sk.run_ranks(2, run)


# ---- what each rank holds ------------------------------------------------------------------------


@EVERY_STRATEGY
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_shards_add_up_to_the_parameter_count_and_hold_the_parameters(strategy, num_ranks):
    def run(backend):
        model, _ = train(strategy, backend, 1)
        return model.local_parameter_shard, model.gather_full_parameters(), model.parameter_count

    results = sk.run_ranks(num_ranks, run)
    whole, count = results[0][1:]
    assert whole.shape == (count,)
    sharing = {"DDP": 1, "HSDP": 2 - num_ranks % 2}.get(strategy, num_ranks)
    for first in range(0, num_ranks, sharing):
        shards = numpy.concatenate([shard for shard, _, _ in results[first : first + sharing]])
        assert shards.shape == (count,)
        if strategy == "DDP":  # in canonical order
            numpy.testing.assert_array_equal(shards, whole)
        numpy.testing.assert_array_equal(numpy.sort(shards), numpy.sort(whole))
    with pytest.raises(ValueError):
        results[0][0][0] = 1


@EVERY_STRATEGY
@pytest.mark.thorough(but=3)
def test_resident_bytes_follow_the_zero_formulas(strategy):
    """Between steps, on 4 ranks: within 5% of the formula, from the allocator's own accounting."""

    def run(backend):
        model, _ = train(strategy, backend, 2, model=small_gpt(width=64, layers=4))
        metadata = model.get_model_metadata()
        gathers = strategy in ("FSDP", "HSDP")
        pools = device_of(model).bytes_in_use("gathered parameters") if gathers else 0
        in_flight = (
            device_of(model).bytes_in_use("gradients in flight")
            if strategy in ("ZeRO-2", "FSDP", "HSDP")
            else 0
        )
        resident = (
            sum(metadata[f"{kind}_bytes"] for kind in ("parameter", "gradient", "optimizer"))
            - pools
            - in_flight
        )
        sharing = 2 if strategy == "HSDP" else 4
        return resident, parts_of(model).policy.bytes_per_rank(model.parameter_count, sharing)

    for resident, formula in sk.run_ranks(4, run):
        assert abs(resident / formula - 1) < 0.05


@pytest.mark.thorough
def test_the_peak_of_fsdp_is_the_formula_plus_one_gathered_unit():
    """Parameters, gradients and optimizer state at their peak within a step, on 4 ranks.

    A gathered unit is whole twice in backward: its parameters, and the gradient that is about to be
    reduced.
    """

    def run(backend):
        model, _ = train("FSDP", backend, 1, model=small_gpt(width=64, layers=6))
        accounts = device_of(model).accounts
        accounts.reset_peak()
        model.train(*sk.split_batch(model.mesh, *token_batch(1)))
        largest = max(unit.layout.length for unit in units_of(model)) * 4
        peak = accounts.peak_bytes() - accounts.peak_bytes(
            "activations"
        )  # the arena does not grow any more
        return peak, parts_of(model).policy.bytes_per_rank(model.parameter_count, 4) + 2 * largest

    for peak, formula in sk.run_ranks(4, run):
        assert abs(peak / formula - 1) < 0.05


def test_fsdp_leaves_no_parameter_readable_outside_its_unit():
    def run(backend):
        model, _ = train("FSDP", backend, 1)
        with pytest.raises(sk.ShardingError, match="gather"):
            model.wrapped_model.parameters()[0].array

    sk.run_ranks(2, run)


# ---- predictions and whole vectors ---------------------------------------------------------------


@EVERY_STRATEGY
def test_predictions_are_those_of_the_plain_model_with_the_same_parameters(strategy):
    x, _ = token_batch(0, samples=3)

    def run(backend):
        model, _ = train(strategy, backend, 2)
        plain, at = small_gpt(), 0
        vector = model.gather_full_parameters()
        for parameter in plain.named_parameters().values():
            parameter.array = vector[at : at + parameter.size].reshape(parameter.shape)
            at += parameter.size
        numpy.testing.assert_array_equal(model.predict(x), plain.predict(x))
        assert model.evaluate(x, x) == pytest.approx(
            float(plain.loss(plain(nn.Tensor(x)), x).item()), rel=1e-5
        )

    sk.run_ranks(2, run)


@EVERY_STRATEGY
def test_set_parameters_is_read_back_and_refuses_a_wrong_length_or_dtype(strategy):
    def run(backend):
        model, _ = train(strategy, backend, 1)
        vector = numpy.arange(model.parameter_count, dtype="float32")
        model.set_parameters(vector)
        numpy.testing.assert_array_equal(model.get_parameters(), vector)
        for wrong in (vector[:-1], vector + 1j, vector.astype(object), vector.astype(str)):
            with pytest.raises(ValueError, match="wanted"):
                model.set_parameters(wrong)

    sk.run_ranks(3, run)


# ---- wrong use -----------------------------------------------------------------------------------


def test_missing_model_or_configuration_is_a_type_error():
    def run(backend):
        with pytest.raises(TypeError):
            sk.FSDPModel(None, sk.ShardingConfiguration(backend))
        with pytest.raises(TypeError):
            sk.FSDPModel(small_gpt(), None)
        for model, config in (
            (sk.models.MLP, sk.ShardingConfiguration(backend)),
            (42, sk.ShardingConfiguration(backend)),
            (small_gpt(), backend),
            (small_gpt(), {"micro_batches": 2}),
        ):
            with pytest.raises(
                TypeError, match="FSDPModel needs an nn.Module and a ShardingConfiguration; got"
            ):
                sk.FSDPModel(model, config)
        with pytest.raises(TypeError):
            sk.ShardingConfiguration(None)

    sk.run_ranks(2, run)


def test_a_batch_that_does_not_divide_is_refused_on_all_ranks_and_nothing_is_lost():
    def run(backend):
        model, _ = train("FSDP", backend, 1, micro_batches=2)
        before = model.gather_full_parameters()
        x, y = token_batch(0, samples=3 if backend.rank == 1 else 4)
        with pytest.raises(sk.ShardkitError, match="do not divide into 2 micro-batches"):
            model.train(x, y)
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)
        model.train(*token_batch(0, samples=4))

    sk.run_ranks(2, run)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"learning_rate": 0}, "learning_rate"),
        ({"micro_batches": 0}, "micro_batches"),
        ({"device": "tpu"}, "device"),
        ({"max_gradient_norm": -1.0}, "max_gradient_norm"),
        ({"gradient_compression": "zip"}, "gradient_compression"),
    ],
)
def test_a_bad_setting_is_refused_by_name(settings, message):
    def run(backend):
        with pytest.raises(sk.ConfigurationError, match=message):
            sk.ShardingConfiguration(backend, **settings)

    sk.run_ranks(1, run)


@pytest.mark.parametrize("rate", [numpy.nan, numpy.inf, -1.0, "0.1", None])
def test_gradients_are_not_applied_with_a_learning_rate_that_is_none(rate):
    def run(backend):
        model, _ = train("ZeRO-2", backend, 1)
        before = model.gather_full_parameters()
        with pytest.raises(
            sk.ConfigurationError, match="learning_rate = .*; wanted a finite number, at least 0"
        ):
            model.apply_gradients(
                model.compute_gradients(*token_batch(0, samples=4)),
                rate if backend.rank == 1 else 0.1,
            )
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)
        model.train(*token_batch(0, samples=4))

    sk.run_ranks(2, run)


@pytest.mark.parametrize("kind", [sk.DDPModel, sk.FSDPModel, sk.PipelineParallelModel])
def test_a_schedule_that_gives_no_learning_rate_ends_the_step_on_all_ranks_with_nothing_changed(
    kind,
):
    def run(backend):
        rule = sk.AdamW(lr=lambda step: 0.1 if step < 1 else numpy.nan)
        model = kind(small_gpt(), sk.ShardingConfiguration(backend, optimizer=rule))
        model.train(*token_batch(0, samples=4))
        before = model.gather_full_parameters()
        with pytest.raises(sk.ConfigurationError, match=r"learning rate of step 2, lr\(1\)"):
            model.train(*token_batch(0, samples=4))
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)

    sk.run_ranks(2, run)


def test_an_unknown_schedule_is_refused_with_the_nearest_name():
    def run(backend):
        with pytest.raises(sk.ScheduleError, match="1f1b"):
            train("DDP", backend, 0, schedule="1f1")

    sk.run_ranks(2, run)
