"""Layers by PyTorch's names: values, gradients of inputs and parameters, and second derivatives.

A line: name of the layer, its arguments, shapes of its inputs. float64 to 1e-10 (Hardsigmoid: 1e-7,
since PyTorch has 1 / 6 in float32).
"""

import inspect

import numpy
import pytest
from torch_or_skip import torch

from shardkit import ConfigurationError, ShapeError, nn
from shardkit.nn import ForwardContext, Tensor, forward_context, ops

ANY = [(4, 6)]
IMAGES = [(2, 4, 6, 6)]
PAIR = [(3, 5), (3, 5)]
SIDES = {1: (2, 1), 2: (2, 1, 0, 3), 3: (1, 0, 2, 1, 0, 1)}

TABLE = [
    *((name, {}, ANY) for name in "SELU ReLU6 Hardswish Hardsigmoid LogSigmoid Softsign".split()),
    *((name, {}, ANY) for name in "Tanhshrink CELU Hardshrink Softshrink GLU PReLU".split()),
    ("CELU", {"alpha": 0.5}, ANY),
    ("Hardshrink", {"lambd": 0.2}, ANY),
    ("Softshrink", {"lambd": 0.2}, ANY),
    ("Threshold", {"threshold": 0.1, "value": -2.0}, ANY),
    ("GLU", {"dim": 1}, IMAGES),
    ("PReLU", {"num_parameters": 4, "init": 0.1}, IMAGES),
    ("PixelShuffle", {"upscale_factor": 2}, IMAGES),
    ("PixelUnshuffle", {"downscale_factor": 3}, IMAGES),
    ("Unfold", {"kernel_size": 3}, IMAGES),
    ("Unfold", {"kernel_size": (2, 3), "dilation": 2, "padding": (1, 2), "stride": 2}, IMAGES),
    ("Fold", {"output_size": 5, "kernel_size": 2, "stride": 3}, [(2, 8, 4)]),
    (
        "Fold",
        {"output_size": (4, 5), "kernel_size": (2, 3), "padding": 1, "dilation": (1, 2)},
        [(2, 12, 15)],
    ),
    ("CosineSimilarity", {"dim": 1}, PAIR),
    ("PairwiseDistance", {}, PAIR),
    ("PairwiseDistance", {"p": 3.0, "keepdim": True}, PAIR),
    *(
        (f"ConstantPad{d}d", {"padding": SIDES[d], "value": 0.5}, [(2, 2) + (4,) * d])
        for d in SIDES
    ),
    *(
        (f"{kind}{d}d", {"padding": padding}, [(2, 2) + (4,) * d])
        for kind in ("ZeroPad", "CircularPad", "ReflectionPad", "ReplicationPad")
        for d in SIDES
        for padding in (1, SIDES[d])
    ),
    *(
        ("RNN", {"num_layers": 2, "bidirectional": two, **more}, [(5, 2, 3)])
        for two in (False, True)
        for more in ({}, {"nonlinearity": "relu", "bias": False})
    ),
    *(
        (cell, more, [(2, 3)])
        for cell in ("RNNCell", "LSTMCell", "GRUCell")
        for more in ({}, {"bias": False})
    ),
    ("RNNCell", {"nonlinearity": "relu"}, [(3,)]),
    *(
        ("TransformerDecoderLayer", {"nhead": 2, "dim_feedforward": 8, "dropout": 0.0, **more}, SEQ)
        for SEQ in [[(3, 2, 4), (5, 2, 4)]]
        for more in ({}, {"norm_first": True, "activation": "gelu"})
    ),
]
SIZED = {"RNN": (3, 4), "RNNCell": (3, 4), "LSTMCell": (3, 4), "GRUCell": (3, 4)}
SIZED["TransformerDecoderLayer"] = (4,)
# without a second derivative, here or (Hardsigmoid) in PyTorch
ONCE = ("LSTMCell", "GRUCell", "TransformerDecoderLayer", "Hardsigmoid")


def random(shape, seed):
    return numpy.random.default_rng(seed).standard_normal(shape)


def made(name, arguments):
    """Our layer and PyTorch's, with the same weights."""
    sizes = SIZED.get(name, ())
    wide = {"dtype": "float64"} if name in (*SIZED, "PReLU") else {}
    ours = getattr(nn, name)(*sizes, **arguments, **wide).finish(0)
    theirs = getattr(torch.nn, name)(*sizes, **arguments).double()
    state = {n: random(p.shape, len(n)) * 0.5 for n, p in ours.named_parameters().items()}
    ours.load_state_dict(state)
    theirs.load_state_dict({n: torch.tensor(value) for n, value in state.items()})
    return ours, theirs


def outputs(y):
    return [each for part in y for each in outputs(part)] if isinstance(y, tuple) else [y]


def scalar(parts, convert):
    return sum((y * y * convert(random(tuple(y.shape), 9 + i))).sum() for i, y in enumerate(parts))


def close(mine, wanted, tolerance=1e-10):
    wanted = numpy.zeros(1) if wanted is None else wanted.detach().numpy()
    mine = numpy.zeros(1) if mine is None else mine.numpy()
    numpy.testing.assert_allclose(mine, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("line", TABLE, ids=lambda line: f"{line[0]} {[*line[1].values()]}")
def test_values_and_derivatives_are_those_of_pytorch(line):
    name, arguments, shapes = line
    tolerance = 1e-7 if name in ("Hardsigmoid", "Hardswish") else 1e-10
    ours, theirs = made(name, arguments)
    arrays = [random(shape, seed) for seed, shape in enumerate(shapes)]
    xs = [Tensor(array, requires_grad=True) for array in arrays]
    zs = [torch.tensor(array, requires_grad=True) for array in arrays]
    mine, wanted = outputs(ours(*xs)), outputs(theirs(*zs))
    for y, z in zip(mine, wanted, strict=True):
        close(y.detach(), z)
    named = dict(theirs.named_parameters())
    leaves = [*xs, *ours.parameters()], [*zs, *(named[n] for n in ours.named_parameters())]
    again = name not in ONCE
    first = nn.grad(scalar(mine, lambda a: a), leaves[0], create_graph=again)
    other = torch.autograd.grad(scalar(wanted, torch.tensor), leaves[1], create_graph=True)
    for y, z in zip(first, other, strict=True):
        close(y.detach(), z, tolerance)
    if not again or not any(each.requires_grad for each in other):
        return
    second = nn.grad(scalar(first, lambda a: a), leaves[0], allow_unused=True)
    others = torch.autograd.grad(scalar(other, torch.tensor), leaves[1], allow_unused=True)
    for y, z in zip(second, others, strict=True):
        close(y, z, tolerance)


@pytest.mark.parametrize("name", "Tanh Softplus ELU Softmax Flatten CELU CosineSimilarity".split())
def test_a_layer_takes_the_inputs_that_its_forward_names(name):
    layer, x = (
        getattr(nn, name)(**{"dim": 1} if name == "Softmax" else {}),
        Tensor(random((3, 4), 0)),
    )
    names = [*inspect.signature(layer.forward).parameters]
    assert names == (["x1", "x2"] if name == "CosineSimilarity" else ["x"])
    assert numpy.isfinite(layer(**dict.fromkeys(names, x)).numpy()).all()
    for inputs in ([x] * (len(names) - 1), [x] * (len(names) + 1)):
        with pytest.raises(TypeError, match=r"forward\(\) .* positional argument"):
            layer(*inputs)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("dims", [2, 3])
def test_grid_sample_is_that_of_pytorch(dims, mode, padding_mode, align_corners):
    x, grid = (
        random((2, 3, 4, 5, 3)[: dims + 2], 0),
        0.9 * random((2, 4, 3, 2)[: dims + 1] + (dims,), 1),
    )
    form = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    xs = [Tensor(each, requires_grad=True) for each in (x, grid)]
    zs = [torch.tensor(each, requires_grad=True) for each in (x, grid)]
    y, z = ops.grid_sample(*xs, **form), torch.nn.functional.grid_sample(*zs, **form)
    close(y.detach(), z)
    weights = random(y.shape, 2)
    y.backward(weights)
    z.backward(torch.tensor(weights))
    close(Tensor(xs[0].grad), zs[0].grad)
    if mode == "bilinear":
        close(Tensor(xs[1].grad), zs[1].grad)
        bend = nn.grad((ops.grid_sample(*xs, **form) ** 2).sum(), xs, create_graph=True)
        other = torch.autograd.grad(
            (torch.nn.functional.grid_sample(*zs, **form) ** 2).sum(), zs, create_graph=True
        )
        for mine, wanted in zip(bend, other):
            close(mine.detach(), wanted)


@pytest.mark.parametrize("p", [0, 0.5, 1.5, 3, -1, float("-inf")])
@pytest.mark.parametrize("dim", [None, 1, (0, 2)])
def test_a_norm_of_any_p_is_that_of_pytorch(p, dim):
    x = random((2, 3, 4), 3)
    x[0, 0] = 0 if p > 0 else x[0, 0]
    ours, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = ops.norm(ours, p, dim), torch.linalg.vector_norm(theirs, p, dim)
    close(y.detach(), z)
    if p != 0:  # a count has no gradient here, and zeros there
        y.sum().backward()
        z.sum().backward()
        close(Tensor(ours.grad), theirs.grad)


def test_normalize_is_that_of_pytorch_for_zeros_too():
    x = random((3, 4, 2), 0)
    x[0] = 0
    for p in (1, 2, 3):
        close(ops.normalize(x, p), torch.nn.functional.normalize(torch.tensor(x), p))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_channels_are_dropped_whole_and_alike_however_the_batch_is_cut(dims):
    layer = getattr(nn, f"Dropout{dims}d")(0.4).finish(0)
    x = numpy.ones((8, 16) + (3,) * dims, "float32")
    training = ForwardContext(training=True, seed=1)
    with forward_context(training):
        y = layer(x).array
    by_channel = y.reshape(8, 16, -1)
    assert (by_channel == by_channel[:, :, :1]).all()
    assert set(numpy.unique(y)) == {0, numpy.float32(1 / 0.6)}
    with forward_context(ForwardContext(training=True, seed=1, first_sample=5, num_samples=3)):
        assert (layer(x[5:]).array == y[5:]).all()
    assert layer(Tensor(x)).array is not None and (layer(x).array == x).all()


def test_stacks_are_layers_one_after_the_other_with_values_of_their_own():
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    stack = nn.TransformerEncoder(layer, 3, nn.LayerNorm(4)).finish(0)
    x = random((2, 5, 4), 0).astype("float32")
    y = Tensor(x)
    for each in stack.layers:
        y = each(y)
    assert numpy.array_equal(stack(x).array, stack.norm(y).array)
    first, second, _ = stack.layers
    assert (first.linear1.weight.array != second.linear1.weight.array).any()
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, 0.0, batch_first=True), 2)
    assert decoder.finish(0)(x, x[:, :3], tgt_is_causal=True).shape == x.shape


@pytest.mark.parametrize(
    "line, error",
    [
        (lambda: nn.PReLU(0), ConfigurationError),
        (lambda: nn.ZeroPad2d((1, 2)), ConfigurationError),
        (lambda: nn.Dropout2d(1.0), ConfigurationError),
        (lambda: nn.RNN(2, 3, nonlinearity="gelu"), ConfigurationError),
        (lambda: nn.GLU()(numpy.ones((2, 3))), ShapeError),
        (lambda: nn.PixelShuffle(2)(numpy.ones((2, 3, 4, 4))), ShapeError),
        (lambda: nn.Unfold(5)(numpy.ones((2, 3, 4, 4))), ShapeError),
        (lambda: nn.Fold(4, 2)(numpy.ones((2, 4, 8))), ShapeError),
        (lambda: nn.GRUCell(2, 3)(numpy.ones((4, 2)), Tensor(numpy.ones((3, 3)))), ShapeError),
        (lambda: ops.grid_sample(numpy.ones((1, 1, 3)), numpy.ones((1, 1, 1))), ShapeError),
        (
            lambda: ops.grid_sample(numpy.ones((2, 1, 3, 3)), numpy.ones((1, 2, 2, 2))),
            ShapeError,
        ),
        (lambda: nn.SELU(inplace=True), ConfigurationError),
    ],
)
def test_what_does_not_fit_is_refused(line, error):
    with pytest.raises(error, match="wanted|there is none"):
        line()


def test_arguments_of_a_layer_of_one_operation_are_its_attributes():
    layer = nn.Threshold(0.5, value=2.0)
    assert (layer.threshold, layer.value, repr(nn.ELU(0.3))) == (0.5, 2.0, "ELU(alpha=0.3)")
    assert layer([0.0, 1.0]).array.tolist() == [2.0, 1.0]
    with pytest.raises(ConfigurationError, match="ELU with inplace = True; wanted False"):
        nn.ELU(inplace=True)
    with pytest.raises(TypeError, match="dim"):
        nn.Softmax()
