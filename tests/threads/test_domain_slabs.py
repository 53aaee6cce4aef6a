"""Samples in slabs: the same bits on every number of domain ranks that divides these, beside every
data and pipeline size.
"""

import hashlib
from functools import cache

import numpy
import pytest
from test_domain_models import MODELS, SAMPLES, batch

import shardkit as sk
from shardkit import models
from shardkit.testing.nn import RMSE

SLABS = 4
STEPS = 2
# domain, data, pipeline; the sweep takes one axis at a time too
MESHES = [(4, 1, 1), (2, 2, 1), (2, 1, 2)]
ALONE = [(2, 1, 1), (1, 2, 1), (1, 1, 2)]
DOUBLE = ["UNet 2-D", "UNet 3-D", "ResNet", "GPT", "a net", "Llama", "LSTM of steps", "FNO 1-D"]
DOUBLE += ["ViT 2-D", "patches", "sensor", "texts"]
ONE_BLOCK = "UNet", "sensor"  # which no stages cut


def rows(rng, *shape):
    return rng.normal(size=(SAMPLES, *shape)).astype("float32")


# {model: (how it is made, x and y)}: odd numbers of rows or tokens
SINGLE = {
    "UNet 2-D, float32": (
        lambda: models.UNet(2, 1, dims=2, width=8, depth=1, groups=2, seed=3),
        lambda rng: (rows(rng, 2, 46, 6), rows(rng, 1, 46, 6)),
    ),
    "UNet 3-D, float32": (
        lambda: models.UNet(1, 2, dims=3, width=4, depth=1, groups=2, seed=3),
        lambda rng: (rows(rng, 1, 10, 4, 6), rows(rng, 2, 10, 4, 6)),
    ),
    "ResNet, float32": (
        lambda: models.ResNet(2, 5, (1, 1), width=8, seed=3),
        lambda rng: (rows(rng, 2, 57, 9), rng.integers(0, 5, SAMPLES)),
    ),
    "GPT, float32": (
        lambda: models.GPT(17, 23, width=16, layers=2, heads=4, dropout=0.1),
        lambda rng: (rng.integers(0, 17, (SAMPLES, 23)), rng.integers(0, 17, (SAMPLES, 23))),
    ),
    "GPT with a window, float32": (
        lambda: models.GPT(17, 23, width=16, layers=2, heads=4, window=7, full_layers=(1,)),
        lambda rng: (rng.integers(0, 17, (SAMPLES, 23)), rng.integers(0, 17, (SAMPLES, 23))),
    ),
}


def configured(backend, loss, micro_batches, slabs, **changed):
    return sk.ShardingConfiguration(
        backend,
        optimizer=sk.AdamW(lr=0.01),
        loss=loss,
        seed=7,
        max_gradient_norm=1.0,
        micro_batches=micro_batches,
        minimum_parameter_group_size=64,
        domain_slabs=slabs,
        **changed,
    )


def sharded(backend, name, sizes, policy="fsdp", slabs=SLABS, **changed):
    """Return a sharded model of a table, and a function: number of a batch -> x, y."""
    domain, data, pipeline = sizes
    if name in SINGLE:
        (make, of_rng), loss = SINGLE[name], None
        batches = lambda number: of_rng(numpy.random.default_rng(number))  # noqa: E731
    else:
        make, loss = MODELS[name][0], MODELS[name][3]
        batches = lambda number: batch(name, number)  # noqa: E731
    wrapped = make()
    wrapped.finish(3)
    model = sk.HybridShardedModel(
        wrapped,
        configured(backend, loss, 4 // data, slabs, **changed),
        policy=policy,
        domain_parallel_size=domain,
        pipeline_parallel_size=pipeline,
    )
    return model, lambda number: sk.split_batch(model.mesh, *batches(number))


def trained(backend, name, sizes, slabs):
    """Return a gradient, losses of some steps, the weights after them, and predictions."""
    model, batches = sharded(backend, name, sizes, "ddp", slabs)
    gradient = model.compute_gradients(*batches(0))
    losses = [model.train(*batches(number)) for number in range(STEPS)]
    found = gradient, numpy.array(losses), model.get_parameters(), model.predict(batches(9)[0])
    model.close()
    return found


def on(sizes, name, slabs=SLABS):
    """Return what is trained on a mesh: gradient of all stages, predictions of all samples."""
    domain, data, pipeline = sizes
    ranks = sk.run_ranks(domain * data * pipeline, lambda each: trained(each, name, sizes, slabs))
    gradients = [found[0] for found in ranks[:: domain * data]]
    predictions = [found[3] for found in ranks[: domain * data : domain]]
    return numpy.concatenate(gradients), *ranks[0][1:3], numpy.concatenate(predictions)


def digest(found):
    """Return one SHA-256 of all."""
    return hashlib.sha256(b"".join([array.tobytes() for array in found])).hexdigest()


@cache
def alone(name):
    return on((1, 1, 1), name)


def meshes(name):
    """Return those meshes on which the model stands."""
    return [sizes for sizes in MESHES + ALONE if not name.startswith(ONE_BLOCK) or sizes[2] == 1]


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize(
    "sizes", [*MESHES, *[pytest.param(sizes, marks=pytest.mark.sweep) for sizes in ALONE]]
)
@pytest.mark.parametrize("name", [*SINGLE, *DOUBLE])
def test_bits_are_those_of_the_slabs_on_any_mesh(name, sizes):
    if sizes in meshes(name):
        assert digest(on(sizes, name)) == digest(alone(name))


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("name", [*SINGLE, *DOUBLE])
def test_values_are_those_of_whole_samples(name):
    """In float32 the gradient and the first loss, since AdamW amplifies what is rounded."""
    pairs = zip(alone(name), on((1, 1, 1), name, None))
    tolerance = 1e-5 if name in SINGLE else 1e-9
    for found, wanted in list(pairs)[: 1 if name in SINGLE else None]:
        assert numpy.abs(found - wanted).max() <= tolerance * max(1, numpy.abs(wanted).max())


# ---- what a model can do besides -----------------------------------------------------------------


def after_a_step(backend, name, sizes, policy="fsdp", folder=None, *, loads=False, **changed):
    """Return the weights after a step and a checkpoint, and one step more: written or loaded."""
    model, batches = sharded(backend, name, sizes, policy, SLABS, **changed)
    if loads:
        model.load_model(folder)
    else:
        model.train(*batches(0))
        if folder is not None:
            model.save_model(folder)
    model.train(*batches(1))
    weights = model.get_parameters()
    model.close()
    return weights.tobytes()


@pytest.mark.parametrize("name", ["a net", "GPT"])
@pytest.mark.parametrize("before, after", [(1, 4), (4, 2), (2, 1)])
def test_a_checkpoint_goes_on_with_the_same_bits_on_other_domain_ranks(
    name, before, after, tmp_path
):
    wanted = sk.run_ranks(
        before, lambda each: after_a_step(each, name, (before, 1, 1), folder=tmp_path)
    )
    found = sk.run_ranks(
        after,
        lambda each: after_a_step(each, name, (after, 1, 1), "zero2", tmp_path, loads=True),
    )
    assert {*wanted} == {*found}


@pytest.mark.parametrize("change", [{"activation_checkpointing": True}, {"schedule": "gpipe"}])
def test_how_a_step_is_computed_does_not_matter(change):
    wanted = sk.run_ranks(1, lambda each: after_a_step(each, "a net", (1, 1, 1)))[0]
    found = sk.run_ranks(2, lambda each: after_a_step(each, "a net", (2, 1, 1), **change))
    assert {wanted} == {*found}


def test_ranks_that_read_their_rows_compute_the_same_and_figures_have_the_same_bits():
    """Of 46 rows two ranks have slabs of 12 + 12 and 11 + 11: not even parts."""

    def on_rank(backend):
        model, batches = sharded(backend, "UNet 2-D, float32", (backend.world_size, 1, 1))
        x, y = batches(0)
        part = sk.domain_part(model)
        losses = [model.train(*part.cut(x, y)), model.train(x, y)]
        rows = model.predict(part.cut(x, y)[0])
        whole = model.predict(x)
        assert (rows.array == whole[part.inside(whole.shape, 2)]).all()
        with model.evaluation({"rmse": RMSE()}) as measured:
            measured.add(x, y)
        span = part.span(46)
        model.close()
        return span, (losses, measured.loss, measured.metrics)

    two, one = sk.run_ranks(2, on_rank), sk.run_ranks(1, on_rank)
    assert [span for span, _ in two] == [(0, 24), (24, 46)]
    assert two[0][1] == two[1][1] == one[0][1]


def test_copies_and_clones_compute_in_the_same_slabs():
    def on_rank(backend):
        model, batches = sharded(backend, "a net", (2, 1, 1))
        model.train(*batches(0))
        copies = model, model.deep_copy()
        found = [(each.train(*batches(1)), each.get_parameters().tobytes()) for each in copies]
        for each in copies:
            each.close()
        return found

    first, second = sk.run_ranks(2, on_rank)[0]
    assert first == second


# ---- what is refused -----------------------------------------------------------------------------


def refused(num_ranks, name, sizes, error, match, steps=0, **changed):
    def on_rank(backend):
        with pytest.raises(error, match=match):
            model, batches = sharded(backend, name, sizes, "ddp", **changed)
            for number in range(steps):
                model.train(*batches(number))
        return True

    assert all(sk.run_ranks(num_ranks, on_rank))


@pytest.mark.parametrize(
    "num_ranks, slabs, match",
    [
        (3, 4, r"domain_slabs = 4 on 3 domain ranks, 1.33 each; wanted a power of two"),
        (2, 6, r"domain_slabs = 6 on 2 domain ranks, 3 each; wanted a power of two"),
    ],
)
def test_slabs_that_ranks_do_not_share_are_refused(num_ranks, slabs, match):
    sizes = num_ranks, 1, 1
    refused(num_ranks, "a net", sizes, sk.ConfigurationError, match, slabs=slabs)


def test_more_slabs_than_rows_deep_in_a_net_are_refused_with_the_arithmetic():
    match = r"makes 5 of 10 rows along dim 2: 8 domain ranks would have parts of 1 \+ 1 \+ 1 \+ 1"
    refused(2, "UNet 2-D", (2, 1, 1), sk.ShardingError, match, steps=1, slabs=8)


def test_layers_that_know_their_rank_are_refused_by_name():
    refused(2, "mesh", (2, 1, 1), sk.ShardingError, "MessagePassing cannot be cut into slabs")


def test_an_error_in_one_slab_is_raised_on_all_ranks_and_they_go_on():
    def on_rank(backend):
        model, batches = sharded(backend, "GPT, float32", (2, 1, 1))
        x, y = batches(0)
        wrong = y.copy()
        wrong[3, 20] = 99  # in the last slab of the last rank
        with pytest.raises(sk.ShapeError, match="99"):
            model.train(x, wrong)
        loss = model.train(x, y)
        model.close()
        return loss

    first, second = sk.run_ranks(2, on_rank)
    assert first == second
