"""What belongs to a model stays its own: a forward pass writes to no buffer or parameter of a
sharded model, an assignment loses none, and nothing takes a gradient that no model keeps.
"""

import copy

import numpy
import pytest
from builders import STRATEGIES

import shardkit as sk
from shardkit import nn

X = numpy.random.default_rng(0).normal(size=(4, 3)).astype("float32")


def assign(self, x):
    self.seen = self.seen * 0.9 + x.mean(0)


def add_to(self, x):
    self.seen += 1


WRITES = {
    "assigned": assign,
    "added": add_to,
    "copy_": lambda self, x: self.seen.copy_(x.array.mean(0)),
    "element": lambda self, x: self.seen.__setitem__(0, 1),
    "array": lambda self, x: setattr(self.seen, "array", x.array.mean(0)),
    "parameter": lambda self, x: self.map.bias.zero_(),
}


class Writing(nn.Module):
    loss = nn.MSELoss()

    def __init__(self, write):
        self.map, self.write = nn.Linear(3, 3), write
        self.register_buffer("seen", numpy.zeros(3))

    def forward(self, x):
        with nn.no_grad():
            self.write(self, x)
        return self.map(x) + self.seen.detach()


class InBlocks(nn.Module):
    def __init__(self, inner):
        self.inner, self.last = inner, nn.Linear(3, 3)

    def blocks(self):
        return [("inner", self.inner), ("last", self.last)]


def refused(module, message, call="train"):
    """Assert that a step, or a prediction, of two ranks is refused on both."""

    def run(backend):
        config = sk.ShardingConfiguration(backend, loss=nn.MSELoss())
        model = sk.FSDPModel(copy.deepcopy(module), config)
        with pytest.raises(sk.ShardingError, match=message):
            if call == "train":
                model.train(X, X)
            else:
                model.predict(X)

    sk.run_ranks(2, run)


@pytest.mark.parametrize("call", ["train", "predict"])
@pytest.mark.parametrize("name", WRITES)
def test_a_forward_pass_of_a_sharded_model_writes_to_nothing_it_keeps(name, call):
    what = "parameter" if name == "parameter" else "buffer"
    refused(Writing(WRITES[name]), f"{what} .*was written to", call)
    refused(InBlocks(Writing(WRITES[name])), f"{what} .*was written to", call)


@pytest.mark.parametrize("name", ["assigned", "added", "copy_", "element", "array"])
def test_a_forward_pass_by_hand_writes_to_the_buffer_which_stays_one(name):
    net = Writing(WRITES[name]).finish(0)
    net(X)
    assert net.named_buffers() == {"seen": net.seen} and net.seen.array.any()
    assert net.seen.dtype == numpy.float32


def test_a_buffer_is_set_to_what_is_assigned_if_that_fits():
    net = nn.Sequential(nn.BatchNorm1d(3)).finish(0)[0]
    net.running_mean = numpy.arange(3)
    assert net.running_mean.array.tolist() == [0, 1, 2]
    with pytest.raises(sk.ShapeError, match="has shape"):
        net.running_mean = numpy.arange(4)
    with pytest.raises(sk.ConfigurationError):
        net.num_batches_tracked = 0.5
    net.running_mean = None
    assert "running_mean" not in net.named_buffers()


@pytest.mark.parametrize("values", [numpy.ones((3, 3)), nn.Tensor(numpy.ones((3, 3))), 1.0])
def test_a_parameter_does_not_become_a_constant(values):
    layer = nn.Linear(3, 3)
    with pytest.raises(sk.ConfigurationError, match=r"Linear.weight is a parameter.*\.array = "):
        layer.weight = values
    layer.weight = nn.Parameter(numpy.ones((3, 3)))
    layer.bias = None
    assert list(layer.finish(0).named_parameters()) == ["weight"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_of_a_sharded_model_are_not_written_through_its_module(strategy):
    def run(backend):
        model = STRATEGIES[strategy](Writing(lambda self, x: 0), sk.ShardingConfiguration(backend))
        weight = model.wrapped_model.map.weight
        with nn.no_grad(), pytest.raises(sk.ShardingError, match="belongs to a sharded model"):
            weight.mul_(0.5)
        if not weight.is_released:
            with nn.no_grad(), pytest.raises(sk.ShardingError, match="belongs to a sharded model"):
                weight[0].zero_()
        with pytest.raises(sk.ShardingError, match=r"set_parameters\(\)"):
            weight.array = numpy.zeros((3, 3))

    sk.run_ranks(2, run)


def test_a_copy_of_a_sharded_models_module_is_its_own():
    def run(backend):
        model = sk.DDPModel(Writing(lambda self, x: 0), sk.ShardingConfiguration(backend))
        apart = copy.deepcopy(model.wrapped_model)
        before = model.gather_full_parameters()
        apart.map.weight.array = numpy.zeros((3, 3))
        apart.map.bias.requires_grad = False
        assert (model.gather_full_parameters() == before).all() and before.any()

    sk.run_ranks(1, run)


# ---- what no model keeps -------------------------------------------------------------------------


class Making(nn.Module):
    """Makes a parameter when it is called, or has one that only a function knows."""

    def __init__(self, is_late):
        self.map = nn.Linear(3, 3)
        scale = nn.Parameter(numpy.ones(3))
        self.scaled = lambda y: y * (nn.Parameter(numpy.ones(3)) if is_late else scale)

    def forward(self, x):
        return self.scaled(self.map(x))


@pytest.mark.parametrize("is_late", [True, False])
def test_a_parameter_that_would_not_be_trained_is_refused(is_late):
    refused(Making(is_late), "none of the model's")
    refused(InBlocks(Making(is_late)), "none of the model's")


def test_so_is_one_of_a_loss_but_a_constant_is_not():
    def run(backend, **about):
        scale = nn.Parameter(numpy.ones(3), **about)
        config = sk.ShardingConfiguration(backend, loss=lambda p, y: ((p * scale - y) ** 2).mean())
        sk.DDPModel(nn.Linear(3, 3), config).train(X, X)

    with pytest.raises(sk.ShardingError, match=r"requires_grad=False"):
        sk.run_ranks(1, run)
    sk.run_ranks(1, lambda backend: run(backend, requires_grad=False))


def test_a_layer_made_too_late_is_told_where_it_belongs():
    class Late(nn.Module):
        def __init__(self):
            self.map = nn.Linear(3, 3)

        def forward(self, x):
            return nn.Linear(3, 3)(self.map(x))

    refused(Late(), "let __init__ make it")


# ---- operations of one's own ---------------------------------------------------------------------


@pytest.mark.parametrize("gradients", [lambda g: g, lambda g: (g, g), lambda g: ()])
def test_an_operation_is_told_how_many_gradients_it_returns(gradients):
    x = nn.Tensor(X, requires_grad=True)
    doubled = nn.record(x.array * 2, (x,), lambda gradient, wanted: gradients(gradient))
    with pytest.raises(sk.AutogradError, match="wanted a tuple of 1"):
        doubled.sum().backward()
