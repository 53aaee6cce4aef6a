"""Samples that processes share: training on a mesh with a domain axis, against one rank."""

import time

import numpy
import pytest

import shardkit as sk
from shardkit import models, nn
from shardkit.testing.parallel import cut_layers

pytestmark = pytest.mark.mpi
STEPS, TOLERANCE = 2, 1e-10


def cases():
    """Return (model, x, y) of small ones that read halos, and that look along all of a sample."""
    rng = numpy.random.default_rng(4)
    f64 = {"seed": 3, "dtype": "float64"}
    x, y = rng.normal(size=(4, 2, 34, 6)), rng.normal(size=(4, 1, 34, 6))
    ids = rng.integers(0, 17, (4, 13))
    llama = {"width": 16, "layers": 2, "heads": 4, "kv_heads": 1, "style": "llama"}
    edges = rng.integers(0, 13, (2, 40))
    return [
        (models.UNet(2, 1, width=8, depth=1, groups=2, **f64), x, y),
        (models.ResNet(2, 5, (1, 1), width=8, **f64), x, rng.integers(0, 5, 4)),
        (models.FNO(2, 1, (3, 3), width=6, layers=2, **f64), x, y),
        (models.GPT(17, 13, 16, 2, 4, dropout=0.1, **f64), ids, ids),
        (models.GPT(17, 13, **llama, **f64), ids, ids),
        (models.LSTM(6, 4, width=8, dropout=0.1, **f64), x[:, 0, :9], rng.normal(size=(4, 4))),
        (
            models.MessagePassing(2, 1, *edges, width=8, **f64),
            x[:, :, :13, 0].swapaxes(1, 2),
            y[:, 0, :13, :1],
        ),
    ]


def trained(backend, policy, grid=None, **sizes):
    """Return losses, weights and a prediction of each; of a UNet alone on a grid of ranks."""
    found = []
    for wrapped, x, targets in cases() if grid is None else cases()[:1]:
        rule = sk.SGD(lr=0.05, momentum=0.9)
        config = sk.ShardingConfiguration(backend, optimizer=rule, domain_grid=grid)
        sizes = {"data_parallel_size": 1, **sizes}
        model = sk.HybridShardedModel(wrapped, config, policy=policy, **sizes)
        mine = sk.split_batch(model.mesh, numpy.ascontiguousarray(x), targets)
        if (part := sk.domain_part(model)) is not None:
            mine = part.cut(*mine)
        losses = [model.train(*mine) for _ in range(STEPS)]
        found += [numpy.array(losses), model.get_parameters(), model.predict(x)]
        model.close()
    return found


@pytest.fixture(scope="module")
def wanted(on_one_rank):
    return on_one_rank(lambda alone: trained(alone, "ddp"))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("policy", ["ddp", "fsdp"])
def test_ranks_that_share_samples_train_as_one(backend, policy, wanted):
    domain = backend.world_size
    found = trained(backend, policy, domain_parallel_size=domain)
    far = [numpy.abs(a - b).max() / numpy.abs(b).max() for a, b in zip(found, wanted)]
    assert max(numpy.ravel(backend.all_gather_object(far))) < TOLERANCE


def test_ranks_that_share_both_dims_of_a_grid_train_as_one(backend, wanted):
    num_ranks = backend.world_size
    grid = (num_ranks // 2, 2) if num_ranks % 2 == 0 else (1, num_ranks)
    found = trained(backend, "fsdp", grid, domain_parallel_size=num_ranks)
    far = [numpy.abs(a - b).max() / numpy.abs(b).max() for a, b in zip(found, wanted)]
    assert max(numpy.ravel(backend.all_gather_object(far))) < TOLERANCE


def test_a_label_of_no_class_in_one_part_is_an_error_of_all_ranks(backend):
    """Five times, and the model trains as if nothing had been."""
    pipeline = 2 if backend.world_size % 4 == 0 else 1
    wrapped = nn.Sequential(nn.Embedding(5, 8), nn.FeedForward(8, 12), nn.Linear(8, 5))
    wrapped.finish(3)
    config = sk.ShardingConfiguration(
        backend, loss=nn.CrossEntropy(), minimum_parameter_group_size=32
    )
    sizes = {
        "pipeline_parallel_size": pipeline,
        "domain_parallel_size": backend.world_size // pipeline,
    }
    model = sk.HybridShardedModel(wrapped, config, policy="fsdp", **sizes)
    x = numpy.random.default_rng(0).integers(0, 5, (2, 9))
    wrong = x.copy()
    wrong[-1, -1] = 5
    losses = [model.train(x, x)]
    for _ in range(5):
        with pytest.raises(sk.ShapeError, match="5"):
            model.train(x, wrong)
        losses.append(model.train(x, x))
    model.close()
    assert losses == sorted(losses, reverse=True)


ONE_WAY = {
    "states": lambda: (models.LSTM(3, 2, width=4, readout="steps"), (2, 9, 3), 1),
    "rows": lambda: (nn.Sequential(nn.Conv1d(3, 2, 2, padding="same")), (2, 3, 9), -1),
}


@pytest.mark.parametrize("way", ONE_WAY)
def test_a_rank_that_only_sends_waits_until_it_is_heard(backend, way):
    """Else it goes on where the other fails, and the next step takes what was sent."""
    model, shape, direction = ONE_WAY[way]()
    model.finish(0)
    axis, _, _ = cut_layers(model, backend)
    own = range(*axis.own_span(shape[axis.dim]))
    x = nn.Tensor(numpy.ones(shape, "float32").take(own, axis.dim))
    axis.begin(shape)
    model(x)
    axis.begin(shape)
    backend.barrier()
    place = backend.rank if direction > 0 else backend.world_size - 1 - backend.rank
    time.sleep(0.1 * place)
    began = time.monotonic()
    model(x)
    times = backend.all_gather_object((began, time.monotonic()))[::direction]
    assert all(done >= later for (_, done), (later, _) in zip(times, times[1:]))


def in_slabs(backend):
    """Return the bytes of what training in slabs leaves, on as many domain ranks as there are."""
    found = []
    for wrapped, x, targets in cases()[:5]:
        config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=0.01), domain_slabs=4)
        model = sk.HybridShardedModel(wrapped, config, domain_parallel_size=backend.world_size)
        losses = [model.train(numpy.ascontiguousarray(x), targets) for _ in range(STEPS)]
        found += [losses, model.get_parameters().tobytes(), model.predict(x).tobytes()]
        model.close()
    return found


@pytest.mark.mpi(min_size=2)
@pytest.mark.thorough
def test_slabs_have_the_bits_of_one_rank(backend, on_one_rank):
    if 4 % backend.world_size:
        pytest.skip(f"4 slabs do not divide among {backend.world_size} ranks")
    assert in_slabs(backend) == on_one_rank(in_slabs)
