"""Losses of derivatives train alike under every policy, through pipelines, and as in PyTorch.

A physics-informed network (u'' = f with u = 0 at the ends) and an energy-force model (forces are
the gradient of the energy by the positions), float64, 4 steps of AdamW on 4 ranks.
"""

from functools import cache

import numpy
import pytest
from builders import hsdp

import shardkit as sk
from shardkit import ConfigurationError, ShapeError, nn
from shardkit.nn import Tensor, ops

STEPS, SAMPLES, ATOMS = 4, 24, 3
rng = numpy.random.default_rng(5)
PLACES = numpy.linspace(-0.5, 1, SAMPLES).reshape(-1, 1)
# No symmetric interval: Adam would divide gradients that are zero but for rounding by themselves.
IS_END = numpy.isin(numpy.arange(SAMPLES), (0, SAMPLES - 1)).reshape(-1, 1)
SOURCE = -(numpy.pi**2) * numpy.sin(numpy.pi * PLACES)
CONDITIONS = numpy.concatenate([SOURCE, IS_END], 1)  # [samples, 2]
POSITIONS = rng.standard_normal((SAMPLES, 3 * ATOMS))
ENERGY_AND_FORCES = rng.standard_normal((SAMPLES, 1 + 3 * ATOMS))
SENDERS, RECEIVERS = numpy.array([(i, j) for i in range(ATOMS) for j in range(ATOMS) if i != j]).T

POLICIES = {
    "DDP": sk.DDPModel,
    "ZeRO-2": sk.ZeRO2Model,
    "FSDP": sk.FSDPModel,
    "HSDP": hsdp,
}


def poisson_loss(rows, y):
    """Return the mean squared residual inside, and the squared value at the ends."""
    y = Tensor(y)
    value, bend = rows[:, 0], rows[:, 2]
    inside = (bend - y[:, :1]) * (1 - y[:, 1:])
    return (inside**2 + (value * y[:, 1:]) ** 2).mean()


class Poisson(nn.Derivatives):
    def __init__(self):
        super().__init__(
            sk.models.MLP([1, 12, 12, 12, 1], "tanh", seed=3, dtype="float64"), order=2
        )
        self.loss = poisson_loss


class Messages(nn.Module):
    """Positions [samples, 3 atoms] -> energies [samples, 1], from sums over pairs of atoms."""

    def __init__(self):
        self.pair = nn.Linear(1, 8, dtype="float64")
        self.atom = nn.Linear(8, 8, dtype="float64")
        self.energy = nn.Linear(8, 1, dtype="float64")

    def forward(self, positions):
        places = positions.reshape(-1, ATOMS, 3)
        apart = places[:, SENDERS] - places[:, RECEIVERS]
        squares = (apart * apart).sum(2, keepdim=True)
        messages = self.pair(ops.exp(squares * -0.5))
        messages = ops.tanh(messages)  # [samples, pairs, 8]
        atoms = Tensor(numpy.zeros((len(places.array), ATOMS, 8)))
        atoms = ops.index_add(atoms, 1, RECEIVERS, messages)
        return self.energy(ops.silu(self.atom(atoms))).sum(1)


def force_loss(prediction, y):
    return ((prediction.reshape(len(y), -1) - Tensor(y)) ** 2).mean()


class Forces(Messages):
    """The energy and its gradient by the positions, as one block."""

    loss = staticmethod(force_loss)

    def forward(self, positions):
        with nn.enable_grad():
            places = Tensor(getattr(positions, "array", positions), requires_grad=True)
            energy = super().forward(places)
            (gradient,) = nn.grad(energy.sum(), places, create_graph=True)
            return ops.concatenate([energy, gradient], 1)


class ForcesInRows(nn.Derivatives):
    """The same from rows of derivatives, one block before and one after: a pipeline can cut it."""

    def __init__(self):
        super().__init__(
            nn.Sequential(
                Messages(), nn.Linear(1, 8, dtype="float64"), nn.Linear(8, 1, dtype="float64")
            )
        )
        self.loss = force_loss


MODELS = {
    "poisson": (Poisson, PLACES, CONDITIONS),
    "forces": (Forces, POSITIONS, ENERGY_AND_FORCES),
    "forces in rows": (ForcesInRows, POSITIONS, ENERGY_AND_FORCES),
}


def curve(name, num_ranks, policy="DDP", **settings):
    """Return the losses of the steps, and a prediction."""
    make, x, y = MODELS[name]

    def run(backend):
        configuration = sk.ShardingConfiguration(
            backend, optimizer=sk.AdamW(lr=1e-2), minimum_parameter_group_size=8, **settings
        )
        model = POLICIES.get(policy, sk.PipelineParallelModel)(make().finish(3), configuration)
        parts = sk.split_batch(model.mesh, x, y)
        losses = [model.train(*parts) for _ in range(STEPS)]
        return losses, model.predict(x)

    return sk.run_ranks(num_ranks, run)[0]


@cache
def serial(name):
    return curve(name, 1)


RUNS = [
    ("poisson", 4, {"policy": "FSDP"}),
    ("poisson", 2, {"policy": "FSDP", "activation_checkpointing": True, "micro_batches": 2}),
    ("poisson", 3, {"policy": "ZeRO-2"}),
    ("poisson", 4, {"policy": "pipeline", "micro_batches": 4}),
    ("poisson", 2, {"policy": "pipeline", "micro_batches": 3, "schedule": "zb-h1"}),
    ("forces", 4, {"policy": "FSDP", "activation_checkpointing": True}),
    ("forces", 2, {"policy": "DDP", "micro_batches": 2}),
    ("forces in rows", 2, {"policy": "pipeline", "micro_batches": 4}),
    ("forces in rows", 4, {"policy": "FSDP"}),
]


@pytest.mark.parametrize("name, num_ranks, settings", RUNS)
@pytest.mark.thorough
def test_derivatives_train_as_on_one_rank(name, num_ranks, settings):
    losses, prediction = curve(name, num_ranks, **settings)
    wanted, wanted_prediction = serial(name)
    numpy.testing.assert_allclose(losses, wanted, rtol=1e-10)
    numpy.testing.assert_allclose(prediction, wanted_prediction, rtol=1e-8, atol=1e-10)


def torch_parameters(torch, name):
    model = MODELS[name][0]().finish(3)
    return {
        key.removeprefix("net."): torch.tensor(value, requires_grad=True)
        for key, value in model.state_dict().items()
    }


def torch_poisson(torch, p):
    x = torch.tensor(PLACES, requires_grad=True)
    u = x
    for layer in range(4):
        u = u @ p[f"layers.{layer}.weight"].T + p[f"layers.{layer}.bias"]
        u = u.tanh() if layer < 3 else u
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    end = torch.tensor(IS_END).double()
    inside = (bend - torch.tensor(SOURCE)) * (1 - end)
    return (inside**2 + (u * end) ** 2).mean()


def torch_forces(torch, p):
    x = torch.tensor(POSITIONS, requires_grad=True)
    places = x.reshape(-1, ATOMS, 3)
    apart = places[:, SENDERS] - places[:, RECEIVERS]
    squares = (apart * apart).sum(2, keepdim=True)
    messages = torch.tanh(torch.exp(squares * -0.5) @ p["pair.weight"].T + p["pair.bias"])
    atoms = torch.zeros(SAMPLES, ATOMS, 8).double()
    atoms = atoms.index_add(1, torch.tensor(RECEIVERS), messages)
    atoms = torch.nn.functional.silu(atoms @ p["atom.weight"].T + p["atom.bias"])
    energy = (atoms @ p["energy.weight"].T + p["energy.bias"]).sum(1)
    (gradient,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    return ((torch.cat([energy, gradient], 1) - torch.tensor(ENERGY_AND_FORCES)) ** 2).mean()


@pytest.mark.parametrize("name, loss", [("poisson", torch_poisson), ("forces", torch_forces)])
@pytest.mark.thorough
def test_the_loss_curve_is_that_of_pytorch(name, loss):
    torch = pytest.importorskip("torch")
    parameters = torch_parameters(torch, name)
    rule = sk.AdamW(lr=1e-2)
    optimizer = torch.optim.AdamW(
        parameters.values(), lr=1e-2, eps=rule.eps, weight_decay=rule.weight_decay
    )
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(torch, parameters)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    numpy.testing.assert_allclose(serial(name)[0], losses, rtol=1e-8)


def test_rows_are_the_value_and_its_derivatives():
    net = sk.models.MLP([2, 8, 8, 3], "tanh", dtype="float64")
    x = rng.random((5, 2))
    rows = nn.Derivatives(net, order=2).predict(x)
    assert rows.shape == (5, 5, 3)
    numpy.testing.assert_allclose(rows[:, 0], net.predict(x), rtol=1e-13)  # in products of others
    for along in range(2):
        for output in range(3):
            at = Tensor(x, requires_grad=True)
            (first,) = nn.grad(net(at)[:, output].sum(), at, create_graph=True)
            (second,) = nn.grad(first[:, along].sum(), at)
            numpy.testing.assert_allclose(rows[:, 1 + along, output], first.array[:, along])
            numpy.testing.assert_allclose(
                rows[:, 3 + along, output], second.array[:, along], atol=1e-14
            )
    assert nn.Derivatives(net).predict(x[:0]).shape == (0, 3, 3)


class Pairs(nn.Module):
    """x [samples, 6] -> [samples, 3, 4], an array between blocks that is no row."""

    def __init__(self):
        self.map = nn.Linear(2, 4, dtype="float64")

    def forward(self, x):
        return ops.tanh(self.map(x.reshape(-1, 3, 2)))


def test_blocks_pass_on_arrays_of_any_shape():
    net = nn.Sequential(Pairs(), nn.Linear(4, 4, dtype="float64"), nn.Flatten()).finish(1)
    x = rng.random((5, 6))
    rows = nn.Derivatives(net).predict(x)
    assert rows.shape == (5, 7, 12)
    for output in range(12):
        at = Tensor(x, requires_grad=True)
        (first,) = nn.grad(net(at)[:, output].sum(), at)
        numpy.testing.assert_allclose(rows[:, 1:, output], first.array, atol=1e-14)


def test_derivatives_refuse_what_they_are_not_made_for():
    with pytest.raises(ConfigurationError, match="order = 3"):
        nn.Derivatives(nn.Linear(2, 2), order=3)
    with pytest.raises(ShapeError, match="wanted \\[samples, inputs\\]"):
        nn.Derivatives(nn.Linear(2, 2)).check_input(numpy.ones((4, 5, 2)))
