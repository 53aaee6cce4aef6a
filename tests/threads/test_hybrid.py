"""Pipeline x data x tensor meshes on ranks that are threads, against the serial run."""

import numpy
import pytest
from builders import sha256
from hybrids import groups_of_two

import shardkit as sk
from shardkit import nn
from shardkit.testing.parallel import gradient_norm_of, synchronize_replicas, units_of

FORMS = {"gpt2": {}, "llama": {"style": "llama", "kv_heads": 2}, "tied": {"tied": True}}
FORMS |= {"61 rows": {"vocabulary": 61}, "61 rows tied": {"vocabulary": 61, "tied": True}}


def gpt(vocabulary=60, **changes):
    sizes = {"width": 24, "layers": 2, "heads": 12}
    return sk.models.GPT(vocabulary, 12, **{**sizes, "seed": 3, "dtype": "float64", **changes})


def batch(step, samples=12):
    tokens = numpy.random.default_rng(step).integers(0, 60, (samples, 13))
    return tokens[:, :-1], tokens[:, 1:]


def make(
    backend,
    pipeline,
    tensor,
    policy="fsdp",
    *,
    changes={},
    **settings,
):
    data = backend.world_size // pipeline // tensor
    settings = {
        "optimizer": sk.AdamW(lr=1e-2),
        "max_gradient_norm": 0.5,
        "minimum_parameter_group_size": 64,
        "micro_batches": 12 // data // 2,
        **groups_of_two(policy, data),
        **settings,
    }
    return sk.HybridShardedModel(
        gpt(**changes),
        sk.ShardingConfiguration(backend, **settings),
        pipeline,
        tensor,
        policy=policy,
    )


def trained(mesh, policy="fsdp", steps=2, **settings):
    """(parameters, losses, norm) after some steps, which all ranks must agree on to the bit."""
    pipeline, data, tensor = mesh

    def run(backend):
        model = make(backend, pipeline, tensor, policy, **settings)
        losses = [model.train(*sk.split_batch(model.mesh, *batch(step))) for step in range(steps)]
        return model.gather_full_parameters(), losses, gradient_norm_of(model)

    results = sk.run_ranks(pipeline * data * tensor, run)
    assert (
        len({(sha256(parameters), tuple(losses), norm) for parameters, losses, norm in results})
        == 1
    )
    return results[0]


def agree(got, wanted):
    numpy.testing.assert_allclose(got[1], wanted[1], rtol=1e-12)
    assert got[2] == pytest.approx(wanted[2], rel=1e-10)
    numpy.testing.assert_allclose(got[0], wanted[0], rtol=1e-9, atol=1e-11)


@pytest.fixture(scope="module")
def serial():
    return {form: trained((1, 1, 1), "ddp", changes=changes) for form, changes in FORMS.items()}


@pytest.mark.parametrize(
    "form, mesh, sequence_parallel",
    [
        ("llama", (1, 1, 2), False),
        ("llama", (1, 1, 4), True),
        ("llama", (2, 1, 4), False),
        ("llama", (1, 2, 2), True),
        ("tied", (1, 1, 3), True),
        ("tied", (2, 1, 2), False),
        ("tied", (2, 1, 2), True),
        ("61 rows", (1, 2, 3), True),
        ("61 rows tied", (1, 3, 2), True),
        ("61 rows tied", (2, 2, 2), True),
    ],
    ids=str,
)
@pytest.mark.thorough
def test_every_model_form_follows_the_serial_run_with_and_without_sequence_parallelism(
    serial, form, mesh, sequence_parallel
):
    agree(trained(mesh, changes=FORMS[form], sequence_parallel=sequence_parallel), serial[form])


@pytest.mark.parametrize("form", ("61 rows", "61 rows tied"))
def test_ranks_with_other_numbers_of_rows_have_the_same_shards_of_what_all_hold(form):
    def run(backend):
        model = make(backend, 1, 2, changes=FORMS[form], sequence_parallel=True)
        model.train(*sk.split_batch(model.mesh, *batch(0)))
        assert synchronize_replicas(model).largest == 0
        return model.mesh.coordinates.data, {
            (piece.name, piece.box)
            for unit in units_of(model)
            for piece in unit.pieces()
            if unit.plan.parameters[piece.name].claim.holders
        }

    for data in (2, 3):
        results = sk.run_ranks(2 * data, run)
        assert all(dict(results)[data] == shared for data, shared in results)


@pytest.mark.parametrize("policy", ["ddp", "fsdp"])
@pytest.mark.thorough
def test_gradients_with_dropout_are_those_of_the_serial_run(policy):
    agree(
        trained((1, 2, 2), policy, changes={"dropout": 0.2}),
        trained((1, 1, 1), changes={"dropout": 0.2}),
    )


def test_predictions_have_whole_logits_and_equal_the_plain_model():
    x, y = batch(0, 4)
    plain = gpt()

    def run(backend):
        model = make(backend, 2, 2)
        return model.predict(x), model.evaluate(x, y)

    for prediction, loss in sk.run_ranks(4, run):
        numpy.testing.assert_allclose(prediction, plain.predict(x), rtol=1e-10, atol=1e-13)
        assert loss == pytest.approx(plain.loss(nn.Tensor(plain.predict(x)), y).item(), rel=1e-12)


def test_initial_parameters_are_those_of_the_plain_model_and_can_be_set():
    plain = numpy.concatenate([p.array.ravel() for p in gpt().parameters()])

    def run(backend):
        model = make(backend, 2, 2)
        numpy.testing.assert_array_equal(model.gather_full_parameters(), plain)
        assert model.parameter_count == plain.size
        model.set_parameters(plain[::-1])
        numpy.testing.assert_array_equal(model.gather_full_parameters(), plain[::-1])

    sk.run_ranks(4, run)


@pytest.mark.parametrize(
    "saved, loaded, form",
    [
        ((1, 1, 4), (1, 1, 1), "llama"),
        ((1, 2, 1), (2, 1, 2), "gpt2"),
        ((2, 1, 2), (1, 2, 4), "llama"),
    ],
    ids=str,
)
@pytest.mark.thorough
def test_a_checkpoint_and_an_image_open_under_another_tensor_size(
    serial, form, saved, loaded, tmp_path
):
    def first(backend):
        model = make(backend, saved[0], saved[2], changes=FORMS[form])
        model.train(*sk.split_batch(model.mesh, *batch(0)))
        model.save_model(tmp_path)
        return model.serialize()

    def second(backend):
        results = []
        for load in (lambda m: m.load_model(tmp_path), lambda m: m.deserialize(image)):
            model = make(backend, loaded[0], loaded[2], "zero1", changes=FORMS[form])
            load(model)
            losses = [model.train(*sk.split_batch(model.mesh, *batch(1)))]
            results.append((model.gather_full_parameters(), losses, gradient_norm_of(model)))
        return results

    image = sk.run_ranks(saved[0] * saved[1] * saved[2], first)[0]
    for result in sk.run_ranks(loaded[0] * loaded[1] * loaded[2], second)[0]:
        agree(result, (serial[form][0], serial[form][1][1:], serial[form][2]))


def test_a_tensor_rank_holds_its_part_and_parts_make_the_model():
    def run(backend):
        model = sk.TensorParallelModel(gpt(), sk.ShardingConfiguration(backend))
        return model.local_parameter_shard.size, model.parameter_count, model.get_model_metadata()

    results = sk.run_ranks(4, run)
    sizes, count = [size for size, *_ in results], results[0][1]
    whole_on_each = sum(
        p.size
        for n, p in gpt().named_parameters().items()
        if "norm" in n or "positions" in n or n.endswith(("output.bias", "down.bias"))
    )
    assert sizes == [(count - whole_on_each) // 4 + whole_on_each] * 4
    assert [figures["tensor_parallel_rank"] for *_, figures in results] == [0, 1, 2, 3]
    assert results[0][2]["strategy"] == "TensorParallel"


def test_a_tensor_parallel_mlp_follows_the_serial_run():
    rng = numpy.random.default_rng(0)
    x, y = rng.standard_normal((12, 6)), rng.standard_normal((12, 4))

    def run(backend):
        mlp = sk.models.MLP([6, 8, 12, 4], dtype="float64")
        model = sk.TensorParallelModel(
            mlp, sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-2))
        )
        return (
            [model.train(x, y) for _ in range(5)],
            model.gather_full_parameters(),
            model.predict(x),
        )

    serial = sk.run_ranks(1, run)[0]
    for result in sk.run_ranks(2, run) + sk.run_ranks(4, run):
        for got, wanted in zip(result, serial):
            numpy.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    "sizes, error, message",
    [
        ({"pipeline_parallel_size": 0}, ValueError, "pipeline 0"),
        ({"tensor_parallel_size": -1}, ValueError, "tensor -1"),
        ({"data_parallel_size": 0}, ValueError, "data 0"),
        ({"data_parallel_size": 3}, sk.MeshError, "= 3 ranks, but 4"),
        ({"tensor_parallel_size": 3}, sk.MeshError, "tensor 3"),
        ({"policy": "zero9"}, sk.ConfigurationError, "policy"),
        ({"order": ("data", "data", "tensor")}, sk.MeshError, "order"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused_on_all_ranks(sizes, error, message):
    def run(backend):
        with pytest.raises(error, match=message):
            sk.HybridShardedModel(gpt(), sk.ShardingConfiguration(backend), **sizes)

    sk.run_ranks(4, run)


def test_a_model_that_cannot_be_cut_is_refused_with_the_arithmetic():
    def run(backend):
        with pytest.raises(sk.ConfigurationError, match="3 heads"):
            sk.TensorParallelModel(gpt(heads=3), sk.ShardingConfiguration(backend))
        with pytest.raises(sk.ShardingError, match="no default tensor plan"):
            sk.TensorParallelModel(nn.Linear(4, 4), sk.ShardingConfiguration(backend))

    sk.run_ranks(2, run)
