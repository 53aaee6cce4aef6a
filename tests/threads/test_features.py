"""Input features of sharded models: switched off, they reach nothing; importance finds the one that
matters.
"""

import numpy
import pytest
from builders import STRATEGIES, small_gpt

import shardkit as sk

EVERY_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES)


def regression(samples=64):
    """y depends on feature 1 strongly, on feature 3 weakly, on the others not at all."""
    rng = numpy.random.default_rng(0)
    x = rng.standard_normal((samples, 4)).astype("float32")
    return x, (2 * x[:, 1:2] + 0.5 * x[:, 3:4]).astype("float32")


def trained(strategy, backend, steps=60, active=None, **changes):
    model = STRATEGIES[strategy](
        sk.models.MLP([4, 16, 1], **changes),
        sk.ShardingConfiguration(
            backend, optimizer=sk.AdamW(lr=1e-2), minimum_parameter_group_size=16
        ),
    )
    if active is not None:
        model.set_active_feature_indices(active)
    for _ in range(steps):
        model.train(*sk.split_batch(model.mesh, *regression()))
    return model


@EVERY_STRATEGY
@pytest.mark.thorough(but=2)
def test_importance_ranks_the_features_by_what_they_do_and_is_the_same_on_all_ranks(strategy):
    def run(backend):
        return trained(
            strategy, backend, feature_names=["a", "b", "c", "d"]
        ).get_feature_importance()

    results = sk.run_ranks(2, run)
    assert results[0] == results[1] and list(results[0]) == ["a", "b", "c", "d"]
    assert results[0]["b"] > 5 * results[0]["d"] > 5 * max(results[0]["a"], results[0]["c"])


@EVERY_STRATEGY
def test_inactive_features_influence_neither_predictions_nor_training(strategy):
    def run(backend):
        x, y = regression()
        model = trained(strategy, backend, 5, active=[1, 2])
        model.train(*sk.split_batch(model.mesh, x, y))
        other = trained(strategy, backend, 5, active=[1, 2])
        x[:, 0], x[:, 3] = 1e9, numpy.nan
        other.train(*sk.split_batch(other.mesh, x, y))
        numpy.testing.assert_array_equal(
            model.gather_full_parameters(), other.gather_full_parameters()
        )
        numpy.testing.assert_array_equal(model.predict(x), other.predict(regression()[0]))
        assert model.get_feature_importance(regression()[0], y)["feature_3"] == 0.0
        assert model.get_active_feature_indices() == [1, 2]
        assert model.is_feature_used(1) and not model.is_feature_used(3)

    sk.run_ranks(2, run)


def test_active_features_travel_with_images_checkpoints_and_copies(tmp_path):
    def run(backend):
        model = trained("FSDP", backend, 1, active=[0, 2])
        image, _ = model.serialize(), model.save_model(tmp_path)
        for load in (lambda m: m.deserialize(image), lambda m: m.load_model(tmp_path)):
            other = trained("DDP", backend, 0)
            load(other)
            assert other.get_active_feature_indices() == [0, 2]
        assert model.deep_copy().get_active_feature_indices() == [0, 2]

    sk.run_ranks(2, run)


def test_wrong_features_and_models_without_features_are_refused_on_all_ranks():
    def run(backend):
        model = trained("FSDP", backend, 0)
        for indices in ([4], [-1], []):
            with pytest.raises(sk.FeatureError, match="0 to 3"):
                model.set_active_feature_indices(indices if backend.rank == 0 else [0])
            assert model.get_active_feature_indices() == [0, 1, 2, 3]
        with pytest.raises(sk.FeatureError, match="train first"):
            model.get_feature_importance()
        gpt = sk.FSDPModel(small_gpt(), sk.ShardingConfiguration(backend))
        for call in (
            gpt.get_active_feature_indices,
            gpt.get_feature_importance,
            lambda: gpt.is_feature_used(0),
        ):
            with pytest.raises(sk.FeatureError, match="GPT has no input features"):
                call()

    sk.run_ranks(2, run)
    with pytest.raises(sk.ConfigurationError, match="4 different names"):
        sk.models.MLP([4, 1], feature_names=["a", "b", "a", "c"])
