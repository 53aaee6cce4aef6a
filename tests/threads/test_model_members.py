"""Copies, images and gradients by hand: the members of a sharded model besides training."""

import copy
import io

import h5py
import numpy
import pytest
from builders import STRATEGIES, sha256, small_gpt, token_batch, train

import shardkit as sk

EVERY_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES)


def step_once(model, number):
    return model.train(*sk.split_batch(model.mesh, *token_batch(number)))


@EVERY_STRATEGY
@pytest.mark.thorough(but=2)
def test_an_image_loads_under_another_strategy_and_number_of_ranks_and_training_goes_on(strategy):
    def first(backend):
        model, _ = train(strategy, backend, 2, micro_batch=3)
        image = model.serialize()
        step_once(model, 2)
        return image, sha256(model.gather_full_parameters())

    def second(backend):
        model, _ = train("ZeRO-2", backend, 0, micro_batch=3)
        model.deserialize(image)
        assert model.step_number == 2
        step_once(model, 2)
        return sha256(model.gather_full_parameters())

    results = sk.run_ranks(2, first)
    image = results[0][0]
    assert results[1] == results[0]
    assert set(sk.run_ranks(4, second)) == {results[0][1]}


def test_an_image_is_plain_hdf5_with_whole_tensors():
    def run(backend):
        model, _ = train("FSDP", backend, 1)
        return model.serialize(), model.gather_full_parameters()

    image, vector = sk.run_ranks(3, run)[0]
    with h5py.File(io.BytesIO(image)) as file:
        names = small_gpt().named_parameters()
        numpy.testing.assert_array_equal(
            numpy.concatenate([file[f"model/{name}"][()].ravel() for name in names]), vector
        )


@pytest.mark.parametrize("damage", ["a flipped bit", "half of it", "other bytes", "another model"])
def test_bytes_that_are_no_image_of_this_model_are_refused_and_change_nothing(damage):
    def run(backend):
        model, _ = train(
            "FSDP",
            backend,
            1,
            model=small_gpt(layers=1) if damage == "another model" else small_gpt(),
        )
        image = bytearray(model.serialize())
        if damage == "a flipped bit":
            image[len(image) // 2] ^= 4
        data = {"half of it": bytes(image[: len(image) // 2]), "other bytes": b"no image"}.get(
            damage, bytes(image)
        )
        target, _ = train("FSDP", backend, 1)
        before = target.gather_full_parameters()
        with pytest.raises(sk.CheckpointError):
            target.deserialize(data)
        numpy.testing.assert_array_equal(target.gather_full_parameters(), before)

    sk.run_ranks(2, run)


def test_state_goes_through_a_file_object_of_rank_0(tmp_path):
    def run(backend):
        model, _ = train("ZeRO-1", backend, 2)
        with open(tmp_path / f"state-{backend.rank}", "w+b") as file:
            model.save_state(file if backend.rank == 0 else None)
            file.seek(0)
            other, _ = train("FSDP", backend, 0)
            other.load_state(file if backend.rank == 0 else None)
        numpy.testing.assert_array_equal(
            other.gather_full_parameters(), model.gather_full_parameters()
        )

    sk.run_ranks(2, run)


@EVERY_STRATEGY
@pytest.mark.parametrize(
    "make", [lambda m: m.deep_copy(), copy.deepcopy], ids=["deep_copy", "copy.deepcopy"]
)
def test_a_deep_copy_goes_its_own_way_from_the_same_state(strategy, make):
    def run(backend):
        model, _ = train(strategy, backend, 2, micro_batch=3)
        other = make(model)
        assert type(other) is type(model) and other.mesh is model.mesh and other.step_number == 2
        before = model.gather_full_parameters()
        step_once(other, 2)
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)
        assert not numpy.array_equal(other.gather_full_parameters(), before)
        step_once(model, 2)
        numpy.testing.assert_array_equal(
            model.gather_full_parameters(), other.gather_full_parameters()
        )

    sk.run_ranks(2, run)


@EVERY_STRATEGY
@pytest.mark.parametrize("make", [lambda m: m.clone(), copy.copy], ids=["clone", "copy.copy"])
def test_a_clone_shares_the_parameters(strategy, make):
    def run(backend):
        model, _ = train(strategy, backend, 1)
        other = make(model)
        step_once(other, 1)
        assert type(other) is type(model) and model.step_number == 2
        numpy.testing.assert_array_equal(
            model.gather_full_parameters(), other.gather_full_parameters()
        )

    sk.run_ranks(2, run)


@EVERY_STRATEGY
def test_with_parameters_is_a_new_model_of_the_same_type(strategy):
    def run(backend):
        model, _ = train(strategy, backend, 1)
        before = model.gather_full_parameters()
        other = model.with_parameters(numpy.ones(model.parameter_count, "float32"))
        assert type(other) is type(model) and (other.get_parameters() == 1).all()
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)
        with pytest.raises(ValueError):
            model.with_parameters(numpy.ones(3))

    sk.run_ranks(2, run)


@EVERY_STRATEGY
@pytest.mark.thorough(but=2)
def test_computing_and_applying_gradients_is_a_step_of_plain_sgd(strategy):
    def run(backend):
        config = {"optimizer": None, "max_gradient_norm": None}
        model, _ = train(strategy, backend, 0, **config)
        x, y = sk.split_batch(model.mesh, *token_batch(0))
        before = model.gather_full_parameters()
        gradients = model.compute_gradients(x, y)
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)
        model.apply_gradients(gradients, 0.01)
        trained, _ = train(strategy, backend, 1, learning_rate=0.01, **config)
        numpy.testing.assert_array_equal(
            model.gather_full_parameters(), trained.gather_full_parameters()
        )
        for wrong in (gradients[:-1], gradients + 1j, gradients.astype(object)):
            with pytest.raises(sk.ShapeError):
                model.apply_gradients(wrong, 0.01)

    sk.run_ranks(2, run)


def test_a_rule_is_state_that_clones_share_and_the_configuration_that_was_given_stays_as_it_was():
    def run(backend):
        config = sk.ShardingConfiguration(backend, learning_rate=0.5)
        model = sk.FSDPModel(sk.models.MLP([8, 4, 1]), config)
        clone, before = model.clone(), model.deep_copy()
        unchanged = [each.sharding_configuration is config for each in (model, clone)]
        model.use_rule(sk.SGD(lr=0.25))
        after = model.deep_copy()
        rules = [each.sharding_configuration.optimizer for each in (model, clone, after, before)]
        return unchanged, config.optimizer, rules

    changed = sk.SGD(lr=0.25)
    found = sk.run_ranks(2, run)
    assert found == [([True, True], None, [changed, changed, changed, None])] * 2


def test_copies_keep_what_a_class_of_ones_own_sets_and_their_histories_part():
    class Named(sk.DDPModel):
        def __init__(self, module, config, name):
            super().__init__(module, config)
            self.name = name

    def run(backend):
        config = sk.ShardingConfiguration(backend)
        model = Named(sk.models.MLP([8, 4, 1]), config, "first")
        x, y = numpy.ones((4, 8)), numpy.ones((4, 1))
        model.train(x, y)
        others = model.clone(), model.deep_copy(), copy.copy(model)
        fresh = model.with_parameters(model.get_parameters())
        model.train(x, y)
        losses = [each.get_model_metadata()["history"]["last_loss"] for each in (model, *others)]
        assert {type(each) for each in (*others, fresh)} == {Named}
        assert {each.name for each in (*others, fresh)} == {"first"}
        assert fresh.get_model_metadata()["history"]["last_loss"] is None
        return losses[0] != losses[1] == losses[2] == losses[3]

    assert sk.run_ranks(2, run) == [True, True]
