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


def weighed(prediction, y):
    means = {"data": ops.mean((prediction - y) ** 2), "size": ops.mean(prediction**2)}
    return means, {"size": 0.1}


def test_weights_count_in_the_sum_and_not_in_what_is_told():
    def run(backend):
        model = sharded(backend, (1, 1, 2), weighed)
        model.train(*sk.split_batch(model.mesh, *batch()))
        return loss_parts_of(model), model.gather_full_parameters()

    parts, stepped = of_one_rank()
    for told, parameters in sk.run_ranks(2, run):
        assert told == pytest.approx({**parts, "size": 10 * parts["size"]}, rel=1e-12)
        assert numpy.allclose(parameters, stepped, rtol=1e-12, atol=1e-14)


FIRST = numpy.array([0.5, -0.5])


class Learned(sk.nn.Module):
    """A loss whose weights are learned, as log variances."""

    def __init__(self):
        self.log_variances = sk.nn.Parameter(FIRST, dtype="float64")
        self.net = sk.models.MLP([FEATURES, 8, TARGETS], dtype="float64")

    def forward(self, x):
        return self.net(x)

    def loss(self, prediction, y):
        s = self.log_variances
        means, _ = weighed(prediction, y)
        weights = {"data": ops.exp(-s[0]), "size": ops.exp(-s[1])}
        return {**means, "variances": s.sum()}, weights


class LearnedHead(sk.nn.Linear):
    """A last block with weights of the loss beside its own."""

    def __init__(self):
        super().__init__(8, TARGETS, dtype="float64")
        self.log_variances = sk.nn.Parameter(FIRST, dtype="float64")


class LearnedInBlocks(Learned):
    def __init__(self):
        self.first, self.last = sk.nn.Linear(FEATURES, 8, dtype="float64"), LearnedHead()

    def blocks(self):
        return [("first", self.first), ("last", self.last)]

    @property
    def log_variances(self):
        return self.last.log_variances


class LearnedElsewhere(LearnedInBlocks):
    """Which read what the last block does not have."""

    def __init__(self):
        super().__init__()
        self.first.log_variances = sk.nn.Parameter(FIRST, dtype="float64")

    @property
    def log_variances(self):
        return self.first.log_variances


@pytest.mark.parametrize("module", [Learned, LearnedInBlocks])
def test_learned_weights_are_trained_saved_and_read_where_the_loss_is_measured(module, tmp_path):
    def run(backend, maker, steps):
        settings = {"optimizer": sk.SGD(lr=0.1), "minimum_parameter_group_size": 1}
        model = maker(module(), sk.ShardingConfiguration(backend, **settings))
        own = sk.split_batch(model.mesh, *batch())
        losses = [model.train(*own) for _ in range(steps)]
        if steps:
            model.save_model(tmp_path / "run")
        else:
            model.load_model(tmp_path / "run")
        return losses, loss_parts_of(model), model.gather_full_parameters(), model.evaluate(*own)

    one, _, trained, measured = sk.run_ranks(1, lambda b: run(b, sk.DDPModel, 3))[0]
    losses, _, parameters, after = sk.run_ranks(2, lambda b: run(b, sk.FSDPModel, 3))[0]
    assert losses == pytest.approx(one, rel=1e-12) and after == pytest.approx(measured, rel=1e-12)
    assert numpy.allclose(parameters, trained, rtol=1e-12, atol=1e-14) and after < losses[2]
    assert numpy.array_equal(sk.run_ranks(2, lambda b: run(b, sk.ZeRO1Model, 0))[0][2], parameters)
    _, told, stepped, _ = sk.run_ranks(2, lambda b: run(b, sk.FSDPModel, 1))[0]
    gradient = 1 - numpy.exp(-FIRST) * [told["data"], told["size"]]
    own = stepped[:2] if module is Learned else stepped[-2:]
    assert numpy.allclose(own, FIRST - 0.1 * gradient, rtol=1e-12)


@pytest.mark.parametrize("maker", [sk.DDPModel, sk.FSDPModel])
def test_what_the_last_block_does_not_have_is_no_weight_of_a_loss(maker):
    """Its gradient would be lost."""

    def run(backend):
        settings = {"optimizer": sk.SGD(lr=0.1), "minimum_parameter_group_size": 1}
        model = maker(LearnedElsewhere(), sk.ShardingConfiguration(backend, **settings))
        with pytest.raises(sk.ShardingError, match="first.log_variances (is read|was released)"):
            model.train(*sk.split_batch(model.mesh, *batch()))

    sk.run_ranks(2, run)


WRONG_WEIGHTS = {
    "of no mean": {"other": 1.0},
    "an array": {"size": numpy.ones(2)},
    "not finite": {"size": float("nan")},
}


@pytest.mark.parametrize("what", WRONG_WEIGHTS)
def test_weights_of_anything_else_are_refused_on_all_ranks(what):
    def run(backend):
        loss = lambda prediction, y: (weighed(prediction, y)[0], WRONG_WEIGHTS[what])  # noqa: E731
        model = sharded(backend, (1, 1, 2), loss)
        with pytest.raises(sk.ShapeError, match="the loss returned the weight of"):
            model.train(*sk.split_batch(model.mesh, *batch()))

    sk.run_ranks(2, run)


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
