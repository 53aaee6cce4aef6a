"""What one rank finds in its own batch is an error on all ranks, before anything is computed; they
go on together.
"""

import numpy
import pytest
from builders import SEQUENCE, token_batch

import shardkit as sk
from shardkit.nn import CrossEntropy
from shardkit.testing.parallel import skips_of, training_state_of

VOCABULARY, FEATURES, CLASSES, SAMPLES = 64, 5, 3, 4
MESHES = {"data": (1, 1, 3), "pipeline": (2, 1, 1), "tensor": (1, 2, 2)}  # pipeline, tensor, data


def gpt():
    return sk.models.GPT(VOCABULARY, SEQUENCE, width=16, layers=2, heads=2)


def regression():
    return sk.models.MLP([FEATURES, 8, CLASSES])


def classification():
    return sk.models.MLP([FEATURES, 8, CLASSES], task="classification")


def good(model):
    """x, y [SAMPLES, ...] that this model takes."""
    if model is gpt:
        return token_batch(0, SAMPLES)
    x = numpy.random.default_rng(0).standard_normal((SAMPLES, FEATURES))
    return x, numpy.arange(SAMPLES) % CLASSES if model is classification else x[:, :CLASSES]


def with_value(array, value):
    array = array.copy()
    array[-1, ..., -1] = value
    return array


WRONG_X = {
    "a token beyond the vocabulary": (
        gpt,
        lambda x: with_value(x, VOCABULARY),
        "wanted 0 <= id < 64",
    ),
    "a negative token": (gpt, lambda x: with_value(x, -1), "wanted 0 <= id < 64"),
    "tokens that are floats": (gpt, lambda x: x.astype("float32"), "float32"),
    "one sequence without a batch": (gpt, lambda x: x[:, 0], "batch, sequence"),
    "a sequence too long": (gpt, lambda x: numpy.concatenate([x, x], 1), "sequence_length = 12"),
    "tokens that are words": (gpt, lambda x: x.astype(str), "<U21"),
    "a batch of nothing": (gpt, lambda x: x[:0], "no samples|0 samples|shape"),
    "sequences of nothing": (gpt, lambda x: x[:, :0], "shape"),
    "a feature too many": (regression, lambda x: numpy.concatenate([x, x[:, :1]], 1), "6.*5|5.*6"),
    "a single row of features": (regression, lambda x: x[:, 0], "wanted"),
    "features that are complex": (regression, lambda x: x * 1j, "complex128"),
    "features that are objects": (classification, lambda x: x.astype(object), "object"),
    "features of which one is missing": (
        regression,
        lambda x: numpy.ma.masked_equal(x, x[-1, 1]),
        "x: 1 of 20 numbers are masked",
    ),
    "features that are times": (classification, lambda x: x.astype("datetime64[s]"), "datetime64"),
}
WRONG_Y = {
    "a target beyond the vocabulary": (
        gpt,
        lambda y: with_value(y, VOCABULARY),
        "wanted 0 <= target < 64",
    ),
    "an ignored target that the loss was not told of": (
        gpt,
        lambda y: with_value(y, -1),
        "ignore_index=-1.*, or -100 for them",
    ),
    "targets that are floats": (gpt, lambda y: y.astype("float64"), "float64"),
    "targets of other sequences": (gpt, lambda y: y[:, :-1], r"\(4, 11\)|\(2, 11\)"),
    "fewer targets than samples": (gpt, lambda y: y[:-1], "same number of samples"),
    "a class beyond the last": (
        classification,
        lambda y: numpy.append(y[:-1], CLASSES),
        "wanted 0 <= target < 3",
    ),
    "classes that are floats": (classification, lambda y: y.astype("float32"), "float32"),
    "classes that are bool": (classification, lambda y: y > 0, "bool"),
    "classes with a dim too many": (classification, lambda y: y[:, None], "shape|targets"),
    "targets of another width": (regression, lambda y: y[:, :1], "wanted equal shapes|wanted"),
    "targets that are complex": (regression, lambda y: y * 1j, "complex128"),
    "targets of which one is missing": (
        regression,
        lambda y: numpy.ma.masked_equal(y, y[-1, 1]),
        "y: 1 of 12 numbers are masked",
    ),
    "no targets": (regression, lambda y: y[:, :0], "shape"),
}
ACTS = {
    "train": lambda m, x, y: m.train(x, y),
    "evaluate": lambda m, x, y: m.evaluate(x, y),
    "compute_gradients": lambda m, x, y: m.compute_gradients(x, y),
    "predict": lambda m, x, y: m.predict(x),
}


def refused_on_all_ranks(mesh, model, act, batches, match, **settings):
    """The last rank passes another batch than the first; all raise, and then all train on the
    first.
    """
    pipeline, tensor, data = mesh

    def run(backend):
        config = sk.ShardingConfiguration(backend, minimum_parameter_group_size=16, **settings)
        sharded = sk.HybridShardedModel(model(), config, pipeline, tensor, data)
        before = sharded.gather_full_parameters()
        with pytest.raises(sk.ShapeError, match=match) as caught:
            act(sharded, *batches[backend.rank == backend.world_size - 1])
        assert (sharded.gather_full_parameters() == before).all() and sharded.step_number == 0
        if sharded.sharding_configuration.auto_synchronize_gradients:
            assert numpy.isfinite(sharded.train(*batches[0])) and sharded.step_number == 1
        return str(caught.value)

    texts = sk.run_ranks(pipeline * tensor * data, run, timeout=500)
    assert len(set(texts)) == 1


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("what", WRONG_X)
def test_inputs_that_are_wrong_on_one_rank_are_refused_on_all(what, act, mesh):
    model, spoil, match = WRONG_X[what]
    x, y = good(model)
    if act == "predict" and "nothing" in what:
        pytest.skip("a prediction of nothing is nothing")
    refused_on_all_ranks(MESHES[mesh], model, ACTS[act], [(x, y), (spoil(x), y)], match)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("act", ["train", "evaluate", "compute_gradients"])
@pytest.mark.parametrize("what", WRONG_Y)
def test_targets_that_are_wrong_on_one_rank_are_refused_on_all(what, act, mesh):
    model, spoil, match = WRONG_Y[what]
    x, y = good(model)
    refused_on_all_ranks(MESHES[mesh], model, ACTS[act], [(x, y), (x, spoil(y))], match)


def test_a_wrong_batch_is_refused_on_all_ranks_where_gradients_are_accumulated():
    x, y = good(gpt)
    refused_on_all_ranks(
        (1, 1, 2),
        gpt,
        ACTS["train"],
        [(x, y), (with_value(x, 99), y)],
        "wanted 0 <= id < 64",
        auto_synchronize_gradients=False,
    )


def test_a_sequence_that_tensor_ranks_do_not_divide_is_refused_on_all_ranks_before_it_is_computed():
    x, y = good(gpt)
    refused_on_all_ranks(
        (1, 2, 2),
        gpt,
        ACTS["train"],
        [(x, y), (x[:, 1:], y[:, 1:])],
        "sequence parallelism",
        sequence_parallel=True,
    )


class Scaled(sk.nn.Module):
    """A model of one's own that says nothing about its input beside its blocks."""

    def __init__(self):
        self.first = sk.nn.Linear(FEATURES, CLASSES)
        self.loss = CrossEntropy()

    def forward(self, x):
        return self.first(x)

    def blocks(self):
        return [("first", self.first)]


@pytest.mark.parametrize("act", ACTS)
def test_the_first_block_of_a_users_module_says_what_it_takes(act):
    x, y = good(classification)
    x = x.astype("float32")
    refused_on_all_ranks((1, 1, 2), Scaled, ACTS[act], [(x, y), (x[:, 1:], y)], "4")


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(
    "model, shape",
    [(gpt, (0, SEQUENCE, VOCABULARY)), (regression, (0, CLASSES))],
    ids=["GPT", "MLP"],
)
def test_a_prediction_for_no_samples_is_empty(model, shape, mesh):
    pipeline, tensor, data = MESHES[mesh]

    def run(backend):
        config = sk.ShardingConfiguration(backend, minimum_parameter_group_size=16)
        sharded = sk.HybridShardedModel(model(), config, pipeline, tensor, data)
        x, _ = good(model)
        is_empty = sharded.mesh.coordinates.data == 0
        return sharded.predict(x[:0] if is_empty else x).shape == (
            shape if is_empty else (SAMPLES, *shape[1:])
        )

    assert all(sk.run_ranks(pipeline * tensor * data, run, timeout=500))


def test_targets_of_minus_100_do_not_count_and_the_others_weigh_the_same_on_any_rank():
    def run(backend):
        model = sk.FSDPModel(gpt(), sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.1)))
        x, y = good(gpt)
        whole_y = numpy.concatenate([numpy.full_like(y, -100), y])
        whole_y[0, 0] = 1  # the first half counts for one token alone
        part = sk.split_batch(model.mesh, numpy.concatenate([x, x]), whole_y)
        return model.train(*part), model.evaluate(*part)

    alone, two = sk.run_ranks(1, run)[0], sk.run_ranks(2, run)[0]
    assert two == pytest.approx(alone, rel=1e-6) and numpy.isfinite(alone).all()


def test_numbers_of_any_real_dtype_are_taken_as_features():
    def run(backend):
        model = sk.DDPModel(
            classification(), sk.ShardingConfiguration(backend, minimum_parameter_group_size=16)
        )
        x, y = good(classification)
        return [
            model.train(x.astype(dtype), y.astype(kind))
            for dtype in ("float64", "float16", "int8", "bool")
            for kind in ("int64", "uint8")
        ]

    assert numpy.isfinite(sk.run_ranks(2, run)).all()


def test_samples_of_an_optimizer_are_checked_before_the_first_step():
    def run(backend):
        optimizer = sk.FSDPOptimizer(
            sk.SGD(),
            sk.ShardingConfiguration(backend, minimum_parameter_group_size=16),
            model=classification(),
        )
        x, y = good(classification)
        before = optimizer.model.gather_full_parameters()
        late = numpy.append(y[:-1], CLASSES)
        with pytest.raises(sk.ShapeError, match="y_validation.*wanted 0 <= target < 3"):
            optimizer.optimize(sk.OptimizationInputData(x, y, x, late, epochs=1, batch_size=2))
        assert (optimizer.model.gather_full_parameters() == before).all()

    sk.run_ranks(2, run, timeout=500)


# ---- nothing that counts -------------------------------------------------------------------------


def ignoring(backend, **settings):
    return sk.FSDPModel(
        gpt(), sk.ShardingConfiguration(backend, loss=CrossEntropy(ignore_index=-100), **settings)
    )


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_batch_in_which_no_label_counts_is_a_step_that_is_skipped(clip):
    def run(backend):
        model = ignoring(backend, max_gradient_norm=clip, optimizer=sk.AdamW(lr=1e-2))
        x, y = good(gpt)
        before = model.gather_full_parameters()
        loss = model.train(x, numpy.full_like(y, -100))
        assert numpy.isnan(loss) and (model.gather_full_parameters() == before).all()
        assert model.step_number == 1 and skips_of(model).total == 1
        text = str(skips_of(model).last)
        assert numpy.isfinite(
            model.train(x, y if backend.rank else numpy.full_like(y, -100))
        )  # one rank has some
        assert not (model.gather_full_parameters() == before).all()
        return text

    assert sk.run_ranks(2, run) == ["step 1 skipped: no label of the global batch counts"] * 2


def test_the_loss_scale_stays_when_no_label_counts():
    def run(backend):
        model = ignoring(backend, compute_dtype="float16")
        x, y = good(gpt)
        model.train(x, numpy.full_like(y, -100))
        return model.get_model_metadata()["loss_scale"]

    assert sk.run_ranks(2, run) == [1024.0] * 2


def test_where_no_label_counts_evaluation_is_nan_and_a_step_of_accumulated_gradients_is_skipped():
    def run(backend):
        model = ignoring(backend, auto_synchronize_gradients=False)
        x, y = good(gpt)
        nothing = numpy.full_like(y, -100)
        assert numpy.isnan(model.evaluate(x, nothing)) and numpy.isnan(model.train(x, nothing))
        before = model.gather_full_parameters()
        model.synchronize_gradients()
        model.step()
        assert (model.gather_full_parameters() == before).all()
        text = str(skips_of(model).last)
        model.train(x, nothing)
        model.train(x, y)  # now some count
        model.synchronize_gradients()
        model.step()
        assert skips_of(model).last is None
        return text

    assert sk.run_ranks(2, run) == ["step 1 skipped: no label of the global batch counts"] * 2


def test_gradients_of_a_batch_in_which_no_label_counts_are_refused():
    def run(backend):
        model = ignoring(backend)
        x, y = good(gpt)
        with pytest.raises(sk.ShapeError, match="no label of the global batch counts"):
            model.compute_gradients(x, numpy.full_like(y, -100))
        return numpy.isfinite(model.train(x, y))

    assert all(sk.run_ranks(2, run))


# ---- what only a block finds ---------------------------------------------------------------------


def raise_in(model, block_number, error, is_due):
    """From now on this block raises the error where is_due() is true."""
    block = model.blocks()[block_number][1]
    forward = block.forward

    def spoilt(x, *arguments):
        if is_due():
            raise error
        return forward(x, *arguments)

    block.forward = spoilt


@pytest.mark.parametrize(
    "error",
    [ValueError("an odd number"), KeyError("a word"), sk.ShapeError("no shape for me")],
    ids=repr,
)
@pytest.mark.parametrize("pipeline, policy", [(1, "ddp"), (1, "fsdp"), (2, "zero1")])
@pytest.mark.parametrize("act", ["train", "compute_gradients"])
def test_what_a_block_raises_on_one_rank_is_raised_on_all_and_changes_nothing(
    act, pipeline, policy, error
):
    def run(backend):
        model = gpt()
        config = sk.ShardingConfiguration(
            backend, minimum_parameter_group_size=16, micro_batches=2, optimizer=sk.AdamW()
        )
        sharded = sk.HybridShardedModel(model, config, pipeline, policy=policy)
        odd = backend.world_size - 1
        raise_in(model, -2, error, lambda: backend.rank == odd and sharded.step_number == 1)
        sharded.train(*good(gpt))
        before = sharded.gather_full_parameters()
        is_told = (type(error), sk.ShardkitError)
        with pytest.raises(is_told, match=str(error)):
            ACTS[act](sharded, *good(gpt))
        assert (sharded.gather_full_parameters() == before).all() and sharded.step_number == 1
        training_state_of(sharded).step_number = 5  # past the error
        return numpy.isfinite(sharded.train(*good(gpt)))

    assert all(sk.run_ranks(2 * pipeline, run, timeout=500))
