"""Samples that ranks share along two dims of a grid, or three, against the same on one rank: layers
and models to 1e-12, training to 1e-10, in float64, on grids of threads, for sizes that no number of
ranks divides.
"""

import copy

import numpy
import pytest
import test_domain_models as models
import test_domain_parts as parts
from test_domain_layers import (
    CHANNELS,
    CONTEXT,
    F64,
    ON_GRIDS,
    SILENT,
    Deaf,
    assert_close,
    convolution,
    drawn,
    run,
    transposed,
)

import shardkit as sk
from shardkit import nn
from shardkit.nn import Tensor, forward_context
from shardkit.testing.layout import even_span
from shardkit.testing.parallel import cut_layers

SHAPES = {2: (13, 11), 3: (11, 7, 6)}  # of which the first dims are cut
RANKS = {2: [(2, 2), (1, 2), (2, 1), (1, 3), (3, 2)], 3: [(2, 2), (3, 2), (2, 2, 2)]}
ON_OTHERS = {
    "a head": lambda d: nn.Sequential(
        nn.Flatten(), nn.Linear(CHANNELS * numpy.prod(SHAPES[d]).item(), 3, **F64)
    ),
    "shares": lambda d: getattr(nn, f"AdaptiveAvgPool{d}d")((7, 5, 2)[:d]),
    "largest of shares": lambda d: getattr(nn, f"AdaptiveMaxPool{d}d")((7, 5, 2)[:d]),
    "means of five by one": lambda d: getattr(nn, f"AdaptiveAvgPool{d}d")((5, 1, 2)[:d]),
    "means of two": lambda d: getattr(nn, f"AdaptiveAvgPool{d}d")((2, *(None,) * (d - 1))),
    "linear, aligned": lambda d: nn.Upsample(
        size=(19, 14, 9)[:d], mode=("bilinear", "trilinear")[d - 2], align_corners=True
    ),
    "linear, smaller": lambda d: nn.Upsample(
        size=(6, 5, 4)[:d], mode=("bilinear", "trilinear")[d - 2]
    ),
    "largest of all": lambda d: getattr(nn, f"AdaptiveMaxPool{d}d")(1),
    "flatten the rest": lambda d: nn.Flatten(2 + len(SHAPES[d]) - 1),
    "wide both ways": lambda d: convolution(
        d, kernel_size=(9, 9, 3)[:d], padding=(4, 5, 1)[:d], padding_mode="circular"
    ),
    "other forms": lambda d: convolution(
        d, kernel_size=(2, 5, 3)[:d], stride=(1, 3, 2)[:d], dilation=(3, 1, 1)[:d], padding=1
    ),
    "transposed, other forms": lambda d: transposed(
        d, kernel_size=(3, 2, 4)[:d], stride=(2, 3, 1)[:d], padding=(1, 0, 2)[:d]
    ),
}
LAYERS_ON_GRIDS = ON_GRIDS | ON_OTHERS


def inside(shape, dim, place, sizes):
    """Return the index of the part of the rank at this place of a grid of ranks."""
    own = [slice(*even_span(shape[dim + k], n, at)) for k, (at, n) in enumerate(zip(place, sizes))]
    return (slice(None),) * dim + tuple(own)


def place_of(rank, sizes):
    return tuple(int(at) for at in numpy.unravel_index(rank, sizes))


def lines_of(backend, sizes):
    """Return the groups of ranks along each dim of a grid of all ranks."""
    mesh = sk.Mesh(backend, domain=backend.world_size)
    return mesh.grid("domain", sizes)


def check(make, x, sizes, *, drawn_weights=True):
    """Compare a layer whose x is cut by a grid of ranks with the same that is not."""
    model = nn.Sequential(make())
    model.finish(3)
    for p in model.parameters() if drawn_weights else ():
        p.array = drawn(p.shape, len(p.name))
    serial = copy.deepcopy(model)
    y, for_x, gradients = run(serial, x, lambda shape: drawn(shape, 1))

    def on_rank(backend):
        mine, lines = copy.deepcopy(model), lines_of(backend, sizes)
        place = place_of(backend.rank, sizes)
        _, _, is_whole = cut_layers(mine, backend, lines=lines)
        weigh = drawn(y.shape, 1)
        weigh = weigh * (backend.rank == 0) if is_whole else weigh[inside(y.shape, 2, place, sizes)]
        found = run(mine, x[inside(x.shape, 2, place, sizes)], lambda _: weigh)
        return is_whole, found, {n: b.numpy() for n, b in mine.named_buffers().items()}

    results = sk.run_ranks(numpy.prod(sizes).item(), on_rank)
    for rank, (is_whole, (made, own_x, _), buffers) in enumerate(results):
        place = place_of(rank, sizes)
        assert_close(made, y if is_whole else y[inside(y.shape, 2, place, sizes)], "the output")
        assert_close(own_x, for_x[inside(x.shape, 2, place, sizes)], "the gradient of x")
        for name, buffer in serial.named_buffers().items():
            assert_close(buffers[name], buffer.numpy(), name)
    for name, gradient in gradients.items():
        assert_close(sum(result[1][2][name] for result in results), gradient, name)


@pytest.mark.strength(1)
@pytest.mark.parametrize("dims, number", [(d, n) for d in RANKS for n in range(len(RANKS[d]))])
@pytest.mark.parametrize("what", LAYERS_ON_GRIDS)
def test_a_layer_on_boxes_of_a_grid_is_the_layer(what, dims, number):
    sizes = RANKS[dims][number]
    if what == "flatten the rest" and len(sizes) == dims:
        return  # there is none

    def make():
        first = [convolution(dims, kernel_size=1, out=CHANNELS)] if what in SILENT else []
        return nn.Sequential(*first, LAYERS_ON_GRIDS[what](dims))

    check(make, drawn((2, CHANNELS, *SHAPES[dims]), 0), sizes)


# {what: (the model, the shape of its samples)}
WHOLE = {
    "UNet 2-D": (lambda: nn.models.UNet(2, 1, width=8, depth=2, groups=2, **F64), (2, 20, 16)),
    "UNet 3-D": (
        lambda: nn.models.UNet(1, 2, dims=3, width=4, depth=1, groups=2, **F64),
        (1, 10, 6, 4),
    ),
    "ResNet 2-D": (lambda: nn.models.ResNet(2, 5, (1, 1), width=8, **F64), (2, 34, 27)),
    "ResNet 3-D": (
        lambda: nn.models.ResNet(1, 3, (1, 1), width=8, dims=3, **F64),
        (1, 19, 17, 9),
    ),
}


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (1, 3)])
@pytest.mark.parametrize("what", WHOLE)
def test_a_model_on_boxes_has_the_values_and_gradients_of_one_rank(what, sizes):
    make, shape = WHOLE[what]
    check(make, drawn((2, *shape), 0), sizes, drawn_weights=False)


# ---- what travels --------------------------------------------------------------------------------


class Ear:
    """Does not hear what comes in one of the exchanges of a rank, whichever group has it."""

    def __init__(self, number):
        self.number, self.count = number, 0


class DeafInGroup(Deaf):
    def __init__(self, group, ear):
        super().__init__(group, None)
        self._ear = ear

    def _hears(self):
        self._ear.count += 1
        return self._ear.count - 1 != self._ear.number


def every_exchange():
    return nn.Sequential(
        convolution(2, out=CHANNELS, padding=1),
        nn.GroupNorm(2, CHANNELS, **F64),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Upsample(scale_factor=1.5, mode="bilinear"),
        transposed(2, stride=2),
        nn.Flatten(),
    )


def test_an_exchange_along_any_dim_that_is_left_out_is_seen():
    """Of the last rank of 2 x 2, along rows, columns and over all four."""
    sizes, x, model = (2, 2), drawn((1, CHANNELS, 7, 6), 0), every_exchange()
    model.finish(3)
    for p in model.parameters():
        p.array = drawn(p.shape, len(p.name))

    def found(number):
        def on_rank(backend):
            ear = Ear(number if backend.rank == 3 else None)
            everyone, *lines = [
                DeafInGroup(group, ear) for group in (backend, *lines_of(backend, sizes))
            ]
            mine = copy.deepcopy(model)
            cut_layers(mine, everyone, lines=tuple(lines))
            own_x = x[inside(x.shape, 2, place_of(backend.rank, sizes), sizes)]
            y, for_x, of_parameters = run(mine, own_x, lambda shape: drawn(shape, backend.rank))
            arrays = (y, for_x, *of_parameters.values())
            return ear.count, numpy.concatenate([array.ravel() for array in arrays])

        results = sk.run_ranks(4, on_rank)
        return results[3][0], numpy.concatenate([result[1] for result in results])

    count, wanted = found(None)
    assert count >= 18
    deaf = [found(number)[1] for number in range(count)]
    unseen = [n for n, each in enumerate(deaf) if numpy.abs(each - wanted).max() < 1e-6]
    assert not unseen, f"of {count} exchanges nobody missed {unseen}"


def sent_by_formula(unet, sizes, place, shape):
    """Return the bytes of halos that a rank sends in a step: of each convolution of 3 x 3 a row to
    each neighbor along dim 2, with a column of each side if dim 3 is cut too, and a column to each
    along dim 3; and their gradients, but those of the samples.
    """
    neighbors = [(at > 0) + (at < n - 1) for at, n in zip(place, sizes)]
    total = 0
    for path, layer in unet.named_modules().items():
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3):
            name, level = path.split(".")[:2]
            halved = {"enter": 0, "down": 1}.get(name, 0) + (int(level) if level.isdigit() else 0)
            rows, columns = [length // 2**halved for length in shape]
            own = [rows // sizes[0], columns // sizes[1] if len(sizes) > 1 else columns + -2]
            halo = neighbors[0] * (own[1] + 2) + (neighbors[1] * own[0] if len(sizes) > 1 else 0)
            total += 8 * layer.in_channels * halo * (1 if path == "enter.first" else 2)
    return total


def test_halos_of_a_square_of_ranks_are_half_of_those_of_a_row_of_them():
    """UNet of 128 x 128: bytes of a rank, and the formula of docs/parallel/domain.md."""
    shape, wide = (128, 128), 4

    def sent(sizes):
        def on_rank(backend):
            unet = nn.models.UNet(1, 1, width=wide, depth=2, groups=2, **F64)
            model = nn.Sequential(unet)
            model.finish(3)
            place = place_of(backend.rank, sizes)
            formula = sent_by_formula(unet, sizes, place, shape)
            lines = lines_of(backend, sizes) if len(sizes) > 1 else ()
            cut_layers(model, backend, lines=lines)
            own_x = drawn((1, 1, *shape), 0)[inside((1, 1, *shape), 2, place, sizes)]
            groups = {id(each.traffic): each.traffic for each in (backend, *lines)}.values()
            before = sum(each.by_verb.get("send", 0) for each in groups)
            with forward_context(CONTEXT):
                y = model(Tensor(own_x))
                y.backward(drawn(y.shape, 1))
            found = sum(each.by_verb.get("send", 0) for each in groups) - before
            return found, formula

        return sk.run_ranks(4, on_rank)

    row, square = sent((4,)), sent((2, 2))
    for found, formula in (*row, *square):
        assert found == formula
    assert max(square)[0] < 0.53 * max(row)[0]


# ---- sharded models ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, grid, data, sizes",
    [
        ("UNet 2-D", (2, 2), 1, {}),
        ("UNet 2-D", (1, 2), 2, {}),
        ("UNet 3-D", (3, 2), 1, {}),
        ("UNet 3-D", (2, 2, 2), 1, {}),
        ("ResNet", (2, 2), 1, {"pipeline": 2}),
        ("ResNet", (2, 1), 2, {"pipeline": 2}),
    ],
)
@pytest.mark.thorough(but=3)
def test_a_model_trains_on_boxes_as_on_one_rank(name, grid, data, sizes):
    domain = numpy.prod(grid).item()
    models.check(name, data, "fsdp", {"domain_grid": grid}, domain=domain, **sizes)


def made(backend, grid):
    """Return a UNet whose samples of 20 x 8 this grid of ranks shares."""
    make, _, _, loss = models.MODELS["UNet 2-D"]
    config = sk.ShardingConfiguration(
        backend, optimizer=sk.AdamW(lr=0.01), loss=loss, seed=7, domain_grid=grid
    )
    return sk.HybridShardedModel(
        make(), config, policy="fsdp", domain_parallel_size=backend.world_size
    )


def test_ranks_that_read_boxes_train_measure_and_predict_what_whole_samples_do():
    def both(backend):
        found = []
        for in_boxes in (False, True):
            model = made(backend, (2, 2))
            x, y = models.batch("UNet 2-D", 0)
            part = sk.domain_part(model)
            x, y = part.cut(x, y) if in_boxes else (x, y)
            losses = [model.train(x, y), model.evaluate(x, y, {"rmse": models.RMSE()})]
            found.append((losses, numpy.array(model.get_parameters()), model.predict(x)))
            model.close()
        return found

    results = sk.run_ranks(4, both)
    whole = results[0][0][2]
    joined = numpy.full(whole.shape, numpy.nan)
    for rank, ((losses, weights, _), (own_losses, own_weights, slab)) in enumerate(results):
        assert losses == pytest.approx(own_losses, rel=1e-14)
        assert numpy.array_equal(weights, own_weights)
        index = inside(whole.shape, 2, place_of(rank, (2, 2)), (2, 2))
        assert [slice(cut.start, cut.stop) for cut in slab.cuts] == [*index[2:]]
        joined[index] = slab.array
    assert numpy.array_equal(joined, whole)


@pytest.mark.parametrize("grid", [None, (3,), (1, 2), (3, 2)])
@pytest.mark.thorough(but=2)
def test_a_checkpoint_of_a_grid_opens_on_any_other(grid, tmp_path):
    def first(backend):
        model = made(backend, (2, 2))
        model.train(*models.batch("UNet 2-D", 0))
        model.save_model(tmp_path)
        model.train(*models.batch("UNet 2-D", 1))
        return numpy.array(model.get_parameters())

    def then(backend):
        model = made(backend, grid)
        model.load_model(tmp_path)
        model.train(*models.batch("UNet 2-D", 1))
        copy_of_it = model.deep_copy()
        assert copy_of_it.train(*models.batch("UNet 2-D", 2)) > 0
        return numpy.array(model.get_parameters())

    wanted = sk.run_ranks(4, first)[0]
    found = sk.run_ranks(1 if grid is None else numpy.prod(grid).item(), then)[0]
    assert numpy.abs(found - wanted).max() < 1e-9


def numbered(rng):
    return rng.integers(0, 3, (4, 9, 7))


def like_predictions(rng):
    return rng.normal(size=(4, 3, 9, 7))


# {loss: targets of predictions [samples, 3, 9, 7]}
LOSSES = {
    nn.RelativeL2Loss: like_predictions,
    nn.CrossEntropyLoss: numbered,
    nn.L1Loss: like_predictions,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_of_boxes_are_those_of_whole_samples(loss):
    rng = numpy.random.default_rng(0)
    x, y = rng.normal(size=(4, CHANNELS, 9, 7)), LOSSES[loss](rng)

    def on_rank(backend, grid=None):
        net = nn.Sequential(
            convolution(2, padding=1, out=3), nn.Dropout(0.2), nn.BatchNorm2d(3, **F64)
        )
        net.finish(3)
        config = sk.ShardingConfiguration(
            backend, loss=loss(), optimizer=sk.SGD(lr=0.1), domain_grid=grid
        )
        model = sk.HybridShardedModel(net, config, domain_parallel_size=backend.world_size)
        losses = [model.train(x, y), model.train(x, y), model.evaluate(x, y)]
        return losses, numpy.array(model.get_parameters())

    (wanted, weights) = sk.run_ranks(1, on_rank)[0]
    for found, own_weights in sk.run_ranks(6, lambda backend: on_rank(backend, (3, 2))):
        assert found == pytest.approx(wanted, rel=1e-12)
        assert numpy.abs(own_weights - weights).max() < 1e-12


SQUARE = {"mesh.domain": 4, "parallel.domain_grid": [2, 2]}


def test_a_run_reads_measures_and_writes_boxes_and_goes_on_with_others(tmp_path):
    """Its source reads rows alone, as one that was written for one dim does."""
    wanted = sk.run_ranks(1, lambda backend: parts.run_of(backend, tmp_path / "1", False))[0]
    found = sk.run_ranks(4, lambda b: parts.run_of(b, tmp_path / "4", True, **SQUARE))
    for losses, samples, prediction in found:
        assert losses == pytest.approx(wanted[0], rel=1e-9)
        assert samples == wanted[1]
        numpy.testing.assert_allclose(prediction, wanted[2], rtol=1e-7, atol=1e-9)
    again = {"mesh.domain": 2, "parallel.domain_grid": [1, 2], "run.steps": 5}
    longer = sk.run_ranks(2, lambda b: parts.run_of(b, tmp_path / "4", True, **again))[0]
    wanted = sk.run_ranks(1, lambda b: parts.run_of(b, tmp_path / "1", False, **{"run.steps": 5}))
    assert longer[0] == pytest.approx(wanted[0][0], rel=1e-7)


# ---- what is refused -----------------------------------------------------------------------------

REFUSED = {
    "patches": (
        lambda: nn.models.ViT((8, 8), 2, 2, 5, width=8, depth=1, heads=2),
        "^embedding, a PatchEmbedding, cannot be cut along 2 dims .* by 2 x 2 .* domain_grid = N",
    ),
    "spectra": (
        lambda: nn.models.FNO(1, 1, (2, 2), width=4, layers=1),
        "cannot be cut along 2 dims",
    ),
    "tokens": (
        lambda: nn.models.GPT(17, 8, width=8, layers=1, heads=2),
        r"2 x 2 domain ranks cut samples along 2 dims .* a TokenEmbedding, .* tokens or nodes",
    ),
    "recurrent": (lambda: nn.models.LSTM(3, 2, width=4), "tokens or nodes"),
    "nodes": (
        lambda: nn.models.MessagePassing(3, 2, *numpy.zeros((2, 4), int), width=4, steps=1),
        "tokens or nodes",
    ),
    "lines": (
        lambda: nn.Sequential(nn.Conv1d(1, 1, 3), nn.Conv1d(1, 1, 3)),
        "^0, a Conv1d, cannot be cut along 2 dims .* its grids have 1 dims",
    ),
    "norms of lines": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm1d(2)),
        "^1, a BatchNorm1d, .* its grids have 1 dims",
    ),
    "maxima of two by one": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveMaxPool2d((2, 1))),
        "with 2 x 1 shares of what 2 x 2 domain ranks share",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_cut_along_two_dims_is_refused_when_the_model_is_built(what):
    make, message = REFUSED[what]

    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, loss=nn.MSELoss(), domain_grid=(2, 2))
        with pytest.raises(sk.ShardingError, match=message):
            sk.HybridShardedModel(make(), config, domain_parallel_size=4)

    sk.run_ranks(4, on_rank)


@pytest.mark.parametrize(
    "loss, shape, message",
    [
        (nn.MSELoss(), (2, 1, 7, 8), "6 rows along dim 2 and targets with 7"),
        (nn.MSELoss(), (2, 1, 6, 9), "8 rows along dim 3 and targets with 9"),
        (
            nn.BCEWithLogitsLoss(pos_weight=numpy.ones(8, "float32")),
            (2, 1, 6, 8),
            "along dim 3 of y",
        ),
    ],
)
def test_targets_and_factors_that_do_not_fit_are_refused_along_either_dim(loss, shape, message):
    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, loss=loss, domain_grid=(2, 2))
        net = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1))
        model = sk.HybridShardedModel(net, config, domain_parallel_size=4)
        x = numpy.ones((2, 1, 6, 8), "float32")
        with pytest.raises((sk.ShapeError, sk.ShardingError), match=message):
            model.train(x, numpy.ones(shape, "float32"))
        net = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Softmax(3))
        model = sk.HybridShardedModel(net, config, domain_parallel_size=4)
        with pytest.raises(sk.ShardingError, match="a Softmax, goes along dim 3"):
            model.predict(x)

    sk.run_ranks(4, on_rank)


def test_a_mesh_has_no_grid_of_other_ranks():
    def on_rank(backend):
        mesh = sk.Mesh(backend, domain=2)
        with pytest.raises(sk.MeshError, match="wanted as many"):
            mesh.grid("domain", (2, 2))
        lines = mesh.grid(("domain", "data"), (2, 2))
        assert [line.world_size for line in lines] == [2, 2]
        assert mesh.grid(("domain", "data"), (2, 2)) == lines
        assert [line.rank for line in lines] == [backend.rank % 2, backend.rank // 2]
        return mesh.names[lines[0].group_key]

    assert set(sk.run_ranks(4, on_rank)) == {"data"}


def test_a_grid_of_other_ranks_and_slabs_beside_it_are_refused():
    def on_rank(backend):
        for how, message in (
            ({"domain_grid": (3, 2)}, r"\(3, 2\) is 3 x 2 = 6 ranks, but 4 share each sample"),
            ({"domain_grid": (2, 2), "domain_slabs": 4}, "domain_slabs = 4 with domain_grid"),
        ):
            config = sk.ShardingConfiguration(backend, loss=nn.MSELoss(), **how)
            net = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1))
            with pytest.raises(sk.ConfigurationError, match=message):
                sk.HybridShardedModel(net, config, domain_parallel_size=4)

    sk.run_ranks(4, on_rank)


def test_samples_and_layers_that_leave_a_rank_nothing_are_refused_along_either_dim():
    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, loss=nn.MSELoss(), domain_grid=(2, 2))
        pool, last = nn.MaxPool2d((1, 4)), nn.Linear(2, 2)
        model = sk.HybridShardedModel(nn.Sequential(pool, last), config, domain_parallel_size=4)
        with pytest.raises(sk.ShapeError, match="1, a Linear, computes along the last dim"):
            model.predict(numpy.ones((2, 1, 6, 8), "float32"))
        net = nn.Sequential(nn.MaxPool2d((1, 4)), nn.Conv2d(1, 1, 1))
        model = sk.HybridShardedModel(net, config, domain_parallel_size=4)
        with pytest.raises(sk.ShapeError, match="dim 3 is to be cut into 2"):
            model.predict(numpy.ones((2, 1, 6, 1), "float32"))
        with pytest.raises(sk.ShardingError, match=r"0 makes 1 of 4 rows along dim 3: .* 1 \+ 0"):
            model.predict(numpy.ones((2, 1, 6, 4), "float32"))
        part, x = sk.domain_part(model), numpy.ones((2, 1, 6, 8), "float32")
        slab = sk.Rows(x[:, :, :3], 2, 0, 6)
        with pytest.raises(sk.ShapeError, match="wanted rows .* along dim 2 and .* along dim 3"):
            model.predict(slab)
        assert model.predict(part.cut(x, x)[0]).array.shape == (2, 1, 3, 1)

    sk.run_ranks(4, on_rank)
