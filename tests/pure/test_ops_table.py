"""The ops of science against PyTorch, from one table of ops and one of shapes.

Values and gradients in float64 to 1e-10 and in float32 to 2e-5, relative to the largest value; the
same for inputs that lie elsewhere in memory; each gradient has its bits when it alone is wanted.
"""

import math

import numpy
import pytest

from shardkit import ShapeError
from shardkit.nn import Tensor, ops

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = F = None

SHAPES = [(0, 3), (1, 1), (3, 4), (5, 7)]
SQUARE = [(1, 1), (3, 3), (2, 5, 5)]
TIES = numpy.array([[2.0, 1, 2, 0], [0, 0, 0, 0], [1, -3, -3, 2]])
IDS = numpy.array([2, 0, 2, 1])


def ints(array):
    return torch.tensor(numpy.asarray(array))


def positive(array):
    return abs(array) + 0.5


def of_kind(name, **more):
    return lambda x: getattr(ops, name)(x, **more)


def theirs(name, **more):
    return lambda x: getattr(torch, name)(x, **more)


# Name: (op, PyTorch's, shapes of the inputs, each for one case[, what makes the numbers]).
TABLE = {
    **{
        name: (of_kind(name), theirs(name), [[shape] for shape in SHAPES])
        for name in "abs sin cos tan arctan erf expm1 square".split()
    },
    **{
        name: (of_kind(name), theirs(name), [[shape] for shape in SHAPES], positive)
        for name in "reciprocal rsqrt log1p".split()
    },
    **{
        name: (of_kind(name), lambda x, name=name: getattr(F, name)(x), [[s] for s in SHAPES])
        for name in "softplus elu leaky_relu hardtanh mish".split()
    },
    "softplus beta": (
        lambda x: ops.softplus(30 * x, 2.0, 5.0),
        lambda x: F.softplus(30 * x, 2.0, 5.0),
        [[(5, 7)]],
    ),
    "erf_gelu": (ops.erf_gelu, lambda x: F.gelu(x), [[s] for s in SHAPES]),
    "erf far": (lambda x: ops.erf(4 * x), lambda x: torch.erf(4 * x), [[(40,)]]),
    "elu alpha": (
        lambda x: ops.elu(x, 0.3) + ops.leaky_relu(x, 0.2),
        lambda x: F.elu(x, 0.3) + F.leaky_relu(x, 0.2),
        [[(5, 7)]],
    ),
    "arctan2": (ops.arctan2, lambda y, x: torch.arctan2(y, x), [[(3, 4), (4,)], [(1,), (2, 1)]]),
    "minimum": (ops.minimum, lambda x, y: torch.minimum(x, y), [[(3, 4), (4,)], [(0,), (0,)]]),
    "clamp": (
        lambda x: ops.clamp(x, -0.5, 0.7) * ops.clip(x, max=0.1) + ops.clamp(x, min=0.0),
        lambda x: x.clamp(-0.5, 0.7) * x.clamp(max=0.1) + x.clamp(min=0.0),
        [[s] for s in SHAPES],
    ),
    "clip at the limits": (
        lambda x: ops.clip(x, 0.0, 2.0),
        lambda x: x.clamp(0.0, 2.0),
        [[(3, 4)]],
        lambda x: TIES,
    ),
    "masked_fill": (
        lambda x: ops.masked_fill(x, TIES > 0, 3.0),
        lambda x: x.masked_fill(ints(TIES > 0), 3.0),
        [[(3, 4)]],
    ),
    "min": (lambda x: ops.min(x, 1), lambda x: x.amin(1), [[(0, 3)], [(1, 1)], [(5, 7)]]),
    "min of ties": (lambda x: ops.min(x, 1), lambda x: x.amin(1), [[(3, 4)]], lambda x: TIES),
    "prod": (
        lambda x: ops.prod(x, 1) + ops.prod(x),
        lambda x: x.prod(1) + x.prod(),
        [[s] for s in SHAPES],
    ),
    "prod with zeros": (
        lambda x: ops.prod(x, 1, keepdim=True),
        lambda x: x.prod(1, keepdim=True),
        [[(3, 4)]],
        lambda x: TIES,
    ),
    "prod of a middle dim": (lambda x: ops.prod(x, -2), lambda x: x.prod(-2), [[(2, 3, 4)]]),
    "cumsum": (lambda x: ops.cumsum(x, 0), lambda x: x.cumsum(0), [[s] for s in SHAPES]),
    "cumprod": (lambda x: ops.cumprod(x, -1), lambda x: x.cumprod(-1), [[s] for s in SHAPES]),
    "cumprod with zeros": (
        lambda x: ops.cumprod(x, 1),
        lambda x: x.cumprod(1),
        [[(3, 4)]],
        lambda x: TIES,
    ),
    "logsumexp": (
        lambda x: ops.logsumexp(100 * x, 1, keepdim=True),
        lambda x: torch.logsumexp(100 * x, 1, keepdim=True),
        [[(0, 3)], [(1, 1)], [(5, 7)]],
    ),
    "logsumexp of all": (ops.logsumexp, lambda x: x.flatten().logsumexp(0), [[(5, 7)], [()]]),
    **{
        f"norm {p} {dim}": (
            lambda x, p=p, dim=dim: ops.norm(x, p, dim),
            lambda x, p=p, dim=dim: torch.linalg.vector_norm(x, p, dim),
            [[(1, 1)], [(5, 7)], [(2, 3, 4)]],
        )
        for p in (1, 2, math.inf)
        for dim in (None, 1, (0, -1))
    },
    **{
        f"norm {p} of ties": (
            lambda x, p=p: ops.norm(x, p, 1, keepdim=True),
            lambda x, p=p: torch.linalg.vector_norm(x, p, 1, keepdim=True),
            [[(3, 4)]],
            lambda x: TIES,
        )
        for p in (1, 2, math.inf)
    },
    "var": (lambda x: ops.var(x, 1), lambda x: x.var(1), [[(0, 3)], [(5, 7)]]),
    "var biased": (
        lambda x: ops.var(x, (0, 1), 0, True),
        lambda x: x.var((0, 1), correction=0, keepdim=True),
        [[(1, 1)], [(5, 7)]],
    ),
    "std": (lambda x: ops.std(x), lambda x: x.std(), [[(5, 7)], [(2, 3, 4)]]),
    "std of equal numbers": (
        lambda x: ops.std(x, 1),
        lambda x: x.std(1),
        [[(3, 4)]],
        lambda x: TIES,
    ),
    "stack": (
        lambda x, y: ops.stack([x, y, x], -1),
        lambda x, y: torch.stack([x, y, x], -1),
        [[s, s] for s in SHAPES],
    ),
    "roll": (
        lambda x: ops.roll(x, (2, -1), (0, 1)) * ops.roll(x, 3) + ops.roll(x, 1, -1),
        lambda x: x.roll((2, -1), (0, 1)) * x.roll(3) + x.roll(1, -1),
        [[s] for s in SHAPES],
    ),
    "flip": (
        lambda x: ops.flip(x, 0) * ops.flip(x, (0, -1)),
        lambda x: x.flip(0) * x.flip((0, -1)),
        [[s] for s in SHAPES],
    ),
    "repeat": (
        lambda x: ops.repeat(x, (2, 1, 3)),
        lambda x: x.repeat(2, 1, 3),
        [[(3, 4)], [(3,)], [(0, 3)], [()]],
    ),
    "tile": (lambda x: ops.tile(x, 3), lambda x: x.tile(3), [[(3, 4)], [(1, 1)]]),
    "repeat_interleave": (
        lambda x: ops.repeat_interleave(x, 3, -2),
        lambda x: x.repeat_interleave(3, -2),
        [[(3, 4)], [(0, 3)]],
    ),
    "tril": (lambda x: ops.tril(x, 1), lambda x: x.tril(1), [[s] for s in SHAPES + SQUARE]),
    "triu": (lambda x: ops.triu(x, -1), lambda x: x.triu(-1), [[s] for s in SHAPES + SQUARE]),
    "diagonal": (
        lambda x: ops.diagonal(x, 1, -1, 0),
        lambda x: x.diagonal(1, -1, 0),
        [[s] for s in SHAPES + SQUARE],
    ),
    "flatten": (
        lambda x: ops.flatten(x, 1, -2),
        lambda x: x.flatten(1, -2),
        [[(2, 3, 4, 5)], [(1, 1, 1)]],
    ),
    "flatten nothing": (ops.flatten, lambda x: x.flatten(), [[()], [(0, 3)]]),
    "chunk": (
        lambda x: ops.concatenate(ops.chunk(x, 3, 1)[::-1], 1),
        lambda x: torch.cat(x.chunk(3, 1)[::-1], 1),
        [[(3, 4)], [(5, 7)], [(1, 1)]],
    ),
    "outer": (ops.outer, lambda x, y: torch.outer(x, y), [[(3,), (5,)], [(0,), (2,)]]),
    "bmm": (ops.bmm, lambda x, y: torch.bmm(x, y), [[(2, 3, 4), (2, 4, 1)]]),
    **{
        f"einsum {equation}": (
            lambda *x, e=equation: ops.einsum(e, *x),
            lambda *x, e=equation: torch.einsum(e, *x),
            [shapes],
        )
        for equation, *shapes in [
            ("ij,jk->ik", (3, 4), (4, 5)),
            ("ij,jk", (3, 4), (4, 5)),
            ("bij,bkj->bki", (2, 3, 4), (2, 5, 4)),
            ("bixy,ioxy->boxy", (2, 3, 4, 5), (3, 2, 4, 5)),
            ("...i,io->...o", (2, 3, 4), (4, 5)),
            ("i,j->ji", (3,), (4,)),
            ("ij->ji", (3, 4)),
            ("ij->", (3, 4)),
            ("ii->i", (3, 3)),
            ("ii", (4, 4)),
            ("iji->j", (3, 2, 3)),
            ("ij,ij->", (3, 4), (3, 4)),
            ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
            ("bhi,bhj,hd,xb->bdji", (2, 3, 4), (2, 3, 5), (3, 2), (3, 2)),
            ("ij,k->i", (3, 4), (2,)),
            ("ij,jk->ik", (0, 4), (4, 5)),
            ("ij,jk->ik", (3, 0), (0, 5)),
        ]
    },
    "sort": (
        lambda x: ops.sort(x)[0] * ops.sort(x, 0, descending=True)[0],
        lambda x: x.sort()[0] * x.sort(0, descending=True)[0],
        [[s] for s in SHAPES],
    ),
    "sort of ties": (
        lambda x: ops.sort(x, 1, True)[0],
        lambda x: x.sort(dim=1, descending=True, stable=True)[0],
        [[(3, 4)]],
        lambda x: TIES,
    ),
    "topk": (
        lambda x: ops.topk(x, 1)[0] + ops.topk(x, 1, largest=False)[0],
        lambda x: x.topk(1)[0] + x.topk(1, largest=False)[0],
        [[s] for s in SHAPES],
    ),
    "take_along_dim": (
        lambda x: ops.take_along_dim(x, numpy.array([[1, 2, 0]]).T, 0),
        lambda x: torch.take_along_dim(x, ints([[1, 2, 0]]).T, 0),
        [[(3, 4)], [(5, 7)]],
    ),
    "take_along_dim of all": (
        lambda x: ops.take_along_dim(x, IDS),
        lambda x: torch.take_along_dim(x, ints(IDS)),
        [[(3, 4)]],
    ),
    "index_select": (
        lambda x: ops.index_select(x, 1, IDS),
        lambda x: x.index_select(1, ints(IDS)),
        [[(3, 4)], [(0, 3)], [(2, 5, 3)]],
    ),
    "index_select none": (
        lambda x: ops.index_select(x, 0, IDS[:0]),
        lambda x: x.index_select(0, ints(IDS[:0])),
        [[(3, 4)]],
    ),
    "index_add": (
        lambda x, y: ops.index_add(x, 0, IDS, y),
        lambda x, y: x.index_add(0, ints(IDS), y),
        [[(3, 4), (4, 4)], [(5, 0), (4, 0)]],
    ),
    "scatter_add": (
        lambda x, y: ops.scatter_add(x, 1, IDS.reshape(2, 2), y),
        lambda x, y: x.scatter_add(1, ints(IDS.reshape(2, 2)), y),
        [[(2, 4), (2, 2)]],
    ),
}
CASES = [
    pytest.param(name, shapes, id=f"{name} {shapes}".replace(" ", "-"))
    for name, (_, _, cases, *_) in TABLE.items()
    for shapes in cases
]


def inputs(name, shapes, dtype):
    rng = numpy.random.default_rng(len(name))
    change = TABLE[name][3] if len(TABLE[name]) > 3 else lambda x: x
    return [change(rng.standard_normal(shape)).astype(dtype) for shape in shapes]


def strided(array):
    """The same numbers in reverse order of memory."""
    turned = numpy.ascontiguousarray(array.T[::-1] if array.ndim else array)
    return (turned[::-1] if array.ndim else turned).T


def run(op, arrays, wanted=None):
    """The output, and the gradient of each wanted input for a fixed gradient of the output."""
    tensors = [
        Tensor(array, requires_grad=wanted in (None, number)) for number, array in enumerate(arrays)
    ]
    output = op(*tensors)
    assert output.array.dtype == arrays[0].dtype
    sent = numpy.random.default_rng(1).standard_normal(output.shape).astype(output.dtype)
    sent.flags.writeable = False
    output.backward(sent)
    return [output.numpy(), *[tensor.grad for tensor in tensors]], sent


@pytest.mark.parametrize("name, shapes", CASES)
def test_values_and_gradients_are_those_of_pytorch(name, shapes):
    pytest.importorskip("torch")
    op, twin, *_ = TABLE[name]
    for dtype, tolerance in (("float64", 1e-10), ("float32", 3e-5)):
        arrays = inputs(name, shapes, dtype)
        got, sent = run(op, arrays)
        twins = [torch.tensor(array, requires_grad=True) for array in arrays]
        output = twin(*twins)
        output.backward(torch.tensor(sent))
        for found, expected in zip(got, [output, *[t.grad for t in twins]], strict=True):
            expected = expected.detach().numpy()
            assert found.dtype == dtype and found.shape == expected.shape
            allowed = tolerance * max(1, abs(expected).max(initial=0))
            numpy.testing.assert_allclose(found, expected, rtol=0, atol=allowed)
    for number in range(len(arrays)):
        alone, _ = run(op, arrays, wanted=number)
        assert alone[1 + number].tobytes() == got[1 + number].tobytes()
    elsewhere, _ = run(op, [strided(array) for array in arrays])
    for found, expected in zip(elsewhere, got):
        numpy.testing.assert_allclose(found, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize(
    "name",
    "erf erf_gelu softplus mish minimum logsumexp std cumprod diagonal sort index_add".split(),
)
def test_a_gradient_is_the_limit_of_difference_quotients(name):
    op, _, cases, *_ = TABLE[name]
    arrays = inputs(name, cases[-1], "float64")
    (_, *gradients), sent = run(op, arrays)

    def value(changed, number):
        each = [changed if i == number else array for i, array in enumerate(arrays)]
        return float((op(*map(Tensor, each)).array * sent).sum())

    for number, (array, gradient) in enumerate(zip(arrays, gradients)):
        direction = numpy.random.default_rng(9).standard_normal(array.shape) * 1e-6
        slope = value(array + direction, number) - value(array - direction, number)
        assert abs(slope - 2 * (gradient * direction).sum()) < 1e-6 * 1e-5 * max(1, array.size)


PLACES = {
    "argmax": (lambda x: ops.argmax(x, 1), lambda x: x.argmax(1)),
    "argmax kept": (lambda x: ops.argmax(x, 0, True), lambda x: x.argmax(0, True)),
    "argmin": (lambda x: ops.argmin(x, keepdim=True), lambda x: x.argmin(keepdim=True)),
    "argsort": (lambda x: ops.argsort(x, 0), lambda x: x.argsort(dim=0, stable=True)),
    "argsort descending": (
        lambda x: ops.argsort(x, 1, descending=True),
        lambda x: x.argsort(dim=1, descending=True, stable=True),
    ),
    "any": (lambda x: ops.any(x, 1), lambda x: x.bool().any(1)),
    "all": (lambda x: ops.all(x, 1, True), lambda x: x.bool().all(1, True)),
    "all of all": (ops.all, lambda x: x.bool().all()),
    "sign": (ops.sign, lambda x: x.sign()),
    "floor": (ops.floor, lambda x: x.floor()),
    "ceil": (ops.ceil, lambda x: x.ceil()),
    "round": (ops.round, lambda x: x.round()),
    "one_hot": (
        lambda x: ops.one_hot(ops.argmax(x, 1), 4),
        lambda x: F.one_hot(x.argmax(1), 4),
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_what_takes_no_gradient_is_what_pytorch_says(name):
    pytest.importorskip("torch")
    op, twin = PLACES[name]
    for array in (TIES, TIES.T[:, ::-1].copy().T, TIES[:1, :1], TIES * 0.5):
        if name != "one_hot" or array.shape[1] == 4:
            found, expected = op(Tensor(array, True)), twin(torch.tensor(array)).numpy()
            assert not found.requires_grad and found.dtype == expected.dtype
            numpy.testing.assert_array_equal(found.array, expected)


METHODS = {
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "max": lambda x: x.max(),
    "max dim": lambda x: x.max(1)[0] + x.max(dim=-1).values,
    "min dim": lambda x: x.min(0, keepdim=True)[0],
    "amax": lambda x: x.amax(1),
    "exp": lambda x: x.exp().log().sqrt().abs(),
    "permute": lambda x: x.permute(1, 0) + x.permute((1, 0)) + x.t(),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1) + x.unsqueeze(0).squeeze(),
    "view": lambda x: x.view(2, -1).flatten() + x.reshape((-1,)) + x.view(-1),
    "clamp": lambda x: x.clamp(0.6, 1).pow(2) + x.clip(max=1),
    "norm": lambda x: x.norm() + x.norm(2, 1).sum() + x.std() + x.var(1, correction=0).sum(),
    "split": lambda x: x.split(3, 1)[1] * x.chunk(2, 1)[1][:, :1] + x.split([1, 3], 1)[0],
    "cast": lambda x: x.double().float().double(),
    "expand": lambda x: x.unsqueeze(0).expand(2, -1, -1).repeat(1, 2, 1).flip(0, 1),
    "more": lambda x: x.softmax(-1).cumsum(0).logsumexp(1) * x.prod(1) + x.clone().mean(1),
    "numbers": lambda x: x * x.numel() * x.dim(),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_a_tensor_is_the_method_of_pytorch(name):
    pytest.importorskip("torch")
    array = abs(numpy.random.default_rng(2).standard_normal((3, 4))) + 0.5
    x, twin = Tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    found, expected = METHODS[name](x), METHODS[name](twin)
    numpy.testing.assert_allclose(found.array, expected.detach().numpy(), rtol=1e-12)
    sent = numpy.random.default_rng(3).standard_normal(found.shape)
    found.backward(sent)
    expected.backward(torch.tensor(sent))
    numpy.testing.assert_allclose(x.grad, twin.grad.numpy(), rtol=1e-10, atol=1e-12)


def t(*shape):
    return Tensor(numpy.ones(shape))


REFUSED = {
    "norm": (lambda: ops.norm(t(3), "fro"), "p = 'fro'; wanted a number"),
    "var of one": (lambda: ops.var(t(3, 1), 1), "has 1 elements.*more than 1"),
    "logsumexp of none": (lambda: ops.logsumexp(t(3, 0), 1), "has 0 elements"),
    "clamp": (lambda: ops.clamp(t(3)), "without limits"),
    "stack": (lambda: ops.stack([t(3), t(4)]), "stack of shapes"),
    "roll": (lambda: ops.roll(t(3, 4), (1,), (0, 1)), "one shift for each dim"),
    "repeat": (lambda: ops.repeat(t(3, 4), 2), "one per dim"),
    "tril": (lambda: ops.tril(t(3)), r"wanted \[..., n, m\]"),
    "flatten": (lambda: ops.flatten(t(3, 4, 5), 2, 1), "the first before the last"),
    "einsum sizes": (lambda: ops.einsum("ij,jk->ik", t(3, 4), t(5, 6)), "one size"),
    "einsum letters": (lambda: ops.einsum("ij->ii", t(3, 3)), "stand there once"),
    "einsum operands": (lambda: ops.einsum("ij,jk", t(3, 3)), "1 operands; wanted 2"),
    "topk": (lambda: ops.topk(t(3, 4), 5), "k = 5"),
    "argmax": (lambda: ops.argmax(t(3, 0), 1), "no elements"),
    "one_hot": (lambda: ops.one_hot([1, 4], 4), "wanted 0 <= id < 4"),
    "index_select": (lambda: ops.index_select(t(3, 4), 1, [4]), "wanted 0 <= id < 4"),
    "index_add": (lambda: ops.index_add(t(3, 4), 0, [1], t(2, 4)), r"wanted \(1, 4\)"),
    "scatter_add": (lambda: ops.scatter_add(t(3, 4), 0, [[1]], t(1, 1)), "sizes of x"),
    "take_along_dim": (lambda: ops.take_along_dim(t(3, 4), [1], 0), "as many dimensions"),
    "outer": (lambda: ops.outer(t(3, 4), t(4)), "two vectors"),
    "bmm": (lambda: ops.bmm(t(2, 3, 4), t(4, 5)), "b, n, k"),
    "T": (lambda: t(2, 3, 4).T, "wanted a matrix"),
    "chunk": (lambda: ops.chunk(t(3), 0), "at least 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(ShapeError, match=message):
        call()


def test_half_floats_are_computed_in_float32_and_rounded():
    x = Tensor(numpy.linspace(-3, 3, 7).astype("float16"), requires_grad=True)
    for op in (ops.sin, ops.erf, ops.erf_gelu, ops.softplus, ops.std, ops.norm, ops.logsumexp):
        y = op(x)
        assert y.dtype == "float16"
        y.sum().backward()
        assert x.grad.dtype == "float16" and numpy.isfinite(x.grad).all()
