"""Figures of an evaluation go with the state, and a model is copied whatever a rank has cached."""

import math

import numpy
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.testing.parallel import parts_of

X = numpy.random.default_rng(0).standard_normal((6, 8)).astype("float32")


def test_figures_of_an_evaluation_belong_to_the_state(tmp_path):
    def run(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-2))
        optimizer = sk.FSDPOptimizer(sk.AdamW(lr=1e-2), config, model=sk.models.MLP([8, 4, 1]))
        y = X.sum(1, keepdims=True)
        given = sk.OptimizationInputData(X, y, X[:4], y[:4], epochs=2, batch_size=2)
        result = optimizer.optimize(given)
        model = optimizer.model
        model.save_model(tmp_path)
        other = sk.DDPModel(sk.models.MLP([8, 4, 1]), config)
        other.load_model(tmp_path)
        third = sk.DDPModel(sk.models.MLP([8, 4, 1]), config)
        third.deserialize(model.serialize())
        found = [each.get_model_metadata() for each in (model, model.deep_copy(), other, third)]
        third.load_model(tmp_path, only="model")
        return result.validation_result, found, third.get_model_metadata()["evaluation"]

    for result, found, without in sk.run_ranks(2, run):
        expected = {"loss": result.loss, "step": 6, "metrics": result.metrics}
        assert [each["evaluation"] for each in found] == [expected] * 4
        assert without is None and expected["metrics"].keys() == {"rmse", "mae", "r2"}


def test_a_figure_that_is_not_a_number_is_stored_too():
    def run(backend):
        model = sk.DDPModel(sk.models.MLP([8, 1]), sk.ShardingConfiguration(backend))
        parts_of(model).history.note_evaluation(3, math.nan, {"r2": math.nan, "mae": 2.0})
        image = model.serialize()
        parts_of(model).history.evaluation = None
        model.deserialize(image)
        return model.get_model_metadata()["evaluation"]

    found = sk.run_ranks(1, run)[0]
    assert math.isnan(found["loss"]) and math.isnan(found["metrics"]["r2"])
    assert found["step"] == 3 and found["metrics"]["mae"] == 2.0


class Telling(nn.MSELoss):
    """A loss that counts its calls: on the last stage alone."""

    calls = 0

    def total(self, prediction, y):
        self.calls += 1
        return super().total(prediction, y)


@pytest.mark.parametrize("kind", [sk.PipelineParallelModel, sk.FSDPModel])
def test_what_a_rank_has_cached_does_not_keep_a_model_from_being_copied(kind):
    def run(backend):
        net = sk.models.MLP([8, 8, 8, 4])
        config = sk.ShardingConfiguration(backend, loss=Telling(), minimum_parameter_group_size=1)
        model = kind(net, config)
        model.set_active_feature_indices([0, 2, 5])
        if backend.rank == 0 or kind is sk.PipelineParallelModel:
            model.predict(X) if kind is sk.PipelineParallelModel else net.features._mask_in(numpy)
        model.train(X, numpy.ones((6, 4), "f4"))
        copies = model.deep_copy(), model.with_parameters(model.get_parameters())
        return [each.get_parameters() for each in (model, *copies)], [
            each.predict(X) for each in (model, *copies)
        ]

    for parameters, predictions in sk.run_ranks(2, run):
        for each in parameters[1:]:
            numpy.testing.assert_array_equal(each, parameters[0])
        for each in predictions[1:]:
            numpy.testing.assert_array_equal(each, predictions[0])


def test_a_model_that_one_rank_has_tried_before_is_the_same_model():
    def run(backend):
        net = sk.models.MLP([8, 4, 1])
        net.features.activate([1, 2])
        if backend.rank == 0:
            net.features(nn.Tensor(X))
        return sk.DDPModel(net, sk.ShardingConfiguration(backend)).parameter_count

    assert sk.run_ranks(2, run) == [4 * 8 + 4 + 4 + 1] * 2
