"""Trees of arrays as x, as y, between blocks and as predictions, on ranks that are threads, against
a serial run in float64.
"""

import numpy
import pytest
from builders import STRATEGIES, full_gradient, sha256
from tree_models import FORMS, SAMPLES, Answer, Trees, UNetOfBlocks, distance, tree_batch

import shardkit as sk
from shardkit import Metric, ShapeError, nn
from shardkit.nn import as_tensors
from shardkit.testing.base import leaves, map_tree, rows, structure
from shardkit.testing.cli import Given
from shardkit.testing.nn import exact_lanes, exact_value
from shardkit.testing.schedule import ORDERS
from shardkit.testing.task import ArraySamples
from shardkit.testing.train import TrainedRun, bench_run, evaluate, predict, train_run

RTOL = 1e-10
RNG = numpy.random.default_rng(0)


def serial_gradient(form="dict", **changes):
    """The whole gradient of the batch of step 0, by one backward of the plain model."""
    model = Trees(form, **changes)
    x, y = tree_batch(form)
    distance(model(as_tensors(x)), y).backward()
    return numpy.concatenate([parameter.grad.ravel() for parameter in model.parameters()])


def configured(backend, **settings):
    settings = {"optimizer": sk.AdamW(lr=1e-2), "minimum_parameter_group_size": 1, **settings}
    return sk.ShardingConfiguration(backend, **settings)


def hybrid(backend, stages, model=None, **settings):
    settings = {"max_gradient_norm": 1.0, "micro_batches": 3, **settings}
    model = Trees(steps=4) if model is None else model
    return sk.HybridShardedModel(model, configured(backend, **settings), stages)


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_gradients_equal_the_serial_ones_under_every_strategy(strategy, num_ranks):
    """With recomputation on two and four ranks, and every container in turn."""
    form = list(FORMS)[(num_ranks + list(STRATEGIES).index(strategy)) % len(FORMS)]

    def run(backend):
        again = num_ranks % 2 == 0
        num = 2 if num_ranks < 3 else 1
        config = configured(backend, micro_batches=num, activation_checkpointing=again)
        model = STRATEGIES[strategy](Trees(form), config)
        return full_gradient(model, *sk.split_batch(model.mesh, *tree_batch(form)))

    for gradient in sk.run_ranks(num_ranks, run):
        numpy.testing.assert_allclose(gradient, serial_gradient(form), rtol=RTOL, atol=1e-14)


@pytest.mark.parametrize("schedule", ORDERS)
@pytest.mark.thorough(but=3)
def test_a_skip_across_stages_has_the_bits_of_one_rank_under_every_schedule(schedule):
    """float32, three steps with clipping; the stages in between only hand the skip on."""

    def run(stages):
        def on_rank(backend):
            settings = {"schedule": schedule} if stages > 1 else {}
            if stages > 1 and ORDERS[schedule].stages_per_rank > 1:
                settings["virtual_stages"] = 2
            model = hybrid(backend, stages, Trees(steps=4, dtype="float32"), **settings)
            losses = [
                model.train(*sk.split_batch(model.mesh, *tree_batch(step=step)))
                for step in range(3)
            ]
            return sha256(model.gather_full_parameters()), tuple(losses)

        return set(sk.run_ranks(stages, on_rank))

    assert len(run(1) | run(2) | run(3)) == 1


@pytest.mark.parametrize("form", FORMS)
def test_every_container_crosses_stages_and_replicas(form):
    """Pipeline 2 x data 2, gradients summed over stages; with recomputation for tuples."""

    def run(backend):
        settings = {"max_gradient_norm": None, "optimizer": sk.SGD(lr=1.0)}
        again = form == "tuple"
        model = hybrid(backend, 2, Trees(form), activation_checkpointing=again, **settings)
        before = model.gather_full_parameters()
        model.train(*sk.split_batch(model.mesh, *tree_batch(form)))
        return before - model.gather_full_parameters()

    expected = serial_gradient(form)
    for step in sk.run_ranks(4, run):
        numpy.testing.assert_allclose(step, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("policy", ["ddp", "fsdp"])
def test_a_model_without_blocks_takes_and_gives_trees(policy):
    def run(backend):
        model = STRATEGIES[{"ddp": "DDP", "fsdp": "FSDP"}[policy]](
            Trees(has_blocks=False), configured(backend)
        )
        return full_gradient(model, *sk.split_batch(model.mesh, *tree_batch()))

    for gradient in sk.run_ranks(2, run):
        numpy.testing.assert_allclose(gradient, serial_gradient(), rtol=RTOL, atol=1e-14)


@pytest.mark.parametrize("frozen", ["enter.*", "steps.1.*", "steps.*"])
@pytest.mark.parametrize("stages", [1, 3])
def test_skips_pass_frozen_blocks(frozen, stages):
    """A skip that begins in a frozen block has no gradient to bring back; others pass through."""

    def run(backend):
        config = {"frozen": [frozen], "max_gradient_norm": None, "optimizer": sk.SGD(lr=1.0)}
        model = hybrid(backend, stages, Trees(), **config)
        before = model.gather_full_parameters()
        model.train(*sk.split_batch(model.mesh, *tree_batch()))
        return before - model.gather_full_parameters()

    model = Trees()
    model.freeze(frozen)
    x, y = tree_batch()
    distance(model(as_tensors(x)), y).backward()
    expected = [
        (numpy.zeros(p.shape) if p.grad is None else p.grad).ravel() for p in model.parameters()
    ]
    for step in sk.run_ranks(stages, run):
        numpy.testing.assert_allclose(step, numpy.concatenate(expected), rtol=1e-9, atol=1e-13)


def test_a_leaf_that_nobody_uses_has_a_gradient_of_zeros_on_its_way_back():
    """Its stage gets zeros for it, whether it is computed with there or not."""

    class Unused(Trees):
        def __init__(self):
            super().__init__(steps=2)
            self.loss = lambda prediction, y: nn.ops.mean(prediction.parts[1] ** 2)

    def run(stages):
        def on_rank(backend):
            model = hybrid(backend, stages, Unused())
            model.train(*sk.split_batch(model.mesh, *tree_batch()))
            return sha256(model.gather_full_parameters())

        return set(sk.run_ranks(stages, on_rank))

    assert len(run(1) | run(2)) == 1


# ---- without learning ----------------------------------------------------------------------------


@pytest.mark.parametrize("num_ranks, stages", [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_predictions_and_losses_are_those_of_the_plain_model(num_ranks, stages):
    x, y = tree_batch("dataclass")
    plain = Trees("dataclass")
    whole = plain.predict(x)
    assert isinstance(whole, Answer) and all(type(a) is numpy.ndarray for a in leaves(whole))

    def run(backend):
        model = hybrid(backend, stages, Trees("dataclass"))
        own_x, own_y = sk.split_batch(model.mesh, x, y)
        return model.mesh.coordinates.data, model.predict(own_x), model.evaluate(own_x, own_y)

    for data, prediction, loss in sk.run_ranks(num_ranks, run):
        assert structure(prediction) == structure(whole)
        parts = num_ranks // stages
        for mine, all_of_it in zip(leaves(prediction), leaves(whole), strict=True):
            numpy.testing.assert_allclose(mine, numpy.array_split(all_of_it, parts)[data], RTOL)
        assert loss == pytest.approx(float(distance(as_tensors(whole), y).item()), rel=RTOL)


class Spread(Metric):
    """The sum of the last leaf of predictions and of the first of y, over the samples."""

    def sums(self, prediction, y):
        total = float(prediction.parts[0].sum() + y["mean"].sum())
        return numpy.array([*exact_lanes(total), len(y["mean"])])

    def value(self, sums):
        return exact_value(sums[:-1]) / sums[-1]


def test_metrics_get_trees():
    x, y = tree_batch()
    wanted = (Trees(steps=4).predict(x).parts[0].sum() + y["mean"].sum()) / SAMPLES

    def run(backend):
        model = hybrid(backend, 2)
        model.evaluate(*sk.split_batch(model.mesh, x, y), {"spread": Spread()})
        return model.get_model_metadata()["evaluation"]["metrics"]["spread"]

    assert sk.run_ranks(4, run) == [pytest.approx(wanted)] * 4


def test_no_samples_have_an_empty_prediction_of_the_same_structure():
    def run(backend):
        model = hybrid(backend, 2)
        return model.predict(map_tree(lambda leaf: leaf[:0], tree_batch()[0]))

    for prediction in sk.run_ranks(2, run):
        assert [leaf.shape for leaf in leaves(prediction)] == [(0, 2), (0, 2), (0, 5)]


def test_float64_is_cast_once_at_the_door_of_a_float32_model():
    """It has the bits of a batch that was cast before, and no block sees float64; integers stay."""
    seen = []

    class Seeing(Trees):
        def forward(self, x):
            seen.append([leaf.dtype.name for leaf in leaves(x)])
            return super().forward(x)

    def run(dtype):
        def on_rank(backend):
            model = sk.FSDPModel(
                Seeing(dtype="float32", has_blocks=False), configured(backend, micro_batches=2)
            )
            x, y = sk.split_batch(model.mesh, *tree_batch(dtype=dtype))
            loss = model.train(x, map_tree(lambda leaf: leaf.astype("float32"), y))
            prediction = model.predict(x)
            assert {leaf.dtype.name for leaf in leaves(prediction)} == {"float32"}
            return sha256(model.gather_full_parameters()), loss, sha256(prediction.mean)

        return sk.run_ranks(2, on_rank)

    assert run("float64") == run("float32")
    assert {tuple(each) for each in seen} == {("float32", "float32", "int64")}


def test_a_wrong_loss_is_named_where_predictions_are_trees():
    class Usual(Trees):
        def __init__(self):
            super().__init__()
            self.loss = nn.MeanSquaredError()

    def run(backend):
        model = hybrid(backend, 2, Usual())
        x, y = sk.split_batch(model.mesh, *tree_batch())
        texts = []
        for target in (y, y["mean"]):
            with pytest.raises(ShapeError, match="wants .*one array.*but got") as refused:
                model.train(x, target)
            texts.append(str(refused.value))
        return texts

    assert len({tuple(texts) for texts in sk.run_ranks(2, run)}) == 1


# ---- wrong batches -------------------------------------------------------------------------------


def ragged(x):
    return {**x, "b": x["b"][:-1]}


WRONG = {  # what is wrong on one rank: (x of it, a part of what all ranks raise)
    "leaves of other lengths": (ragged, r"x\.a has shape \(6, 3\), x\.b has shape \(5,\)"),
    "another key": (lambda x: {"a": x["a"], "b": x["b"], "z": x["c"]}, r"\{a: \*, b: \*, z: \*\}"),
    "another container": (lambda x: tuple(x.values()), r"\(\*, \*, \*\)"),
    "a leaf less": (lambda x: {"a": x["a"], "b": x["b"]}, r"x = \{a: \*, b: \*\}"),
    "an array": (lambda x: x["a"], r"x = \*"),
    "no array": (lambda x: {"a": None}, "without an array"),
    "a set": (lambda x: {"a": {1.0, 2.0}}, "has no order"),
    "keys that are numbers": (lambda x: dict(enumerate(x.values())), "wanted strings"),
    "words": (lambda x: {**x, "b": x["b"].astype(str)}, "x.b"),
    "a number": (lambda x: {**x, "b": 1.0}, "same number of samples|single number"),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.thorough(but=4)
def test_a_wrong_tree_on_one_rank_is_an_error_on_all_ranks_that_go_on(what, stages):
    spoil, text = WRONG[what]

    def run(backend):
        model = hybrid(backend, stages)
        x, y = sk.split_batch(model.mesh, *tree_batch(samples=6 * 2 // stages))
        bad = spoil(x) if backend.rank == 1 else x
        for call in (lambda: model.train(bad, y), lambda: model.predict(bad)):
            with pytest.raises(ShapeError, match=text if stages == 1 else None):
                call()
        return model.train(x, y)

    assert len(set(sk.run_ranks(2, run))) == 1


def test_lengths_of_all_leaves_of_x_and_y_are_compared():
    def run(backend):
        model = hybrid(backend, 1)
        x, y = tree_batch()
        short = {**y, "parts": (y["parts"][0][:-3],)}
        with pytest.raises(ShapeError, match=r"y\.parts\[0\] has shape \(9, 2\)"):
            model.train(x, short)
        with pytest.raises(ShapeError, match="12 and 9"):
            sk.split_batch(model.mesh, x, short)

    sk.run_ranks(1, run)


@pytest.mark.parametrize("stages", [1, 2])
def test_batches_of_other_structures_follow_each_other(stages):
    """What the model makes of them is its own affair: forms are told anew."""

    class Any(Trees):
        def __init__(self):
            super().__init__()
            self.enter = Opening()
            self.finish(0)

    class Opening(nn.Module):
        def __init__(self):
            self.usual = Trees().enter

        def forward(self, x):
            if isinstance(x, tuple):
                x = dict(zip("abc", x))
            state = self.usual({key: x[key] for key in "abc"})
            return state if "more" not in x else {**state, "b": [state["b"][0] + x["more"], None]}

    def run(backend):
        model = hybrid(backend, stages, Any(), max_gradient_norm=None)
        x, y = sk.split_batch(model.mesh, *tree_batch())
        more = {**x, "more": numpy.ones((SAMPLES, 5))}
        return [model.train(x, y) for x in (x, tuple(x.values()), more, x, more)]

    losses = sk.run_ranks(stages, run)
    assert losses[0] == sk.run_ranks(1, lambda backend: run_alone(backend, Any()))[0]


def run_alone(backend, model):
    model = hybrid(backend, 1, model, max_gradient_norm=None)
    x, y = tree_batch()
    more = {**x, "more": numpy.ones((SAMPLES, 5))}
    return [model.train(x, y) for x in (x, tuple(x.values()), more, x, more)]


@pytest.mark.parametrize("where", ["enter", "leave"])
def test_a_stage_that_runs_out_of_memory_sends_zeros_of_the_same_form(where):
    """In the third step, when forms are known: all ranks raise, and go on with the same bits."""

    def run(is_short):
        def on_rank(backend):
            model = hybrid(backend, 3)
            block = getattr(model.wrapped_model, where)
            forward = block.forward
            batches = [sk.split_batch(model.mesh, *tree_batch(step=step)) for step in range(4)]
            for step, batch in enumerate(batches):
                if is_short and step == 2:
                    block.forward = _out_of_memory
                    with pytest.raises(sk.OutOfMemoryError):
                        model.train(*batch)
                    block.forward = forward
                model.train(*batch)
            return sha256(model.gather_full_parameters())

        return set(sk.run_ranks(3, on_rank))

    assert len(run(True) | run(False)) == 1


def _out_of_memory(x):
    raise MemoryError("a large array")


def test_what_a_block_may_not_return_is_named_on_all_ranks():
    class Wrong(nn.Module):
        def __init__(self, made):
            self.weight = nn.Parameter((5, 5), nn.init.Fill(0.0), "float64")
            self.made = made

        def forward(self, x):
            return {**x, "more": self.made(self)}

    def run(backend):
        for made, text in [
            (lambda block: block.weight, "returned its parameter"),
            (lambda block: "text", "returned a str"),
        ]:
            model = Trees()
            model.steps = nn.ModuleList([*model.steps, Wrong(made)])
            sharded = hybrid(backend, 2, model.finish(1))
            with pytest.raises(Exception, match=text):
                sharded.train(*sk.split_batch(sharded.mesh, *tree_batch()))

    sk.run_ranks(2, run)


# ---- models of the shelf -------------------------------------------------------------------------


GRAPHS = (  # nodes, senders, receivers, of six graphs with as many edges
    RNG.standard_normal((6, 4, 2)),
    RNG.integers(0, 4, (6, 5)),
    RNG.integers(0, 4, (6, 5)),
)


@pytest.mark.parametrize("edges", [5, 0])
@pytest.mark.parametrize("num_ranks, stages", [(1, 1), (2, 1), (3, 3), (4, 2)])
def test_graphs_that_bring_their_edges_train_over_replicas_and_stages(num_ranks, stages, edges):
    """Message passing on (nodes, senders, receivers), with and without edges: gradients."""
    graphs = GRAPHS[0], *(ends[:, :edges] for ends in GRAPHS[1:])
    y = RNG.standard_normal((6, 4, 1))

    def make():
        return sk.models.MessagePassing(2, 1, width=4, steps=2, dtype="float64")

    plain = make()
    plain.loss(plain(as_tensors(graphs)), y).backward()
    expected = numpy.concatenate(
        [numpy.zeros(p.size) if p.grad is None else p.grad.ravel() for p in plain.parameters()]
    )

    def run(backend):
        settings = {"max_gradient_norm": None, "optimizer": sk.SGD(lr=1.0), "micro_batches": 3}
        if backend.world_size == 4:
            settings["micro_batches"] = 1
        model = hybrid(backend, stages, make(), **settings)
        before = model.gather_full_parameters()
        model.train(*sk.split_batch(model.mesh, graphs, y))
        return before - model.gather_full_parameters()

    for step in sk.run_ranks(num_ranks, run):
        numpy.testing.assert_allclose(step, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_a_unet_of_blocks_in_a_pipeline_is_the_unet(schedule):
    """Its skips are a tuple that grows on the way down, and shrinks on the way up."""
    x, y = RNG.standard_normal((2, 6, 1, 4, 4))
    plain = sk.models.UNet(1, 1, width=2, depth=2, groups=1, dtype="float64")
    same = plain.named_parameters()
    names = {name: UNetOfBlocks.name_in_unet(name) for name in UNetOfBlocks().named_parameters()}
    for name, parameter in UNetOfBlocks().finish(0).named_parameters().items():
        same[names[name]].array[...] = parameter.array
    plain.loss(plain(nn.Tensor(x)), y).backward()
    wanted = numpy.concatenate([(same[n].array - same[n].grad).ravel() for n in names.values()])

    def run(backend):
        settings = {"virtual_stages": 2} if schedule == "interleaved" else {}
        settings |= {"max_gradient_norm": None, "optimizer": sk.SGD(lr=1.0)}
        model = hybrid(backend, 2, UNetOfBlocks(), schedule=schedule, **settings)
        model.train(x, y)
        return model.gather_full_parameters()

    for found in sk.run_ranks(2, run):
        numpy.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


# ---- runs ----------------------------------------------------------------------------------------


def test_optimize_takes_trees_and_goes_the_way_of_training_by_hand():
    """Three epochs of two batches in their order, a validation set that divides unevenly."""
    x, y = tree_batch("dataclass")
    given = sk.OptimizationInputData(
        x, y, rows(x, slice(5)), rows(y, slice(5)), epochs=3, batch_size=6, shuffle_seed=None
    )

    def run(backend):
        by_hand = sk.DDPModel(Trees("dataclass"), configured(backend))
        for start in (0, 6) * 3:
            batch = [rows(tree, slice(start, start + 6)) for tree in (x, y)]
            by_hand.train(*sk.split_batch(by_hand.mesh, *batch))
        rule = sk.AdamW(lr=1e-2)
        result = sk.FSDPOptimizer(rule, configured(backend), model=Trees("dataclass")).optimize(
            given
        )
        found = result.best_solution.gather_full_parameters()
        loss = float(distance(as_tensors(result.best_solution.predict(x)), y).item())
        return (found == by_hand.gather_full_parameters()).all(), result.best_fitness_score, loss

    for is_same, fitness, _ in sk.run_ranks(2, run):
        assert is_same and fitness > 0


def test_samples_of_arrays_may_be_trees():
    x, y = tree_batch("named tuple")
    samples = ArraySamples(x, y)
    own_x, own_y = samples.read(numpy.array([3, 1, 3]))
    assert len(samples) == SAMPLES and structure(own_x) == structure(x)
    numpy.testing.assert_array_equal(own_x.second, x.second[[3, 1, 3]])
    numpy.testing.assert_array_equal(own_y["parts"][0], y["parts"][0][[3, 1, 3]])
    assert samples.fingerprint() != ArraySamples(tuple(x), y).fingerprint()
    with pytest.raises(sk.ConfigurationError, match="x.third has 11 rows"):
        ArraySamples(x._replace(third=x.third[:-1]), y)


OWN_TASK = """
import numpy
import shardkit as sk
from tree_models import Trees, tree_batch
from shardkit.testing.task import ArraySamples


class Fields(sk.Task):
    class Settings:
        steps: int = 2

    def make_model(self):
        return Trees("dict", self.settings.task.steps, "float32")

    def samples(self, part):
        return ArraySamples(*tree_batch("dict", samples=24 if part == "training" else 7))
"""


@pytest.mark.thorough
def test_a_task_of_its_own_may_have_trees(tmp_path):
    """The command trains it in a pipeline, evaluates, and writes each leaf of its predictions."""
    file = tmp_path / "own_fields.py"
    file.write_text(OWN_TASK)
    settings = {
        "run.task": f"{file}:Fields",
        "run.steps": 3,
        "batch.sequences": 8,
        "batch.micro_batch": 2,
        "parallel.minimum_parameter_group_size": 1,
        "parallel.stage_balance": "measured",
    }

    def trained(num_ranks, folder, **mesh):
        """What ranks show of a run in this folder: loss, figures and predictions."""
        given = {**settings, "run.folder": tmp_path / folder, **mesh}
        texts = [f"--{name}={value}" for name, value in given.items()]
        configuration = Given.read(None, texts).settings()

        def on_rank(backend):
            train_run(configuration, backend)
            run = TrainedRun(tmp_path / folder, {}, backend)
            samples = run.samples(None)
            figures = evaluate(run, samples)
            shapes = predict(run, samples, tmp_path / f"{folder}.h5")
            run.close()
            if num_ranks == 1:
                bench_run(configuration, backend, steps=1)
            return figures.loss, shapes

        return sk.run_ranks(num_ranks, on_rank)

    (loss, shapes), *_ = trained(1, "alone")
    assert shapes == {
        "prediction.mean": (7, 2),
        "prediction.parts[0]": (7, 2),
        "prediction.parts[1]": (7, 5),
    }
    assert trained(2, "piped", **{"mesh.pipeline": 2}) == [(loss, shapes)] * 2


@pytest.mark.parametrize(
    "returned, named",
    [
        (lambda y: None, "a NoneType"),
        (lambda y: 5, "a int"),
        (lambda y: {"y": y, "count": 3}, "a int, in {y: \\*, count: \\*}"),
        (lambda y: {"y": y, "shape": y.shape}, "a int"),
        (lambda y: (y, "name"), "a str"),
        (lambda y: (y for _ in range(2)), "a generator"),
    ],
)
def test_what_a_block_returns_beside_arrays_is_named(returned, named):
    class Returning(nn.Module):
        def __init__(self):
            self.map = nn.Linear(3, 3)

        def forward(self, x):
            return returned(self.map(x))

    def run(backend):
        config = sk.ShardingConfiguration(backend, loss=lambda found, y: nn.ops.mean(found["y"]))
        model = sk.DDPModel(Returning(), config)
        x = numpy.ones((2, 3), "float32")
        for call in (lambda: model.train(x, x), lambda: model.predict(x)):
            with pytest.raises(TypeError, match=named):
                call()

    sk.run_ranks(1, run)
