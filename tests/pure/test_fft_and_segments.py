"""Fourier transforms, segments and bags against PyTorch, in float64 to 1e-10."""

import numpy
import pytest
from torch_or_skip import torch

from shardkit import AutogradError, ConfigurationError, ShapeError, nn
from shardkit.nn import Tensor, grad, ops
from shardkit.testing.nn import linear_of_gathered, side_by_side

SHAPES = [(3, 4, 5), (1, 1, 1), (2, 7, 6)]
FORMS = [
    {},
    {"dim": (-1,), "norm": "ortho"},
    {"dim": (2, 1), "norm": "forward"},
    {"s": (4, 3)},
    {"s": (9,), "dim": (1,), "norm": "ortho"},
]


def close(found, expected):
    assert found.shape == tuple(expected.shape)
    numpy.testing.assert_allclose(found, expected.detach().numpy(), rtol=0, atol=1e-10)


def compare(op, twin, *arrays):
    """Compare values and gradients for a random gradient of the output."""
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    twins = [torch.tensor(array.copy(), requires_grad=True) for array in arrays]
    found, expected = op(*tensors), twin(*twins)
    close(found.array, expected)
    sent = numpy.random.default_rng(7).standard_normal(found.shape)
    found.backward(sent)
    expected.backward(torch.tensor(sent))
    for tensor, other in zip(tensors, twins):
        close(tensor.grad, other.grad)


def normal(*shape):
    return numpy.random.default_rng(len(shape)).standard_normal(shape)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["rfftn", "irfftn", "fftn", "ifftn"])
def test_a_transform_and_its_adjoint_are_those_of_pytorch(name, shape, form):
    if name == "irfftn" and "s" not in form and 1 in shape:
        return  # a signal of no elements, which is refused below
    op, twin = getattr(ops.fft, name), getattr(torch.fft, name)
    in_pairs, out_pairs = name != "rfftn", name != "irfftn"

    def theirs(x):
        y = twin(torch.view_as_complex(x.contiguous()) if in_pairs else x, **form)
        return torch.view_as_real(y) if out_pairs else y

    x = normal(*shape, 2)
    for array in (x, x.transpose(1, 0, 2, 3)[::-1]):
        compare(lambda x: op(x, **form), theirs, array if in_pairs else array[..., 0])
    if "dim" in form:
        empty = op(Tensor(x[:0] if in_pairs else x[:0, ..., 0]), **form)
        assert empty.shape[0] == 0


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_one_dimension_there_and_back_is_the_signal(size):
    x = Tensor(normal(3, size, 2)[..., 0])
    back = ops.fft.irfft(ops.fft.rfft(x, dim=1), size, dim=1)
    numpy.testing.assert_allclose(back.array, x.array, atol=1e-14)
    pairs = Tensor(normal(3, size, 2))
    back = ops.fft.ifft(ops.fft.fft(pairs, dim=-1), dim=-1)
    numpy.testing.assert_allclose(back.array, pairs.array, atol=1e-14)
    assert ops.fft.rfft(Tensor(x.array.astype("float32"))).dtype == "float32"


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("name", ["rfftn", "irfftn", "fftn", "ifftn"])
def test_float32_is_float64_rounded_with_the_same_bits_in_every_layout(name, norm):
    def run(x):
        before, leaf = x.copy(), Tensor(x, requires_grad=True)
        y = getattr(ops.fft, name)(leaf, dim=(0, 2), norm=norm)
        y.backward(y.array)
        assert y.dtype == leaf.grad.dtype == x.dtype and (x == before).all()
        return y.array, leaf.grad

    x = normal(6, 3, 14, 2)[..., slice(None) if name != "rfftn" else 0].astype("float32")
    found = run(x)
    for array, wanted in zip(found, run(x.astype("float64"))):
        tolerance = 8 * numpy.finfo("float32").eps * abs(wanted).max()
        numpy.testing.assert_allclose(array, wanted, rtol=0, atol=tolerance)
    turned, wide = numpy.moveaxis(numpy.moveaxis(x, 0, -1).copy(), -1, 0), numpy.repeat(x, 2, 1)
    for layout in (turned, wide[:, ::2]):
        assert [array.tobytes() for array in run(layout)] == [array.tobytes() for array in found]


def test_complex_products_are_those_of_pytorch():
    view = torch.view_as_complex

    def theirs(x, w):
        return torch.view_as_real(torch.einsum("bixy,ioxy->boxy", view(x), view(w)))

    x, w = normal(2, 3, 4, 5, 2), normal(3, 2, 4, 5, 2)
    compare(lambda x, w: ops.fft.complex_einsum("bixy,ioxy->boxy", x, w), theirs, x, w)
    compare(
        ops.fft.complex_multiply,
        lambda x, y: torch.view_as_real(view(x) * view(y)),
        normal(2, 3, 2),
        normal(3, 2),
    )


IDS = numpy.array([2, 0, 2, 2, 0, 4])


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 5), (6, 2, 3), (6, 0)], ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "amax"])
def test_segments_are_those_of_pytorch_also_those_without_rows(name, shape):
    op = getattr(ops, f"segment_{name.removeprefix('a')}")

    def theirs(x):
        """PyTorch counts the initial value among equal ones, so it is one that no row has."""
        column = [1] * (x.ndim - 1)
        index = torch.tensor(IDS).reshape(-1, *column).expand_as(x)
        start = torch.full((5, *shape[1:]), 0.123, dtype=torch.float64)
        y = start.scatter_reduce(0, index, x, name, include_self=False)
        return torch.where(
            torch.tensor([True, False, True, False, True]).reshape(-1, *column), y, 0
        )

    rows = normal(*shape)
    compare(lambda x: op(x, IDS, 5), theirs, rows)
    compare(lambda x: op(x, IDS, 5), theirs, numpy.round(rows))  # ties
    assert op(Tensor(rows[:0]), IDS[:0], 2).array.tolist() == numpy.zeros((2, *shape[1:])).tolist()
    half = op(Tensor(rows.astype("float16")), IDS, 5)
    assert half.dtype == "float16"


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings_are_those_of_pytorch(mode):
    bag = nn.EmbeddingBag(7, 3, mode=mode, dtype="float64").finish(1)
    twin = torch.nn.EmbeddingBag(7, 3, mode=mode, dtype=torch.float64)
    twin.weight.data = torch.tensor(bag.weight.array)
    twice = 3 if mode == "max" else 5  # equal ids of a bag share its maximum here
    ids, offsets = numpy.array([1, 5, twice, 0, 2, 6]), numpy.array([0, 3, 3, 4])
    for arguments in ((ids, offsets), (ids.reshape(3, 2),)):
        bag.weight.grad = twin.weight.grad = None
        found, expected = bag(*arguments), twin(*map(torch.tensor, arguments))
        close(found.array, expected)
        sent = normal(*found.shape)
        found.backward(sent)
        expected.backward(torch.tensor(sent))
        close(bag.weight.grad, twin.weight.grad)


REFUSED = {
    "complex": (lambda: ops.fft.rfft(Tensor(normal(3) * 1j)), ShapeError, "pairs"),
    "complex factor": (
        lambda: Tensor(normal(3), requires_grad=True) * 1j,
        AutogradError,
        "pairs",
    ),
    "no pairs": (lambda: ops.fft.fft(Tensor(normal(3, 4))), ShapeError, r"wanted \[..., 2\]"),
    "norm": (lambda: ops.fft.rfft(Tensor(normal(3)), norm="half"), ShapeError, "backward, ortho"),
    "nothing": (lambda: ops.fft.irfft(Tensor(normal(1, 2))), ShapeError, "at least 1"),
    "sizes": (lambda: ops.fft.rfftn(Tensor(normal(3)), (0,)), ShapeError, "at least 1"),
    "einsum": (
        lambda: ops.fft.complex_einsum("i", Tensor(normal(3, 2)), Tensor(normal(3, 2))),
        ShapeError,
        "two operands",
    ),
    "ids": (lambda: ops.segment_sum(Tensor(normal(6)), IDS, 4), ShapeError, "wanted 0 <= id < 4"),
    "rows": (lambda: ops.segment_max(Tensor(normal(5)), IDS, 5), ShapeError, r"\[n, ...\] and"),
    "mode": (lambda: nn.EmbeddingBag(3, 2, mode="min"), ConfigurationError, "with mode"),
    "offsets": (
        lambda: nn.EmbeddingBag(9, 2).finish()(IDS, [0, 3, 2]),
        ShapeError,
        "rise from 0",
    ),
    "no offsets": (lambda: nn.EmbeddingBag(9, 2).finish()(IDS), ShapeError, "without offsets"),
}


# rows and widths of tables, edges, elements of each result
GATHERED = [
    ([(5, 3)], 7, 2),
    ([(5, 3), (4, 1)], 40, 6),
    ([(2, 8), (9, 5), (1, 2)], 3, 1),
    ([(4, 3), (4, 3)], 0, 5),
    ([(0, 2), (3, 2)], 0, 5),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("tables, edges, width", GATHERED)
def test_a_linear_map_of_gathered_rows_is_that_of_the_rows_side_by_side(
    tables, edges, width, has_bias, dtype
):
    rng = numpy.random.default_rng(edges)
    indices = [rng.integers(0, max(rows, 1), edges) for rows, _ in tables]
    shapes = [*tables, (width, sum(columns for _, columns in tables)), *[(width,)] * has_bias]
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    sent = rng.standard_normal((edges, width)).astype(dtype)
    found = []
    for op in (linear_of_gathered, lambda t, i, w, b: ops.linear(side_by_side(t, i), w, b)):
        tensors = [Tensor(array, requires_grad=True) for array in arrays]
        given, (weight, *bias) = tensors[: len(tables)], tensors[len(tables) :]
        y = op(given, indices, weight, bias[0] if bias else None)
        y.backward(sent)
        found.append([y.array, *[tensor.grad for tensor in tensors]])
    tolerance = {"float32": 1e-5, "float64": 1e-13, "float16": 0}[dtype]
    for mine, wanted in zip(*found, strict=True):
        assert mine.dtype == wanted.dtype
        numpy.testing.assert_allclose(mine, wanted, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


LOOP_FORMS = [
    ((3, 16), (-1,)),
    ((2, 12, 40), (1, 2)),
    ((9, 2, 10, 18), (0, 2, 3)),
    ((2, 3, 8), (2,)),
]


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("shape, dims", LOOP_FORMS, ids=str)
def test_float32_by_loops_is_pytorch_in_float64(shape, dims, norm):
    """Values, gradients for a spectrum that is none of a real signal, and second derivatives."""
    x = normal(*shape).astype("float32")
    spectrum = normal(*shape[:-1], shape[-1] // 2 + 1, 2).astype("float32")
    sizes = [shape[dim] for dim in dims]

    def found(op, x, gradient, *form):
        leaf, sent = Tensor(x, requires_grad=True), Tensor(gradient, requires_grad=True)
        y = op(leaf, *form, norm=norm)
        (first,) = grad((y * sent).sum(), leaf, create_graph=True)
        second = grad((first * first).sum(), sent)[0]
        return [each.array for each in (y, first, second)]

    def expected(op, x, gradient, *form):
        leaf, sent = [
            torch.tensor(each.astype("float64"), requires_grad=True) for each in (x, gradient)
        ]
        y = op(leaf, *form, norm=norm)
        (first,) = torch.autograd.grad((y * sent).sum(), leaf, create_graph=True)
        second = torch.autograd.grad((first * first).sum(), sent)[0]
        return [each.detach().numpy() for each in (y, first, second)]

    def there(x, *form, norm):
        return torch.view_as_real(torch.fft.rfftn(x, *form, norm=norm))

    def back(x, *form, norm):
        return torch.fft.irfftn(torch.view_as_complex(x), *form, norm=norm)

    cases = [(ops.fft.rfftn, there, x, spectrum), (ops.fft.irfftn, back, spectrum, x)]
    for ours, theirs, *arrays in cases:
        pairs = zip(found(ours, *arrays, sizes, dims), expected(theirs, *arrays, sizes, dims))
        for one, right in pairs:
            assert one.dtype == "float32"
            assert abs(one - right).max() <= 4e-7 * abs(right).max()


def test_bits_of_a_transform_do_not_depend_on_the_others():
    x = normal(7, 5, 12, 48).astype("float32")
    whole = ops.fft.rfftn(Tensor(x), dim=(2, 3)).array
    back = ops.fft.irfftn(Tensor(whole), dim=(2, 3)).array
    for start, stop in [(0, 1), (2, 5), (6, 7)]:
        part = ops.fft.rfftn(Tensor(x[start:stop].copy()), dim=(2, 3)).array
        assert part.tobytes() == whole[start:stop].tobytes()
        again = ops.fft.irfftn(Tensor(part), dim=(2, 3)).array
        assert again.tobytes() == back[start:stop].tobytes()
    rows = ops.fft.rfft(Tensor(x)).array
    one = ops.fft.rfft(Tensor(x[3, 2, 7].copy())).array
    assert one.tobytes() == rows[3, 2, 7].tobytes()


def test_rows_that_begin_within_a_pair_are_transformed():
    memory = numpy.arange(33, dtype="float32")
    x = memory[1:].reshape(2, 16)
    right = numpy.fft.rfft(x.astype("float64"))
    found = ops.fft.rfft(Tensor(x)).array
    numpy.testing.assert_allclose(found[..., 0], right.real, atol=1e-4)
    numpy.testing.assert_allclose(found[..., 1], right.imag, atol=1e-4)
