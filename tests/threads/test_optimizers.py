"""Sharded optimizers on ranks that are threads, against a plain loop on one process."""

import copy
import math
import re
from dataclasses import replace

import numpy
import pytest
from builders import sha256, small_gpt, token_batch

import shardkit as sk
from shardkit import nn
from shardkit.nn import CrossEntropy
from shardkit.testing.optim import clip_factor
from shardkit.testing.parallel import evaluate_set, training_state_of

OPTIMIZERS = {
    "DDP": sk.DDPOptimizer,
    "ZeRO-1": sk.ZeRO1Optimizer,
    "ZeRO-2": sk.ZeRO2Optimizer,
    "FSDP": sk.FSDPOptimizer,
    "pipeline": sk.PipelineParallelOptimizer,
    "tensor": sk.TensorParallelOptimizer,
    "hybrid": sk.HybridShardedOptimizer,
}
LABELS = {
    "pipeline": "PipelineParallel",
    "tensor": "TensorParallel",
    "hybrid": "3D-Parallelism (Hybrid)",
}
EVERY_OPTIMIZER = pytest.mark.parametrize("kind", OPTIMIZERS)
EVERY_SIZE = pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
HYBRID_SIZES = {
    1: {},
    2: {"tensor_parallel_size": 2},
    3: {"pipeline_parallel_size": 3},
    4: {"pipeline_parallel_size": 2, "policy": "zero1"},
}
MAX_NORM = 0.7


def mlp(**changes):
    return sk.models.MLP([6, 12, 12, 12, 2], **{"dtype": "float64", "seed": 1, **changes})


def rising_rate(step):
    """Learns at first and spoils it later, so that the best epoch is not the last."""
    return 0.02 if step < 4 else 0.1


def make(
    kind,
    backend,
    *,
    model=None,
    rule=sk.AdamW(lr=rising_rate),
    patience=None,
    minimum_improvement=0.0,
    **settings,
):
    """An optimizer of this kind with a small MLP."""
    config = sk.ShardingConfiguration(
        backend, **{"max_gradient_norm": MAX_NORM, "minimum_parameter_group_size": 16, **settings}
    )
    sizes = HYBRID_SIZES[backend.world_size] if kind == "hybrid" else {}
    return OPTIMIZERS[kind](
        rule,
        config,
        model=model or mlp(),
        patience=patience,
        minimum_improvement=minimum_improvement,
        **sizes,
    )


def samples(count, seed):
    rng = numpy.random.default_rng(seed)
    x = rng.standard_normal((count, 6))
    return x, numpy.stack([x[:, 0] + x[:, 1], x[:, 2] - numpy.tanh(x[:, 3])], 1)


TRAIN, VALIDATION, TEST = samples(30, 0), samples(7, 1), samples(3, 2)


def given(**changes):
    whole = {
        "x_train": TRAIN[0],
        "y_train": TRAIN[1],
        "epochs": 4,
        "batch_size": 12,
        "shuffle_seed": 5,
    }
    return sk.OptimizationInputData(**{**whole, **changes})


def flat(module, what="array"):
    return numpy.concatenate([getattr(p, what).ravel() for p in module.parameters()])


def plain_loss(module, x, y):
    return float(module.loss(module(nn.Tensor(x)), y).item())


def plain_step(module, rule, state, x, y, number):
    """One step of one process; the loss before it."""
    for parameter in module.parameters():
        parameter.grad = None
    loss = module.loss(module(nn.Tensor(x)), y)
    loss.backward()
    vector, gradient = flat(module), flat(module, "grad")
    gradient *= clip_factor(float(numpy.sqrt((gradient**2).sum())), MAX_NORM)
    rule.update(vector, gradient, state, number)
    at = 0
    for parameter in module.parameters():
        parameter.array = vector[at : at + parameter.size].reshape(parameter.shape)
        at += parameter.size
    return float(loss.item())


def fresh_state(module, rule):
    return {
        name: numpy.zeros(sum(p.size for p in module.parameters())) for name in rule.state_names
    }


def plain_run(with_validation, rule=sk.AdamW(lr=rising_rate)):
    """(fitness of each epoch, best parameters, steps) of the same epochs without any sharding."""
    module, input_data, step = mlp().finish(0), given(), 0
    state, history, vectors = fresh_state(module, rule), [], []
    for epoch in range(4):
        losses = []
        for batch in input_data.batches(epoch):
            step += 1
            loss = plain_step(module, rule, state, TRAIN[0][batch], TRAIN[1][batch], step)
            losses += [loss] * len(batch)
        history.append(
            plain_loss(module, *VALIDATION) if with_validation else sum(losses) / len(losses)
        )
        vectors.append(flat(module))
    return history, vectors[numpy.argmin(history)], step


# ---- optimize ------------------------------------------------------------------------------------


@pytest.mark.strength(1)
@EVERY_SIZE
@EVERY_OPTIMIZER
def test_optimize_follows_a_plain_loop_and_keeps_its_best_epoch(kind, num_ranks):
    def run(backend):
        optimizer = make(kind, backend)
        result = optimizer.optimize(
            given(
                x_validation=VALIDATION[0],
                y_validation=VALIDATION[1],
                x_test=TEST[0],
                y_test=TEST[1],
            )
        )
        assert result.best_solution is optimizer.model and result.fitness_history == tuple(
            optimizer.fitness_history
        )
        figures = [result.training_result, result.validation_result, result.test_result]
        return (
            result.fitness_history,
            result.best_solution.gather_full_parameters(),
            result.iterations,
            result.best_fitness_score,
            figures,
            optimizer.model.mesh.size("data"),
        )

    results = sk.run_ranks(num_ranks, run)
    history, best, steps = plain_run(with_validation=True)
    assert numpy.argmin(history) not in (0, 3), (
        "the case is too easy: the best epoch must be in the middle"
    )
    reference, at = mlp().finish(0), 0
    for parameter in reference.parameters():
        parameter.array = best[at : at + parameter.size].reshape(parameter.shape)
        at += parameter.size
    for got_history, parameters, iterations, score, figures, _ in results:
        numpy.testing.assert_allclose(got_history, history, rtol=1e-9)
        numpy.testing.assert_allclose(parameters, best, rtol=1e-8, atol=1e-11)
        assert iterations == steps and score == min(got_history)
        for result, (x, y) in zip(figures, (TRAIN, VALIDATION, TEST)):
            assert result.samples == len(x) and result.loss == pytest.approx(
                plain_loss(reference, x, y), rel=1e-8
            )
        assert figures[1].loss == pytest.approx(score, rel=1e-12)
    assert len({(r[0], sha256(r[1]), str(r[4])) for r in results}) == 1, "ranks disagree"


@EVERY_OPTIMIZER
def test_without_validation_the_mean_training_loss_is_the_fitness(kind):
    def run(backend):
        result = make(kind, backend).optimize(given())
        return result, result.best_solution.mesh.size("data")

    for result, num_parts in sk.run_ranks(2, run):
        numpy.testing.assert_allclose(
            result.fitness_history, plain_run(with_validation=False)[0], rtol=1e-9
        )
        assert result.validation_result is None and result.test_result is None


@pytest.mark.parametrize("micro_batches, auto", [(1, False), (3, True), (3, False)])
def test_micro_batches_and_accumulated_gradients_take_the_same_steps(micro_batches, auto):
    def run(backend):
        optimizer = make(
            "ZeRO-2", backend, micro_batches=micro_batches, auto_synchronize_gradients=auto
        )
        if not auto:  # optimize() forgets what was accumulated before it
            optimizer.model.train(
                *sk.split_batch(optimizer.model.mesh, TRAIN[0][:12], TRAIN[1][:12])
            )
        return optimizer.optimize(given()), optimizer.model.gather_full_parameters()

    history, best, steps = plain_run(with_validation=False)
    for result, parameters in sk.run_ranks(2, run):
        numpy.testing.assert_allclose(result.fitness_history, history, rtol=1e-9)
        numpy.testing.assert_allclose(parameters, best, rtol=1e-8, atol=1e-11)
        assert result.iterations == steps


def test_an_epoch_is_a_permutation_of_its_own_in_whole_batches():
    for count, dropped in [(30, 6), (24, 0), (31, 7), (12, 0), (11, 0), (1, 0)]:
        one = given(x_train=numpy.zeros(count))
        epochs = [one.batches(epoch) for epoch in (0, 1, 0)]
        for batches in epochs:
            numbers = numpy.concatenate(batches)
            assert len(set(numbers.tolist())) == len(numbers) == count - dropped
            assert all(len(batch) == min(12, count) for batch in batches)
        first, second, again = (numpy.concatenate(batches).tolist() for batches in epochs)
        assert first == again and (first != second or count == 1)
        assert (
            count == 1
            or first != numpy.concatenate(replace(one, shuffle_seed=6).batches(0)).tolist()
        )
        in_order = numpy.concatenate(replace(one, shuffle_seed=None).batches(1)).tolist()
        assert in_order == list(range(count - dropped))
        assert (one.left_out() is None) == (dropped == 0)


@pytest.mark.filterwarnings("ignore:optimize.. trains on whole batches")
@pytest.mark.parametrize(
    "count, batch_size, epochs", [(22, 8, 3), (9, 8, 2), (17, 4, 1), (8, 32, 2)]
)
@pytest.mark.thorough(but=2)
def test_every_mesh_takes_the_same_steps_on_the_same_samples(count, batch_size, epochs):
    x, y = TRAIN[0][:count], TRAIN[1][:count]

    def trained(num_ranks, micro_batches, pipeline=1):
        def run(backend):
            optimizer = sk.HybridShardedOptimizer(
                sk.AdamW(lr=0.01),
                sk.ShardingConfiguration(backend, micro_batches=micro_batches),
                model=mlp(),
                pipeline_parallel_size=pipeline,
            )
            result = optimizer.optimize(
                sk.OptimizationInputData(x, y, epochs=epochs, batch_size=batch_size)
            )
            return (
                result.iterations,
                optimizer.model.gather_full_parameters(),
                result.fitness_history,
            )

        return sk.run_ranks(num_ranks, run)[0]

    steps, weights, history = trained(1, 4)
    assert steps == epochs * max(1, count // batch_size)
    for layout in ((2, 2), (4, 1), (4, 2, 2), (1, 1), (2, 1)):
        others = trained(*layout)
        assert others[0] == steps
        numpy.testing.assert_allclose(others[1], weights, rtol=1e-9, atol=1e-12)
        numpy.testing.assert_allclose(others[2], history, rtol=1e-9)
        if layout in ((2, 2), (4, 1), (4, 2, 2)):  # micro-batches of one size
            assert others[1].tobytes() == weights.tobytes()


@pytest.mark.parametrize("seed, said", [(0, "others in every epoch"), (None, "the same in every")])
def test_samples_that_fill_no_batch_are_told_once(seed, said):
    def run(backend):
        make("FSDP", backend).optimize(given(shuffle_seed=seed))

    with pytest.warns(sk.ShardingWarning) as caught:
        sk.run_ranks(2, run)
    told = [str(each.message) for each in caught if "whole batches" in str(each.message)]
    assert len(told) == 1 and "30 samples make 2 of batch_size = 12, and 6 are left out" in told[0]
    assert said in told[0]


@EVERY_SIZE
@pytest.mark.parametrize("kind, auto", [("FSDP", True), ("ZeRO-2", False), ("hybrid", True)])
@pytest.mark.parametrize("minimum, epochs", [(0.0, 5), (1e9, 3)])
def test_patience_ends_a_run(minimum, epochs, kind, auto, num_ranks):
    def run(backend):
        how = {"minimum_improvement": minimum, "auto_synchronize_gradients": auto}
        optimizer = make(kind, backend, patience=2, **how)
        result = optimizer.optimize(
            given(x_validation=VALIDATION[0], y_validation=VALIDATION[1], epochs=12)
        )
        return result.fitness_history

    (history,) = set(sk.run_ranks(num_ranks, run))
    assert len(history) == epochs


def test_each_run_has_a_history_of_its_own():
    def run(backend):
        optimizer = make("DDP", backend, rule=sk.SGD(lr=0.0), patience=2, minimum_improvement=1e-6)
        return [len(optimizer.optimize(given(epochs=5)).fitness_history) for _ in range(2)]

    assert sk.run_ranks(2, run) == [[3, 3]] * 2


@EVERY_SIZE
def test_any_rank_that_wants_to_stop_stops_all(num_ranks):
    def run(backend):
        optimizer = make("DDP", backend)
        votes = [optimizer.should_early_stop(backend.rank == voter) for voter in range(num_ranks)]
        return votes, optimizer.should_early_stop(False), optimizer.should_early_stop()

    assert sk.run_ranks(num_ranks, run) == [([True] * num_ranks, False, False)] * num_ranks


def test_active_features_are_the_selected_ones_and_models_without_features_have_none():
    def run(backend):
        optimizer = make("FSDP", backend)
        optimizer.model.set_active_feature_indices([4, 0, 1])
        selected = optimizer.optimize(given(epochs=1)).selected_features
        x, y = token_batch(0)
        other = make("FSDP", backend, model=small_gpt())
        return selected, other.optimize(
            sk.OptimizationInputData(x, y, epochs=1, batch_size=4)
        ).selected_features

    assert sk.run_ranks(2, run) == [((0, 1, 4), None)] * 2


# ---- evaluation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "num_ranks, kind", [(1, "DDP"), (3, "DDP"), (4, "FSDP"), (4, "hybrid"), (3, "tensor")]
)
@pytest.mark.thorough(but=2)
def test_the_mean_loss_of_a_set_does_not_depend_on_how_it_is_cut(num_ranks, kind):
    def run(backend):
        model = make(kind, backend).model
        return [
            evaluate_set(model, samples(count, count), size).loss
            for count in range(1, 10)
            for size in (1, 4, 100)
        ]

    module = mlp().finish(0)
    expected = [
        plain_loss(module, *samples(count, count)) for count in range(1, 10) for _ in range(3)
    ]
    for losses in sk.run_ranks(num_ranks, run):
        numpy.testing.assert_allclose(losses, expected, rtol=1e-12)


def test_a_set_is_judged_by_the_mean_over_items_and_not_over_slices():
    x, y = token_batch(0, 7)
    y = numpy.where(
        numpy.arange(7)[:, None] < 4, 0, y
    )  # the first slices have few items that count
    loss = CrossEntropy(ignore_index=0)

    def run(backend):
        model = make("FSDP", backend, model=small_gpt(dtype="float64"), loss=loss).model
        return evaluate_set(model, (x, y), 2), evaluate_set(model, (x, 0 * y), 2).loss

    expected = float(loss(nn.Tensor(small_gpt(dtype="float64").predict(x)), y).item())
    for result, without_items in sk.run_ranks(3, run):
        assert (
            result.loss == pytest.approx(expected, rel=1e-12)
            and result.samples == 7
            and math.isnan(without_items)
        )


# ---- single steps --------------------------------------------------------------------------------


@EVERY_OPTIMIZER
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_a_step_synchronizes_what_was_accumulated(kind, num_ranks):
    halves = [slice(0, 12), slice(12, 24)]

    def run(backend):
        optimizer = make(kind, backend, auto_synchronize_gradients=False)
        for half in halves * 2:  # two steps of the same two halves
            optimizer.model.train(
                *sk.split_batch(optimizer.model.mesh, TRAIN[0][half], TRAIN[1][half])
            )
            if half is halves[1]:
                optimizer.step()
        return optimizer.model.gather_full_parameters(), optimizer.model.step_number

    module, rule = mlp().finish(0), sk.AdamW(lr=rising_rate)
    state = fresh_state(module, rule)
    for number in (1, 2):
        plain_step(module, rule, state, TRAIN[0][:24], TRAIN[1][:24], number)
    for parameters, steps in sk.run_ranks(num_ranks, run):
        numpy.testing.assert_allclose(parameters, flat(module), rtol=1e-9, atol=1e-12)
        assert steps == 2


@pytest.mark.parametrize("kind", ["DDP", "FSDP", "pipeline"])
def test_a_step_takes_computed_gradients_and_none_that_were_dropped(kind):
    def run(backend):
        optimizer = make(kind, backend, auto_synchronize_gradients=False)
        part = sk.split_batch(optimizer.model.mesh, TRAIN[0][:12], TRAIN[1][:12])
        with pytest.raises(sk.ShardingError, match="gradients"):
            optimizer.step()
        for prepare in (optimizer.model.train, optimizer.model.compute_gradients):
            prepare(*part)
            optimizer.zero_gradients()
            with pytest.raises(sk.ShardingError, match="gradients"):
                optimizer.step()
        optimizer.model.compute_gradients(*part)
        optimizer.step()
        assert optimizer.model.step_number == 1
        return optimizer.model.gather_full_parameters()

    module, rule = mlp().finish(0), sk.AdamW(lr=rising_rate)
    plain_step(module, rule, fresh_state(module, rule), TRAIN[0][:12], TRAIN[1][:12], 1)
    for parameters in sk.run_ranks(2, run):
        numpy.testing.assert_allclose(parameters, flat(module), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["DDP", "FSDP", "pipeline"])
def test_a_call_that_would_drop_accumulated_gradients_is_refused_and_a_step_has_them(kind):
    def refused(calls):
        for call in calls:
            with pytest.raises(sk.ShardingError, match="would drop accumulated gradients of 6"):
                call()

    def run(backend):
        model = make(kind, backend, auto_synchronize_gradients=False).model
        part, other = (
            sk.split_batch(model.mesh, TRAIN[0][rows], TRAIN[1][rows])
            for rows in (slice(0, 6), slice(6, 12))
        )
        given = model.compute_gradients(*other)  # has returned them: nothing is lost
        model.train(*part)
        calls = [
            lambda: model.compute_gradients(*other),
            lambda: model.apply_gradients(given, 0.1),
        ]
        refused(calls)
        model.synchronize_gradients()
        refused([*calls, lambda: model.train(*other)])
        model.step()
        return model.gather_full_parameters()

    module, rule = mlp().finish(0), sk.AdamW(lr=rising_rate)
    plain_step(module, rule, fresh_state(module, rule), TRAIN[0][:6], TRAIN[1][:6], 1)
    for parameters in sk.run_ranks(2, run):
        numpy.testing.assert_allclose(parameters, flat(module), rtol=1e-9, atol=1e-12)


@EVERY_OPTIMIZER
def test_reset_forgets_the_state_and_keeps_the_parameters(kind):
    def run(backend):
        optimizer = make(kind, backend, rule=sk.AdamW(lr=0.02))
        optimizer.optimize(given(epochs=2))
        before = optimizer.model.gather_full_parameters()
        optimizer.reset()
        numpy.testing.assert_array_equal(optimizer.model.gather_full_parameters(), before)
        assert optimizer.model.step_number == 0 and optimizer.fitness_history == []
        fresh = make(kind, backend, rule=sk.AdamW(lr=0.02))
        fresh.model.set_parameters(before)
        vectors = []
        for each in (optimizer, fresh):
            each.model.train(*sk.split_batch(each.model.mesh, *TRAIN))
            vectors.append(each.model.gather_full_parameters())
        numpy.testing.assert_array_equal(*vectors)

    sk.run_ranks(2, run)


# ---- where a run begins, and what it leaves ------------------------------------------------------


def test_a_run_begins_at_a_module_a_sharded_model_or_a_vector():
    def run(backend):
        start = mlp(seed=9)
        first = make("ZeRO-1", backend)
        first.model.train(*sk.split_batch(first.model.mesh, *TRAIN))
        module = first.optimize(given(initial_solution=start, epochs=2))
        sharded = sk.ZeRO1Model(
            mlp(seed=9), replace(first.sharding_configuration, optimizer=sk.Adam())
        )
        second = sk.ZeRO1Optimizer(first.wrapped_optimizer, first.sharding_configuration)
        assert second.model is None
        result = second.optimize(given(initial_solution=sharded, epochs=2))
        assert (
            result.best_solution is sharded
            and training_state_of(sharded).rule == second.wrapped_optimizer
        )
        vector = flat(mlp(seed=9).finish(0))
        third = make("ZeRO-1", backend)
        third.model.train(*sk.split_batch(third.model.mesh, *TRAIN))
        return [
            r.fitness_history
            for r in (module, result, third.optimize(given(initial_solution=vector, epochs=2)))
        ]

    for first, second, third in sk.run_ranks(2, run):
        assert first == second == third


def test_a_deep_copy_of_a_model_keeps_the_rule_that_an_optimizer_gave_it():
    def run(backend):
        config, vectors = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=0.5)), []
        model = sk.FSDPModel(mlp(), config)
        clone = model.clone()
        sk.FSDPOptimizer(sk.AdamW(lr=0.01), config, model=model)
        assert model.sharding_configuration.optimizer == sk.AdamW(lr=0.01)
        expected = sk.FSDPModel(mlp(), model.sharding_configuration)
        for each in (copy.deepcopy(model), clone.deep_copy(), model, expected):
            each.train(*sk.split_batch(each.mesh, *TRAIN))
            vectors.append(each.gather_full_parameters())
        for vector in vectors[:-1]:
            numpy.testing.assert_array_equal(vector, vectors[-1])

    sk.run_ranks(2, run)


@EVERY_OPTIMIZER
@pytest.mark.thorough(but=3)
def test_an_image_and_a_checkpoint_of_an_optimizer_go_on_elsewhere(kind, tmp_path):
    def first(backend):
        optimizer = make(kind, backend, rule=sk.AdamW(lr=0.01))
        optimizer.optimize(given(epochs=1, batch_size=30))
        folder, image = optimizer.save_model(tmp_path, keep=1), optimizer.serialize()
        optimizer.model.train(*sk.split_batch(optimizer.model.mesh, *TRAIN))
        return folder, image, optimizer.model.gather_full_parameters()

    def second(backend):
        vectors = []
        for load in (lambda o: o.load_model(tmp_path), lambda o: o.deserialize(image)):
            optimizer = make("FSDP", backend, rule=sk.AdamW(lr=0.01))
            load(optimizer)
            optimizer.model.train(*sk.split_batch(optimizer.model.mesh, *TRAIN))
            vectors.append(optimizer.model.gather_full_parameters())
        return vectors

    _, image, expected = sk.run_ranks(2, first)[0]
    for vectors in sk.run_ranks(3, second):
        for vector in vectors:
            numpy.testing.assert_allclose(vector, expected, rtol=1e-10, atol=1e-13)


@EVERY_OPTIMIZER
def test_options_name_the_rule_the_sizes_and_the_stopping_and_are_a_fresh_dict(kind):
    def run(backend):
        optimizer = make(kind, backend, rule=sk.Momentum(lr=0.1, beta=0.8), patience=3)
        options = optimizer.get_options()
        optimizer.get_options().clear()
        assert optimizer.get_options() == options
        assert (optimizer.rank, optimizer.world_size) == (backend.rank, 2)
        return options

    options = sk.run_ranks(2, run)[0]
    assert {
        "rule": "Momentum",
        "lr": 0.1,
        "beta": 0.8,
        "nesterov": False,
        "patience": 3,
        "max_gradient_norm": MAX_NORM,
        "strategy": LABELS.get(kind, kind),
        "world_size": 2,
    }.items() <= options.items()
    sizes = [options[f"{axis}_parallel_size"] for axis in ("pipeline", "data", "tensor")]
    assert sizes == {"pipeline": [2, 1, 1], "tensor": [1, 1, 2], "hybrid": [1, 1, 2]}.get(
        kind, [1, 2, 1]
    )


# ---- wrong use -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((None, "config"), "needs a rule"),
        ((sk.AdamW, "config"), "needs a rule"),
        ((mlp(), "config"), "needs a rule"),
        ((sk.AdamW(), None), "needs a ShardingConfiguration"),
        ((sk.AdamW(), sk.SGD()), "needs a ShardingConfiguration"),
    ],
    ids=str,
)
@EVERY_OPTIMIZER
def test_an_optimizer_is_made_of_a_rule_and_a_configuration(kind, arguments, message):
    def run(backend):
        rule, config = arguments
        with pytest.raises(TypeError, match=message):
            OPTIMIZERS[kind](
                rule, sk.ShardingConfiguration(backend) if config == "config" else config
            )

    sk.run_ranks(1, run)


def test_a_sharded_model_must_be_of_the_same_class_configuration_and_state():
    def run(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW())
        model = sk.DDPModel(mlp(), config)
        with pytest.raises(TypeError, match="FSDPOptimizer trains a FSDPModel, but got a DDPModel"):
            sk.FSDPOptimizer(sk.AdamW(), config, model=model)
        with pytest.raises(TypeError, match="got a dict"):
            sk.DDPOptimizer(sk.AdamW(), config, model={})
        with pytest.raises(
            sk.ShardingError,
            match="keeps first_moment, second_moment for AdamW, but SGD keeps nothing",
        ):
            sk.DDPOptimizer(sk.SGD(), config, model=model)
        with pytest.raises(sk.ShardingError, match="micro_batches = 1, the optimizer with 2"):
            sk.DDPOptimizer(sk.AdamW(), replace(config, micro_batches=2), model=model)
        hybrid = sk.HybridShardedModel(mlp(), config, policy="zero1")
        with pytest.raises(
            sk.ShardingError, match="sharded as ZeRO-1, the optimizer was made with policy = 'fsdp'"
        ):
            sk.HybridShardedOptimizer(sk.AdamW(), config, model=hybrid)
        with pytest.raises(
            sk.MeshError,
            match="data 2 x tensor 1, the optimizer was made for pipeline 1 x data 1 x tensor 2",
        ):
            sk.HybridShardedOptimizer(
                sk.AdamW(), config, model=hybrid, policy="zero1", tensor_parallel_size=2
            )
        assert (
            sk.HybridShardedOptimizer(sk.AdamW(), config, model=hybrid, policy="zero1").model
            is hybrid
        )

    sk.run_ranks(2, run)


def test_sizes_and_patience_that_make_no_sense_are_refused_before_there_is_a_model():
    def run(backend):
        config = sk.ShardingConfiguration(backend)
        for error, settings in [
            (sk.MeshError, {"tensor_parallel_size": 3}),
            (ValueError, {"pipeline_parallel_size": 0}),
            (sk.ConfigurationError, {"policy": "zero9"}),
            (sk.ConfigurationError, {"patience": 0}),
            (sk.ConfigurationError, {"patience": 2.5}),
            (sk.ConfigurationError, {"patience": "2"}),
            (sk.ConfigurationError, {"minimum_improvement": -1.0}),
            (sk.ConfigurationError, {"minimum_improvement": numpy.nan}),
            (sk.ConfigurationError, {"minimum_improvement": "small"}),
        ]:
            with pytest.raises(error):
                sk.HybridShardedOptimizer(sk.AdamW(), config, **settings)

    sk.run_ranks(2, run)


def test_without_a_model_every_member_says_so():
    def run(backend):
        optimizer = sk.DDPOptimizer(sk.AdamW(), sk.ShardingConfiguration(backend))
        optimizer.reset()
        assert (
            optimizer.get_options()["data_parallel_size"] is None
            and not optimizer.should_early_stop()
        )
        for call in (
            optimizer.step,
            optimizer.zero_gradients,
            optimizer.serialize,
            optimizer.synchronize_optimizer_state,
            optimizer.close,
            lambda: optimizer.optimize(given()),
            lambda: optimizer.deserialize(b""),
            lambda: optimizer.save_model("x"),
            lambda: optimizer.load_model("x"),
            lambda: optimizer.optimize(given(initial_solution=numpy.zeros(3))),
        ):
            with pytest.raises(sk.ShardingError, match="has no model yet"):
                call()

    sk.run_ranks(2, run)


BAD_INPUT = {
    "lengths": (
        {"y_train": TRAIN[1][:-1]},
        sk.ShapeError,
        r"x_train has shape \(30, 6\) and y_train \(29, 2\)",
    ),
    "nothing": ({"x_train": TRAIN[0][:0], "y_train": TRAIN[1][:0]}, sk.ShapeError, "one or more"),
    "no x": ({"x_train": None}, sk.ShapeError, "x_train has shape None"),
    "no y": ({"x_validation": VALIDATION[0]}, sk.ShapeError, "y_validation None"),
    "test lengths": ({"x_test": TEST[0], "y_test": TEST[1][:1]}, sk.ShapeError, "y_test"),
    "no epochs": ({"epochs": 0}, sk.ConfigurationError, "epochs = 0; wanted an integer >= 1"),
    "half epochs": ({"epochs": 1.5}, sk.ConfigurationError, "epochs = 1.5"),
    "no batch": ({"batch_size": 0}, sk.ConfigurationError, "batch_size = 0"),
    "seed": ({"shuffle_seed": -1}, sk.ConfigurationError, "shuffle_seed = -1"),
    "uneven batch": (
        {"batch_size": 15},
        sk.ConfigurationError,
        "batch_size = 15 is no multiple of 4, data ranks x micro_batches; wanted 16",
    ),
    "few samples": (
        {"x_train": TRAIN[0][:3], "y_train": TRAIN[1][:3]},
        sk.ConfigurationError,
        "3 training samples, fewer than batch_size = 12, make one batch",
    ),
    "short vector": ({"initial_solution": numpy.zeros(3)}, ValueError, "parameter vector"),
    "no solution": ({"initial_solution": {}}, ValueError, "parameter vector"),
}


@pytest.mark.parametrize("bad_ranks", [(0, 1), (1,)], ids=str)
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused_on_all_ranks_and_changes_nothing(case, bad_ranks):
    changes, error, message = BAD_INPUT[case]

    def run(backend):
        optimizer = make("DDP", backend, micro_batches=2)
        before = optimizer.model.gather_full_parameters()
        with pytest.raises(ValueError) as caught:
            optimizer.optimize(given(**changes if backend.rank in bad_ranks else {}))
        numpy.testing.assert_array_equal(optimizer.model.gather_full_parameters(), before)
        assert optimizer.model.step_number == 0
        return type(caught.value), str(caught.value)

    kinds, messages = zip(*sk.run_ranks(2, run))
    assert len(set(messages)) == 1
    if len(bad_ranks) == 2:  # on one rank alone it may be told as a difference between ranks
        assert issubclass(kinds[0], error) and re.search(message, messages[0])


def test_ranks_that_are_given_different_samples_are_told_which():
    def run(backend):
        optimizer = make("DDP", backend)
        with pytest.raises(
            sk.ShapeError,
            match=r"x_train is float64 \(30, 6\) on rank 0, but float64 \(24, 6\) on rank 2",
        ):
            optimizer.optimize(
                given(x_train=TRAIN[0][:24], y_train=TRAIN[1][:24])
                if backend.rank == 2
                else given()
            )
        with pytest.raises(sk.ShapeError, match="epochs is 4 on rank 0, but 5 on rank 1"):
            optimizer.optimize(given(epochs=4 + (backend.rank == 1)))
        with pytest.raises(TypeError, match="got tuple"):
            optimizer.optimize(TRAIN)

    sk.run_ranks(3, run)
