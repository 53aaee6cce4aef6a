"""Pipeline stages of data replicas on ranks that are threads, against the serial run."""

import numpy
import pytest
from builders import full_gradient, sha256, small_gpt, token_batch, train
from hybrids import POLICIES, groups_of_two

import shardkit as sk
from shardkit import nn
from shardkit.testing.layout import balanced_stages
from shardkit.testing.parallel import gradient_norm_of, program_of, units_of
from shardkit.testing.schedule import Kind

SWEPT = [
    pytest.param(*mesh, marks=pytest.mark.sweep) for mesh in [(1, 1), (1, 2), (4, 1)]
]  # as test_strategies, or as others
MESHES = [(2, 1), (2, 2), (3, 1), (3, 2), (4, 2), *SWEPT]
SCHEDULES = ["gpipe", "1f1b"]


def make(backend, pipeline, policy, *, changes={}, samples=16, micro_batch=2, **settings):
    """A small GPT on a pipeline x data mesh; micro-batches of the same size on every mesh."""
    data = backend.world_size // pipeline
    settings = {
        "optimizer": sk.AdamW(lr=1e-2),
        "max_gradient_norm": 1.0,
        "minimum_parameter_group_size": 64,
        "micro_batches": samples // data // micro_batch,
        **groups_of_two(policy, data),
        **settings,
    }
    return sk.HybridShardedModel(
        small_gpt(**changes), sk.ShardingConfiguration(backend, **settings), pipeline, policy=policy
    )


def trained_bits(pipeline, data, policy, steps=3, **settings):
    """What every rank must agree on after some steps."""

    def run(backend):
        model = make(backend, pipeline, policy, **settings)
        losses = [
            model.train(*sk.split_batch(model.mesh, *token_batch(step, 16)))
            for step in range(steps)
        ]
        return sha256(model.gather_full_parameters()), tuple(losses), gradient_norm_of(model)

    results = set(sk.run_ranks(pipeline * data, run))
    assert len(results) == 1, "ranks disagree"
    return results.pop()


@pytest.fixture(scope="module")
def serial():
    return trained_bits(1, 1, "ddp")


@pytest.mark.strength(1)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pipeline, data", MESHES)
@pytest.mark.thorough(but=3)
def test_the_trained_bits_are_the_same_on_every_pipeline_x_data_mesh(
    serial, pipeline, data, policy
):
    """Each policy under both schedules, on other meshes: they take turns."""
    schedule = SCHEDULES[(pipeline + data + POLICIES.index(policy)) % 2]
    assert trained_bits(pipeline, data, policy, schedule=schedule) == serial


@pytest.fixture(scope="module")
def deep_serial():
    return trained_bits(1, 1, "ddp", changes={"layers": 6})


@pytest.mark.strength(1)
@pytest.mark.parametrize(
    "schedule, virtual",
    [("interleaved", None), ("interleaved", 3), ("zb-h1", None), ("zb-v", None)],
)
@pytest.mark.parametrize("pipeline, data", [(2, 1), (2, 2), (3, 1), *SWEPT])
@pytest.mark.thorough(but=1)
def test_virtual_stages_and_deferred_weight_gradients_keep_the_bits(
    deep_serial, pipeline, data, schedule, virtual
):
    policy = "fsdp" if data > 1 or schedule == "zb-v" else "ddp"
    if virtual and pipeline * virtual > 8:
        virtual = 2
    assert (
        trained_bits(
            pipeline, data, policy, schedule=schedule, virtual_stages=virtual, changes={"layers": 6}
        )
        == deep_serial
    )


TIED = {"tied": True, "layers": 3}


@pytest.fixture(scope="module")
def tied_serial():
    return trained_bits(1, 1, "ddp", changes=TIED)


@pytest.mark.parametrize(
    "pipeline, data, schedule, policy",
    [
        *((2, 2, "gpipe", policy) for policy in POLICIES),
        (2, 1, "1f1b", "fsdp"),
        (3, 1, "1f1b", "ddp"),
        (3, 1, "1f1b", "zero1"),
        (2, 1, "zb-v", "zero2"),
        (2, 1, "zb-v", "ddp"),
        (1, 2, "gpipe", "fsdp"),
    ],
)
@pytest.mark.thorough(but=2)
def test_tied_weights_have_the_same_bits_wherever_their_users_are(
    tied_serial, pipeline, data, schedule, policy
):
    assert trained_bits(pipeline, data, policy, schedule=schedule, changes=TIED) == tied_serial


def test_accumulated_gradients_of_tied_weights_are_added_over_their_users_ranks():
    def run(backend):
        model = make(
            backend,
            backend.world_size,
            "fsdp",
            changes={"tied": True, "dtype": "float64"},
            auto_synchronize_gradients=False,
        )
        for step in range(2):
            model.train(*token_batch(step, 16))
        model.synchronize_gradients()
        model.step()
        return model.gather_full_parameters()

    expected = sk.run_ranks(1, run)[0]
    for parameters in sk.run_ranks(2, run):
        numpy.testing.assert_array_equal(parameters, expected)


@pytest.mark.parametrize("saved, loaded", [((2, 2), (1, 1)), ((1, 2), (3, 1))])
@pytest.mark.thorough(but=1)
def test_a_checkpoint_of_tied_weights_goes_on_under_another_pipeline(saved, loaded, tmp_path):
    changes = {"tied": True, "layers": 3}

    def first(backend):
        model = make(backend, saved[0], "fsdp", changes=changes)
        model.train(*sk.split_batch(model.mesh, *token_batch(0, 16)))
        model.save_model(tmp_path)

    def second(backend):
        model = make(backend, loaded[0], "zero1", changes=changes)
        model.load_model(tmp_path)
        model.train(*sk.split_batch(model.mesh, *token_batch(1, 16)))
        return sha256(model.gather_full_parameters())

    sk.run_ranks(saved[0] * saved[1], first)
    assert set(sk.run_ranks(loaded[0] * loaded[1], second)) == {
        trained_bits(1, 1, "ddp", 2, changes=changes)[0]
    }


@pytest.mark.parametrize(
    "changes", [{"dropout": 0.3}, {"style": "llama", "kv_heads": 1}, {"dtype": "float64"}], ids=str
)
def test_every_model_form_has_the_same_bits_in_a_pipeline_with_checkpointed_activations(changes):
    expected = trained_bits(1, 1, "fsdp", changes=changes)
    assert trained_bits(2, 2, "fsdp", changes=changes, activation_checkpointing=True) == expected


@pytest.mark.parametrize("pipeline, data", [(2, 1), (2, 3), (3, 1), (4, 2)])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.thorough(but=2)
def test_gradients_equal_those_of_one_backward_over_the_whole_batch(pipeline, data, schedule):
    x, y = token_batch(0, 12)
    plain = small_gpt(dtype="float64")
    plain.loss(plain(nn.Tensor(x)), y).backward()
    expected = numpy.concatenate([p.grad.ravel() for p in plain.parameters()])

    def run(backend):
        model = make(
            backend,
            pipeline,
            "fsdp",
            changes={"dtype": "float64"},
            samples=12,
            micro_batch=1,
            schedule=schedule,
        )
        gradient = full_gradient(
            model, *sk.split_batch(model.mesh, x, y)
        )  # zero where another rank has the stage
        model.mesh.group("pipeline").all_reduce(gradient)
        return gradient

    for gradient in sk.run_ranks(pipeline * data, run):
        numpy.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-14)


def test_a_stage_holds_its_own_layers_only_and_all_stages_make_the_model():
    def run(backend):
        model = sk.PipelineParallelModel(
            small_gpt(), sk.ShardingConfiguration(backend, minimum_parameter_group_size=64)
        )
        names = {piece.name for unit in units_of(model) for piece in unit.pieces()}
        return (
            names,
            model.local_parameter_shard.size,
            model.parameter_count,
            model.get_model_metadata(),
        )

    results = sk.run_ranks(3, run)
    names = [names for names, *_ in results]
    assert not names[0] & names[1] and not names[1] & names[2]
    assert set.union(*names) == set(small_gpt().named_parameters())
    assert sum(size for _, size, *_ in results) == results[0][2]
    assert [figures["pipeline_parallel_rank"] for *_, figures in results] == [0, 1, 2]
    assert sum(figures["parameter_bytes"] for *_, figures in results) == pytest.approx(
        4 * results[0][2], rel=0.25
    )


def test_predictions_and_losses_are_the_same_on_all_ranks_and_equal_the_plain_model():
    x, y = token_batch(0, samples=4)
    plain = small_gpt(dtype="float64")

    def run(backend):
        model = make(backend, 2, "fsdp", changes={"dtype": "float64"})
        return model.predict(x), model.evaluate(x, y)

    for prediction, loss in sk.run_ranks(4, run):
        numpy.testing.assert_allclose(prediction, plain.predict(x), rtol=1e-12)
        assert loss == pytest.approx(plain.loss(nn.Tensor(plain.predict(x)), y).item(), rel=1e-12)


@pytest.mark.parametrize("saved, loaded", [((2, 2), (1, 1)), ((1, 2), (4, 1)), ((3, 1), (2, 2))])
def test_a_checkpoint_goes_on_under_another_pipeline(saved, loaded, serial, tmp_path):
    def first(backend):
        model = make(backend, saved[0], "fsdp")
        for step in range(2):
            model.train(*sk.split_batch(model.mesh, *token_batch(step, 16)))
        model.save_model(tmp_path)

    def second(backend):
        model = make(backend, loaded[0], "zero1")
        model.load_model(tmp_path)
        model.train(*sk.split_batch(model.mesh, *token_batch(2, 16)))
        return sha256(model.gather_full_parameters())

    sk.run_ranks(saved[0] * saved[1], first)
    assert set(sk.run_ranks(loaded[0] * loaded[1], second)) == {serial[0]}


def test_one_activation_crosses_each_boundary_each_way_per_micro_batch():
    def run(backend):
        model = make(backend, 2, "ddp", micro_batch=4)
        model.train(*token_batch(0, 16))  # the first step sends shapes too
        traffic = model.mesh.group("pipeline").traffic
        traffic.reset()
        model.compute_gradients(*token_batch(0, 16))
        return traffic.by_verb.get("isend", 0) + traffic.by_verb.get("send", 0)

    one_activation = 4 * 12 * 16 * 4  # samples, sequence, width, bytes
    assert sk.run_ranks(2, run) == [4 * one_activation] * 2


def test_a_pipeline_that_cannot_be_built_is_refused_on_all_ranks_with_the_reason():
    def run(backend):
        with pytest.raises(sk.ShardingError, match="needs at least 5 units, but the model has 4"):
            make(backend, 5, "fsdp")
        with pytest.raises(sk.MeshError, match="pipeline 2"):
            make(backend, 2, "fsdp")
        with pytest.raises(sk.ConfigurationError, match="policy"):
            make(backend, 5, "zero4")

    sk.run_ranks(5, run)


def test_stages_are_contiguous_and_as_equal_as_they_can_be():
    assert balanced_stages([5, 1, 1, 1, 5], 3) == [range(0, 1), range(1, 4), range(4, 5)]
    assert balanced_stages([1, 1, 1, 1], 2) == [range(0, 2), range(2, 4)]
    assert balanced_stages([9], 1) == [range(0, 1)]


def test_1f1b_keeps_fewer_activations_than_gpipe():
    def peak(schedule):
        def run(backend):
            model = make(backend, 2, "ddp", schedule=schedule)
            live = most = 0
            for action in program_of(model):
                live += (action.kind is Kind.FORWARD) - (action.kind is Kind.WEIGHT)
                most = max(most, live)
            return most

        return sk.run_ranks(2, run)

    assert all(f < g for f, g in zip(peak("1f1b"), peak("gpipe")))


def test_training_still_works_with_one_rank_per_replica(serial):
    def run(backend):
        model, _ = train("FSDP", backend, 3, samples=16, micro_batch=2)
        return sha256(model.gather_full_parameters())

    assert set(sk.run_ranks(2, run)) == {serial[0]}
