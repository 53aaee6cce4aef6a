"""A model that a checkpoint describes has no weights until they are read: until then nothing
answers from others.
"""

import copy
import re

import numpy
import pytest
from builders import small_gpt, token_batch

import shardkit as sk

X, Y = token_batch(0, 4)
HOW = r"no weights yet: GPT.from_checkpoint\('.*'\) .* model.load_model\('"


def config(backend):
    return sk.ShardingConfiguration(
        backend, optimizer=sk.AdamW(lr=1e-2), minimum_parameter_group_size=64
    )


def model_on(backend, module):
    return sk.HybridShardedModel(module, config(backend), 2 if backend.world_size > 2 else 1)


@pytest.fixture
def trained(tmp_path):
    """A checkpoint of a trained GPT, and what it answers to X."""

    def run(backend):
        model = sk.FSDPModel(small_gpt(), config(backend))
        model.train(X, Y)
        model.save_model(tmp_path)
        return model.predict(X)

    return tmp_path, sk.run_ranks(1, run)[0]


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: m.predict(X),
        lambda m: m(X),
        lambda m: m.generate([1, 2], 3),
        lambda m: m.state_dict(),
        lambda m: m.embedding(X),
        lambda m: copy.deepcopy(m).predict(X),
        lambda m: m.parameters()[0].numpy(),
    ],
    ids=["predict", "forward", "generate", "state_dict", "a part", "a copy", "a parameter"],
)
@pytest.mark.thorough(but=3)
def test_a_module_whose_weights_are_not_read_answers_nothing(ask, trained):
    with pytest.raises(sk.ShardingError, match=HOW):
        ask(sk.models.GPT.from_checkpoint(trained[0]))


def test_an_mlp_whose_weights_are_not_read_predicts_nothing(tmp_path):
    def run(backend):
        sk.DDPModel(sk.models.MLP([2, 3, 1]), config(backend)).save_model(tmp_path)

    sk.run_ranks(1, run)
    module = sk.models.MLP.from_checkpoint(tmp_path)
    with pytest.raises(sk.ShardingError, match="no weights yet: MLP.from_checkpoint"):
        module.predict(numpy.ones((1, 2)))
    assert module.parameter_count == 13 and module.configuration()["sizes"] == [2, 3, 1]


def test_a_module_answers_once_it_is_given_weights(trained):
    module, given = sk.models.GPT.from_checkpoint(trained[0]), small_gpt(seed=8)
    module.load_state_dict(given.state_dict())
    numpy.testing.assert_array_equal(module.predict(X), given.predict(X))


@pytest.mark.strength(1)
@pytest.mark.parametrize(
    "ask",
    [
        lambda m: m.train(X, Y),
        lambda m: m.predict(X),
        lambda m: m.evaluate(X, Y),
        lambda m: m.compute_gradients(X, Y),
        lambda m: m.get_parameters(),
        lambda m: m.serialize(),
        lambda m: m.local_parameter_shard,
        lambda m: m.save_model(m.path),
        lambda m: m.deep_copy().predict(X),
    ],
    ids=[
        "train",
        "predict",
        "evaluate",
        "gradients",
        "parameters",
        "serialize",
        "shard",
        "save",
        "a copy",
    ],
)
@pytest.mark.parametrize("num_ranks", [1, 4])
@pytest.mark.thorough(but=3)
def test_a_sharded_model_whose_weights_are_not_read_refuses_on_all_ranks_until_it_has_loaded_them(
    ask, num_ranks, trained
):
    path, expected = trained

    def run(backend):
        model = model_on(backend, sk.models.GPT.from_checkpoint(path))
        model.path = path / "elsewhere"
        with pytest.raises(sk.ShardingError, match=HOW):
            ask(model)
        assert model.get_model_metadata()["parameter_count"] == model.parameter_count
        model.load_model(path)
        numpy.testing.assert_allclose(model.predict(X), expected, atol=1e-5)
        return model.train(X, Y)

    assert len(set(sk.run_ranks(num_ranks, run))) == 1


@pytest.mark.strength(1)
@pytest.mark.parametrize(
    "fill",
    [
        lambda m, other: m.set_parameters(other.get_parameters()),
        lambda m, other: m.deserialize(other.serialize()),
        lambda m, other: m.load_model(other.path),
    ],
    ids=["set_parameters", "deserialize", "load_model"],
)
@pytest.mark.parametrize(
    "copied",
    [lambda m, v: m, lambda m, v: m.deep_copy(), lambda m, v: m.with_parameters(v)],
    ids=["itself", "deep_copy", "with_parameters"],
)
def test_weights_that_came_in_any_way_are_there_and_in_copies(fill, copied, trained):
    def run(backend):
        other = model_on(backend, small_gpt(seed=9))
        other.path = trained[0] / "other"
        other.save_model(other.path)
        model = model_on(backend, sk.models.GPT.from_checkpoint(trained[0]))
        fill(model, other)
        copied_model = copied(model, other.get_parameters())
        numpy.testing.assert_array_equal(copied_model.predict(X), other.predict(X))
        assert copied_model.train(X, Y) == other.train(X, Y)

    sk.run_ranks(2, run)


def test_a_model_without_weights_refuses_gradients_from_elsewhere(trained):
    def run(backend):
        other = model_on(backend, small_gpt())
        gradients = other.compute_gradients(X, Y)
        with pytest.raises(sk.ShardingError, match=HOW):
            model_on(backend, sk.models.GPT.from_checkpoint(trained[0])).apply_gradients(
                gradients, 0.1
            )

    sk.run_ranks(2, run)


def test_a_load_that_fails_leaves_the_model_without_weights(trained, tmp_path):
    def run(backend):
        model = model_on(backend, sk.models.GPT.from_checkpoint(trained[0]))
        with pytest.raises(FileNotFoundError):
            model.load_model(tmp_path / "nothing")
        with pytest.raises(sk.ShardingError, match=HOW):
            model.predict(X)
        model.load_model(trained[0])
        return model.predict(X)

    numpy.testing.assert_allclose(sk.run_ranks(2, run)[0], trained[1], atol=1e-5)


def test_a_model_that_awaits_weights_on_one_rank_only_is_refused_on_all(trained):
    def run(backend):
        with pytest.raises(sk.ShardingError, match="on rank 1, but .* Unread.* on rank 0"):
            model_on(
                backend, small_gpt() if backend.rank else sk.models.GPT.from_checkpoint(trained[0])
            )

    sk.run_ranks(2, run)


def test_blocks_of_a_model_without_weights_are_measured(trained):
    def run(backend):
        return sk.measure_blocks(
            sk.models.GPT.from_checkpoint(trained[0]), X, Y, backend, repeats=1
        )

    assert len(sk.run_ranks(1, run)[0]) == 4


@pytest.mark.parametrize("place", ["run", "run/checkpoints", "run/checkpoints/step-00000000"])
def test_what_the_refusal_says_loads_the_weights(place, tmp_path):
    def run(backend):
        other = model_on(backend, small_gpt(seed=9))
        other.save_model(tmp_path / "run" / "checkpoints")
        module = sk.models.GPT.from_checkpoint(tmp_path / place)
        with pytest.raises(sk.ShardingError, match=HOW) as refusal:
            module.predict(X)
        load = re.search(r"model\.load_model\('.*'\)", str(refusal.value))[0]
        eval(load, {"model": (model := model_on(backend, module))})
        numpy.testing.assert_array_equal(model.predict(X), other.predict(X))

    sk.run_ranks(1, run)
