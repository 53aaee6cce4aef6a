"""Models of science beside their twins in PyTorch: 50 steps of float32 from one start."""

import numpy
import pytest
from torch_or_skip import torch

import shardkit as sk
from shardkit import ConfigurationError, ShapeError
from shardkit.nn import SpectralConv, Tensor

STEPS = 20
SENDERS, RECEIVERS = [0, 1, 2, 3, 3, 1], [1, 2, 3, 0, 1, 3]


def grid_batch(shape, dtype="float32"):
    rng = numpy.random.default_rng(0)
    return [rng.standard_normal((4, channels, *shape)).astype(dtype) for channels in (2, 1)]


def channels(weights, name, x):
    y = torch.einsum("oi,bi...->bo...", weights[f"{name}.weight"], x)
    return y + weights[f"{name}.bias"].reshape(-1, *[1] * (x.ndim - 2))


def fno(weights, x, modes=(3, 4), layers=2):
    """The network of arXiv 2010.08895 by whole transforms, with two corners of each spectrum."""
    gelu = torch.nn.functional.gelu
    lines = torch.meshgrid(*[torch.linspace(0, 1, size) for size in x.shape[2:]], indexing="ij")
    x = torch.cat([x, *[line.expand(len(x), 1, *line.shape) for line in lines]], 1)
    x = channels(weights, "lift.map", x)
    for index in range(layers):
        name = f"layers.{index}"
        weight = torch.view_as_complex(weights[f"{name}.spectral.weight"])
        spectrum = torch.fft.rfftn(x, dim=tuple(range(2, x.ndim)))
        out = torch.zeros_like(spectrum)
        last = slice(modes[-1])
        corners = (
            [(last,)]
            if len(modes) == 1
            else [(slice(modes[0]), last), (slice(-modes[0], None), last)]
        )
        for corner in corners:
            part = (slice(None), slice(None), *corner)
            out[part] = torch.einsum("bi...,io...->bo...", spectrum[part], weight[part])
        y = torch.fft.irfftn(out, s=x.shape[2:], dim=tuple(range(2, x.ndim)))
        x = y + channels(weights, f"{name}.pointwise", x)
        x = gelu(x) if index < layers - 1 else x
    return channels(weights, "project.down", gelu(channels(weights, "project.up", x)))


def relative_l2(prediction, y):
    return ((prediction - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()


def mean_squared_error(prediction, y):
    return ((prediction - y) ** 2).mean()


def message_passing(weights, x, steps=2, readout="nodes"):
    silu = torch.nn.functional.silu

    def linear(name, x):
        return torch.nn.functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = silu(linear("encode.map", x))
    for index in range(steps):
        ends = torch.cat([x[:, SENDERS], x[:, RECEIVERS]], -1)
        messages = silu(linear(f"steps.{index}.message", ends))
        heard = torch.zeros_like(x).index_add(1, torch.tensor(RECEIVERS), messages)
        x = x + linear(
            f"steps.{index}.out", silu(linear(f"steps.{index}.update", torch.cat([x, heard], -1)))
        )
    y = linear("decode.map", x)
    return y.sum(1) if readout == "sum" else y


def graph_batch(readout="nodes"):
    rng = numpy.random.default_rng(1)
    shape = (4, 5, 2) if readout == "nodes" else (4, 2)
    return rng.standard_normal((4, 5, 3)).astype("float32"), rng.standard_normal(shape).astype(
        "float32"
    )


def graph_model(**more):
    return sk.models.MessagePassing(3, 2, SENDERS, RECEIVERS, width=8, steps=2, **more)


def vit(weights, x, heads=2, layers=2):
    """The network of arXiv 2010.11929, whose patches are a convolution with a stride."""

    def linear(name, x):
        return torch.nn.functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name, x):
        parts = [weights[f"{name}.{part}"] for part in ("weight", "bias")]
        return torch.nn.functional.layer_norm(x, x.shape[-1:], *parts, 1e-6)

    def by_head(x):
        return x.unflatten(-1, (heads, -1)).swapaxes(1, 2)

    name = "embedding.patches"
    size = (2,) * (x.ndim - 2)
    convolve = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)
    kernel = weights[f"{name}.weight"].unflatten(1, (x.shape[1], *size))
    x = convolve[len(size) - 1](x, kernel, weights[f"{name}.bias"], size).flatten(2).swapaxes(1, 2)
    x = torch.cat([weights["embedding.class_token"].expand(len(x), 1, -1), x], 1)
    x = x + weights["embedding.positions"]
    for index in range(layers):
        name = f"layers.{index}"
        y = norm(f"{name}.attention_norm", x)
        q, k, v = [by_head(linear(f"{name}.attention.{p}", y)) for p in ("query", "key", "value")]
        y = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
        x = x + linear(f"{name}.attention.output", y.swapaxes(1, 2).flatten(2))
        y = linear(f"{name}.mlp.up", norm(f"{name}.mlp_norm", x))
        x = x + linear(f"{name}.mlp.down", torch.nn.functional.gelu(y, approximate="tanh"))
    return linear("head.map", norm("head.norm", x[:, 0]))


def image_batch(*shape):
    rng = numpy.random.default_rng(2)
    return rng.standard_normal((6, 3, *shape)).astype("float32"), rng.integers(0, 4, 6)


def vit_model(*shape):
    return sk.models.ViT(shape, 2, 3, 4, width=8, depth=2, heads=2, seed=1)


def norm_of(weights, name, x, groups=None):
    """A group norm, or without groups the batch norm of training."""
    given = [weights[f"{name}.{part}"] for part in ("weight", "bias")]
    if groups:
        return torch.nn.functional.group_norm(x, groups, *given)
    return torch.nn.functional.batch_norm(x, None, None, *given, training=True)


def convolved(weights, name, x, **more):
    convolve = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)
    bias = weights.get(f"{name}.bias")
    return convolve[x.ndim - 3](x, weights[f"{name}.weight"], bias, **more)


def resnet(weights, x, strides=(1, 2), groups=None, is_small=True):
    """The network of arXiv 1512.03385 of one block in each stage."""
    relu = torch.relu

    def normed(name, x, stride=1):
        kernel = weights[f"{name}.conv.weight"].shape[2]
        y = convolved(weights, f"{name}.conv", x, stride=stride, padding=kernel // 2)
        return norm_of(weights, f"{name}.norm", y, groups)

    x = relu(normed("stem.map", x, 1 if is_small else 2))
    x = x if is_small else torch.nn.functional.max_pool2d(x, 3, 2, 1)
    for stage, stride in enumerate(strides):
        name = f"stages.{stage}.0"
        y, count = x, len([n for n in weights if n.startswith(name) and "convolutions" in n]) // 3
        for index in range(count):
            is_strided = index == (0 if count == 2 else 1)
            y = relu(y) if index else y
            y = normed(f"{name}.convolutions.{index}", y, stride if is_strided else 1)
        has_map = f"{name}.shortcut.conv.weight" in weights
        x = relu((normed(f"{name}.shortcut", x, stride) if has_map else x) + y)
    x = x.flatten(2).mean(2)
    return torch.nn.functional.linear(x, weights["head.map.weight"], weights["head.map.bias"])


def unet(weights, x, depth=2, groups=2):
    """The network of arXiv 1505.04597 with group norms, on a grid that it keeps."""
    functional = torch.nn.functional
    dims = x.ndim - 2

    def level(name, x):
        for part in ("first", "second"):
            x = convolved(weights, f"{name}.{part}", x, padding=1)
            x = torch.relu(norm_of(weights, f"{name}.{part}_norm", x, groups))
        return x

    x = level("enter", x)
    skips = []
    for index in range(depth):
        skips.append(x)
        x = level(f"down.{index}", getattr(functional, f"max_pool{dims}d")(x, 2))
    for index in reversed(range(depth)):
        name = f"up.{index}.double"
        given = [weights[f"{name}.{part}"] for part in ("weight", "bias")]
        x = getattr(functional, f"conv_transpose{dims}d")(x, *given, stride=2)
        x = level(f"up.{index}.level", torch.cat([skips.pop(), x], 1))
    return convolved(weights, "project", x)


def unet_model(dims):
    """In float64: in float32 the steps of networks with maxima drift apart, up to 5e-4 on a CPU."""
    return sk.models.UNet(2, 1, dims=dims, width=4, depth=2, groups=2, dtype="float64")


def class_entropy(prediction, y):
    return torch.nn.functional.cross_entropy(prediction, y)


CASES = {
    "ResNet": (
        lambda: sk.models.ResNet(3, 4, (1, 1), width=4, small_images=True),
        resnet,
        class_entropy,
        lambda: image_batch(6, 5),
    ),
    "ResNet of bottlenecks": (
        lambda: sk.models.ResNet(3, 4, (1, 1), width=8, bottleneck=True, norm="group"),
        lambda weights, x: resnet(weights, x, groups=8, is_small=False),
        class_entropy,
        lambda: image_batch(12, 10),
    ),
    "ResNet of three dimensions": (
        lambda: sk.models.ResNet(3, 4, (1, 1), dims=3, width=8, small_images=True, norm="group"),
        lambda weights, x: resnet(weights, x, groups=8),
        class_entropy,
        lambda: image_batch(3, 4, 4),
    ),
    **{
        f"UNet of {len(shape)} dimensions": (
            lambda shape=shape: unet_model(len(shape)),
            unet,
            mean_squared_error,
            lambda shape=shape: [each.astype("float64") for each in grid_batch(shape)],
        )
        for shape in ((8,), (8, 4), (4, 4, 8))
    },
    **{
        f"ViT of {len(shape)} dimensions": (
            lambda shape=shape: vit_model(*shape),
            vit,
            lambda prediction, y: torch.nn.functional.cross_entropy(prediction, y),
            lambda shape=shape: image_batch(*shape),
        )
        for shape in ((6,), (4, 6), (2, 4, 6))
    },
    "FNO of one dimension": (
        lambda: sk.models.FNO(2, 1, 4, width=6, layers=2),
        lambda weights, x: fno(weights, x, (4,)),
        relative_l2,
        lambda: grid_batch((11,)),
    ),
    "FNO of two dimensions": (
        lambda: sk.models.FNO(2, 1, (3, 4), width=6, layers=2),
        fno,
        relative_l2,
        lambda: grid_batch((7, 8)),
    ),
    "message passing": (graph_model, message_passing, mean_squared_error, graph_batch),
    "message passing of graphs": (
        lambda: graph_model(readout="sum"),
        lambda weights, x: message_passing(weights, x, readout="sum"),
        mean_squared_error,
        lambda: graph_batch("sum"),
    ),
}


@pytest.mark.parametrize(
    "modes, grid",
    [((4,), (6,)), ((1,), (1,)), ((4,), (9,)), ((3, 5), (6, 8)), ((2, 2, 2), (4, 5, 6))],
    ids=str,
)
def test_a_spectral_convolution_is_a_product_of_whole_spectra(modes, grid):
    layer = SpectralConv(2, 3, modes, dtype="float64").finish()
    x = numpy.random.default_rng(5).standard_normal((2, 2, *grid))
    tensor, twin = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    weight = torch.tensor(layer.weight.array, requires_grad=True)
    found = layer(tensor)
    dims = tuple(range(2, x.ndim))
    spectrum = torch.fft.rfftn(twin, dim=dims)
    ends = [(*range(m), *range(-m, 0)) for m in modes[:-1]] + [tuple(range(modes[-1]))]
    places = numpy.ix_(*ends)
    kept = spectrum[(slice(None), slice(None), *places)]
    out = torch.zeros((2, 3, *spectrum.shape[2:]), dtype=spectrum.dtype)
    product = torch.einsum("bi...,io...->bo...", kept, torch.view_as_complex(weight))
    out[(slice(None), slice(None), *places)] = product
    expected = torch.fft.irfftn(out, s=grid, dim=dims)
    numpy.testing.assert_allclose(found.array, expected.detach().numpy(), rtol=0, atol=1e-12)
    sent = numpy.random.default_rng(6).standard_normal(found.shape)
    found.backward(sent)
    expected.backward(torch.tensor(sent))
    numpy.testing.assert_allclose(tensor.grad, twin.grad.numpy(), rtol=0, atol=1e-12)
    numpy.testing.assert_allclose(layer.weight.grad, weight.grad.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.thorough
def test_twenty_steps_are_those_of_pytorch(name):
    make, twin, criterion, batch = CASES[name]
    (x, y), model = batch(), make()
    rate = 0.05
    parameters = model.named_parameters().items()
    weights = {n: torch.tensor(p.array, requires_grad=True) for n, p in parameters}
    optimizer = torch.optim.SGD(weights.values(), lr=rate, momentum=0.9)

    def run(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.Momentum(lr=rate, beta=0.9))
        sharded = sk.DDPModel(model, config)
        return [sharded.train(x, y) for _ in range(STEPS)], sharded.wrapped_model.state_dict()

    ((losses, state),) = sk.run_ranks(1, run)
    expected = []
    for _ in range(STEPS):
        loss = criterion(twin(weights, torch.tensor(x)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert expected[-1] < expected[0]
    numpy.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    for n, tensor in weights.items():
        numpy.testing.assert_allclose(state[n], tensor.detach().numpy(), rtol=0, atol=1e-4)


def test_a_graph_that_comes_with_each_sample_gives_what_the_models_own_gives():
    own = graph_model(dtype="float64")
    given = sk.models.MessagePassing(3, 2, width=8, steps=2, dtype="float64")
    x, y = graph_batch()
    ends = [numpy.tile(each, (4, 1)) for each in (SENDERS, RECEIVERS)]
    given.check_input((x, *ends))
    expected, found = own(x), given((x, *ends))
    numpy.testing.assert_array_equal(found.array, expected.array)
    for model, prediction in ((own, expected), (given, found)):
        model.loss(prediction, y).backward()
    for one, other in zip(own.parameters(), given.parameters(), strict=True):
        numpy.testing.assert_array_equal(one.grad, other.grad)


@pytest.mark.parametrize("make", [case[0] for case in CASES.values()], ids=CASES)
def test_a_model_is_built_again_from_its_configuration(make):
    model = make()
    again = type(model)(**model.configuration())
    assert again.configuration() == model.configuration()
    for name, array in model.state_dict().items():
        numpy.testing.assert_array_equal(again.state_dict()[name], array)


def test_an_fno_takes_any_grid_with_room_for_its_modes_and_an_empty_batch():
    model = sk.models.FNO(2, 1, (2, 3), width=4, layers=1)
    for shape in ((1, 2, 4, 4), (3, 2, 9, 5), (0, 2, 4, 6)):
        assert model(numpy.ones(shape)).shape == model.output_shape(shape)
    assert sk.models.FNO(1, 1, (1, 1, 1), width=2)(numpy.ones((2, 1, 2, 3, 2))).shape[1] == 1


def test_a_vit_takes_an_empty_batch_and_one_image():
    model = sk.models.ViT(4, 2, 1, 5, width=6, depth=1, heads=3)
    for shape in ((0, 1, 4, 4), (1, 1, 4, 4)):
        assert model(numpy.ones(shape)).shape == model.output_shape(shape) == (shape[0], 5)


def test_a_resnet_and_a_unet_take_an_empty_batch_and_one_sample():
    small = sk.models.ResNet(1, 5, (1,), width=2, small_images=True)
    unet_1d = sk.models.UNet(1, 3, dims=1, width=2, depth=1, groups=2)
    for model, grid in ((small, (1, 1)), (small, (4, 3)), (unet_1d, (2,)), (unet_1d, (6,))):
        for shape in ((0, 1, *grid), (1, 1, *grid)):
            assert model(numpy.ones(shape)).shape == model.output_shape(shape)


def test_resnets_of_the_paper_have_its_number_of_parameters():
    for layers, more, wanted in (
        ((2, 2, 2, 2), {}, 11_689_512),
        ((3, 4, 6, 3), {"bottleneck": True}, 25_557_032),
    ):
        model = sk.models.ResNet(layers=layers, **more)
        assert sum(parameter.size for parameter in model.parameters()) == wanted


REFUSED = {
    "levels": (
        lambda: sk.models.UNet(1, 1).check_input(numpy.ones((1, 1, 16, 12))),
        ShapeError,
        r"a multiple of 2\^depth = 8",
    ),
    "groups": (lambda: sk.models.UNet(1, 1, width=6, groups=4), ConfigurationError, "a divisor"),
    "norm": (lambda: sk.models.ResNet(norm="layer"), ConfigurationError, "batch, group"),
    "width of groups": (
        lambda: sk.models.ResNet(norm="group", width=4),
        ConfigurationError,
        "multiple of 8",
    ),
    "channels": (
        lambda: sk.models.ResNet(3, 2, (1,), width=2)(numpy.ones((1, 2, 8, 8))),
        ShapeError,
        r"wanted \[batch, 3, \*grid\]",
    ),
    "patches": (lambda: sk.models.ViT((8, 9), 4), ConfigurationError, r"9 = 2 patches x 4 \+ 1"),
    "dimensions": (lambda: sk.models.ViT(8, (4, 4, 4)), ConfigurationError, "as many of both"),
    "heads": (lambda: sk.models.ViT(8, 4, width=8, heads=3), ConfigurationError, "3 heads"),
    "image": (
        lambda: vit_model(4, 6).check_input(numpy.ones((2, 3, 6, 4))),
        ShapeError,
        r"wanted \[batch, 3, 4, 6\]",
    ),
    "modes": (lambda: sk.models.FNO(1, 1, (1, 1, 1, 1)), ConfigurationError, "one to three"),
    "width": (lambda: sk.models.FNO(1, 1, 3, width=0), ConfigurationError, "width = 0"),
    "small grid": (
        lambda: sk.models.FNO(1, 1, (3, 3)).check_input(numpy.ones((2, 1, 5, 8))),
        ShapeError,
        "at least twice",
    ),
    "edges": (
        lambda: sk.models.MessagePassing(1, 1, [0, 1], [2]),
        ConfigurationError,
        "one length",
    ),
    "half of the edges": (
        lambda: sk.models.MessagePassing(1, 1, [0]),
        ConfigurationError,
        "neither",
    ),
    "readout": (lambda: graph_model(readout="mean"), ConfigurationError, "nodes, sum"),
    "few nodes": (
        lambda: graph_model().check_input(numpy.ones((2, 3, 3))),
        ShapeError,
        "at least 4 nodes",
    ),
    "no edges": (
        lambda: sk.models.MessagePassing(1, 1)(numpy.ones((2, 3, 1))),
        ShapeError,
        "senders, receivers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


WRONG_EDGES = {
    "of the sample after": [[0, 1, 3], [0, 1, 2]],
    "of the sample before": [[0, 1, 2], [0, 1, -1]],
    "of no sample": [[0, 1, 99], [0, 1, 2]],
    "no numbers": [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]],
    "of another count of samples": [[0, 1, 2]],
    "shared by all": [0, 1, 2],
}


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("name", WRONG_EDGES)
def test_an_edge_leads_to_nodes_of_its_own_sample(name, end):
    model = sk.models.MessagePassing(2, 1, width=4, steps=1)
    nodes = numpy.zeros((2, 3, 2), "float32")
    ends = [numpy.array([[1, 2, 0], [1, 2, 0]])] * 2
    model((nodes, *ends))
    ends[end] = numpy.array(WRONG_EDGES[name])
    with pytest.raises(ShapeError, match="wanted"):
        model((nodes, *ends))


def test_edges_of_the_model_need_the_nodes_that_they_name():
    model = sk.models.MessagePassing(2, 1, [0, 1], [1, 3], width=4, steps=1)
    with pytest.raises(ShapeError, match="at least 4 nodes"):
        model(numpy.zeros((2, 3, 2), "float32"))
