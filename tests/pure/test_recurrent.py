"""LSTM and GRU against PyTorch: outputs, states and gradients, float64 to 1e-10."""

import numpy
import pytest

from shardkit import ConfigurationError, ShapeError, nn
from shardkit.nn import Tensor

FORMS = {
    "one layer": {},
    "batch first": {"batch_first": True},
    "without bias": {"bias": False},
    "three layers": {"num_layers": 3},
    "both directions": {"bidirectional": True},
    "all": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}
SHAPES = [(5, 3), (1, 1), (4, 1), (1, 2)]  # steps, batch


def run(layer, make, x, states, weigh):
    """Outputs and states, and the gradients of a weighted sum of them all."""
    y, ends = layer(x, states)
    ends = list(ends) if isinstance(ends, tuple) else [ends]
    total = sum(weigh(part) for part in [y, *ends])
    total.backward()
    return [y, *ends], [x, *(states if isinstance(states, tuple) else [states])]


@pytest.mark.parametrize("steps, batch", SHAPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_values_and_gradients_are_those_of_pytorch(name, form, steps, batch):
    torch = pytest.importorskip("torch")
    arguments = FORMS[form]
    ours = getattr(nn, name)(3, 4, **arguments, dtype="float64").finish(1)
    theirs = getattr(torch.nn, name)(3, 4, **arguments, dtype=torch.float64)
    theirs.load_state_dict({key: torch.tensor(value) for key, value in ours.state_dict().items()})
    rng = numpy.random.default_rng(steps)
    shape = (batch, steps, 3) if arguments.get("batch_first") else (steps, batch, 3)
    count = arguments.get("num_layers", 1) * (1 + arguments.get("bidirectional", False))
    arrays = [rng.standard_normal(shape)]
    arrays += [rng.standard_normal((count, batch, 4)) for _ in range(1 + (name == "LSTM"))]

    def weights(size):
        return numpy.linspace(-1, 2, size)

    def given(tensors):
        return tensors[0], (tuple(tensors[1:]) if name == "LSTM" else tensors[1])

    mine = run(
        ours,
        Tensor,
        *given([Tensor(array, requires_grad=True) for array in arrays]),
        lambda part: (part.reshape(-1) * weights(part.size)).sum(),
    )
    wanted = run(
        theirs,
        torch.tensor,
        *given([torch.tensor(array, requires_grad=True) for array in arrays]),
        lambda part: (part.reshape(-1) * torch.tensor(weights(part.numel()))).sum(),
    )
    for a, b in zip(mine[0], wanted[0]):
        numpy.testing.assert_allclose(a.array, b.detach().numpy(), atol=1e-10)
    for a, b in zip(mine[1], wanted[1]):
        numpy.testing.assert_allclose(a.grad, b.grad.numpy(), atol=1e-10)
    for key, parameter in theirs.named_parameters():
        ours_too = ours.named_parameters()[key]
        numpy.testing.assert_allclose(ours_too.grad, parameter.grad.numpy(), atol=1e-10)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_wide_layers_whose_products_go_by_panels_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    ours = getattr(nn, name)(70, 64, batch_first=True, dtype="float64").finish(1)
    theirs = getattr(torch.nn, name)(70, 64, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict({key: torch.tensor(value) for key, value in ours.state_dict().items()})
    array = numpy.random.default_rng(0).standard_normal((64, 3, 70))
    x, twin = Tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    y, wanted = ours(x)[0], theirs(twin)[0]
    (y * y).sum().backward()
    (wanted * wanted).sum().backward()
    numpy.testing.assert_allclose(y.array, wanted.detach().numpy(), atol=1e-10)
    numpy.testing.assert_allclose(x.grad, twin.grad.numpy(), atol=1e-10)
    for key, parameter in theirs.named_parameters():
        mine = ours.named_parameters()[key]
        numpy.testing.assert_allclose(mine.grad, parameter.grad.numpy(), atol=1e-10)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_half_floats_give_what_float32_gives(name):
    layer = getattr(nn, name)(3, 4).finish(1)
    weights = [p.array for p in layer.parameters()]
    x = numpy.random.default_rng(0).standard_normal((5, 2, 3)).astype("float16")
    start = numpy.zeros((2, 4), "float32")
    states = [start] * (2 if name == "LSTM" else 1)
    results = []
    for dtype in ("float16", "float32"):
        tensors = [Tensor(a.astype(dtype), requires_grad=True) for a in (x, *states, *weights)]
        y = getattr(nn.ops, name.lower())(*tensors)
        y = y[0] if name == "LSTM" else y
        y.sum().backward()
        assert y.dtype == dtype and all(tensor.grad.dtype == dtype for tensor in tensors)
        results.append([y.array, *[tensor.grad for tensor in tensors]])
    for half, whole in zip(*results):
        numpy.testing.assert_allclose(half, whole, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("asked", [{"x"}, {"w_ih", "b_hh"}, {"hidden", "w_hh"}, {"cell"}])
def test_a_gradient_of_an_lstm_has_the_same_bits_whatever_else_is_wanted(asked):
    rng = numpy.random.default_rng(0)
    sizes = {"x": (40, 9, 5), "hidden": (9, 20), "cell": (9, 20), "w_ih": (80, 5)}
    sizes |= {"w_hh": (80, 20), "b_ih": (80,), "b_hh": (80,)}
    arrays = {name: rng.standard_normal(size).astype("float32") for name, size in sizes.items()}
    grads = []
    for wanted in (set(sizes), asked):
        given = {name: Tensor(a, requires_grad=name in wanted) for name, a in arrays.items()}
        y, cell = nn.ops.lstm(**given)
        ((y * y).sum() + cell.sum()).backward()
        assert all((part.grad is None) == (name not in wanted) for name, part in given.items())
        grads.append({name: given[name].grad for name in asked})
    assert all((grads[0][name] == grads[1][name]).all() for name in asked)


def test_a_sequence_of_an_lstm_has_the_same_bits_in_any_batch():
    rng = numpy.random.default_rng(0)
    x = rng.standard_normal((7, 13, 5)).astype("float32")
    layer = nn.LSTM(5, 9).finish(1)
    whole = Tensor(x, requires_grad=True)
    y, _ = layer(whole)
    y.sum().backward()
    for first, last in ((0, 1), (1, 4), (4, 13)):
        part = Tensor(x[:, first:last], requires_grad=True)
        z, _ = layer(part)
        z.sum().backward()
        assert (z.array == y.array[:, first:last]).all()
        assert (part.grad == whole.grad[:, first:last]).all()


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_a_split_backward_gives_the_same_bits(name):
    grads = []
    for split in (False, True):
        layer = getattr(nn, name)(3, 4, num_layers=2).finish(1)
        total = layer(Tensor(numpy.ones((5, 2, 3), "float32")))[0].sum()
        nn.backward_inputs(total).run() if split else total.backward()
        grads.append([parameter.grad for parameter in layer.parameters()])
    assert all((a == b).all() for a, b in zip(*grads))


def test_an_empty_batch_has_empty_outputs():
    layer = nn.LSTM(3, 4).finish(0)
    y, (h, c) = layer(Tensor(numpy.ones((5, 0, 3), "float32")))
    y.sum().backward()
    assert all((parameter.grad == 0).all() for parameter in layer.parameters())
    assert y.shape == (5, 0, 4) and h.shape == c.shape == (1, 0, 4)


def test_dropout_between_layers_follows_the_sample():
    layer = nn.LSTM(3, 8, num_layers=2, dropout=0.5).finish(0)
    x = numpy.random.default_rng(0).random((4, 6, 3)).astype("float32")
    with nn.forward_context(nn.ForwardContext(training=True, seed=1, step=0, first_sample=0)):
        whole, _ = layer(Tensor(x))
    with nn.forward_context(nn.ForwardContext(training=True, seed=1, step=0, first_sample=4)):
        part, _ = layer(Tensor(x[:, 4:]))
    assert (whole.array[:, 4:] == part.array).all()
    assert (layer(Tensor(x))[0].array != whole.array).any()


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigurationError, match="dropout = 0.5 and one layer"):
        nn.LSTM(3, 4, dropout=0.5)
    layer = nn.GRU(3, 4).finish(0)
    with pytest.raises(ShapeError, match="GRU of x"):
        layer(Tensor(numpy.ones((5, 3), "float32")))
    with pytest.raises(ShapeError, match="with a state"):
        layer(Tensor(numpy.ones((5, 2, 3), "float32")), Tensor(numpy.ones((1, 3, 4), "float32")))


@pytest.mark.parametrize("name, num_gates, num_states", [("lstm", 4, 2), ("gru", 3, 1)])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_bias_beside_none_is_one_beside_zeros(name, num_gates, num_states, is_first):
    rng, rows = numpy.random.default_rng(0), num_gates * 5
    shapes = [(3, 2, 4), *[(2, 5)] * num_states, (rows, 4), (rows, 5)]
    given = [Tensor(rng.standard_normal(shape)) for shape in shapes]
    array, found = rng.standard_normal(rows), []
    for other in (None, Tensor(numpy.zeros(rows))):
        bias = Tensor(array, requires_grad=True)
        biases = (bias, other) if is_first else (other, bias)
        states = getattr(nn.ops, name)(*given, *biases)
        states = states[0] if name == "lstm" else states
        states.sum().backward()
        found.append([states.array, bias.grad])
    for one, wanted in zip(*found):
        numpy.testing.assert_array_equal(one, wanted)
