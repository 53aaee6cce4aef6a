"""A loss of several parts: their sum is minimized, and each is told, the same on every mesh."""

import numpy
import pytest

import shardkit as sk
from shardkit.nn import ops
from shardkit.testing.parallel import loss_parts_of

SAMPLES, FEATURES, TARGETS = 8, 5, 3
MESHES = {
    "one": (1, 1, 1),
    "data": (1, 1, 4),
    "pipeline": (2, 1, 1),
    "tensor": (1, 2, 1),
    "all": (2, 2, 2),
}  # pipeline, tensor, data


def in_parts(prediction, y):
    return {"data": ops.mean((prediction - y) ** 2), "size": 0.1 * ops.mean(prediction**2)}


def summed(prediction, y):
    parts = in_parts(prediction, y)
    return parts["data"] + parts["size"]


def batch():
    draw = numpy.random.default_rng(0)
    return draw.standard_normal((SAMPLES, FEATURES)), draw.standard_normal((SAMPLES, TARGETS))


def sharded(backend, mesh, loss, **settings):
    config = sk.ShardingConfiguration(
        backend,
        loss=loss,
        optimizer=sk.SGD(lr=1.0, momentum=0.0),
        minimum_parameter_group_size=16,
        **settings,
    )
    model = sk.models.MLP([FEATURES, 8, 8, TARGETS], dtype="float64")
    return sk.HybridShardedModel(model, config, *mesh)


def of_one_rank():
    """Return the parts of the loss, and the parameters after a step by its gradient."""

    def run(backend):
        model = sharded(backend, (1, 1, 1), summed)
        parts = in_parts(sk.nn.Tensor(model.predict(batch()[0])), batch()[1])
        model.train(*batch())
        numbers = {name: part.item() for name, part in parts.items()}
        return numbers, model.gather_full_parameters()

    return sk.run_ranks(1, run)[0]


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("mesh", MESHES)
def test_the_sum_is_minimized_and_each_part_told_on_all_ranks(mesh, micro_batches):
    parts, stepped = of_one_rank()

    def run(backend):
        model = sharded(backend, MESHES[mesh], in_parts, micro_batches=micro_batches)
        own = sk.split_batch(model.mesh, *batch())
        loss = model.train(*own)
        told = loss_parts_of(model)
        return loss, told, model.gather_full_parameters(), model.evaluate(*own)

    everyones = sk.run_ranks(numpy.prod(MESHES[mesh]), run, timeout=500)
    for loss, told, parameters, _ in everyones:
        assert told == pytest.approx(parts, rel=1e-12) and list(told) == ["data", "size"]
        assert loss == pytest.approx(sum(parts.values()), rel=1e-12)
        assert numpy.allclose(parameters, stepped, rtol=1e-12, atol=1e-14)
    assert len({after for *_, after in everyones}) == 1


def named_by_batch(prediction, y):
    """Return means whose names, and their order, depend on what the samples are."""
    parts = in_parts(prediction, y)
    return {"size": parts["size"]} if y[0, 0] > 0 else parts


@pytest.mark.parametrize("as_given", [lambda loss: loss, sk.nn.as_loss], ids=["function", "Loss"])
@pytest.mark.parametrize("mesh", ["one", "data", "all"])
def test_parts_that_some_micro_batches_lack_are_0_there(mesh, as_given):
    def run(backend):
        loss = as_given(named_by_batch)
        model = sharded(backend, MESHES[mesh], loss, micro_batches=2 if mesh == "data" else 4)
        return model.train(*sk.split_batch(model.mesh, *batch())), loss_parts_of(model)

    everyones = sk.run_ranks(numpy.prod(MESHES[mesh]), run, timeout=500)
    for loss, told in everyones:
        assert {*told} == {"data", "size"} and 0 < told["data"] < of_one_rank()[0]["data"]
        assert loss == pytest.approx(sum(told.values()), rel=1e-12)
    assert len({str(told) for _, told in everyones}) == 1


def test_a_loss_of_one_part_has_no_names():
    def run(backend):
        model = sharded(backend, (2, 1, 1), summed)
        model.train(*batch())
        return loss_parts_of(model)

    assert sk.run_ranks(2, run) == [{}, {}]


WRONG = {
    "nothing": lambda prediction, y: {},
    "an array": lambda prediction, y: {"data": (prediction - y) ** 2},
    "a number": lambda prediction, y: {"data": ops.mean(prediction), "scale": 0.5},
    "no text": lambda prediction, y: {1: ops.mean(prediction)},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_dict_of_anything_else_is_refused_on_all_ranks(what):
    def run(backend):
        model = sharded(backend, (2, 1, 1), WRONG[what])
        with pytest.raises(sk.ShapeError, match="the loss returned a dict with") as caught:
            model.train(*batch())
        return str(caught.value)

    assert len(set(sk.run_ranks(2, run, timeout=500))) == 1
