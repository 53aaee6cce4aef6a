"""Convolutions against PyTorch, from one table: values and gradients in float64 to 1e-10."""

import inspect
import pickle

import numpy
import pytest

from shardkit import ConfigurationError, ShapeError, nn
from shardkit.nn import Tensor, ops
from shardkit.testing.array import KERNELS, WAYS, ConvolutionWindow, kernels, products

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = F = None

# Shape of x, number of out channels, size of the window, arguments.
FORMS = [
    ((2, 3, 9), 4, 3, {}),
    ((2, 4, 8), 6, 4, {"stride": 3, "padding": 2, "groups": 2}),
    ((3, 1, 1), 1, 1, {}),
    ((0, 2, 5), 3, 3, {"padding": 1}),
    ((1, 2, 11), 5, 3, {"dilation": 3, "padding": "same"}),
    ((2, 3, 7, 6), 5, 3, {"padding": 1}),
    ((2, 2, 9, 5), 7, (3, 2), {"stride": (2, 1), "padding": (0, 1), "dilation": (1, 2)}),
    ((2, 4, 6, 6), 4, 3, {"groups": 4, "padding": 1}),
    ((2, 6, 8, 8), 9, 2, {"groups": 3, "stride": 2}),
    ((0, 3, 5, 5), 2, 3, {}),
    ((1, 3, 1, 1), 2, 3, {"padding": 1}),
    ((3, 2, 6, 7), 3, (2, 4), {"padding": "same"}),
    ((2, 2, 5, 5), 3, 1, {"stride": 3}),
    ((2, 2, 4, 5, 6), 3, 3, {"padding": 1}),
    ((1, 4, 5, 3, 4), 2, (2, 3, 1), {"stride": (2, 1, 3), "padding": (1, 2, 0), "groups": 2}),
    ((2, 1, 3, 3, 3), 1, 3, {"padding": "valid"}),
]
TRANSPOSED = [
    ((2, 3, 5), 4, 3, {"stride": 2, "padding": 1, "output_padding": 1}),
    ((0, 2, 5), 3, 3, {}),
    ((2, 2, 4), 2, 3, {"dilation": 3, "output_padding": 2}),
    ((2, 4, 3, 5), 6, (2, 3), {"stride": (3, 2), "groups": 2, "output_padding": (2, 0)}),
    ((1, 3, 1, 1), 2, 2, {"stride": 2}),
    ((2, 3, 4, 4), 3, 4, {"stride": 2, "padding": 1, "groups": 3}),
    ((2, 2, 3, 3, 2), 3, 2, {"stride": 2, "padding": (1, 0, 0)}),
]
NAMES = {
    **{f"conv {number}": ("conv", *form) for number, form in enumerate(FORMS)},
    **{f"transposed {n}": ("conv_transpose", *form) for n, form in enumerate(TRANSPOSED)},
}
every_form = pytest.mark.parametrize("form", NAMES.values(), ids=NAMES)


def arrays(kind, shape, num_out, window, more, dtype="float64"):
    """x, weight and bias."""
    rng = numpy.random.default_rng(len(shape))
    num_dims, groups = len(shape) - 2, more.get("groups", 1)
    taps = (window,) * num_dims if isinstance(window, int) else window
    channels = (num_out, shape[1] // groups)
    if kind == "conv_transpose":
        channels = (shape[1], num_out // groups)
    shapes = [shape, (*channels, *taps), (num_out,)]
    return f"{kind}{num_dims}d", [rng.standard_normal(one).astype(dtype) for one in shapes]


def run(operation, make, inputs, more):
    """The value of an operation, and the gradients of a weighted sum of it."""
    leaves = [make(array) for array in inputs]
    y = operation(*leaves, **more)
    weights = numpy.linspace(-1, 2, numpy.prod(y.shape, dtype=int)).reshape(tuple(y.shape))
    y.backward(weights.astype(inputs[0].dtype) if make is mine else torch.tensor(weights).to(y))
    return [y.detach().numpy(), *[numpy.asarray(leaf.grad) for leaf in leaves]]


def mine(array):
    return Tensor(array, requires_grad=True)


def theirs(array):
    return torch.tensor(array, requires_grad=True)


@every_form
def test_values_and_gradients_are_those_of_pytorch(form):
    pytest.importorskip("torch")
    *shape, more = form
    name, inputs = arrays(*shape, more)
    found = run(getattr(ops, name), mine, inputs, more)
    wanted = run(getattr(F, name), theirs, inputs, more)
    for a, b in zip(found, wanted, strict=True):
        numpy.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


@every_form
def test_the_definition_gives_the_same_in_float32_and_elsewhere_in_memory(form, monkeypatch):
    *shape, more = form
    name, inputs = arrays(*shape, more, dtype="float32")
    found = run(getattr(ops, name), mine, inputs, more)
    turned = [numpy.moveaxis(numpy.moveaxis(x, 0, -1).copy(), -1, 0) for x in inputs]
    for a, b in zip(run(getattr(ops, name), mine, turned, more), found):
        assert (a == b).all()
    for kernel in ("convolve", "convolve_input", "convolve_weight"):
        monkeypatch.setattr(KERNELS[kernel], "cpu", KERNELS[kernel].reference)
    for a, b in zip(run(getattr(ops, name), mine, inputs, more), found):
        scale = max(1, abs(a).max(initial=0))
        numpy.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "form", [NAMES["conv 6"], NAMES["transposed 3"]], ids=["conv", "transposed"]
)
def test_gradients_and_second_derivatives_are_finite_differences(form):
    *shape, more = form
    name, inputs = arrays(*shape, more)
    rng = numpy.random.default_rng(1)
    directions = [rng.standard_normal(x.shape) for x in inputs]

    def slope(step):
        """The gradient at a point along the directions, along them."""
        leaves = [mine(x + step * d) for x, d in zip(inputs, directions)]
        total = (getattr(ops, name)(*leaves, **more) ** 3).sum()
        parts = nn.grad(total, leaves, create_graph=True)
        return sum((part * Tensor(d)).sum() for part, d in zip(parts, directions)), total, leaves

    along, _, leaves = slope(0.0)
    h = 1e-5
    (_, above, _), (_, below, _) = slope(h), slope(-h)
    assert along.item() == pytest.approx((above.item() - below.item()) / (2 * h), rel=1e-6)
    again = nn.grad(along, leaves)
    found = sum((part.array * d).sum() for part, d in zip(again, directions))
    steeper, flatter = slope(h)[0].item(), slope(-h)[0].item()
    assert found == pytest.approx((steeper - flatter) / (2 * h), rel=1e-6)


def test_bits_of_a_sample_do_not_depend_on_the_batch_nor_on_what_else_is_wanted():
    rng = numpy.random.default_rng(0)
    x, weight = [rng.standard_normal(s).astype("float32") for s in ((5, 3, 9, 10), (6, 3, 3, 3))]
    whole = ops.conv2d(Tensor(x), Tensor(weight), padding=1).array
    for rows in (slice(0, 1), slice(2, 5)):
        assert (ops.conv2d(Tensor(x[rows]), Tensor(weight), padding=1).array == whole[rows]).all()
    grads = []
    for wants_x in (True, False):
        leaf, w = Tensor(x, requires_grad=wants_x), mine(weight)
        ops.conv2d(leaf, w, stride=2).sum().backward()
        grads.append(w.grad)
    assert (grads[0] == grads[1]).all()


# ---- the ways of the CPU -------------------------------------------------------------------------

# Sizes of the grid and of the taps, samples, channels, outs, stride, dilation, zeros around.
SHAPES = {
    "one_tap": [
        ((5, 7), (1, 1), 3, 9, 17, 1, 1, 0),
        ((33,), (1,), 2, 40, 8, 1, 1, 0),
        ((3, 4, 5), (1, 1, 1), 2, 8, 33, 1, 1, 0),
    ],
    "winograd": [
        ((4, 4), (3, 3), 2, 192, 190, 1, 1, 1),
        ((9, 14), (3, 3), 3, 48, 70, 1, 1, 1),
        ((18, 10), (3, 3), 2, 70, 49, 1, 1, 0),
        ((7, 11), (3, 3), 1, 65, 64, 1, 1, 2),
        ((67, 66), (3, 3), 2, 33, 40, 1, 1, 1),
        ((4, 3), (3, 3), 2, 16, 24, 1, 1, 1),
        ((12, 10), (2, 2), 2, 64, 70, 1, 1, 1),
        ((13, 9), (4, 4), 3, 33, 24, 1, 1, 2),
        ((10, 17), (5, 5), 2, 40, 70, 1, 1, 2),
        ((9, 9), (5, 5), 2, 70, 33, 1, 1, 0),
        ((4, 12, 12), (1, 3, 3), 2, 64, 64, 1, 1, 1),
        ((1, 12, 12), (1, 3, 3), 2, 64, 64, 1, 1, 1),
        ((5, 6, 7), (3, 3, 3), 2, 41, 40, 1, 1, 1),
        ((3, 9, 8), (2, 3, 3), 3, 33, 20, 1, 1, 0),
        ((2, 10, 9), (5, 4, 4), 2, 24, 40, 1, 1, 3),
    ],
    "columns": [
        ((9, 10), (3, 3), 3, 33, 40, 2, 1, 1),
        ((8, 6), (2, 2), 2, 7, 30, 2, 1, 0),
        ((25,), (4,), 3, 24, 100, 3, 2, 2),
        ((12, 9), (3, 3), 2, 70, 65, 1, 2, 2),
        ((5, 6, 7), (3, 2, 3), 2, 64, 64, 1, 1, 1),
        ((17, 33), (5, 1), 2, 96, 96, 1, 1, 1),
        ((1, 4, 40), (1, 1, 5), 2, 128, 128, 1, 1, 1),
    ],
    "swept": [
        ((3000,), (3,), 1, 128, 128, 1, 1, 1),
        ((3, 17_000), (3, 3), 1, 16, 16, 1, 1, 1),
        ((9, 8), (3, 3), 2, 5, 40, 1, 1, 1),
        ((6, 6), (3, 3), 2, 15, 15, 1, 1, 1),
    ],
}
every_shape = pytest.mark.parametrize(
    "way, shape",
    [(way, shape) for way, shapes in SHAPES.items() for shape in shapes],
    ids=lambda value: value if isinstance(value, str) else "x".join(map(str, value[0])),
)


def a_convolution(shape, dtype):
    """A window, x, weight, bias, and a gradient of y."""
    sizes, taps, samples, channels, outs, *more = shape
    stride, dilation, around = [(number,) * len(sizes) for number in more]
    window = ConvolutionWindow(stride, dilation, around, around)
    rng = numpy.random.default_rng(0)
    shapes = (samples, channels, *sizes), (outs, channels, *taps), (outs,)
    shapes = (*shapes, (samples, outs, *window.counts(sizes, taps)))
    return window, *[rng.standard_normal(one).astype(dtype) for one in shapes]


def convolved(of, shape, dtype):
    """y and the gradients of x and of the weight, by the kernels or by their definitions."""
    window, x, weight, bias, gradient = a_convolution(shape, dtype)
    about = (weight, bias[: weight.shape[1]] if weight.shape[1] <= bias.size else None, window)
    return [
        of("convolve")(x, weight, bias, window),
        of("convolve_input")(gradient, *about, x.shape[2:]),
        of("convolve_weight")(gradient, x, window, weight.shape[2:]),
    ]


def spread_over(arrays):
    """As arrays whose elements lie in another order."""
    return [numpy.moveaxis(numpy.moveaxis(x, 0, -1).copy(), -1, 0) for x in arrays]


@pytest.mark.thorough(but=6)
@every_shape
def test_each_way_computes_the_definition(way, shape):
    right = convolved(lambda name: KERNELS[name].reference, shape, "float64")
    for dtype, close in (("float32", 1e-5), ("float64", 1e-13)):
        for a, b in zip(convolved(lambda name: getattr(kernels, name), shape, dtype), right):
            assert a.dtype == dtype and a.shape == b.shape
            assert abs(a - b).max() < close * abs(b).max()


@every_shape
def test_a_shape_is_convolved_by_its_way(way, shape):
    window, _, weight, _, gradient = a_convolution(shape, "float32")
    window, missing = window.in_dims(3), (1,) * (5 - weight.ndim)
    form = (*weight.shape[:2], *missing, *weight.shape[2:]), (*missing, *gradient.shape[2:])
    found = next(one for one in WAYS if one.is_quicker(window, *form, gradient.dtype))
    assert found.__name__.endswith(f".{way}")


@pytest.mark.thorough(but=4)
@every_shape
def test_bits_of_each_way_depend_neither_on_the_batch_nor_on_the_place_in_memory(way, shape):
    window, x, weight, bias, gradient = a_convolution((*shape[:2], 7, *shape[3:]), "float32")
    y = kernels.convolve(x, weight, bias, window)
    for_x = kernels.convolve_input(gradient, weight, None, window, x.shape[2:])
    for rows in (slice(0, 1), slice(2, 7)):
        part, of_part = x[rows].copy(), gradient[rows].copy()
        assert (kernels.convolve(part, weight, bias, window) == y[rows]).all()
        again = kernels.convolve_input(of_part, weight, None, window, x.shape[2:])
        assert (again == for_x[rows]).all()
    x, weight, gradient = spread_over((x, weight, gradient))
    assert (kernels.convolve(x, weight, bias, window) == y).all()
    assert (kernels.convolve_input(gradient, weight, None, window, x.shape[2:]) == for_x).all()


@pytest.mark.thorough(but=3)
@every_shape
def test_the_gradient_of_a_weight_is_put_where_it_is_asked_for(way, shape):
    window, x, weight, _, gradient = a_convolution(shape, "float32")
    found = kernels.convolve_weight(gradient, x, window, weight.shape[2:])
    around = numpy.full((weight.size + 2,), numpy.nan, "float32")
    out = around[1:-1].reshape(weight.shape)
    assert kernels.convolve_weight(gradient, x, window, weight.shape[2:], out=out) is out
    assert (out == found).all() and numpy.isnan(around[[0, -1]]).all()


@every_shape
def test_direct_convolutions_add_every_product(way, shape):
    """A fill value of 1e8 leaves the windows that do not read it as they are."""
    sizes, taps, _, channels, *_ = shape
    window, x, weight, bias, _ = a_convolution(shape, "float32")
    x[(0, 0, *[size - 1 for size in sizes])] = 1e8
    ones = numpy.ones_like(weight)
    reach = KERNELS["convolve"].reference((x == 1e8).astype("float32"), ones, None, window) == 0
    with products.convolutions("direct"):
        found = kernels.convolve(x, weight, bias, window)[reach]
        kernels.convolve_input(*a_convolution(shape, "float32")[4:], weight, None, window, sizes)
    right = KERNELS["convolve"].reference(
        *[each.astype(float) for each in (x, weight, bias)], window
    )[reach]
    assert right.size and abs(found - right).max() < 1e-5 * abs(right).max()


def test_no_number_of_one_position_comes_near_another():
    """NaN in one sample and at one position reaches what reads it, and nothing else."""
    for way, shapes in SHAPES.items():
        shape = shapes[0]
        window, x, weight, bias, _ = a_convolution(shape, "float32")
        clean = kernels.convolve(x, weight, bias, window)
        x[-1, -1] = numpy.nan
        y = kernels.convolve(x, weight, bias, window)
        assert (y[:-1] == clean[:-1]).all(), way


@pytest.mark.thorough(but=3)
@every_shape
def test_each_way_reads_nothing_that_it_did_not_write(way, shape, monkeypatch):
    def full_of_nan(shape, dtype, *more):
        array = numpy.empty(shape, dtype, *more)
        array.view("uint8").fill(255)
        return array

    expected = convolved(lambda name: getattr(kernels, name), shape, "float32")
    for one in WAYS:
        if hasattr(one, "empty"):
            monkeypatch.setattr(one, "empty", full_of_nan)
    for found, wanted in zip(
        convolved(lambda name: getattr(kernels, name), shape, "float32"), expected, strict=True
    ):
        assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("name, window", [("Conv1d", 4), ("Conv2d", (3, 2)), ("Conv3d", 3)])
@pytest.mark.parametrize("padding", [2, "same"])
def test_layers_have_the_modes_of_pytorch(name, window, mode, padding):
    pytest.importorskip("torch")
    form = {"padding": padding, "padding_mode": mode}
    ours = getattr(nn, name)(2, 3, window, **form, dtype="float64").finish(1)
    twin = getattr(torch.nn, name)(2, 3, window, **form, dtype=torch.float64)
    twin.load_state_dict({key: torch.tensor(value) for key, value in ours.state_dict().items()})
    x = numpy.random.default_rng(0).standard_normal((2, 2, *[5, 4, 6][: int(name[4])]))
    leaf, other = mine(x), theirs(x)
    (ours(leaf) ** 2).sum().backward()
    (twin(other) ** 2).sum().backward()
    numpy.testing.assert_allclose(leaf.grad, other.grad.numpy(), atol=1e-10)
    numpy.testing.assert_allclose(ours.weight.grad, twin.weight.grad.numpy(), atol=1e-10)


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_transposed_layers_take_the_size_of_their_result(num_dims):
    pytest.importorskip("torch")
    name, shape = f"ConvTranspose{num_dims}d", (2, 4, 5, 3, 4)[: num_dims + 2]
    ours = getattr(nn, name)(4, 6, 3, 2, 1, groups=2, dtype="float64").finish(2)
    twin = getattr(torch.nn, name)(4, 6, 3, 2, 1, groups=2, dtype=torch.float64)
    twin.load_state_dict({key: torch.tensor(value) for key, value in ours.state_dict().items()})
    x = numpy.random.default_rng(0).standard_normal(shape)
    size = [2 * n for n in shape[2:]]
    wanted = twin(torch.tensor(x), output_size=size).detach().numpy()
    numpy.testing.assert_allclose(ours(Tensor(x), size).array, wanted, atol=1e-10)
    with pytest.raises(ShapeError, match="output_size"):
        ours(Tensor(x), [2 * n + 1 for n in shape[2:]])


def test_initial_values_are_uniform_by_fan_in():
    layer = nn.Conv2d(8, 16, 3, groups=2).finish(0)
    bound = (4 * 9) ** -0.5
    for values in (layer.weight.array, layer.bias.array):
        assert abs(values).max() <= bound and abs(values).max() > 0.7 * bound
    assert nn.ConvTranspose1d(2, 6, 5).finish(0).weight.init == nn.init.Uniform(30**-0.5)


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "groups that divide both"),
        (lambda: nn.Conv2d(3, 4, (3, 3, 3)), "kernel_size"),
        (lambda: nn.Conv1d(3, 4, 3, stride=2, padding="same"), "stride"),
        (lambda: nn.Conv1d(3, 4, 3, padding="full"), "padding"),
        (lambda: nn.Conv1d(3, 4, 3, padding_mode="mirror"), "padding_mode"),
        (lambda: nn.ConvTranspose1d(3, 4, 3, padding_mode="circular"), "padding_mode"),
        (lambda: nn.Conv1d(3, 4, 3, stride=0), "stride"),
    ],
)
def test_wrong_arguments_are_refused_by_name(make, match):
    with pytest.raises(ConfigurationError, match=match):
        make()


def test_wrong_inputs_are_refused():
    layer = nn.Conv2d(3, 4, 3).finish(0)
    for shape in ((2, 4, 8, 8), (3, 8, 8), (2, 3, 2, 8)):
        with pytest.raises(ShapeError, match=r"onv2d of x"):
            layer.check_input(Tensor(numpy.ones(shape, "float32")))
            layer(Tensor(numpy.ones(shape, "float32")))
    with pytest.raises(ShapeError, match="one floating dtype"):
        layer(Tensor(numpy.ones((2, 3, 8, 8))))
    with pytest.raises(ConfigurationError, match="output_padding below"):
        ops.conv_transpose1d(*[Tensor(numpy.ones((1, 1, 3)))] * 2, output_padding=1)


@pytest.mark.thorough
@pytest.mark.parametrize("way, channels, taps", [("winograd", 40, 3), ("columns", 32, 2)])
def test_a_weights_gradient_keeps_its_digits_over_many_windows(way, channels, taps):
    """Half a million positive numbers: one chain of float32 is wrong by 1e-4."""
    rng = numpy.random.default_rng(0)
    x = rng.random((1, channels, 720, 720)).astype("float32")
    stride, around = (1, 1) if way == "winograd" else (2, 0)
    window = ConvolutionWindow((stride,) * 2, (1, 1), (around,) * 2, (around,) * 2)
    counts = window.counts(x.shape[2:], (taps, taps))
    gradient = rng.random((1, channels, *counts)).astype("float32")
    found = kernels.convolve_weight(gradient, x, window, (taps, taps))
    o, c = slice(3, 5), slice(7, 9)
    right = KERNELS["convolve_weight"].reference(
        gradient[:, o].astype(float), x[:, c].astype(float), window, (taps, taps)
    )
    assert abs(found[o, c] / right - 1).max() < 2e-6


@pytest.mark.parametrize("num_dims", (1, 2, 3))
@pytest.mark.parametrize(
    "family",
    "conv conv_transpose max_pool avg_pool adaptive_avg_pool adaptive_max_pool".split(),
)
def test_each_of_a_family_is_a_function_of_its_own(family, num_dims):
    name = f"{family}{num_dims}d"
    operation = getattr(ops, name)
    assert operation.__name__ == operation.__qualname__ == name
    assert next(iter(inspect.signature(operation).parameters)) == "x"
    assert pickle.loads(pickle.dumps(operation)) is operation
    too_many = Tensor(numpy.ones((1,) * (num_dims + 3)))
    with pytest.raises(ShapeError, match=f"{name} of .*{num_dims} dimensions"):
        operation(too_many, too_many if "conv" in family else 1)
    with pytest.raises(TypeError, match="strides"):
        operation(too_many, too_many, strides=1)
