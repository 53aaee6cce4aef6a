"""sk.EMA: averages of the weights on every mesh and policy, through checkpoints, and in use."""

import numpy
import pytest
from builders import sha256
from hybrids import POLICIES, groups_of_two

import shardkit as sk

MESHES = {"1": (1, 1, 1), "2": (1, 2, 1), "3": (1, 3, 1), "4": (1, 4, 1)}
MESHES |= {"pipeline 2": (2, 1, 1), "tensor 2": (1, 1, 2), "2 x 2": (2, 2, 1)}
DECAY = 0.75


def batch(step):
    draw = numpy.random.default_rng(step)
    return draw.standard_normal((24, 6)), draw.standard_normal((24, 2))


def sharded(backend, mesh="1", policy="ddp", rule=None, dtype="float32", **settings):
    pipeline, data, tensor = MESHES[mesh]
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.EMA(sk.AdamW(lr=0.01), DECAY) if rule is None else rule,
        micro_batches=24 // data // 3 if 24 // data % 3 == 0 else 1,
        minimum_parameter_group_size=1,
        **groups_of_two(policy, data),
        **settings,
    )
    module = sk.models.MLP([6, 8, 8, 2], dtype=dtype)
    return sk.HybridShardedModel(module, config, pipeline, tensor, data, policy=policy)


def train(model, steps, start=0):
    for step in range(start, start + steps):
        model.train(*sk.split_batch(model.mesh, *batch(step)))


def averages(model):
    with model.with_averaged_parameters():
        return model.get_parameters()


def on(mesh, run):
    first, *others = sk.run_ranks(int(numpy.prod(MESHES[mesh])), run)
    assert all(other == first for other in others)
    return first


def both_bits(mesh, policy="ddp", **settings):
    def run(backend):
        model = sharded(backend, mesh, policy, **settings)
        train(model, 3)
        average = sha256(averages(model))
        return average, sha256(model.get_parameters())  # the weights are back

    return on(mesh, run)


@pytest.fixture(scope="module")
def serial():
    return both_bits("1")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mesh", ["2", "4", "pipeline 2", "2 x 2"])
def test_the_bits_are_those_of_one_rank(mesh, policy, serial):
    assert both_bits(mesh, policy) == serial


def test_the_average_is_its_definition_in_float64():
    def run(backend):
        model = sharded(backend, "3", "fsdp", dtype="float64")
        expected = model.get_parameters()
        for step in range(4):
            train(model, 1, step)
            expected = DECAY * expected + (1 - DECAY) * model.get_parameters()
        plain = sharded(backend, "3", "fsdp", sk.AdamW(lr=0.01), dtype="float64")
        train(plain, 4)
        is_same = numpy.array_equal(plain.get_parameters(), model.get_parameters())
        return float(abs(averages(model) - expected).max()), is_same

    gap, is_same = on("3", run)
    assert gap < 1e-14 and is_same, "the average must leave the weights alone"


def test_tensor_ranks_average_their_slices():
    plan = {"layers.0": "column", "layers.1": "row"}

    def run(backend, mesh):
        model = sharded(backend, mesh, dtype="float64", tensor_plan=plan)
        train(model, 2)
        return averages(model).tolist()

    wide = on("tensor 2", lambda backend: run(backend, "tensor 2"))
    numpy.testing.assert_allclose(wide, on("1", lambda backend: run(backend, "1")), atol=1e-12)


def test_half_floats_average_the_master_weights():
    def run(backend):
        model = sharded(backend, "2", "fsdp", compute_dtype="float16")
        expected = model.get_parameters()
        for step in range(2):
            train(model, 1, step)
            expected = DECAY * expected + (1 - DECAY) * model.get_parameters()
        return float(abs(averages(model) - expected).max())

    assert on("2", run) < 1e-6  # half floats differ by 1e-4


@pytest.mark.parametrize("policy", ["ddp", "fsdp"])
def test_predictions_are_those_of_the_averages_and_then_of_the_weights(policy):
    def run(backend):
        model = sharded(backend, "2 x 2", policy)
        train(model, 3)
        x, y = batch(5)
        before = model.predict(x)
        with model.with_averaged_parameters():
            averaged, loss = model.predict(x), model.evaluate(x, y)
            vector = model.get_parameters()
        other = model.with_parameters(vector)
        is_right = numpy.array_equal(other.predict(x), averaged) and other.evaluate(x, y) == loss
        return (
            is_right,
            numpy.array_equal(model.predict(x), before),
            bool((before == averaged).all()),
        )

    assert on("2 x 2", run) == (True, True, False)


@pytest.mark.parametrize("there, policy", [("3", "zero1"), ("2 x 2", "fsdp"), ("1", "ddp")])
def test_checkpoints_reshard_averages(there, policy, tmp_path):
    def write(backend):
        model = sharded(backend, "2", "fsdp")
        train(model, 2)
        model.save_model(tmp_path)
        return sha256(averages(model)), averages(model).tobytes()

    average, values = on("2", write)

    def read(backend):
        model = sharded(backend, there, policy)
        model.load_model(tmp_path)
        plain = sharded(backend, there, policy, sk.SGD())
        plain.load_model(tmp_path, only="averaged")
        image = sharded(backend, there, policy, sk.SGD())
        image.deserialize(model.serialize(), only="averaged")
        return [
            sha256(v) for v in (averages(model), plain.get_parameters(), image.get_parameters())
        ]

    assert on(there, read) == [average] * 3
    module = sk.load(tmp_path, averaged=True)
    assert b"".join(p.numpy().tobytes() for p in module.parameters()) == values


def test_a_run_without_averages_goes_on_with_them_from_its_weights(tmp_path):
    def run(backend):
        old = sharded(backend, "2", "zero2", sk.AdamW(lr=0.01))
        train(old, 2)
        old.save_model(tmp_path)
        model = sharded(backend, "2", "fsdp")
        if backend.rank == 0:
            with pytest.warns(UserWarning, match="averages that start at the weights"):
                report = model.load_model(tmp_path)
        else:
            report = model.load_model(tmp_path)
        expected = model.get_parameters()
        begun = numpy.array_equal(averages(model), expected)
        train(model, 1, 2)
        train(old, 1, 2)
        expected = DECAY * expected + (1 - DECAY) * model.get_parameters()
        return (
            report["missing_state"],
            begun,
            numpy.array_equal(old.get_parameters(), model.get_parameters()),
            numpy.allclose(averages(model), expected, atol=1e-7),
        )

    assert on("2", run) == (["average"], True, True, True)


def test_before_the_first_step_and_after_a_skipped_one_averages_are_the_weights():
    def run(backend):
        model = sharded(backend, "2", "fsdp")
        same = numpy.array_equal(averages(model), model.get_parameters())
        x, y = batch(0)
        y[0] = numpy.nan
        model.train(*sk.split_batch(model.mesh, x, y))
        return same, numpy.array_equal(averages(model), model.get_parameters())

    assert on("2", run) == (True, True)


def test_what_would_lose_the_weights_is_refused_while_averages_are_in_use(tmp_path):
    def run(backend):
        model = sharded(backend, "2", "zero1")
        train(model, 1)
        part = sk.split_batch(model.mesh, *batch(1))
        image, vector = model.serialize(), model.get_parameters()
        with model.with_averaged_parameters():
            for act in (
                lambda: model.train(*part),
                lambda: model.compute_gradients(*part),
                lambda: model.save_model(tmp_path),
                lambda: model.deserialize(image),
                lambda: model.set_parameters(vector),
                lambda: model.deep_copy(),
                lambda: model.with_averaged_parameters().__enter__(),
            ):
                with pytest.raises(sk.ShardingError, match="averaged weights are in use"):
                    act()
        return numpy.array_equal(model.get_parameters(), vector)

    assert on("2", run)


def test_a_model_or_a_checkpoint_without_averages_says_how_to_keep_them():
    def run(backend):
        model = sharded(backend, rule=sk.SGD())
        with pytest.raises(sk.ShardingError, match=r"optimizer=sk.EMA\(rule\)"):
            with model.with_averaged_parameters():
                pass
        with pytest.raises(sk.CheckpointError, match="holds no averaged weights"):
            model.deserialize(model.serialize(), only="averaged")

    sk.run_ranks(1, run)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: sk.EMA(3), "EMA with rule"),
        (lambda: sk.EMA(sk.EMA(sk.SGD())), "keeps no average itself"),
        (lambda: sk.EMA(sk.SGD(), 1.0), "below 1"),
    ],
)
def test_what_means_nothing_is_refused(make, message):
    with pytest.raises(sk.ConfigurationError, match=message):
        make()
