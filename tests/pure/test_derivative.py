"""Gradients that are Tensors: first, second and third derivatives against PyTorch, in float64."""

import numpy
import pytest

from shardkit import AutogradError, ShapeError, nn
from shardkit.nn import Tensor, ops
from shardkit.nn.ops import fft
from shardkit.testing.nn import from_modes, linear_of_gathered, multiply_modes, to_modes

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = F = None

MASK = numpy.arange(12).reshape(3, 4) % 3 == 0
IDS = numpy.array([2, 0, 0, 1])
TABLE = {  # name: (op, its twin, shapes); all inputs are positive
    "add": (lambda a, b: ops.add(a, b) ** 2, lambda a, b: (a + b) ** 2, [(3, 4), (4,)]),
    "subtract": (lambda a, b: ops.subtract(a, b) ** 3, lambda a, b: (a - b) ** 3, [(3, 1), (3, 4)]),
    "multiply": (ops.multiply, lambda a, b: a * b, [(3, 4), (1, 4)]),
    "divide": (ops.divide, lambda a, b: a / b, [(3, 4), (3, 1)]),
    "negative": (lambda a: ops.negative(a) ** 3, lambda a: (-a) ** 3, [(3, 4)]),
    "cube": (lambda a: a**3, lambda a: a**3, [(3, 4)]),
    "power 1": (lambda a: a**1 * a, lambda a: a**1 * a, [(3, 4)]),
    "power": (ops.power, lambda a, b: a**b, [(3, 4), (4,)]),
    "power of number": (lambda a: 2.0**a, lambda a: 2.0**a, [(3,)]),
    "exp": (ops.exp, lambda a: a.exp(), [(3, 4)]),
    "log": (ops.log, lambda a: a.log(), [(3, 4)]),
    "sqrt": (ops.sqrt, lambda a: a.sqrt(), [(3, 4)]),
    "tanh": (ops.tanh, lambda a: a.tanh(), [(3, 4)]),
    "sigmoid": (ops.sigmoid, lambda a: a.sigmoid(), [(3, 4)]),
    "relu": (lambda a: ops.relu(a - 1) ** 3, lambda a: (a - 1).relu() ** 3, [(3, 4)]),
    "gelu": (ops.gelu, lambda a: F.gelu(a, approximate="tanh"), [(3, 4)]),
    "silu": (ops.silu, lambda a: F.silu(a), [(3, 4)]),
    "softplus": (ops.softplus, lambda a: F.softplus(a), [(3, 4)]),
    "sin": (ops.sin, lambda a: a.sin(), [(3, 4)]),
    "cos": (ops.cos, lambda a: a.cos(), [(3, 4)]),
    "tan": (ops.tan, lambda a: a.tan(), [(3, 4)]),
    "arctan": (ops.arctan, lambda a: a.arctan(), [(3, 4)]),
    "erf": (ops.erf, lambda a: a.erf(), [(3, 4)]),
    "log1p": (ops.log1p, lambda a: a.log1p(), [(3, 4)]),
    "expm1": (ops.expm1, lambda a: a.expm1(), [(3, 4)]),
    "square": (ops.square, lambda a: a * a, [(3, 4)]),
    "reciprocal": (ops.reciprocal, lambda a: 1 / a, [(3, 4)]),
    "rsqrt": (ops.rsqrt, lambda a: a.rsqrt(), [(3, 4)]),
    "abs": (lambda a: ops.abs(a - 1) ** 3, lambda a: (a - 1).abs() ** 3, [(3, 4)]),
    "clamp": (lambda a: ops.clamp(a, 1, 2) ** 3, lambda a: a.clamp(1, 2) ** 3, [(3, 4)]),
    "elu": (lambda a: ops.elu(1 - a), lambda a: F.elu(1 - a), [(3, 4)]),
    "swiglu": (ops.swiglu, lambda a, b: F.silu(a) * b, [(3, 4), (3, 4)]),
    "softmax": (ops.softmax, lambda a: a.softmax(-1), [(3, 4)]),
    "log_softmax": (ops.log_softmax, lambda a: a.log_softmax(-1), [(3, 4)]),
    "logsumexp": (lambda a: ops.logsumexp(a, 1), lambda a: a.logsumexp(1), [(3, 4)]),
    "matmul": (ops.matmul, lambda a, b: a @ b, [(3, 5), (5, 2)]),
    "matmul broadcast": (ops.matmul, lambda a, b: a @ b, [(2, 1, 3, 5), (4, 5, 2)]),
    "linear": (ops.linear, lambda x, w, b: F.linear(x, w, b), [(2, 3, 5), (4, 5), (4,)]),
    "linear without bias": (ops.linear, lambda x, w: F.linear(x, w), [(3, 5), (4, 5)]),
    "linear tanh": (
        lambda x, w, b: ops.linear(x, w, b, ops.tanh),
        lambda x, w, b: F.linear(x, w, b).tanh(),
        [(3, 5), (4, 5), (4,)],
    ),
    "linear gelu": (
        lambda x, w, b: ops.linear(x, w, b, ops.gelu),
        lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
        [(3, 5), (4, 5), (4,)],
    ),
    "sum": (lambda a: ops.sum(a * a, 0), lambda a: (a * a).sum(0), [(3, 4)]),
    "mean": (lambda a: ops.mean(a, (0, 2)) ** 3, lambda a: a.mean((0, 2)) ** 3, [(3, 4, 2)]),
    "max": (lambda a: ops.max(a, 1) ** 3, lambda a: a.amax(1) ** 3, [(3, 4)]),
    "variance": (
        lambda a: ops.variance(a, 1) ** 2,
        lambda a: a.var(1, correction=0) ** 2,
        [(3, 4)],
    ),
    "norm": (lambda a: ops.norm(a, 2, 1), lambda a: a.norm(2, 1), [(3, 4)]),
    "reshape": (lambda a: ops.reshape(a, (4, 3)) ** 3, lambda a: a.reshape(4, 3) ** 3, [(3, 4)]),
    "permute": (
        lambda a: ops.permute(a, (2, 0, 1)) ** 3,
        lambda a: a.permute(2, 0, 1) ** 3,
        [(3, 4, 2)],
    ),
    "transpose": (lambda a: ops.transpose(a, 0, 1) ** 3, lambda a: a.mT**3, [(3, 4)]),
    "getitem": (lambda a: a[1:, ::2] ** 3, lambda a: a[1:, ::2] ** 3, [(3, 4)]),
    "getitem ids": (lambda a: a[IDS] ** 3, lambda a: a[torch.tensor(IDS)] ** 3, [(3, 4)]),
    "gather": (
        lambda a: ops.gather(a, 1, IDS.reshape(2, 2) + 1) ** 3,
        lambda a: a.gather(1, torch.tensor(IDS.reshape(2, 2) + 1)) ** 3,
        [(2, 4)],
    ),
    "concatenate": (
        lambda a, b: ops.concatenate([a, b, a], 1) ** 3,
        lambda a, b: torch.cat([a, b, a], 1) ** 3,
        [(3, 4), (3, 2)],
    ),
    "expand": (
        lambda a: ops.expand(a, (2, 3, 4)) ** 3,
        lambda a: a.expand(2, 3, 4) ** 3,
        [(3, 1)],
    ),
    "squeeze": (
        lambda a: ops.unsqueeze(ops.squeeze(a, 1), 0) ** 3,
        lambda a: a.squeeze(1).unsqueeze(0) ** 3,
        [(3, 1, 2)],
    ),
    "where": (
        lambda a, b: ops.where(MASK, a, b) ** 3,
        lambda a, b: torch.where(torch.tensor(MASK), a, b) ** 3,
        [(3, 4), (3, 1)],
    ),
    "maximum": (
        lambda a, b: ops.maximum(a, b) ** 3,
        lambda a, b: torch.maximum(a, b) ** 3,
        [(3, 4), (4,)],
    ),
    "minimum": (
        lambda a, b: ops.minimum(a, b) ** 3,
        lambda a, b: torch.minimum(a, b) ** 3,
        [(3, 4), (4,)],
    ),
    "mse": (lambda a, b: ops.mse(a, b) ** 2, lambda a, b: F.mse_loss(a, b) ** 2, [(3, 4), (3, 4)]),
    "index_add": (
        lambda a, b: ops.index_add(a, 0, IDS, b) ** 3,
        lambda a, b: a.index_add(0, torch.tensor(IDS), b) ** 3,
        [(3, 2), (4, 2)],
    ),
    "index_select": (
        lambda a: ops.index_select(a, 0, IDS) ** 3,
        lambda a: a.index_select(0, torch.tensor(IDS)) ** 3,
        [(3, 2)],
    ),
    "roll": (lambda a: ops.roll(a, 1, 0) ** 3, lambda a: a.roll(1, 0) ** 3, [(3, 4)]),
    "flip": (lambda a: ops.flip(a, 0) ** 3, lambda a: a.flip(0) ** 3, [(3, 4)]),
    "cumsum": (lambda a: ops.cumsum(a, 1) ** 3, lambda a: a.cumsum(1) ** 3, [(3, 4)]),
    "tril": (lambda a: ops.tril(a) ** 3, lambda a: a.tril() ** 3, [(3, 4)]),
    "segment_sum": (
        lambda a: ops.segment_sum(a, IDS, 4) ** 3,
        lambda a: torch.zeros(4, 2).double().index_add(0, torch.tensor(IDS), a) ** 3,
        [(4, 2)],
    ),
    "linear of gathered": (
        lambda a, b, w, c: linear_of_gathered((a, b), (IDS, IDS[::-1] + 1), w, c) ** 2,
        lambda a, b, w, c: F.linear(torch.cat([a[IDS], b[IDS[::-1] + 1]], 1), w, c) ** 2,
        [(3, 2), (5, 3), (4, 5), (4,)],
    ),
    "segment_max": (
        lambda a: ops.segment_max(a, IDS, 3) ** 3,
        lambda a: torch.stack([a[1:3].amax(0), a[3], a[0]]) ** 3,
        [(4, 2)],
    ),
    "spectral layer": (
        lambda a, w: fft.irfft(fft.complex_einsum("bik,iok->bok", fft.rfft(a), w), 7) ** 2,
        lambda a, w: (
            torch.fft.irfft(
                torch.einsum("bik,iok->bok", torch.fft.rfft(a), torch.view_as_complex(w)), 7
            )
            ** 2
        ),
        [(2, 3, 7), (3, 2, 4, 2)],
    ),
    "modes of a plane": (
        lambda a, w: from_modes(multiply_modes(to_modes(a, (2, 3)), w), (5, 4)) ** 2,
        lambda a, w: by_whole_spectra(a, w, "bixy,ioxy->boxy"),
        [(2, 3, 5, 4), (3, 2, 4, 3, 2)],
    ),
    "modes of a volume": (
        lambda a, w: from_modes(multiply_modes(to_modes(a, (1, 2, 2)), w), (2, 4, 3)) ** 2,
        lambda a, w: by_whole_spectra(a, w, "bixyz,ioxyz->boxyz"),
        [(2, 2, 2, 4, 3), (2, 1, 2, 4, 2, 2)],
    ),
    "rfft of other sizes": (
        lambda a: fft.rfft(a, 8) ** 3,
        lambda a: torch.view_as_real(torch.fft.rfft(a, 8)) ** 3,
        [(2, 5)],
    ),
    "irfftn cut": (
        lambda a: fft.irfftn(a, (4, 3), norm="ortho") ** 3,
        lambda a: torch.fft.irfftn(torch.view_as_complex(a), (4, 3), norm="ortho") ** 3,
        [(5, 6, 2)],
    ),
    "fftn": (
        lambda a: fft.fftn(a, (3, 5)) ** 3,
        lambda a: torch.view_as_real(torch.fft.fftn(torch.view_as_complex(a), (3, 5))) ** 3,
        [(4, 3, 2)],
    ),
    "einsum": (
        lambda a, b: ops.einsum("bi,bio->bo", a, b) ** 2,
        lambda a, b: torch.einsum("bi,bio->bo", a, b) ** 2,
        [(3, 4), (3, 4, 2)],
    ),
}


def by_whole_spectra(x, weight, equation):
    """Return the squares of a spectral convolution that keeps what the weight has modes of."""
    dims, (*sizes, last) = tuple(range(2, x.ndim)), weight.shape[2:-1]
    spectrum = torch.fft.rfftn(x, dim=dims)
    places = [[*range(size // 2), *range(-(size // 2), 0)] for size in sizes]
    kept = (slice(None), slice(None), *numpy.ix_(*places, range(last)))
    whole = torch.zeros((len(x), weight.shape[1], *spectrum.shape[2:]), dtype=spectrum.dtype)
    whole[kept] = torch.einsum(equation, spectrum[kept], torch.view_as_complex(weight))
    return torch.fft.irfftn(whole, s=x.shape[2:], dim=dims) ** 2


def derivatives(op, inputs, grad, sum_of):
    """The gradients of a weighted sum, and those of a weighted sum of their squares."""
    y = op(*inputs)
    first = grad(sum_of(y), inputs, create_graph=True)
    total = sum_of(first[0] * first[0])
    for part in first[1:]:
        total = total + sum_of(part * part)
    return first, grad(total, inputs, create_graph=False, allow_unused=True)


def weights(size):
    return numpy.linspace(0.5, 1.5, max(size, 1))[:size]


@pytest.mark.parametrize("name", TABLE)
def test_first_and_second_derivatives_are_those_of_pytorch(name):
    pytest.importorskip("torch")
    op, twin, shapes = TABLE[name]
    rng = numpy.random.default_rng(len(name))
    arrays = [rng.random(shape) + 0.6 for shape in shapes]
    ours = derivatives(
        op,
        [Tensor(array, requires_grad=True) for array in arrays],
        nn.grad,
        lambda y: (y.reshape(-1) * weights(y.size)).sum(),
    )
    theirs = derivatives(
        twin,
        [torch.tensor(array, requires_grad=True) for array in arrays],
        torch.autograd.grad,
        lambda y: (y.reshape(-1) * torch.tensor(weights(y.numel()))).sum(),
    )
    for mine, wanted in zip((*ours[0], *ours[1]), (*theirs[0], *theirs[1])):
        mine = 0 if mine is None else mine.numpy()
        wanted = 0 if wanted is None else wanted.detach().numpy()
        numpy.testing.assert_allclose(mine, wanted, rtol=1e-10, atol=1e-10)


def test_a_third_derivative_is_right():
    x = Tensor(numpy.linspace(-1, 1, 7), requires_grad=True)
    y = ops.tanh(x)
    for _ in range(3):
        (y,) = nn.grad(y.sum(), x, create_graph=True)
    t = numpy.tanh(x.array)
    numpy.testing.assert_allclose(y.array, -2 * (1 - t**2) * (1 - 3 * t**2), atol=1e-12)


def net(seed=3):
    model = nn.Sequential(
        nn.Linear(1, 8, dtype="float64"), Tanh(), nn.Linear(8, 1, dtype="float64")
    )
    return model.finish(seed)


class Tanh(nn.Module):
    def forward(self, x):
        return ops.tanh(x)


def residual(model, points):
    """The mean squared residual of u'' = -u, and a term of u itself."""
    x = Tensor(points, requires_grad=True)
    u = model(x)
    (slope,) = nn.grad(u.sum(), x, create_graph=True)
    (bend,) = nn.grad(slope.sum(), x, create_graph=True)
    return ((bend + u) ** 2).mean() + (u**2).mean()


POINTS = numpy.linspace(-1, 1, 9).reshape(-1, 1)


def test_gradients_of_a_residual_are_finite_differences():
    model = net()
    residual(model, POINTS).backward()
    for parameter in model.parameters():
        analytic = parameter.grad.copy()
        for place in numpy.ndindex(parameter.shape):
            ends = []
            for step in (1e-5, -2e-5):
                parameter.array[place] += step
                ends.append(residual(model, POINTS).item())
            parameter.array[place] += 1e-5
            assert abs((ends[0] - ends[1]) / 2e-5 - analytic[place]) < 1e-7


def test_a_split_backward_gives_the_same_bits():
    whole, halves = net(), net()
    residual(whole, POINTS).backward()
    owed = nn.backward_inputs(residual(halves, POINTS))
    assert all(parameter.grad is None for parameter in halves.parameters())
    owed.run()
    for a, b in zip(whole.parameters(), halves.parameters()):
        assert (a.grad == b.grad).all()


def test_grad_touches_no_gradient_and_keeps_the_tape():
    model = net()
    weight = model.parameters()[0]
    weight.grad, weight.grad_is_empty = numpy.full(weight.shape, 7.0), True
    x = Tensor(POINTS, requires_grad=True)
    loss = (model(x) ** 2).sum() + (model(x) ** 3).sum()  # the weight is used twice
    (found,) = nn.grad(loss, weight)
    assert x.grad is None and weight.grad_is_empty and found.array is not weight.grad
    loss.backward()
    assert (found.array == weight.grad).all() and x.grad is not None


def test_grad_records_inside_no_grad_only_what_is_asked_for():
    with nn.no_grad():
        with nn.enable_grad():
            x = Tensor(POINTS, requires_grad=True)
            y = (x**3).sum()
        (slope,) = nn.grad(y, x)
        (recorded,) = nn.grad(y, x, create_graph=True)
    assert not slope.requires_grad and recorded.requires_grad
    assert (slope.array == recorded.array).all()


def test_a_gradient_given_as_a_tensor_keeps_its_history():
    x = Tensor(POINTS, requires_grad=True)
    v = Tensor(numpy.ones_like(POINTS), requires_grad=True)
    (pulled,) = nn.grad(x**2, x, v, create_graph=True)
    (pushed,) = nn.grad(pulled, v, POINTS)  # a product of the Jacobian with POINTS
    numpy.testing.assert_allclose(pushed.array, 2 * POINTS**2)


def test_inputs_may_be_made_by_operations():
    x = Tensor(POINTS, requires_grad=True)
    middle = x * 2
    first, second = nn.grad((middle**2).sum(), (middle, x))
    assert (first.array * 2 == second.array).all()


def test_an_operation_without_a_second_derivative_raises_by_name():
    x = Tensor(numpy.ones((2, 3)), requires_grad=True)
    y = ops.cumprod(x, 1)
    assert nn.grad(y.sum(), x)[0].shape == (2, 3)
    with pytest.raises(AutogradError, match="no second derivative of cumprod"):
        nn.grad(y.sum(), x, create_graph=True)


def test_what_cannot_be_differentiated_is_refused():
    x = Tensor(POINTS, requires_grad=True)
    y = (x**2).sum()
    with pytest.raises(AutogradError, match="input 1, of shape .* was not used"):
        nn.grad(y, (x, Tensor(POINTS, requires_grad=True)))
    assert nn.grad(y, Tensor(POINTS), allow_unused=True) == (None,)
    with pytest.raises(AutogradError, match="no gradient flows"):
        nn.grad(Tensor(POINTS), x)
    with pytest.raises(AutogradError, match="single element"):
        nn.grad(x * 2, x)
    with pytest.raises(ShapeError, match="2 gradients for 1 outputs"):
        nn.grad(y, x, [1.0, 2.0])
    y.backward()
    with pytest.raises(AutogradError, match="has freed"):
        nn.grad(y, x)
